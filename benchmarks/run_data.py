# SPDX-License-Identifier: Apache-2.0
"""The data of `run_scripts`: photographs in class folders, and what is made of them for other scripts.

python benchmarks/run_data.py FOLDER --images 1000 [--photos DIR]
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from feedrate.lab.photographs import write_photographs


def make_data(folder: Path, count: int, *, seed: int, photos: str | None = None) -> Path:
    """Return the folder with `count` photographs in `folder`, which is made unless it is there."""
    kind = f"given-{count}-{zlib.crc32(photos.encode()):08x}" if photos else f"made-{count}-{seed}"
    target = folder / kind
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
        made = Path(unfinished) / kind
        if photos:
            copy_photographs(Path(photos), made / "train", count)
        else:
            write_photographs(made / "train", count, seed=seed)
        derive(made, seed)
        made.rename(target)
    return target


def copy_photographs(source: Path, target: Path, count: int) -> None:
    """Write `count` different files: of photographs that are listed again, only a comment differs."""
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for number in range(count):
        data = paths[number % len(paths)].read_bytes()
        comment = b"\xff\xfe" + (10).to_bytes(2, "big") + b"%08d" % number
        path = target / f"class-{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:2] + comment + data[2:])


def derive(folder: Path, seed: int) -> None:
    """Write beside the photographs what other scripts read: pairs with masks, a tar, PNGs, tokens."""
    photographs = sorted((folder / "train").rglob("*.jpg"))
    rng = np.random.default_rng(seed)
    for name in ("images", "masks", "png"):
        (folder / "pairs" / name if name != "png" else folder / name).mkdir(parents=True)
    with tarfile.open(folder / "train.tar", "w") as archive:
        for number, path in enumerate(photographs):
            archive.add(path, f"{path.parent.name}/{path.name}")
            os.link(path, folder / "pairs" / "images" / path.name)
            with Image.open(path) as image:
                coarse = Image.fromarray(rng.integers(0, 21, (6, 8), dtype=np.uint8), "P")
                coarse.putpalette([(37 * level) % 256 for level in range(768)])
                coarse.resize(image.size, Image.Resampling.NEAREST).save(
                    folder / "pairs" / "masks" / f"{path.stem}.png"
                )
                if number % 4 == 0:
                    target = folder / "png" / path.parent.name / f"{path.stem}.png"
                    target.parent.mkdir(exist_ok=True)
                    image.convert("RGB").save(target, compress_level=1)
    rng.integers(0, 50_000, 2000 * len(photographs), dtype=np.uint16).tofile(folder / "tokens.bin")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--photos", metavar="DIR")
    arguments = parser.parse_args()
    print(make_data(arguments.folder, arguments.images, seed=arguments.seed, photos=arguments.photos))
    return 0


if __name__ == "__main__":
    sys.exit(main())
