# SPDX-License-Identifier: Apache-2.0
"""Does a network trained on feedrate's batches become as good as one trained on DataLoader + Pillow's?

Trains the demo's network with several seeds through each, on the demo's images, every time in a fresh
process. Loaders that give the same kind of batches give accuracies that differ no more than seeds do.

    python benchmarks/accuracy.py --json benchmarks/results/accuracy.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from feedrate import PackOptions, pack
from feedrate.demo.run import write_photographs
from feedrate.lab.child import run_in_process
from feedrate.lab.loader import FILES, NAMES, PACK, FeedOptions
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-accuracy-") as folder:
        files, held_out, target = (Path(folder) / name for name in ("images", "held-out", "pack"))
        say(f"making {arguments.images} + {arguments.held_out} images in {folder}")
        write_photographs(files, arguments.images, seed=0)
        write_photographs(held_out, arguments.held_out, seed=1)
        pack(files, target, PackOptions())
        accuracies: dict[str, list[float]] = {NAMES[FILES]: [], NAMES[PACK]: []}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for kind, path in ((FILES, files), (PACK, target)):
                feed = FeedOptions(batch_size=arguments.batch_size, threads=arguments.threads, seed=seed)
                task = {
                    "kind": kind,
                    "path": str(path),
                    "images": arguments.images,
                    "held_out": str(held_out),
                    "epochs": arguments.epochs - 1,
                    "options": asdict(feed),
                }
                readings, _ = run_in_process("feedrate.demo.train:train", task)
                accuracies[NAMES[kind]].append(readings["accuracy"])
                say(f"seed {seed}, {NAMES[kind]}: {readings['accuracy']:.1%}")
    result = judge(accuracies)
    print(json.dumps(result, indent=1))
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k != "json"}
        document = {"question": (__doc__ or "").splitlines()[0], **result, "settings": settings,
                    "machine": asdict(describe_machine(["accuracy.py", *sys.argv[1:]]))}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if result["within_spread"] else 1


def judge(accuracies: dict[str, list[float]]) -> dict[str, object]:
    """Two loaders agree when their means differ by at most two standard errors of the difference."""
    before, after = accuracies[NAMES[FILES]], accuracies[NAMES[PACK]]
    difference = statistics.mean(after) - statistics.mean(before)
    variance = statistics.variance(after) + statistics.variance(before)
    error = math.sqrt(variance / len(after))
    return {
        "accuracies": accuracies,
        "means": {name: statistics.mean(values) for name, values in accuracies.items()},
        "difference": difference,
        "standard_error": error,
        "within_spread": abs(difference) <= 2 * error,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no spread")
    return arguments


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
