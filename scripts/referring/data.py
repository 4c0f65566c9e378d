# SPDX-License-Identifier: Apache-2.0
"""The data that is packed, indexed and loaded: made from seeds, with fixed times, the same at every call."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

MOMENT = 1_600_000_000
CLASSES = ("cat", "dog", "emu")
MAPS = """\
import time

import numpy as np


def darker(sample):
    return {**sample, "image": np.asarray(sample["image"]) // 2}


def slowly(sample):
    time.sleep(0.03)
    return sample
"""


def make_data(root: Path) -> None:
    """Make every source below `root`."""
    make_photos(root / "photos")
    make_equals(root / "equals", 48, first=300)
    make_equals(root / "more", 9, first=500)
    make_table(root / "table")
    make_shards(root / "webdataset")
    make_archive(root / "equals", root / "equals.zip")
    make_hdf5(root / "arrays.h5")
    make_parquet(root / "images.parquet")
    (root / "list.txt").write_text("".join(f"equals/cat/{n}.jpg\n" for n in range(0, 48, 3)))
    rows = [f"{name}/{n}.jpg,{n * 1.5}" for n in range(48) for name in (CLASSES[n % 3],)]
    (root / "ages.csv").write_text("\n".join(["path,age", *rows]) + "\n")
    words = [{"path": f"{CLASSES[n % 3]}/{n}.jpg", "caption": f"número {n}"} for n in range(48) if n % 5]
    (root / "captions.jsonl").write_text("".join(json.dumps(word) + "\n" for word in words))
    (root / "validation.txt").write_text("".join(f"{CLASSES[n % 3]}/{n}.jpg\n" for n in range(0, 48, 7)))
    (root / "maps.py").write_text(MAPS)
    freeze_times(root)


def freeze_times(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, (MOMENT, MOMENT))


def paint(seed: int, width: int, height: int) -> Image.Image:
    """Return smooth colours with some noise: as many bytes as a photograph of that size."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = rng.integers(-20, 21, (height, width, 3), dtype=np.int16)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def list_photos() -> dict[str, bytes]:
    """Return one image of every kind, by its path: those that the kernel takes, and those that it leaves."""
    photos = {
        "cat/baseline.jpg": encode(paint(1, 400, 300), quality=90),
        "cat/full-colour.jpg": encode(paint(2, 317, 211), quality=92, subsampling=0),
        "cat/half-colour.jpg": encode(paint(3, 256, 192), quality=80, subsampling=1),
        "cat/progressive.jpg": encode(paint(4, 333, 251), progressive=True),
        "cat/gray.jpg": encode(paint(5, 129, 131).convert("L")),
        "cat/four-inks.jpg": encode(paint(6, 150, 100).convert("CMYK")),
        "dog/restarts.jpg": encode(paint(7, 320, 240), restart_marker_blocks=7),
        "dog/optimised.jpg": encode(paint(8, 201, 303), optimize=True, quality=60),
        "dog/colours.png": encode(paint(9, 160, 120), "PNG"),
        "dog/gray.png": encode(paint(10, 90, 70).convert("L"), "PNG"),
        "dog/palette.png": encode(paint(11, 64, 64).quantize(32), "PNG"),
        "dog/see-through.png": encode(paint(12, 70, 50).convert("RGBA"), "PNG"),
        "dog/sixteen-bits.png": encode(
            Image.fromarray((np.arange(4800, dtype=np.uint16) * 13).reshape(60, 80)), "PNG"
        ),
        "emu/picture.webp": encode(paint(13, 80, 60), "WEBP", lossless=True),
        "emu/picture.bmp": encode(paint(14, 41, 43), "BMP"),
        "emu/picture.gif": encode(paint(15, 50, 40).quantize(16), "GIF"),
        "emu/tiny.jpg": encode(paint(16, 5, 3)),
        "emu/wide.jpg": encode(paint(17, 700, 40)),
        "emu/with space é.jpg": encode(paint(18, 120, 90)),
        "emu/notes.txt": b"no image\n",
        "emu/empty.jpg": b"",
    }
    for number in (2, 3, 6, 8):
        photos[f"dog/turned-{number}.jpg"] = encode(paint(20 + number, 144, 96), exif=orientation(number))
    photos["cat/copy.jpg"] = photos["cat/baseline.jpg"]
    photos["cat/cut.jpg"] = photos["cat/baseline.jpg"][:9000]
    photos["cat/spoilt.png"] = photos["dog/colours.png"][:700] + bytes(40) + photos["dog/colours.png"][740:]
    for number in range(16):  # sound ones, so that rejected ones are few
        photos[f"{CLASSES[number % 3]}/plain-{number}.jpg"] = encode(
            paint(100 + number, 180 + 9 * number, 240 - 7 * number), quality=85
        )
    return photos


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def make_photos(root: Path) -> None:
    write_files(root, list_photos())


def make_equals(root: Path, count: int, first: int) -> None:
    """Write JPEGs of one size, in class folders."""
    images = {
        f"{CLASSES[n % 3]}/{n + (1000 if first > 300 else 0)}.jpg": encode(paint(first + n, 96, 72))
        for n in range(count)
    }
    write_files(root, images)


def make_table(root: Path) -> None:
    """Write images with masks, arrays and texts, and a table that names them."""
    lines = ["path,label,mask,features,caption,age,tags,boxes"]
    files: dict[str, bytes] = {}
    for n in range(20):
        files[f"images/{n}.jpg"] = encode(paint(700 + n, 110 + n, 80))
        mask = np.zeros((80, 110 + n), np.uint8)
        mask[n : n + 30, 10:60] = n % 4
        files[f"masks/{n}.png"] = encode(Image.fromarray(mask), "PNG")
        array = io.BytesIO()
        np.save(array, np.random.default_rng(n).normal(size=(3, 4)).astype(np.float32))
        files[f"features/{n}.npy"] = array.getvalue()
        tags = "|".join(name for i, name in enumerate(("indoor", "night", "rain")) if n >> i & 1)
        box = json.dumps([[n, 5, n + 40, 45]]).replace('"', '""')
        lines.append(
            f'images/{n}.jpg,{CLASSES[n % 3]},masks/{n}.png,features/{n}.npy,text {n},{20 + n},{tags},"{box}"'
        )
    files["labels.csv"] = ("\n".join(lines) + "\n").encode()
    write_files(root, files)


def make_shards(root: Path) -> None:
    """Write WebDataset shards."""
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"train-{shard:03}.tar", "w") as tar:
            for n in range(10):
                key = f"{shard}-{n:03}"
                add_member(tar, f"{key}.jpg", encode(paint(800 + 10 * shard + n, 100, 75)))
                add_member(tar, f"{key}.cls", str(n % 3).encode())
                add_member(tar, f"{key}.txt", f"text {n}".encode())
                add_member(tar, f"{key}.json", json.dumps({"n": n}).encode())


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(content), MOMENT
    tar.addfile(member, io.BytesIO(content))


def make_archive(source: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(source.rglob("*.jpg")):
            name = zipfile.ZipInfo(str(path.relative_to(source)), (2020, 9, 13, 12, 26, 40))
            archive.writestr(name, path.read_bytes())


def make_hdf5(path: Path) -> None:
    rng = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        file["images"] = rng.integers(0, 256, (24, 32, 40, 3), dtype=np.uint8)
        file["labels"] = (np.arange(24) % 3).astype(np.int64)


def make_parquet(path: Path) -> None:
    images = [{"bytes": encode(paint(900 + n, 88, 66)), "path": f"{n}.jpg"} for n in range(12)]
    pq.write_table(pa.table({"image": images, "label": [n % 3 for n in range(12)]}), path)


def damage(source: Path, target: Path, *, byte: int = 3000) -> None:
    """Copy a pack and change one byte in the middle of its first shard."""
    shutil.copytree(source, target)
    shard = min(target.glob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[byte] ^= 0x55
    shard.write_bytes(content)
