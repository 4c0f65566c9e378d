# SPDX-License-Identifier: Apache-2.0
"""Does it matter for loading what holds the samples: tar, TFRecord, HDF5, or files that were only indexed?

Packs a folder in each format, indexes the tar shards and the folder itself where they are, then loads all of
them with random crops to 224 pixels, in turn, each time in a fresh process. Ratios are of neighbouring runs;
CPU time is the steadier one on a shared machine.

    python benchmarks/containers.py FOLDER --json benchmarks/results/containers.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from feedrate.bench.feeds import PACK, FeedOptions
from feedrate.bench.harness import Contestant, compare, run_rounds, sum_up
from feedrate.pack import PackOptions, index, pack
from feedrate.probe.cpu import count_usable_cores
from feedrate.probe.machine import describe_machine
from feedrate.results import BenchRun
from feedrate.stats import median_ratio
from feedrate.units import format_bytes, format_rate, format_seconds

TAR = "tar"
FORMATS = (TAR, "tfrecord", "hdf5")
INDEXED_TAR, INDEXED_FOLDER = "tar, indexed in place", "folder, indexed in place"


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-containers-", dir=arguments.scratch) as folder:
        made = make(arguments.folder, Path(folder), arguments.workers)
        samples = made[TAR]["samples"]
        repeat = max(1, math.ceil(arguments.epoch_images / int(str(samples))))
        feed = FeedOptions(arguments.batch_size, arguments.threads, repeat=repeat)
        contestants = [
            Contestant(
                name, "feedrate.bench.feeds:drain",
                {"kind": PACK, "path": one["target"], "epochs": arguments.epochs, "options": asdict(feed)},
            )
            for name, one in made.items()
        ]  # fmt: skip
        runs = run_rounds(contestants, arguments.rounds, say=say)
    rows = []
    for name, one in made.items():
        standing = sum_up(name, runs)
        rows.append(
            {
                "container": name,
                **{key: value for key, value in one.items() if key != "target"},
                "images_per_s": standing.images_per_s,
                "cpu_s_per_image": standing.cpu_s_per_image,
                "rate_ratio": compare(name, TAR, runs),
                "cpu_ratio": median_ratio(costs(name, runs), costs(TAR, runs)),
            }
        )
        print(draw(rows[-1]))
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k not in ("json", "folder", "scratch")}
        document = {"question": (__doc__ or "").splitlines()[0], "rows": rows, "settings": settings,
                    "images": samples, "runs": [asdict(run) for run in runs],
                    "machine": asdict(describe_machine(["containers.py", "FOLDER"]))}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def make(source: str, folder: Path, workers: int | None) -> dict[str, dict[str, object]]:
    """Return what is to be loaded: where it lies, how large it is, and how long it took to make."""
    made: dict[str, dict[str, object]] = {}
    for name in FORMATS:
        say(f"packing: {name}")
        packed = pack(source, folder / name, PackOptions(container=name, workers=workers))
        made[name] = {"target": packed.target, "samples": packed.samples, "written_bytes": packed.size_bytes,
                      "made_s": packed.seconds}  # fmt: skip
    shards = folder / "shards"
    shards.mkdir()
    for shard in (folder / TAR).glob("*.tar"):
        os.link(shard, shards / shard.name)
    for name, what in ((INDEXED_TAR, str(shards)), (INDEXED_FOLDER, source)):
        say(f"indexing: {name}")
        done = index(what, folder / f"index of {name}", workers=workers)
        made[name] = {"target": done.target, "samples": done.samples, "written_bytes": done.index_bytes,
                      "made_s": done.seconds}  # fmt: skip
    return made


def costs(name: str, runs: Sequence[BenchRun]) -> list[float]:
    return [run.cpu_s_per_image for run in runs if run.contestant == name]


def draw(row: dict[str, object]) -> str:
    """Return a row of the Markdown table in benchmarks/README.md."""
    size, rate, rate_ratio, cpu_s, cpu_ratio = (
        float(str(row[name]))
        for name in ("written_bytes", "images_per_s", "rate_ratio", "cpu_s_per_image", "cpu_ratio")
    )
    cells = [format_bytes(size), format_rate(rate, "images"), f"{rate_ratio:.2f}", format_seconds(cpu_s),
             f"{cpu_ratio:.2f}"]  # fmt: skip
    return f"| {row['container']} | {' | '.join(cells)} |"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="images, as 'feedrate pack' takes them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--epoch-images", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--workers", type=int, help="processes that pack and index")
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where the packs are made")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
