# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench loader`: files through torch's DataLoader against a pack through feedrate.Loader.

The contestants run in turn, each time in a fresh process, and their runs are summed up; `demo` does the same
with a network that is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feedrate.bench.results import BenchResult, BenchRun, Standing
from feedrate.errors import PackError, UsageError
from feedrate.format.fields import Coding, Kind
from feedrate.format.manifest import read_manifest
from feedrate.lab.child import RunFailed, run_in_process
from feedrate.lab.decode import check_pixels
from feedrate.lab.loader import FILES, NAMES, PACK, FeedOptions
from feedrate.machine.describe import describe_machine
from feedrate.stats import median, median_ratio, spread

Say = Callable[[str], None]
Runner = Callable[[str, Mapping[str, object]], tuple[dict[str, Any], int]]

# Below this an epoch takes so little time that the change from one to the next is what one measures.
SHORTEST_EPOCH_IMAGES = 2000


@dataclass(frozen=True, slots=True)
class Contestant:
    """A function `module:name` that returns `Readings`, and what to call it with."""

    name: str
    function: str
    arguments: Mapping[str, object]


def run_rounds(
    contestants: Sequence[Contestant], rounds: int, *, say: Say, runner: Runner = run_in_process
) -> tuple[BenchRun, ...]:
    """Run A B A B ...: neighbours in time see the same machine, so their ratio is steadier than their rates.

    Raises:
        RunFailed: a process ended without a result; names the contestant.
    """
    runs = []
    for number in range(rounds):
        for contestant in contestants:
            say(contestant.name + (f", round {number + 1} of {rounds}" if rounds > 1 else ""))
            try:
                readings, peak_bytes = runner(contestant.function, contestant.arguments)
            except RunFailed as error:
                raise RunFailed(f"{contestant.name}: {error.message}", hint=error.hint) from None
            readings = readings | {name: tuple(readings[name]) for name in ("images", "seconds")}
            runs.append(BenchRun(contestant.name, number, **readings, peak_memory_bytes=peak_bytes))
    return tuple(runs)


def sum_up(name: str, runs: Sequence[BenchRun]) -> Standing:
    mine = [run for run in runs if run.contestant == name]
    rates = [n / s for run in mine for n, s in zip(run.images, run.seconds, strict=True)]
    slow, fast = spread(rates)
    accuracies = [run.accuracy for run in mine if run.accuracy is not None]
    names = ("images_per_s", "wait_s", "wait_share", "cpu_s_per_image", "first_batch_s")
    return Standing(
        contestant=name,
        slow_images_per_s=slow,
        fast_images_per_s=fast,
        peak_memory_bytes=int(median(run.peak_memory_bytes for run in mine)),
        accuracy=median(accuracies) if accuracies else None,
        **{one: median(getattr(run, one) for run in mine) for one in names},
    )


def compare(after: str, before: str, runs: Sequence[BenchRun]) -> float:
    """Return how many times as many images per second `after` gave as `before`, round by round."""
    return median_ratio(
        [run.images_per_s for run in runs if run.contestant == after],
        [run.images_per_s for run in runs if run.contestant == before],
    )


@dataclass(frozen=True, slots=True)
class BenchOptions:
    rounds: int = 3
    epochs: int = 2
    threads: int = 1
    batch_size: int = 256
    side: int = 224
    shortest_epoch_images: int = SHORTEST_EPOCH_IMAGES

    def __post_init__(self) -> None:
        for name, flag in (("rounds", "--rounds"), ("epochs", "--epochs"), ("threads", "--threads"),
                           ("batch_size", "--batch-size"), ("side", "--size")):  # fmt: skip
            if getattr(self, name) < 1:
                raise UsageError(f"{flag} must be at least 1, got {getattr(self, name)}")


def bench_loader(
    files: str, pack: str, options: BenchOptions, *, source: str, say: Say, runner: Runner = run_in_process
) -> BenchResult:
    """Compare the loaders on the images under `files` and in `pack`, which hold the same.

    Args:
        source: the dataset as the user named it, for the report.
    """
    manifest = read_manifest(pack)
    image = manifest.field("image")
    if image is None or image.kind is not Kind.IMAGE:
        have = ", ".join(f.name for f in manifest.fields)
        raise PackError(f"{source} has no field 'image' to load; it has: {have}")
    if image.coding is Coding.RAW:
        raise PackError(
            f"{source} holds raw pixels, and no files that DataLoader + Pillow could read",
            hint="give the folder that it was packed from",
        )
    repeat = max(1, math.ceil(options.shortest_epoch_images / manifest.samples))
    feed = FeedOptions(options.batch_size, options.threads, options.side, repeat=repeat)
    contestants = [
        Contestant(
            NAMES[kind], "feedrate.lab.loader:drain",
            {"kind": kind, "path": path, "epochs": options.epochs, "options": asdict(feed)},
        )
        for kind, path in ((FILES, files), (PACK, pack))
    ]  # fmt: skip
    say("checking that both give the same pixels")
    pixels = check_pixels(pack, side=options.side)
    runs = run_rounds(contestants, options.rounds, say=say, runner=runner)
    return BenchResult(
        source=source,
        dataset_images=manifest.samples,
        batch_size=options.batch_size,
        threads=options.threads,
        image_side=options.side,
        before=sum_up(NAMES[FILES], runs),
        after=sum_up(NAMES[PACK], runs),
        ratio=compare(NAMES[PACK], NAMES[FILES], runs),
        pixels=pixels,
        runs=runs,
        machine=describe_machine(),
    )
