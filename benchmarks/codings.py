# SPDX-License-Identifier: Apache-2.0
"""What do pack's choices (--resize, --quality, --raw) save, in room and in loading, on these images?

Packs a folder in several ways, then loads each with random crops to 224 pixels, in turn, each time in a fresh
process. CPU time is what counts: on a shared machine the rate says more about the others.

    python benchmarks/codings.py FOLDER --json benchmarks/results/codings.json
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

from feedrate import PackOptions, Recode, pack
from feedrate.bench.loader import Contestant, run_rounds, sum_up
from feedrate.bench.results import BenchRun
from feedrate.lab.loader import PACK, FeedOptions
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.stats import median_ratio
from feedrate.units import format_bytes, format_rate, format_seconds

ORIGINALS = "original files"
CHOICES = {
    ORIGINALS: Recode(),
    "--quality 90": Recode(quality=90),
    "--resize 256": Recode(resize=256),
    "--raw": Recode(raw=True),
    "--raw --resize 256": Recode(raw=True, resize=256),
}


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-codings-", dir=arguments.scratch) as folder:
        packed = {
            name: pack(arguments.folder, Path(folder) / str(i), PackOptions(recode=recode))
            for i, (name, recode) in enumerate(CHOICES.items())
        }
        repeat = max(1, math.ceil(arguments.epoch_images / packed[ORIGINALS].samples))
        feed = FeedOptions(arguments.batch_size, arguments.threads, repeat=repeat)
        contestants = [
            Contestant(
                name, "feedrate.lab.loader:drain",
                {"kind": PACK, "path": result.target, "epochs": arguments.epochs, "options": asdict(feed)},
            )
            for name, result in packed.items()
        ]  # fmt: skip
        runs = run_rounds(contestants, arguments.rounds, say=say)
    rows = []
    for name, result in packed.items():
        standing = sum_up(name, runs)
        rows.append(
            {
                "choice": name,
                "pack_bytes": result.size_bytes,
                "bytes_per_image": result.size_bytes / result.samples,
                "pack_s": result.seconds,
                "mean_psnr_db": result.recoded.mean_psnr_db if result.recoded else None,
                "cpu_s_per_image": standing.cpu_s_per_image,
                "images_per_s": standing.images_per_s,
                "cpu_ratio": median_ratio(costs(ORIGINALS, runs), costs(name, runs)),
            }
        )
        print(draw(rows[-1]))
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k not in ("json", "folder", "scratch")}
        document = {"question": (__doc__ or "").splitlines()[0], "rows": rows, "settings": settings,
                    "images": packed[ORIGINALS].samples, "runs": [asdict(run) for run in runs],
                    "machine": asdict(describe_machine(["codings.py", "FOLDER"]))}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def costs(name: str, runs: Sequence[BenchRun]) -> list[float]:
    return [run.cpu_s_per_image for run in runs if run.contestant == name]


def draw(row: dict[str, object]) -> str:
    """Return a row of the Markdown table in docs/pack.md."""
    size, cpu_s, rate, ratio = (
        float(str(row[name])) for name in ("bytes_per_image", "cpu_s_per_image", "images_per_s", "cpu_ratio")
    )
    cells = [format_bytes(size), format_seconds(cpu_s), f"{ratio:.1f}", format_rate(rate, "images")]
    return f"| {row['choice']} | {' | '.join(cells)} |"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="images, as 'feedrate pack' takes them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--epoch-images", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where the packs are made")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
