# SPDX-License-Identifier: Apache-2.0
"""What does a cache in the GPU's memory give, in the first epoch and later, when all or half of it fits?

Copies photographs into a pack, then loads it for some epochs into the GPU, with nothing trained there:
without a cache by the CPU and by the GPU, and with caches for half and for all of the decoded samples. Images
per second and processor time per image, epoch by epoch; a checksum of the last epoch's pixels must be the
same everywhere.

    python benchmarks/gpu_tier.py FOLDER --json benchmarks/results/gpu-tier.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from threads import copy_images, say

import feedrate
from feedrate import PackOptions, pack
from feedrate.machine.describe import describe_machine

CROP = feedrate.RandomResizedCrop(224)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of copies to load")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedrate-gpu-tier-") as work:
        copies, target = Path(work) / "copies", Path(work) / "pack"
        copy_images(arguments.folder, copies, int(arguments.gigabytes * 1e9))
        pack(copies, target, PackOptions(entries="gpu"))
        document = {
            "question": (__doc__ or "").splitlines()[0],
            "batch": arguments.batch,
            "crop": repr(CROP),
            "gpu": torch.cuda.get_device_name(),
            "runs": measure(target, arguments),
            "machine": asdict(describe_machine(["gpu_tier.py", *sys.argv[1:]])),
        }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def measure(target: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    runs = {f"no cache, decode={decode}": load(target, decode, None, arguments) for decode in ("cpu", "gpu")}
    whole = load(target, "gpu", "auto", arguments)
    half_bytes = whole["kept_bytes"] // 2
    runs["all on the GPU, filled by the GPU"] = whole
    runs["all on the GPU, filled by the CPU"] = load(target, "cpu", "auto", arguments)
    for decode in ("cpu", "gpu"):
        runs[f"half on the GPU, decode={decode}"] = load(target, decode, half_bytes, arguments)
    assert len({run["checksum"] for run in runs.values()}) == 1, "pixels differ"
    return runs


def load(target: Path, decode: Any, limit: int | str | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of each epoch."""
    cache = None if limit is None else feedrate.Cache(gpu=limit)
    epochs = []
    with feedrate.Loader(
        target, arguments.batch, image=CROP, flip=True, device="cuda", decode=decode, cache=cache
    ) as loader:
        for epoch in range(arguments.epochs):
            samples, total = 0, torch.zeros((), dtype=torch.int64, device="cuda")
            began, cpu_began = time.perf_counter(), time.process_time()
            for images, _ in loader:
                samples += len(images)
                total += images.sum(dtype=torch.int64)
            checksum = int(total)  # waits for the GPU
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            stats = loader.stats().cache
            hit_rate = 0.0 if stats is None else stats.hit_rate
            epochs.append(
                {
                    "images_per_s": samples / seconds,
                    "cpu_ms_per_image": 1e3 * cpu_s / samples,
                    "hit_rate": hit_rate,
                }
            )
            say(f"{decode}, cache {limit}, epoch {epoch}: {epochs[-1]}")
        kept_bytes = 0 if stats is None else stats.tiers[0].size_bytes
    return {"epochs": epochs, "kept_bytes": kept_bytes, "checksum": checksum}


if __name__ == "__main__":
    sys.exit(main())
