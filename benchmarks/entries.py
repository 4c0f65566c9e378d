# SPDX-License-Identifier: Apache-2.0
"""What do closer entry points cost: room, packing, loading on the CPU, reading a random sample?

Packs a folder at several distances, then loads each pack with random crops to 224 pixels and reads random
samples of it one by one, in turn, round by round. Bytes come from the page cache. Times of other programs on
the machine are in the wall-clock figures; CPU time is what to compare.

    python benchmarks/entries.py FOLDER --json benchmarks/results/entries.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

import feedrate
from feedrate import PackOptions, kernel, pack, set_entries
from feedrate.format.fields import AUTO, LEAST
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.stats import median, median_ratio

BATCH = 50
Times = dict[str, float]


def main() -> int:
    arguments = parse()
    runs: dict[int, list[Times]] = {distance: [] for distance in arguments.distances}
    with tempfile.TemporaryDirectory(prefix="feedrate-entries-", dir=arguments.scratch) as folder:
        # The first round warms caches, and is not counted.
        for number in range(arguments.rounds + 1):
            for distance in arguments.distances:
                found = measure(arguments, Path(folder), distance)
                if number:
                    runs[distance].append(found)
            say(f"round {number} of {arguments.rounds}")
    results = [sum_up(distance, runs) for distance in arguments.distances]
    for one in results:
        say(describe(one))
    # No folder of anybody's.
    words = ["FOLDER" if word == arguments.folder else word for word in sys.argv[1:]]
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.folder).name,
        "rounds": arguments.rounds,
        "epochs": arguments.epochs,
        "threads": arguments.threads,
        "simd_level": kernel.simd_level(),
        "results": results,
        "machine": asdict(describe_machine(["entries.py", *words])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def measure(arguments: argparse.Namespace, folder: Path, distance: int) -> Times:
    target = folder / "pack"
    found = timed("pack", lambda: pack(arguments.folder, target, PackOptions(entries=distance)))
    manifest = read_manifest(target)
    found["samples"], found["data_bytes"] = manifest.samples, sum(s.size_bytes for s in manifest.shards)
    found["index_bytes"] = manifest.index_bytes
    loader = feedrate.Loader(
        target, BATCH, image=feedrate.RandomResizedCrop(224), output="numpy", threads=arguments.threads
    )
    with loader:
        found |= timed("load", lambda: [drain(loader) for _ in range(arguments.epochs)])
    found |= timed("read", lambda: read_samples(target, arguments.reads))
    # From the distance that packs have by default; where this is that one, from another and back.
    set_entries(target, AUTO if distance != AUTO else LEAST)
    found |= timed("change", lambda: set_entries(target, distance))
    shutil.rmtree(target)
    return found


def timed(name: str, work: Callable[[], object]) -> Times:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return {f"{name}_s": time.perf_counter() - wall_s, f"{name}_cpu_s": time.process_time() - cpu_s}


def drain(loader: feedrate.Loader) -> None:
    for _ in loader:
        pass


def read_samples(target: Path, count: int) -> None:
    """Read random samples one by one as a loader would: row, entry points, file; nothing is decoded."""
    with contextlib.closing(Pack(target)) as opened:
        for position in np.random.default_rng(0).integers(0, len(opened), (count, 1)):
            rows, _ = opened.rows(position, ("image",))
            files, values, entries = opened.find_values("image", rows, position, with_entries=True)
            kernel.read_ranges(files, values)
            if entries is not None:
                kernel.read_ranges(files, entries)


def sum_up(distance: int, runs: dict[int, list[Times]]) -> dict[str, object]:
    mine, usual = runs[distance], runs[AUTO]
    middle = {name: median([one[name] for one in mine]) for name in mine[0]}
    # Round by round, so that what disturbs one round disturbs both.
    ratios = {
        name: median_ratio([one[name] for one in mine], [one[name] for one in usual])
        for name in middle
        if name.endswith("_s")
    }
    return {
        "bytes_per_entry": distance,
        "index_share": middle["index_bytes"] / middle["data_bytes"],
        "medians": middle,
        "ratios_to_auto": ratios,
        "runs": mine,
    }


def describe(one: dict[str, object]) -> str:
    ratios = one["ratios_to_auto"]
    assert isinstance(ratios, dict)
    words = ", ".join(
        f"{name.removesuffix('_cpu_s')} {ratio:.2f}" for name, ratio in ratios.items() if "cpu" in name
    )
    return f"{one['bytes_per_entry']:>5} bytes: index {one['index_share']:.2%} of the data; CPU times {words}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="of JPEGs")
    parser.add_argument("--distances", type=int, nargs="+", default=[AUTO, 400, 150, 60])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=4, help="per round and distance")
    parser.add_argument("--reads", type=int, default=2000, help="random samples per round and distance")
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--scratch", help="where packs go (default: the system's temporary folder)")
    parser.add_argument("--json", help="where the result goes")
    arguments = parser.parse_args()
    if AUTO not in arguments.distances:
        parser.error(f"--distances must have {AUTO}, which the others are compared with")
    return arguments


def say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
