# SPDX-License-Identifier: Apache-2.0
"""The demo, step by step. Each is said before it happens; what it writes is gone afterwards unless kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from feedrate.bench.loader import Contestant, Runner, Say, compare, run_rounds, sum_up
from feedrate.bench.results import BenchRun
from feedrate.demo.results import DemoResult
from feedrate.errors import AlreadyExists, StorageError, UsageError
from feedrate.lab.child import run_in_process
from feedrate.lab.loader import FILES, NAMES, PACK, FeedOptions, require_torch
from feedrate.lab.photographs import CLASSES, write_photographs
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.packing.build.pack import pack
from feedrate.packing.options import PackOptions
from feedrate.units import format_bytes, format_count, format_seconds

BATCH_SIZE = 64  # small, so that a few epochs on a thousand images are steps enough to learn something
BYTES_PER_IMAGE = 110_000
SEED = 0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    images: int = 1200
    epochs: int = 5
    folder: Path | None = None  # None: a new one where temporary files go
    keep: bool = False

    def __post_init__(self) -> None:
        if self.images < len(CLASSES):
            raise UsageError(
                f"--images must be at least {len(CLASSES)} (one of each class), got {self.images}"
            )
        if self.epochs < 1:
            raise UsageError(f"--epochs must be at least 1, got {self.epochs}")

    @property
    def held_out(self) -> int:
        return max(len(CLASSES), self.images // 4)


def run_demo(options: DemoOptions, *, say: Say, runner: Runner = run_in_process) -> DemoResult:
    """Make images, train on the files, pack them, train on the pack.

    Raises:
        MissingExtra: torch is not installed.
        AlreadyExists: the folder is there and not empty.
        StorageError: the disk is full, or the folder cannot be written.
    """
    require_torch("the demo trains a network and")
    with _workplace(options) as folder, _disk_errors(folder):
        files, held_out, target = folder / "images", folder / "held-out", folder / "pack"
        total = options.images + options.held_out
        say(f"making {format_count(total, 'image')} that look like photographs in {folder}")
        _check_space(folder, total)
        image_bytes = write_photographs(files, options.images, seed=SEED)
        write_photographs(held_out, options.held_out, seed=SEED + 1)
        runs = _train(FILES, files, options, held_out, say=say, runner=runner)
        say(f"packing the {format_bytes(image_bytes)} of images into {target}")
        pack_s = pack(files, target, PackOptions()).seconds
        say(f"packed in {format_seconds(pack_s)}")
        runs += _train(PACK, target, options, held_out, say=say, runner=runner)
        return DemoResult(
            images=options.images,
            held_out_images=options.held_out,
            image_bytes=image_bytes,
            epochs=options.epochs,
            threads=count_usable_cores(),
            pack_s=pack_s,
            before=sum_up(NAMES[FILES], runs),
            after=sum_up(NAMES[PACK], runs),
            ratio=compare(NAMES[PACK], NAMES[FILES], runs),
            runs=runs,
            kept=str(folder) if options.keep else None,
            machine=describe_machine(),
        )


def _train(
    kind: str, path: Path, options: DemoOptions, held_out: Path, *, say: Say, runner: Runner
) -> tuple[BenchRun, ...]:
    feed = FeedOptions(batch_size=BATCH_SIZE, threads=count_usable_cores(), seed=SEED)
    arguments = {"kind": kind, "path": str(path), "images": options.images, "held_out": str(held_out),
                 "epochs": options.epochs, "options": asdict(feed)}  # fmt: skip
    contestant = Contestant(NAMES[kind], "feedrate.demo.train:train", arguments)
    return run_rounds(
        [contestant],
        1,
        say=lambda name: say(f"training for {1 + options.epochs} epochs with {name}"),
        runner=runner,
    )


@contextmanager
def _workplace(options: DemoOptions) -> Iterator[Path]:
    """Make the demo's folder; take away what was made, unless it is to be kept, however the demo ends."""
    made = options.folder is None or not options.folder.exists()
    try:
        if options.folder is None:
            folder = Path(tempfile.mkdtemp(prefix="feedrate-demo-"))
        else:
            folder = options.folder
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise AlreadyExists(
                    f"{folder} is there and not empty", hint="give the demo a new folder, or none"
                )
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if isinstance(error, AlreadyExists):
            raise
        raise StorageError(
            f"cannot make {options.folder}: {error.strerror}", hint="feedrate demo --folder DIR"
        ) from error
    finished = False
    try:
        yield folder
        finished = True
    finally:
        if not (options.keep and finished):
            for name in ("images", "held-out", "pack"):
                shutil.rmtree(folder / name, ignore_errors=True)
            if made:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise StorageError(
            f"cannot write to {folder}: {error.strerror}", hint="another place: feedrate demo --folder DIR"
        ) from error


def _check_space(folder: Path, images: int) -> None:
    needed = images * BYTES_PER_IMAGE * 2  # the files and the pack
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"the demo needs {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="choose another place with --folder DIR, or fewer images with --images N",
        )
