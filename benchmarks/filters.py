# SPDX-License-Identifier: Apache-2.0
"""What does each resize filter cost, in `Loader` from end to end and decoder against decoder?

Makes photographs of 0.2 megapixel, packs them, and drains the pack with each filter in turn, round by round:
CPU time of the whole process. Then `decoders.py` compares the decoders on one thread with each.

    python benchmarks/filters.py --json benchmarks/results/filters.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from decoders import KernelOptions, bench_source, write_set
from threads import say

import feedrate
from feedrate import PackOptions, pack
from feedrate.filters import FILTERS, Interpolation
from feedrate.kernel import simd_level
from feedrate.machine.describe import describe_machine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedrate-filters-") as folder:
        images, target = Path(folder) / "images", Path(folder) / "pack"
        images.mkdir()
        write_set("photographs", images, arguments.images)
        pack(images, target, PackOptions())
        loader = drain_all(target, arguments.rounds)
        kernel = {name: compare_decoders(images, name, arguments.rounds) for name in FILTERS}
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "images": arguments.images,
        "simd_level": simd_level(),
        "loader_cpu_s_per_image": loader,
        "kernel_images_per_cpu_s": kernel,
        "machine": asdict(describe_machine(["filters.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def drain_all(target: Path, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds per image of each filter, round by round."""
    loaders = {
        name: feedrate.Loader(
            target, 64, image=feedrate.RandomResizedCrop(224, interpolation=name), flip=True, output="numpy"
        )
        for name in FILTERS
    }
    seconds: dict[str, list[float]] = {name: [] for name in FILTERS}
    for round_ in range(rounds + 1):
        for name, loader in loaders.items():
            began, given = time.process_time(), 0
            loader.set_epoch(round_)  # every filter gets the same crops
            for images, *_ in loader:
                given += len(images)
            if round_:  # the first one warms caches
                seconds[name].append((time.process_time() - began) / given)
    for name, seen in seconds.items():
        ratio = median(a / b for a, b in zip(seen, seconds["bilinear"], strict=True))
        say(f"Loader, {name:8} {median(seen) * 1e6:6.0f} us of CPU time an image, {ratio:.2f} of bilinear")
    return seconds


def compare_decoders(images: Path, name: Interpolation, rounds: int) -> dict[str, Any]:
    options = KernelOptions(images=100, rounds=rounds, interpolation=name, jobs=("crops",))
    (found,) = bench_source(str(images), options).sets[0].tasks
    rates = {one.contestant: one.images_per_cpu_s for one in found.standings}
    say(f"{name:8} " + ", ".join(f"{who} {rate:,.0f}" for who, rate in rates.items()) + " images per CPU s")
    return rates


if __name__ == "__main__":
    sys.exit(main())
