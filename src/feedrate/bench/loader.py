# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench loader`: a pack through feedrate against the same images through DataLoader and Pillow."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from feedrate.bench.feeds import FILES, NAMES, PACK, FeedOptions
from feedrate.bench.process import Contestant, Runner, Say, compare, run_in_process, run_rounds, sum_up
from feedrate.bench.results import BenchResult
from feedrate.errors import PackError, UsageError
from feedrate.format.fields import Coding, Kind
from feedrate.format.manifest import read_manifest
from feedrate.loader.samples import check_pixels
from feedrate.machine.describe import describe_machine

# Below this an epoch takes so little time that the change from one to the next is what one measures.
SHORTEST_EPOCH_IMAGES = 2000


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
            NAMES[kind], "feedrate.bench.feeds:drain",
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
