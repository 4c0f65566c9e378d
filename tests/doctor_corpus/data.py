# SPDX-License-Identifier: Apache-2.0
"""The datasets that the scripts of the corpus train on: small, seeded, made once per folder.

    python tests/doctor_corpus/data.py KIND FOLDER

A kind is written into a folder of its own (FOLDER/KIND) and appears under that name only when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ash", "birch", "cedar", "elm")


def make_data(kind: str, folder: Path) -> Path:
    """Return the folder of a kind of data, which is made unless it is there."""
    target = folder / kind
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=folder))
    try:
        KINDS[kind](unfinished)
        os.rename(unfinished, target)
    except FileExistsError:
        pass  # another process was quicker
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def picture(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return something that costs about what a photograph costs to decode: broad shapes, edges and grain."""
    coarse = generator.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    stripes = np.sin(rows / generator.uniform(2, 9) + columns / generator.uniform(2, 9)) > 0.4
    grain = generator.normal(0, 9, (height, width, 1)).astype(np.float32)
    return Image.fromarray(np.clip(pixels + grain + 40 * stripes[..., None], 0, 255).astype(np.uint8))


def write_pictures(
    folder: Path, count: int, width: int, height: int, *, seed: int, suffix: str = ".jpg", **options: int
) -> None:
    generator = np.random.default_rng(seed)
    for number in range(count):
        target = folder / CLASSES[number % len(CLASSES)] / f"{number:05}{suffix}"
        target.parent.mkdir(exist_ok=True)
        picture(generator, width, height).save(target, **options)


def photos(folder: Path) -> None:
    write_pictures(folder, 240, 500, 400, seed=1, quality=90)


def large_photos(folder: Path) -> None:
    write_pictures(folder, 48, 1600, 1200, seed=2, quality=90)


def thumbnails(folder: Path) -> None:
    write_pictures(folder, 3000, 72, 64, seed=3, quality=85)


def scans(folder: Path) -> None:
    write_pictures(folder, 60, 800, 640, seed=4, suffix=".png", compress_level=6)


def uneven_photos(folder: Path) -> None:
    """Two cameras, one of them with ten times the pixels; sorted by name, they stand one after the other."""
    generator = np.random.default_rng(5)
    for number in range(64):
        picture(generator, 300, 240).save(folder / f"compact-{number:04}.jpg", quality=90)
        picture(generator, 1000, 800).save(folder / f"reflex-{number:04}.jpg", quality=90)


def arrays(folder: Path) -> None:
    """Samples of 97 KB, enough of them (250 MB) that 160 steps of 16 see each at most once."""
    generator = np.random.default_rng(6)
    for number in range(2600):
        np.save(folder / f"{number:05}.npy", generator.integers(0, 256, (180, 180, 3), dtype=np.uint8))


def slices(folder: Path) -> None:
    generator = np.random.default_rng(7)
    for number in range(400):
        np.save(folder / f"slice-{number:04}.npy", generator.normal(size=(1, 256, 320)).astype(np.float32))


def volume(folder: Path) -> None:
    generator = np.random.default_rng(8)
    np.save(folder / "frames.npy", generator.integers(0, 256, (160, 3, 384, 384), dtype=np.uint8))
    np.save(folder / "labels.npy", generator.integers(0, 4, 160))


def waves(folder: Path) -> None:
    generator = np.random.default_rng(9)
    for number in range(240):
        time = np.arange(48_000) / 16_000
        tone = sum(np.sin(2 * np.pi * f * time) for f in generator.uniform(80, 4000, 5))
        sound = tone * 3000 + generator.normal(0, 500, time.size)
        np.save(folder / f"{CLASSES[number % 4]}_{number:04}.npy", sound.astype(np.int16))


def export(folder: Path) -> None:
    """Compressed chunks of 128 samples, as an export from a database would write them."""
    generator = np.random.default_rng(10)
    for number in range(24):
        images = generator.integers(0, 40, (128, 96, 96, 3), dtype=np.uint8)
        np.savez_compressed(folder / f"chunk-{number:03}.npz", x=images, y=generator.integers(0, 4, 128))


def cells(folder: Path) -> None:
    """One HDF5 file with 64 tiles in each compressed chunk, more than its cache of chunks holds."""
    import h5py

    generator = np.random.default_rng(14)
    with h5py.File(folder / "cells.h5", "w") as file:
        shape = (768, 128, 128, 3)
        tiles = file.create_dataset("tiles", shape, np.uint8, chunks=(64, *shape[1:]), compression="gzip")
        for start in range(0, len(tiles), 64):
            tiles[start : start + 64] = generator.integers(0, 40, (64, *shape[1:]), dtype=np.uint8)
        file["labels"] = generator.integers(0, 4, len(tiles))


def tokens(folder: Path) -> None:
    np.random.default_rng(11).integers(0, 512, 2_000_000, dtype=np.uint16).tofile(folder / "train.bin")


def reviews(folder: Path) -> None:
    generator = np.random.default_rng(12)
    words = [
        "".join(chr(97 + letter) for letter in generator.integers(0, 26, generator.integers(2, 10)))
        for _ in range(3000)
    ]
    with open(folder / "reviews.jsonl", "w") as file:
        for _ in range(2000):
            chosen = generator.integers(0, len(words), 180)
            text = " ".join(words[number] for number in chosen)
            file.write(json.dumps({"text": text, "stars": int(generator.integers(0, 5))}) + "\n")


def annotated_photos(folder: Path) -> None:
    """Photographs and one large file of annotations, as detection datasets have."""
    write_pictures(folder, 96, 320, 256, seed=13, quality=88)
    generator = np.random.default_rng(13)
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.jpg"))]
    boxes = generator.integers(0, 200, (60_000, 4)).tolist()
    notes = [{"image": names[n % len(names)], "bbox": box, "category": n % 4} for n, box in enumerate(boxes)]
    (folder / "annotations.json").write_text(json.dumps({"annotations": notes}))


KINDS: dict[str, Callable[[Path], None]] = {
    "photos": photos,
    "large-photos": large_photos,
    "thumbnails": thumbnails,
    "scans": scans,
    "uneven-photos": uneven_photos,
    "arrays": arrays,
    "slices": slices,
    "volume": volume,
    "waves": waves,
    "export": export,
    "cells": cells,
    "tokens": tokens,
    "reviews": reviews,
    "annotated-photos": annotated_photos,
}

if __name__ == "__main__":
    print(make_data(sys.argv[1], Path(sys.argv[2])))
