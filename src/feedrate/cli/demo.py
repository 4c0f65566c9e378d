# SPDX-License-Identifier: Apache-2.0
"""See what feedrate does, on images that it makes itself, in about a minute.

Makes images that are as hard to decode as photographs, trains a small network on the
files with torch's DataLoader and Pillow, packs the files, trains the same network on
the pack with feedrate.Loader, and compares: images per second, time spent waiting for
data, CPU time, memory, accuracy on held-out images. What it writes goes into one
folder, which it names, and which it removes at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.arguments import positive
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--images", type=positive, metavar="N", default=1200, help="images to train on (default: 1200)")
    add("--epochs", type=positive, metavar="N", default=5,
        help="timed epochs; one more is not timed (default: 5)")  # fmt: skip
    add("--folder", type=Path, metavar="DIR", help="where to write (default: a new temporary folder)")
    add("--keep", action="store_true", help="keep the images and the pack")
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.demo.run import DemoOptions, run_demo
    from feedrate.report.bench import draw_demo

    options = DemoOptions(arguments.images, arguments.epochs, arguments.folder, arguments.keep)
    with ended_like_an_interrupt():
        result = run_demo(options, say=say)
    return emit(arguments, "demo", result, draw_demo)
