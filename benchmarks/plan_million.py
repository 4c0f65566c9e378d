# SPDX-License-Identifier: Apache-2.0
"""How long does `feedrate plan` take for a million files behind a store of 2 ms per call, and is it right?

Makes 1,000,000 small JPEGs twice in memory (hard links of a few): in 1,000 folders of different sizes, and in
one folder. Each is shown by a FUSE file system that answers every call 2 ms late, which costs CPU time of its
own: the result says how long a plain listing through it takes without any latency. Needs root and /dev/fuse.

    python benchmarks/plan_million.py --json benchmarks/results/plan-million.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedrate.demo.run import write_photographs
from feedrate.machine.describe import describe_machine

SURROUNDINGS = Path(__file__).parent.parent / "tests" / "doctor_corpus" / "surroundings.py"
LATENCY_MS = 2.0
BYTES_PER_S = 1e9
IMAGES = 64
LISTING = "import os, sys; print(sum(len(files) for _, _, files in os.walk(sys.argv[1])))"


def make_trees(top: Path, files: int) -> dict[str, Path]:
    """Write both trees: file `n` is a link to one of a few images."""
    write_photographs(top / "images", IMAGES, seed=0)
    images = sorted(path for path in (top / "images").rglob("*") if path.is_file())
    trees = {"folders": top / "folders", "flat": top / "flat"}
    trees["flat"].mkdir()
    draw = random.Random(0)
    sizes = [draw.randint(500, 1500) for _ in range(max(files // 1000, 1))]
    number = 0
    for place, size in enumerate(sizes):
        folder = trees["folders"] / f"class-{place:04d}"
        folder.mkdir(parents=True)
        for _ in range(min(size, files - number) if place < len(sizes) - 1 else files - number):
            os.link(images[number % IMAGES], folder / f"{number:08d}.jpg")
            os.link(images[number % IMAGES], trees["flat"] / f"{number:08d}.jpg")
            number += 1
    return trees


def run_behind(tree: Path, latency_ms: float, *command: str) -> tuple[str, float]:
    """Return what a command prints that is given the tree behind the slow store, and how long it took."""
    with tempfile.TemporaryDirectory() as mount:
        slow = [str(tree), mount, str(latency_ms), str(latency_ms), str(BYTES_PER_S / 1e6)]
        whole = [sys.executable, str(SURROUNDINGS), "--slow", *slow, "--", *command, mount]
        began = time.perf_counter()
        done = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout, time.perf_counter() - began


def measure(tree: Path, files: int, rounds: int) -> dict[str, Any]:
    total_bytes = 0
    for path, _, names in os.walk(tree):
        total_bytes += sum(os.stat(os.path.join(path, name)).st_size for name in names)
    listed, listing_s = run_behind(tree, 0.0, sys.executable, "-c", LISTING)
    assert int(listed) == files
    runs = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "feedrate", "plan", "--json", "-"]
        answer, took_s = run_behind(tree, LATENCY_MS, *command)
        dataset = json.loads(answer)["survey"]["dataset"]
        # Results name no folder of the machine that made them.
        found = json.loads(answer.replace(dataset, "FOLDER"))["survey"]
        kept = ("samples", "folders", "total_bytes", "list_s", "is_partial", "how")
        run = {"took_s": took_s, "survey_s": found["took_s"], **{name: found[name] for name in kept}}
        run["samples_off"] = found["samples"]["value"] / files - 1
        run["total_bytes_off"] = found["total_bytes"]["value"] / total_bytes - 1
        print(json.dumps(run), file=sys.stderr, flush=True)
        runs.append(run)
    return {
        "files": files, "total_bytes": total_bytes, "listing_without_latency_s": listing_s,
        "slowest_s": max(run["took_s"] for run in runs), "runs": runs,
    }  # fmt: skip


def main() -> int:
    arguments = parse()
    top = Path(tempfile.mkdtemp(prefix="feedrate-plan-million-", dir=arguments.folder))
    try:
        trees = make_trees(top, arguments.files)
        cases = {name: measure(tree, arguments.files, arguments.rounds) for name, tree in trees.items()}
    finally:
        shutil.rmtree(top, ignore_errors=True)
    if arguments.json:
        document = {
            "question": (__doc__ or "").splitlines()[0], "latency_ms": LATENCY_MS,
            "bytes_per_s": BYTES_PER_S, "cases": cases,
            "machine": asdict(describe_machine(["plan_million.py", *sys.argv[1:]])),
        }  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm", help="where to write the files, in memory")
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
