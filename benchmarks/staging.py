# SPDX-License-Identifier: Apache-2.0
"""How does a dataset come to a node's disk soonest: file by file, as one file, as a tar, or as a pack?

The table of the guides, in one run on one slow store: a read-only file system of this machine (FUSE) whose
every answer is late by a stated time, and which gives at most a stated rate. Each row says when the first
batch is there, when the first epoch has ended, and when all is local. One run per row. Needs root.

    python benchmarks/staging.py --images 3000 --latency-ms 5 --rate 50 --json benchmarks/results/staging.json
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from feedrate import Loader, PackOptions, RandomResizedCrop, pack
from feedrate.lab.photographs import make_photographs
from feedrate.machine.describe import describe_machine
from feedrate.scratch.commands import stage

SURROUNDINGS = Path(__file__).parent.parent / "tests" / "doctor_corpus" / "surroundings.py"
BATCH, SIDE = 64, 224


def main() -> int:
    arguments = parse()
    if arguments.mounted:
        measure_all(Path(arguments.mounted), Path(arguments.folder), arguments)
        return 0
    with tempfile.TemporaryDirectory(prefix="feedrate-staging-", dir=arguments.scratch) as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"  # nothing of this stays in the registry
        sizes = make_sources(Path(folder) / "store", arguments.images)
        late = str(arguments.latency_ms)
        slow = [f"{folder}/store", f"{folder}/mounted", late, late, str(arguments.rate)]
        own = [sys.executable, __file__, "--mounted", f"{folder}/mounted", "--folder", folder]
        own += ["--rate", str(arguments.rate)]
        subprocess.run([sys.executable, str(SURROUNDINGS), "--slow", *slow, "--", *own], check=True)
        rows = json.loads((Path(folder) / "rows.json").read_text())
    if arguments.json:
        settings = {
            "images": arguments.images,
            "latency_ms": arguments.latency_ms,
            "rate_mb_per_s": arguments.rate,
        }
        machine = asdict(describe_machine(["staging.py", *sys.argv[1:]]))
        question = (__doc__ or "").splitlines()[0]
        document = {"question": question, "settings": settings, "sizes": sizes, "rows": rows}
        Path(arguments.json).write_text(json.dumps({**document, "machine": machine}, indent=1) + "\n")
    return 0


def make_sources(store: Path, images: int) -> dict[str, int]:
    """Write the same photographs as a folder, one tar, one HDF5 file, and packs; return their sizes."""
    for number, photograph in enumerate(make_photographs(images)):
        path = store / "folder" / f"class{photograph.label}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph.jpeg)
    with tarfile.open(store / "folder.tar", "w") as file:
        file.add(store / "folder", "folder")
    for container in ("tar", "tfrecord", "hdf5"):
        pack(store / "folder", store / container, PackOptions(container=container, shard_bytes=32_000_000))
    return {path.name: measure_bytes(path) for path in sorted(store.iterdir())}


def measure_bytes(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)


def measure_all(store: Path, folder: Path, arguments: argparse.Namespace) -> None:
    rows = []
    for name, bring in METHODS.items():
        target = folder / "local"
        target.mkdir()
        begin = time.perf_counter()
        times = bring(store, target)
        if times is None:
            say(f"{name}: not possible here")
        else:
            first_s, epoch_s, local_s, size_bytes = (*(t - begin for t in times[:3]), times[3])
            share = size_bytes / local_s / (arguments.rate * 1e6)
            row = {"how": name, "first_batch_s": first_s, "first_epoch_s": epoch_s, "all_local_s": local_s}
            rows.append({**row, "bytes": size_bytes, "share_of_rate": share})
            seconds = f"first batch {first_s:.1f} s, first epoch {epoch_s:.1f} s, all local {local_s:.1f} s"
            say(f"{name}: {seconds}, {size_bytes / local_s / 1e6:.1f} MB/s ({share:.0%} of the rate)")
        shutil.rmtree(target)
    (folder / "rows.json").write_text(json.dumps(rows, indent=1))


Times = tuple[float, float, float, int] | None


def copy_folder(store: Path, target: Path) -> Times:
    subprocess.run(["cp", "-r", store / "folder", target / "folder"], check=True)
    return finish(target / "folder", read_folder)


def rsync_one_file(store: Path, target: Path) -> Times:
    if shutil.which("rsync") is None:
        return None
    subprocess.run(["rsync", "-W", "--inplace", "-r", f"{store}/hdf5/", target / "hdf5"], check=True)
    return finish(target / "hdf5", read_pack)


def copy_and_unpack(store: Path, target: Path) -> Times:
    subprocess.run(["cp", store / "folder.tar", target], check=True)
    subprocess.run(["tar", "xf", target / "folder.tar", "-C", target], check=True)
    (target / "folder.tar").unlink()
    return finish(target / "folder", read_folder)


def stage_pack(container: str) -> Callable[[Path, Path], Times]:
    return lambda store, target: finish(Path(stage(store / container, target)), read_pack)


def train_while_staging(store: Path, target: Path) -> Times:
    if "scratch" not in inspect.signature(Loader.__init__).parameters:
        return None
    options: dict[str, Any] = {"scratch": str(target)}
    reading = read_pack(store / "tar", **options)
    next(reading)
    first = time.perf_counter()
    for _ in reading:
        pass
    epoch = time.perf_counter()
    stage(store / "tar", target)  # what the first epoch has not brought yet
    return first, epoch, time.perf_counter(), measure_bytes(store / "tar")


def finish(local: Path, read: Callable[[Path], Iterator[object]]) -> Times:
    """Read an epoch of what has been brought."""
    there = time.perf_counter()
    reading = read(local)
    next(reading)
    first = time.perf_counter()
    for _ in reading:
        pass
    return first, time.perf_counter(), there, measure_bytes(local)


def read_pack(path: Path, **options: Any) -> Iterator[object]:
    with Loader(path, batch_size=BATCH, image=RandomResizedCrop(SIDE), output="numpy", **options) as loader:
        yield from loader


def read_folder(path: Path) -> Iterator[object]:
    files = sorted(path.rglob("*.jpg"))

    def load(file: Path) -> bytes:
        with Image.open(file) as image:
            return image.convert("RGB").resize((SIDE, SIDE)).tobytes()

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for start in range(0, len(files), BATCH):
            yield list(threads.map(load, files[start : start + BATCH]))


METHODS: dict[str, Callable[[Path, Path], Times]] = {
    "the folder, file by file (cp -r)": copy_folder,
    "one HDF5 file (rsync -W --inplace)": rsync_one_file,
    "a tar, copied, then unpacked": copy_and_unpack,
    "feedrate stage, TFRecord pack": stage_pack("tfrecord"),
    "feedrate stage, tar pack": stage_pack("tar"),
    "train while staging, tar pack": train_while_staging,
}


def say(text: str) -> None:
    print(text, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of every answer of the store")
    parser.add_argument("--rate", type=float, default=50.0, help="of the store, MB/s")
    parser.add_argument("--scratch", help="where to put all of it while it runs")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--mounted", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
