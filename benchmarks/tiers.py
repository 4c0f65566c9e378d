# SPDX-License-Identifier: Apache-2.0
"""How often does a cache that fills and stays hit, against one that evicts (LRU), and what does that give?

Copies photographs into a pack, then loads it for some epochs with caches of 0 to 100 % of what all decoded
samples take. The same accesses go through a simulated LRU of the same share; x + (1 - x) ln(1 - x) is what
theory gives for that. Then images/s and processor time per image, epoch by epoch: no cache, memory, disk,
half of each. All of it for JPEGs, which the kernel decodes, and for the same saved as PNG, which Pillow does.

    python benchmarks/tiers.py FOLDER --json benchmarks/results/tiers.json
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import feedrate
from feedrate import PackOptions, pack
from feedrate.lab.loader import list_images
from feedrate.machine.describe import describe_machine

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
CROP = feedrate.RandomResizedCrop(224)


def main() -> int:
    arguments = parse()
    photographs = [path for path, _ in list_images(arguments.source)]
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name,
        "images": arguments.images,
        "sets": {kind: measure_set(photographs, kind, arguments) for kind in ("JPEG", "PNG")},
        "machine": asdict(describe_machine(["tiers.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def measure_set(photographs: list[str], kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="feedrate-tiers-", dir=arguments.work) as folder:
        source, target, disk = (Path(folder) / name for name in ("copies", "pack", "disk"))
        disk.mkdir()
        copy_images(photographs, kind, source, arguments.images)
        pack(source, target, PackOptions())
        shutil.rmtree(source)
        whole_bytes, growth = measure_decoded(target)
        say(f"{kind}: decoded {whole_bytes / 1e6:.0f} MB, {growth:.1f} times as much as packed")
        rates = [measure_hits(target, share, whole_bytes, arguments.epochs) for share in SHARES]
        ways: dict[str, dict[str, Any] | None] = {
            "no cache": None,
            "ram": {"ram": whole_bytes + 1},
            "disk": {"ram": 0, "disk": f"{disk}:{whole_bytes + 1}"},
            "half in ram": {"ram": whole_bytes // 2},
            "half in ram, half on disk": {"ram": whole_bytes // 2, "disk": str(disk)},
        }
        speeds = {name: measure_speed(target, name, way, arguments) for name, way in ways.items()}
    return {
        "decoded_bytes": whole_bytes,
        "bytes_decoded_per_byte_packed": growth,
        "hit_rates": rates,
        "epochs": speeds,
    }


def copy_images(photographs: list[str], kind: str, target: Path, count: int) -> None:
    target.mkdir()
    for number in range(count):
        source = photographs[number % len(photographs)]
        if kind == "JPEG":
            shutil.copyfile(source, target / f"{number:06d}.jpg")
        elif number < len(photographs):
            with Image.open(source) as image:
                image.convert("RGB").save(target / f"{number:06d}.png")
        else:
            shutil.copyfile(target / f"{number % len(photographs):06d}.png", target / f"{number:06d}.png")


def measure_decoded(target: Path) -> tuple[int, float]:
    """Return the bytes that all decoded samples take, and that per byte of the pack."""
    with feedrate.Cache(ram=2**40) as cache, feedrate.Loader(target, 64, image=CROP, cache=cache) as loader:
        drain(loader)
        stats = loader.stats().cache
        assert stats is not None
        assert stats.cached_share == 1
        assert stats.growth is not None
        return sum(tier.size_bytes for tier in stats.tiers), stats.growth


def measure_hits(target: Path, share: float, whole_bytes: int, epochs: int) -> dict[str, float]:
    fields = ("image", "number")
    cache = feedrate.Cache(ram=max(1, round(share * whole_bytes)))
    with cache, feedrate.Loader(target, 32, image=CROP, cache=cache, fields=fields, output="numpy") as loader:
        numbers = [np.concatenate([batch[1] for batch in loader]) for _ in range(epochs)]
        stats = loader.stats().cache
    assert stats is not None
    simulated = simulate_lru(numbers, max(1, round(share * len(numbers[0]))))
    x = stats.cached_share
    theory = x + (1 - x) * math.log(1 - x) if x < 1 else 1.0
    say(f"  {x:6.1%} cached: hits {stats.hit_rate:6.1%}; LRU {simulated:6.1%} (theory {theory:6.1%})")
    return {"cached_share": x, "hit_rate": stats.hit_rate, "lru_hit_rate": simulated, "lru_theory": theory}


def simulate_lru(epochs: list[np.ndarray], capacity: int) -> float:
    """Return the hit rate of the last epoch of an LRU that holds `capacity` samples."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for epoch in epochs:
        hits = 0
        for number in epoch.tolist():
            if number in held:
                hits += 1
                held.move_to_end(number)
            else:
                held[number] = None
                if len(held) > capacity:
                    held.popitem(last=False)
    return hits / len(epochs[-1])


def measure_speed(
    target: Path, name: str, way: dict[str, Any] | None, arguments: argparse.Namespace
) -> list[dict[str, float]]:
    """Return, of each epoch, images per second and processor time per image."""
    cache = None if way is None else feedrate.Cache(**way)
    with feedrate.Loader(target, 64, image=CROP, flip=True, cache=cache) as loader:
        epochs = [drain(loader) for _ in range(arguments.epochs)]
    if cache is not None:
        cache.close()
    say(f"  {name}: " + ", ".join(f"{one['images_per_s']:.0f}" for one in epochs) + " images/s")
    return epochs


def drain(loader: feedrate.Loader) -> dict[str, float]:
    began, processor_began, images = time.perf_counter(), time.process_time(), 0
    for batch in loader:
        images += len(batch[0])
    processor_s = time.process_time() - processor_began
    return {
        "images_per_s": images / (time.perf_counter() - began),
        "processor_ms_per_image": processor_s / images * 1e3,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a folder with photographs")
    parser.add_argument("--images", type=int, default=1000, help="how many, copies included")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--work", help="where to put the pack and the disk tier; default: the temporary folder"
    )
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
