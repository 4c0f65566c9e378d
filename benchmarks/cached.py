# SPDX-License-Identifier: Apache-2.0
"""What does a hit of `feedrate.cached` cost: samples that are copied against samples that are mapped?

    python benchmarks/cached.py [--json OUT.json]

For samples of several sizes, microseconds of CPU time per access: copied and read as a whole, mapped and read
as a whole, both with a hundredth of the rows read (a crop), and what plain pickle from a file would take.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import feedrate
from feedrate.loader import cached
from feedrate.machine.describe import describe_machine
from feedrate.units import format_bytes

SIZES = [16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 36 << 20]
SAMPLES = 8
ROWS = 200


class Blocks:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return np.full((ROWS, self.size_bytes // ROWS), index, np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="per figure")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    rows = [measure(size, arguments.seconds) for size in SIZES]
    names = list(rows[0])[1:]
    print("| sample | " + " | ".join(names) + " |\n" + "|---" * (1 + len(names)) + "|")
    for row in rows:
        cells = [f"{row[name]:,.0f} µs" for name in names]
        print(f"| {format_bytes(row['size_bytes'])} | {' | '.join(cells)} |")
    if arguments.json:
        machine = asdict(describe_machine(["python", "benchmarks/cached.py", *sys.argv[1:]]))
        with open(arguments.json, "w") as file:
            file.write(json.dumps({"benchmark": "cached", "machine": machine, "rows": rows}, indent=1) + "\n")
    return 0


def measure(size_bytes: int, seconds: float) -> dict[str, Any]:
    dataset = feedrate.cached(Blocks(size_bytes), ram=SAMPLES * (size_bytes + 4096))
    for number in range(SAMPLES):
        _ = dataset[number]
    row: dict[str, Any] = {"size_bytes": size_bytes}
    for name, threshold in (("copied", 1 << 60), ("mapped", 0)):
        cached.MAPPED_BYTES = threshold
        row[f"{name}, all of it read"] = time_access(dataset.__getitem__, lambda a: a.sum(), seconds)
        row[f"{name}, 1 % read"] = time_access(dataset.__getitem__, lambda a: a[50:52].sum(), seconds)
    dataset.close()
    with tempfile.NamedTemporaryFile() as file:
        pickle.dump(Blocks(size_bytes)[0], file)
        file.flush()
        row["unpickled from a file, 1 % read"] = time_access(
            lambda _: pickle.loads(Path(file.name).read_bytes()), lambda a: a[50:52].sum(), seconds
        )
    return row


def time_access(get: Callable[[int], Any], use: Callable[[Any], Any], seconds: float) -> float:
    """Return the median CPU time of an access in microseconds; other work on the machine disturbs it less."""
    times = []
    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end or len(times) < 20:
        began = time.thread_time()
        use(get(number % SAMPLES))
        times.append(time.thread_time() - began)
        number += 1
    return 1e6 * median(times)


if __name__ == "__main__":
    sys.exit(main())
