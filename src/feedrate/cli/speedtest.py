# SPDX-License-Identifier: Apache-2.0
"""Train a standard model for two minutes: is it the disk, the CPU, the copy or the GPU?

Trains DenseNet-121 (or another standard model) on the images of DATASET, or on images that it
makes, as 'feedrate doctor' runs a script of your own: torch's DataLoader with Pillow for a
folder, feedrate.Loader for a pack. It says what limits the training, what each remedy would
give, what to type next, and how long the CPU and the device worked in total.

Images that it makes lie in a temporary folder (TMPDIR), which is removed at the end.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_workers, positive
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt, say


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dataset", metavar="DATASET", nargs="?",
        help="a folder of images, or a pack (default: images made here)")
    add("--model", default="densenet121", metavar="NAME",
        help="resnet18, resnet50, densenet121 (the default) or vit_b_16")
    add("--batch-size", type=positive, metavar="N", help="images per batch (default: 128; on a CPU 8)")
    add("--size", type=positive, metavar="N", help="side of the images in pixels (default: 224; on a CPU 64)")
    add("--quick", action="store_true", help="fewer images and steps: about a minute")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: a GPU where torch finds one)")
    add_workers(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.lab.loader import require_torch

    require_torch("the speed test trains a model, so it")
    from feedrate.demo.speedtest import SpeedOptions, run_speedtest
    from feedrate.report.bench import draw_speedtest

    options = SpeedOptions(
        arguments.model, arguments.batch_size, arguments.size, arguments.device, arguments.workers,
        arguments.quick,
    )  # fmt: skip
    with ended_like_an_interrupt():
        result = run_speedtest(
            arguments.dataset, options, say=say, watch=lambda text: say(f"feedrate doctor: {text}")
        )
    # Where the user ended it, what was seen is drawn all the same.
    code = result.diagnosis.run.exit_code or 0
    return emit(arguments, "speedtest", result, draw_speedtest, code=code)
