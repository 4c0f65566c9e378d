# SPDX-License-Identifier: Apache-2.0
"""Jobs of a grid search on one node: what does one copy on scratch give, against each reading the source?

All jobs read the same pack at the same time, each in an order of its own, for some epochs: from a slow store
(a file system of this machine whose every answer is late, and which gives all of them together at most a
stated rate), and with `Loader(scratch=...)`. Needs root.

    python benchmarks/grid_search.py --json benchmarks/results/grid-search.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from staging import BATCH, SIDE, SURROUNDINGS, say

from feedrate import Loader, RandomResizedCrop
from feedrate.bench.photographs import make_photographs
from feedrate.pack import PackOptions, pack
from feedrate.probe.machine import describe_machine
from feedrate.store.inventory import list_copies

SOURCE, COPY = "each reads the source", "one copy on scratch"


def main() -> int:
    arguments = parse()
    if arguments.job is not None:
        run_job(arguments)
        return 0
    if arguments.mounted:
        measure(arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="feedrate-grid-", dir=arguments.scratch) as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"  # nothing of this stays in the registry
        write_pack(Path(folder), arguments.images)
        late = str(arguments.latency_ms)
        slow = [f"{folder}/store", f"{folder}/mounted", late, late, str(arguments.rate)]
        own = [sys.executable, __file__, "--mounted", f"{folder}/mounted", "--folder", folder]
        own += ["--jobs", str(arguments.jobs), "--epochs", str(arguments.epochs)]
        subprocess.run([sys.executable, str(SURROUNDINGS), "--slow", *slow, "--", *own], check=True)
        rows = json.loads((Path(folder) / "rows.json").read_text())
    if arguments.json:
        names = ("images", "jobs", "epochs", "latency_ms", "rate")
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "settings": {name: getattr(arguments, name) for name in names},
            "rows": rows,
            "machine": asdict(describe_machine(["grid_search.py", *sys.argv[1:]])),
        }
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def write_pack(folder: Path, images: int) -> None:
    for number, photograph in enumerate(make_photographs(images)):
        path = folder / "images" / f"class{photograph.label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph.jpeg)
    pack(folder / "images", folder / "store" / "pack", PackOptions(shard_bytes=32_000_000))


def measure(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    rows = []
    for how in (SOURCE, COPY):
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        command = [
            sys.executable,
            __file__,
            "--mounted",
            arguments.mounted,
            "--epochs",
            str(arguments.epochs),
        ]
        command += ["--folder", str(scratch)] if how is COPY else []
        begin = time.perf_counter()
        jobs = [
            subprocess.Popen([*command, "--job", str(number)], stdout=subprocess.PIPE, text=True)
            for number in range(arguments.jobs)
        ]
        found = [json.loads(job.communicate()[0]) for job in jobs]
        seconds = time.perf_counter() - begin
        images = sum(job["images"] for job in found)
        copies = list_copies(scratch)
        row: dict[str, Any] = {
            "how": how, "images_per_s": images / seconds, "seconds": seconds, "copies": len(copies),
            "copied_bytes": sum(copy.landed_bytes for copy in copies), "jobs": found,
        }  # fmt: skip
        rows.append(row)
        say(
            f"{how}: {row['images_per_s']:.0f} images/s of all jobs together, {len(copies)} copies on scratch"
        )
    (folder / "rows.json").write_text(json.dumps(rows, indent=1))


def run_job(arguments: argparse.Namespace) -> None:
    """Read the pack as a job with another seed would; print what each epoch took."""
    epochs, images = [], 0
    with Loader(
        Path(arguments.mounted) / "pack", batch_size=BATCH, image=RandomResizedCrop(SIDE), output="numpy",
        seed=arguments.job, threads=1, scratch=arguments.folder,
    ) as loader:  # fmt: skip
        for _ in range(arguments.epochs):
            begin = time.perf_counter()
            images += sum(len(batch[0]) for batch in loader)
            epochs.append(time.perf_counter() - begin)
    print(json.dumps({"images": images, "epoch_seconds": epochs}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of every answer of the store")
    parser.add_argument("--rate", type=float, default=25.0, help="of the store, for all jobs together, MB/s")
    parser.add_argument("--scratch", help="where to put all of it while it runs")
    parser.add_argument("--json", metavar="FILE")
    for hidden in ("--mounted", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
