# SPDX-License-Identifier: Apache-2.0
"""How often does a cache that fills and stays hit, against one that evicts (LRU), and what does that give?

Copies photographs into a pack, then loads it for some epochs with caches of 0 to 100 % of what all decoded
samples take. The same accesses go through a simulated LRU of the same share; x + (1 - x) ln(1 - x) is what
theory gives for that. A second table has images/s per epoch: no cache, memory, disk, half of each.

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

import feedrate
from feedrate.pack import PackOptions, pack
from feedrate.probe.machine import describe_machine

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
CROP = feedrate.RandomResizedCrop(224)


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-tiers-", dir=arguments.work) as folder:
        source, target, disk = (Path(folder) / name for name in ("copies", "pack", "disk"))
        disk.mkdir()
        copy_images(Path(arguments.source), source, arguments.images)
        pack(source, target, PackOptions())
        shutil.rmtree(source)
        whole_bytes, growth = measure_decoded(target)
        say(f"{arguments.images} images, decoded {whole_bytes / 1e6:.0f} MB: {growth:.1f} times the packed")
        rates = [measure_hits(target, share, whole_bytes, arguments.epochs) for share in SHARES]
        ways: dict[str, dict[str, Any] | None] = {
            "no cache": None,
            "ram": {"ram": whole_bytes + 1},
            "disk": {"ram": 0, "disk": f"{disk}:{whole_bytes + 1}"},
            "half in ram": {"ram": whole_bytes // 2},
            "half in ram, half on disk": {"ram": whole_bytes // 2, "disk": str(disk)},
        }
        speeds = {name: measure_speed(target, way, arguments) for name, way in ways.items()}
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name,
        "images": arguments.images,
        "decoded_bytes": whole_bytes,
        "bytes_decoded_per_byte_packed": growth,
        "hit_rates": rates,
        "images_per_s_by_epoch": speeds,
        "machine": asdict(describe_machine(["tiers.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def copy_images(source: Path, target: Path, count: int) -> None:
    images = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    target.mkdir()
    for number in range(count):
        image = images[number % len(images)]
        shutil.copyfile(image, target / f"{number:06d}{image.suffix.lower()}")


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
    say(f"{x:6.1%} cached: hits {stats.hit_rate:6.1%}; LRU {simulated:6.1%} (theory {theory:6.1%})")
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


def measure_speed(target: Path, way: dict[str, Any] | None, arguments: argparse.Namespace) -> list[float]:
    cache = None if way is None else feedrate.Cache(**way)
    with feedrate.Loader(target, 64, image=CROP, flip=True, cache=cache) as loader:
        rates = [drain(loader) for _ in range(arguments.epochs)]
    if cache is not None:
        cache.close()
    say(f"{way}: " + ", ".join(f"{rate:.0f}" for rate in rates) + " images/s")
    return rates


def drain(loader: feedrate.Loader) -> float:
    began, images = time.perf_counter(), 0
    for batch in loader:
        images += len(batch[0])
    return images / (time.perf_counter() - began)


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
