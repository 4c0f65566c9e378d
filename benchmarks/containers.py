# SPDX-License-Identifier: Apache-2.0
"""Does it matter for loading what holds the samples: tar, TFRecord, HDF5, or files that were only indexed?

Packs a folder in each format, indexes the tar shards and the folder itself where they are, then loads all of
them with random crops to 224 pixels: in one process, in turns of one epoch each, each round in another order.
So neighbours in time see the same machine. CPU time of all threads counts; a ratio is the median over rounds.

    python benchmarks/containers.py FOLDER --json benchmarks/results/containers.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from feedrate import Loader, PackOptions, RandomResizedCrop, index, pack
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.stats import median, median_ratio, spread
from feedrate.units import format_bytes, format_seconds

TAR = "tar"
FORMATS = (TAR, "tfrecord", "hdf5")
INDEXED_TAR, INDEXED_FOLDER = "tar, indexed in place", "folder, indexed in place"


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-containers-", dir=arguments.scratch) as folder:
        made = make(arguments.folder, Path(folder), arguments.workers)
        samples = int(str(made[TAR]["samples"]))
        cpu_s, wall_s = take_turns({name: str(one["target"]) for name, one in made.items()}, arguments)
    rows = []
    for name, one in made.items():
        ratios = [mine / tar for mine, tar in zip(cpu_s[name], cpu_s[TAR], strict=True)]
        rows.append(
            {
                "container": name,
                **{key: value for key, value in one.items() if key != "target"},
                "cpu_s_per_image": median(cpu_s[name]) / samples,
                "cpu_ratio": median_ratio(cpu_s[name], cpu_s[TAR]),
                "cpu_ratio_spread": spread(ratios),
                "time_ratio": median_ratio(wall_s[name], wall_s[TAR]),
            }
        )
        print(draw(rows[-1]))
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k not in ("json", "folder", "scratch")}
        document = {"question": (__doc__ or "").splitlines()[0], "rows": rows, "settings": settings,
                    "images": samples, "cpu_s": cpu_s, "wall_s": wall_s,
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


def take_turns(
    packs: dict[str, str], arguments: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the CPU time and the time of each turn; the first round is not counted."""
    loaders = {
        name: Loader(
            path, batch_size=arguments.batch_size, image=RandomResizedCrop(224), flip=True,
            threads=arguments.threads, fields=("image",), output="numpy",
        )
        for name, path in packs.items()
    }  # fmt: skip
    cpu_s: dict[str, list[float]] = {name: [] for name in packs}
    wall_s: dict[str, list[float]] = {name: [] for name in packs}
    names = list(packs)
    for number in range(arguments.rounds + 1):
        names = names[1:] + names[:1]
        for name in names:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in loaders[name]:
                pass
            if number:
                cpu_s[name].append(time.process_time() - cpu)
                wall_s[name].append(time.perf_counter() - wall)
    for loader in loaders.values():
        loader.close()
    return cpu_s, wall_s


def draw(row: dict[str, object]) -> str:
    """Return a row of the Markdown table in benchmarks/README.md."""
    names = ("written_bytes", "cpu_s_per_image", "cpu_ratio")
    size, cpu_s, cpu_ratio = (float(str(row[name])) for name in names)
    return f"| {row['container']} | {format_bytes(size)} | {format_seconds(cpu_s)} | {cpu_ratio:.3f} |"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="images, as 'feedrate pack' takes them")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--workers", type=int, help="processes that pack and index")
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where the packs are made")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
