# SPDX-License-Identifier: Apache-2.0
"""What does it save to pre-process once: --normalise of progressive JPEGs, and a --map that shrinks X-rays?

Makes progressive JPEGs and gray PNGs of 1024 pixels (a stand-in for chest X-rays) out of the photographs of a
folder, packs both with and without, then loads each pack with random crops to 224 pixels, in turn, each time
in a fresh process. CPU time is what counts: on a shared machine the rate says more about the others.

    python benchmarks/preprocess.py FOLDER --json benchmarks/results/preprocess.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feedrate import PackOptions, Recode, pack
from feedrate.bench.loader import Contestant, run_rounds, sum_up
from feedrate.lab.loader import PACK, FeedOptions
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine
from feedrate.packing.results import PackResult
from feedrate.stats import median_ratio
from feedrate.units import format_bytes, format_seconds


def shrink(sample: dict[str, Any]) -> dict[str, Any]:
    """What is the same in every epoch."""
    return {"image": sample["image"].resize((256, 256))}


# Kind of file -> choice -> settings and map; the first choice is what the others are held against.
CHOICES: dict[str, dict[str, tuple[Recode, Any]]] = {
    "progressive JPEG": {"as it is": (Recode(), None), "--normalise": (Recode(normalise=True), None)},
    "PNG of 1024 pixels": {
        "as it is": (Recode(), None), "--map shrink": (Recode(), shrink),
        "--map shrink --quality 95": (Recode(quality=95), shrink),
        "--map shrink --raw": (Recode(raw=True), shrink),
    },
}  # fmt: skip


def make_files(photographs: Path, folder: Path, images: int) -> None:
    from PIL import Image

    sources = sorted(p for p in photographs.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))[:images]
    for kind in CHOICES:
        (folder / kind).mkdir()
    for number, source in enumerate(sources):
        with Image.open(source) as image:
            image.convert("RGB").save(
                folder / "progressive JPEG" / f"{number:05}.jpg", progressive=True, quality=90
            )
            image.convert("L").resize((1024, 1024)).save(folder / "PNG of 1024 pixels" / f"{number:05}.png")


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-preprocess-", dir=arguments.scratch) as name:
        folder = Path(name)
        make_files(Path(arguments.folder), folder, arguments.images)
        packed: dict[str, PackResult] = {}
        for kind, choices in CHOICES.items():
            for choice, (recode, function) in choices.items():
                target = folder / f"{len(packed)}.pack"
                options = PackOptions(recode=recode, workers=1)
                packed[f"{kind}, {choice}"] = pack(folder / kind, target, options, map=function)
        feed = FeedOptions(arguments.batch_size, arguments.threads)
        how = {"kind": PACK, "epochs": arguments.epochs, "options": asdict(feed)}
        contestants = [
            Contestant(name, "feedrate.lab.loader:drain", {**how, "path": result.target})
            for name, result in packed.items()
        ]
        runs = run_rounds(contestants, arguments.rounds, say=lambda text: print(text, file=sys.stderr))
    rows = []
    for name, result in packed.items():
        kind = name.partition(",")[0]
        costs = [[r.cpu_s_per_image for r in runs if r.contestant == n] for n in (f"{kind}, as it is", name)]
        mapped = result.mapped
        rows.append({
            "choice": name, "bytes_per_image": result.size_bytes / result.samples, "pack_s": result.seconds,
            "map_s_per_sample": mapped.seconds / mapped.samples if mapped else None,
            "cpu_s_per_image": sum_up(name, runs).cpu_s_per_image, "cpu_ratio": median_ratio(*costs),
        })  # fmt: skip
        size, cpu_s = format_bytes(rows[-1]["bytes_per_image"]), format_seconds(rows[-1]["cpu_s_per_image"])
        print(f"| {name} | {size} | {cpu_s} | {rows[-1]['cpu_ratio']:.1f} x |")
    if arguments.json:
        settings = {k: v for k, v in vars(arguments).items() if k not in ("json", "folder", "scratch")}
        document = {"question": (__doc__ or "").splitlines()[0], "rows": rows, "settings": settings,
                    "runs": [asdict(run) for run in runs],
                    "machine": asdict(describe_machine(["preprocess.py", "FOLDER"]))}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="photographs as JPEG")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--threads", type=int, default=count_usable_cores())
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR"), help="where the packs are made")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
