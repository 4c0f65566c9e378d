# SPDX-License-Identifier: Apache-2.0
"""Train a standard model for two minutes: is it the disk, the CPU, the copy or the GPU?

Trains DenseNet-121 (or another standard model) on some images of DATASET, or on images that it
makes, with torch's DataLoader and Pillow and with feedrate.Loader, in turn. It says how many
images per second each trains, where the time of a step goes, what the device and each loader
could do alone, which of them is the limit, and what to type next.

The images are copied and packed in a temporary folder (TMPDIR), which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from feedrate.cli.arguments import add_workers, number, positive
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt
from feedrate.errors import SourceError, StorageError

if TYPE_CHECKING:
    from feedrate.bench.results import Subset

_IMAGES, _QUICK_IMAGES = 2000, 600
_MOST_BYTES, _QUICK_BYTES = 400_000_000, 100_000_000
_MADE_PER_CORE = 100  # images that a core makes in a second
_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_READING = 0.08  # of the time, for listing the dataset, and again for reading


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dataset", metavar="DATASET", nargs="?",
        help="a folder of images, a pack, or archives of images (default: images made here)")
    add("--model", default="densenet121", metavar="NAME",
        help="resnet18, resnet50, densenet121 (the default) or vit_b_16")
    add("--batch-size", type=positive, metavar="N", help="images per batch (default: 128; on a CPU 8)")
    add("--size", type=positive, metavar="N",
        help="side of the images in pixels (default: 224; on a CPU what the time allows)")
    add("--seconds", type=number, metavar="S", help="for all of it (default: 110)")
    add("--quick", action="store_true", help="all of it in under a minute")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: a GPU where torch finds one)")
    add_workers(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    from feedrate.bench.loader import require_torch

    require_torch("the speed test trains a model, so it")
    from feedrate.bench.speedtest import QUICK_SECONDS, SECONDS, SpeedOptions, choose_device, run_speedtest
    from feedrate.packing.build.pack import pack
    from feedrate.packing.options import PackOptions
    from feedrate.report.progress import TimeBar
    from feedrate.report.speedtest import draw_speedtest

    seconds = arguments.seconds
    if seconds is None:
        seconds = QUICK_SECONDS if arguments.quick else SECONDS
    options = SpeedOptions(
        arguments.model,
        arguments.batch_size,
        arguments.size,
        seconds,
        arguments.device,
        arguments.workers,
    )
    choose_device(options.device)  # said before the work
    with ended_like_an_interrupt(), _temporary() as folder, TimeBar() as bar:
        files, packed = folder / "files", folder / "pack"
        bar.say(f"copying and packing some images in {folder} (removed at the end)")
        subset = _take_images(arguments, files, seconds)
        try:
            rejected = pack(files, packed, PackOptions()).rejected
        except SourceError as error:
            raise SourceError(f"no image of {arguments.dataset} can be decoded ({error})") from error
        for one in rejected:  # they would end the other loader
            (files / one.path).unlink()
        subset = replace(subset, images=subset.images - len(rejected))
        result = run_speedtest(
            str(files), str(packed), subset, options,
            source=arguments.dataset, started=started, watch=bar.update,
        )  # fmt: skip
    return emit(arguments, "speedtest", result, draw_speedtest)


@contextmanager
def _temporary() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="feedrate-speedtest-")
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary folder: {error.strerror or error}",
            hint="set TMPDIR to a folder that you may write to",
        ) from error
    with folder as name:
        # Else torch's optimizers leave an empty folder of their compiler's among the temporary files.
        before = os.environ.get(_TORCH_CACHE)
        os.environ.setdefault(_TORCH_CACHE, os.path.join(name, "torch"))
        try:
            yield Path(name)
        finally:
            if before is None:
                del os.environ[_TORCH_CACHE]


def _take_images(arguments: argparse.Namespace, files: Path, seconds: float) -> Subset:
    """Write some images of the dataset to `files`, or of our own."""
    from feedrate.bench.results import Subset
    from feedrate.bench.subset import SubsetOptions, check_room, take_subset
    from feedrate.lab.photographs import CLASSES, write_photographs
    from feedrate.machine.cpu import count_usable_cores

    images = _QUICK_IMAGES if arguments.quick else _IMAGES
    if arguments.dataset is not None:
        readers = arguments.workers or count_usable_cores()
        most_bytes = _QUICK_BYTES if arguments.quick else _MOST_BYTES
        return take_subset(
            arguments.dataset, files, SubsetOptions(images, most_bytes, _READING * seconds, readers)
        )
    images = max(len(CLASSES), min(images, int(_READING * seconds * _MADE_PER_CORE * count_usable_cores())))
    files.mkdir()
    check_room(files, images * 110_000)
    try:
        size_bytes = write_photographs(files, images, seed=0)
    except OSError as error:
        raise StorageError(
            f"cannot write to {files}: {error.strerror}", hint="set TMPDIR to a folder with more room"
        ) from error
    return Subset(images, len(CLASSES), size_bytes, images)
