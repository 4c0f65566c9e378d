# SPDX-License-Identifier: Apache-2.0
"""What does an epoch's end cost a loop that never needs to wait within an epoch?

Packs made photographs and goes through them in epochs of `--epochs` BATCHESxSIZE. Each batch keeps the loop
asleep, as a GPU does, for a fifth longer than making one takes: the median that the first epoch shows to a
loop that does nothing. A seam is the time from a batch that is the last of its epoch to the first of the
next, without that sleep; the share is what the loop gets of its own rate, seams included. With `--env
before=PYTHON`, another environment's feedrate takes turns with this one.

    python benchmarks/epochs.py --env before=OLD/bin/python --json benchmarks/results/epochs.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import feedrate
from feedrate import PackOptions, pack
from feedrate.demo.run import write_photographs
from feedrate.machine.describe import describe_machine

SLOWER = 1.2  # the loop than its loader
COUNTED = 2  # epochs of a run, behind one that is not counted


def main() -> int:
    arguments = parse()
    if arguments.child:
        print(json.dumps(run_loop(**json.loads(arguments.child))))
        return 0
    with tempfile.TemporaryDirectory(prefix="feedrate-epochs-", dir=arguments.work) as folder:
        images, target = Path(folder) / "images", Path(folder) / "pack"
        say(f"making and packing {arguments.images} photographs")
        write_photographs(images, arguments.images, seed=0)
        pack(images, target, PackOptions())
        results = [
            measure(target, batches, size, threads, arguments)
            for batches, size in arguments.epochs
            for threads in arguments.threads
        ]
    words = [
        "epochs.py",
        "--images",
        str(arguments.images),
        *(f"--env={name}=PYTHON" for name, _ in arguments.env),
    ]
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "results": results,
        "machine": asdict(describe_machine(words)),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def measure(
    target: Path, batches: int, size: int, threads: int, arguments: argparse.Namespace
) -> dict[str, object]:
    """Return the medians of some rounds, each environment in turn at the pace of the first."""
    asked: dict[str, Any] = {
        "target": str(target), "batches": batches, "size": size, "threads": threads, "step_s": None,
    }  # fmt: skip
    environments = {"feedrate": sys.executable, **dict(arguments.env)}
    asked["step_s"] = SLOWER * float(call(sys.executable, asked)["making_s"])
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in environments}
    for _ in range(arguments.rounds):
        for name, python in environments.items():
            rounds[name].append(call(python, asked))
    medians = {
        name: {figure: median(one[figure] for one in found) for figure in found[0]}
        for name, found in rounds.items()
    }
    for name, found in medians.items():
        say(
            f"{batches} x {size}, {threads} threads, {name}: seam {1e3 * found['seam_s']:.1f} ms, "
            f"{found['share']:.1%}, CPU {found['epoch_cpu_s']:.3f} s an epoch"
        )
    step_s = asked["step_s"]
    return {
        "batches": batches, "batch_size": size, "threads": threads, "step_s": step_s,
        "medians": medians, "rounds": rounds,
    }  # fmt: skip


def call(python: str, asked: dict[str, Any]) -> dict[str, float]:
    words = [python, __file__, "--child", json.dumps(asked)]
    found: dict[str, float] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    return found


def run_loop(target: str, batches: int, size: int, threads: int, step_s: float | None) -> dict[str, float]:
    """Return the medians over some epochs; without a step, how long making a batch takes."""
    count = len(feedrate.Dataset(target))
    order = np.random.default_rng(0).permutation(np.arange(batches * size) % count)
    came: list[list[float]] = []
    cpu: list[float] = []
    image = feedrate.RandomResizedCrop(224)
    with feedrate.Loader(target, size, image=image, flip=True, threads=threads, order=order) as loader:
        for _ in range(1 if step_s is None else COUNTED + 2):
            times: list[float] = []
            for _ in loader:
                times.append(time.perf_counter())
                if len(times) == 1:
                    cpu.append(time.process_time())
                if step_s is not None:
                    time.sleep(step_s)
            came.append(times)
    if step_s is None:
        return {"making_s": float(np.median(np.diff(came[0])))}
    pairs = list(itertools.pairwise(came[1:]))
    return {
        "seam_s": median(next_[0] - times[-1] for times, next_ in pairs) - step_s,
        "share": median(batches * step_s / (next_[0] - times[0]) for times, next_ in pairs),
        "epoch_cpu_s": float(np.median(np.diff(cpu[1:]))),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", nargs="+", type=read_epoch, default=[(71, 256), (10, 32)])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=1000, help="made and packed (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env", action="append", default=[], type=lambda text: tuple(text.split("=", 1)),
                        metavar="NAME=PYTHON", help="another feedrate")  # fmt: skip
    parser.add_argument("--work", metavar="DIR", help="where to write images and pack (default: as tempfile)")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def read_epoch(text: str) -> tuple[int, int]:
    batches, size = text.split("x")
    return int(batches), int(size)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
