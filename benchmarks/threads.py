# SPDX-License-Identifier: Apache-2.0
"""How many images per second does Loader give with more threads, and does it keep up with its kernel?

Copies the images until they are larger than any processor's cache, packs the copies, and drains the pack with
1, 2, 4 ... threads: once through `Loader`, once through bare calls of `decode_batch` on the same samples, in
turn. Bytes come from the page cache; reading and checking them is part of both.

    python benchmarks/threads.py FOLDER --json benchmarks/results/threads.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

import feedrate
from feedrate import PackOptions, kernel, pack
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader.geometry import CropSampler, FieldCrops, Places, decode_pixels
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine

BATCH = 256
CROP = feedrate.RandomResizedCrop(224)


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-threads-", dir=arguments.work) as folder:
        copies, target = Path(folder) / "copies", Path(folder) / "pack"
        size_bytes = copy_images(Path(arguments.source), copies, arguments.gigabytes * 10**9)
        say(f"packing {size_bytes / 1e9:.1f} GB of copies")
        pack(copies, target, PackOptions())
        shutil.rmtree(copies)
        results = [measure(target, threads, arguments) for threads in arguments.threads]
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name,
        "pack_bytes": size_bytes,
        "simd_level": kernel.simd_level(),
        "results": results,
        "machine": asdict(describe_machine(["threads.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def copy_images(source: Path, target: Path, size_bytes: int) -> int:
    images = sorted(p for p in source.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    copied, round_ = 0, 0
    while copied < size_bytes:
        for number, image in enumerate(images):
            to = target / f"copy-{round_:04d}" / f"{number}.jpg"
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(image, to)
            copied += image.stat().st_size
        round_ += 1
    return copied


def measure(target: Path, threads: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Return images per second through Loader and through bare decode_batch, in interleaved rounds."""
    loader = feedrate.Loader(target, batch_size=BATCH, image=CROP, flip=True, threads=threads, drop_last=True)
    bare = BareKernel(target, threads)
    ways = {"loader": lambda n: drain(loader, n), "kernel": bare.run}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    # Enough for about `--seconds` per run at the rate that the first batches show; they also warm caches.
    batches = max(4, round(arguments.seconds * bare.run(4) / BATCH))
    drain(loader, batches)
    for _ in range(arguments.rounds):
        for name, run in ways.items():
            rates[name].append(run(batches))
    loader.close()
    middle = {name: median(values) for name, values in rates.items()}
    share = median(a / b for a, b in zip(rates["loader"], rates["kernel"], strict=True))
    rate = f"Loader {middle['loader']:8,.0f} images/s, kernel {middle['kernel']:8,.0f}"
    say(f"{threads:3} threads: {rate}, {share:.1%}")
    return {"threads": threads, "images_per_s": middle, "loader_share": share, "rates": rates}


def drain(loader: feedrate.Loader, batches: int) -> float:
    """Return images/s over `batches` batches, or the rest of the epoch, once the pipeline is full."""
    feed = iter(loader)
    for _ in range(4):
        next(feed)
    started, given = time.perf_counter(), 0
    for images, *_ in feed:
        given += len(images)
        if given >= batches * BATCH:
            break
    return given / (time.perf_counter() - started)


class BareKernel:
    """Calls decode_batch on shuffled samples, one call after the other; the rest is prepared before."""

    def __init__(self, target: Path, threads: int) -> None:
        self.pack = Pack(target)
        self.pool = kernel.Pool(threads)
        self.field = next(f for f in self.pack.fields if f.kind is Kind.IMAGE)
        self.artist = CropSampler(self.field, CROP, 0.5, seed=0)
        self.order = np.random.default_rng(0).permutation(len(self.pack))
        self.out = np.empty((BATCH, 224, 224, 3), np.uint8)

    def run(self, batches: int) -> float:
        prepared = []
        for i in range(batches):
            positions = np.take(self.order, range(i * BATCH, (i + 1) * BATCH), mode="wrap")
            rows, _ = self.pack.rows(positions)
            places, geometry = Places(self.pack, rows, positions), self.artist.draw(0, rows, None)
            prepared.append(FieldCrops(places, self.field, geometry))
        started = time.perf_counter()
        for crops in prepared:
            report = decode_pixels(crops, self.out, self.pool)
            assert not report.statuses.any()
        return batches * BATCH / (time.perf_counter() - started)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="FOLDER", help="a folder of JPEGs")
    cores = count_usable_cores()
    default = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= cores]
    parser.add_argument("--threads", type=int, nargs="+", default=default)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of copies (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per run (default: 2)")
    parser.add_argument("--work", metavar="DIR", help="where to write copies and pack (default: as tempfile)")
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
