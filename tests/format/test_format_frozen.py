# SPDX-License-Identifier: Apache-2.0
"""Packs that released versions have written are still read. The files under data/ are never written again."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import fsspec
import numpy as np
import pytest

from feedrate import Dataset, Loader, RandomResizedCrop, kernel, unpack, verify
from feedrate.format.pack import Pack
from support.images import read_tree
from support.paths import DATA

NUMBERS = [1, 2, 0]


@pytest.fixture
def opened() -> Pack:
    return Pack(DATA / "pack-v1")


def test_version_1_has_its_fields(opened: Pack) -> None:
    assert [(f.name, f.kind.value, f.dtype, f.shape, f.classes) for f in opened.fields] == [
        ("image", "image", None, None, None),
        ("label", "number", "int64", None, ("cat", "dog")),
        ("caption", "text", None, None, None),
        ("features", "array", "float32", (2,), None),
    ]


def test_version_1_has_its_rows(opened: Pack) -> None:
    positions = np.arange(len(opened))
    rows, statuses = opened.rows(positions)
    assert statuses.tolist() == [0, 0, 0]
    assert rows["number"].tolist() == NUMBERS
    assert rows["label"].tolist() == [n % 2 for n in NUMBERS]
    assert opened.texts("key", positions) == [b"images/%d" % n for n in NUMBERS]
    assert rows["image.width"].tolist() == [24 + n for n in NUMBERS]


def test_version_1_has_its_values(opened: Pack) -> None:
    positions = np.arange(len(opened))
    rows, _ = opened.rows(positions)
    buffer, starts, statuses = kernel.read_ranges(opened.files, opened.ranges("caption", rows, positions))
    assert statuses.tolist() == [0, 0, 0]
    texts = [buffer[a:b].tobytes().decode() for a, b in itertools.pairwise(starts)]
    assert texts == [f"número {n}" for n in NUMBERS]


def test_version_1_is_decoded_from_its_entry_points(opened: Pack) -> None:
    positions = np.arange(len(opened))
    rows, _ = opened.rows(positions)
    images, entries = opened.ranges("image", rows, positions), opened.entries("image", rows, positions)
    assert [bool(n) for n in entries.length] == [n != 2 for n in NUMBERS]  # number 2 is a PNG
    boxes = np.tile(np.array([3, 9, 20, 17], np.int32), (3, 1))
    pixels = []
    for where in (entries, None):
        out = np.zeros((3, 8, 16, 3), np.uint8)
        report = kernel.decode_batch(
            opened.files, images, out, boxes=boxes, flips=np.zeros(3, bool), entries=where
        )
        assert report.statuses.tolist() == [0, 0, 0]
        pixels.append(out)
    assert pixels[0].any()
    assert (pixels[0] == pixels[1]).all()


def test_version_1_is_good() -> None:
    assert verify(DATA / "pack-v1", workers=1).problems == ()


def test_version_1_gives_its_files_back(tmp_path: Path) -> None:
    unpack(DATA / "pack-v1", tmp_path, workers=1)
    digests = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in read_tree(tmp_path).items()}
    assert digests == DIGESTS


# A cat in 4:2:0, a gray one, a dog in 4:4:4 and one that was a PNG, about 40 pixels wide, by `--raw` and by
# `--resize 30 --quality 85`. Crops and flips are drawn from the seed alone: that they are the same shows too.
@pytest.mark.parametrize(("name", "crc"), [("pack-v1-raw", 0xF4CDC613), ("pack-v1-recoded", 0xEBD5CE4B)])
def test_version_1_gives_the_batch_it_gave_when_it_was_written(name: str, crc: int) -> None:
    operation = RandomResizedCrop(24)
    with Loader(
        DATA / name, batch_size=4, image=operation, flip=True, seed=3, output="numpy", threads=2
    ) as loader:
        ((images, labels),) = loader
    assert images.shape == (4, 24, 24, 3)
    assert labels.tolist() == [1, 1, 0, 0]
    assert kernel.crc32c(images.tobytes()) == crc


@pytest.mark.parametrize("name", ["pack-v1-raw", "pack-v1-recoded"])
def test_version_1_with_other_pixels_is_good(name: str) -> None:
    assert verify(DATA / name, workers=1).problems == ()


@pytest.mark.parametrize("name", ["pack-v2-tfrecord", "pack-v2-hdf5", "index-v2"])
def test_version_2_gives_its_values_from_any_container(name: str) -> None:
    if name == "pack-v2-hdf5":
        pytest.importorskip("h5py")
    assert verify(DATA / name, workers=1).problems == ()
    fields = ("number", "caption", "features", "image")
    options = {"shuffle": False, "image": RandomResizedCrop(24), "seed": 3, "output": "numpy"}
    with Loader(DATA / name, batch_size=4, fields=fields, **options) as loader:
        ((numbers, captions, features, images),) = loader
    found = {int(c[-1]): (c, f.tolist(), i.any()) for c, f, i in zip(captions, features, images, strict=True)}
    assert found == {n: (f"número {n}", [n, n / 2], True) for n in range(3)}
    assert len(numbers) == 3


def test_version_3_reads_its_shards_where_they_lie() -> None:
    store = fsspec.filesystem("memory")
    for path in (DATA / "pack-v2-tfrecord").glob("*.tfrecord"):
        store.put(str(path), f"/frozen/{path.name}")
    try:
        allowed = "memory://frozen"
        assert verify(DATA / "index-v3", workers=1, allow_addresses=allowed).problems == ()
        options = {
            "shuffle": False,
            "output": "numpy",
            "allow_addresses": allowed,
            "fields": ("number", "caption", "features"),
        }
        with Loader(DATA / "index-v3", batch_size=4, **options) as loader:
            ((_, captions, features),) = loader
    finally:
        store.rm("/frozen", recursive=True)
    found = {int(caption[-1]): row.tolist() for caption, row in zip(captions, features, strict=True)}
    assert found == {n: [n, n / 2] for n in range(3)}


DIGESTS = {
    "0.npy": "95b1fc3071e0",
    "1.npy": "5d6317fc3c1b",
    "2.npy": "3104eb982a15",
    "images/0.jpg": "3381be01c41a",
    "images/1.jpg": "14cdd1198559",
    "images/2.png": "109da9e8081f",
    "labels.csv": "1f41a1486c2a",
}


def test_version_2_has_what_was_appended_and_added() -> None:
    changed = Dataset(DATA / "pack-v2-changed", fields=("key", "number", "label", "weight", "words", "split"))
    assert changed.classes == ["cat", "dog", "ape"]
    assert [changed[i] for i in range(5)] == [
        ("dog/2", 2, 1, 0.0, "dog/2 čtyři", 0),
        ("cat/1", 0, 0, 1.5, "cat/1 čtyři", 1),
        ("dog/0", 1, 1, 3.0, "dog/0 čtyři", 0),
        ("dog/b0", 4, 1, -1.0, "new", 0),
        ("ape/b1", 3, 2, -1.0, "new", 1),
    ]
    train = Dataset(DATA / "pack-v2-changed", fields=("key",), split="train")
    assert [train[i] for i in range(3)] == ["dog/2", "dog/0", "dog/b0"]


def test_version_2_refers_to_files_of_other_packs() -> None:
    merged = Dataset(DATA / "pack-v2-merged", fields=("key", "number", "label", "weight", "split"))
    assert merged.classes == ["cat", "dog", "ape", "bee"]
    assert [merged[i] for i in range(4, 7)] == [
        ("pack-v2-changed/ape/b1", 3, 2, -1.0, 1),
        ("pack-v2-other/cat/c0", 6, 0, 10.0, -1),
        ("pack-v2-other/bee/c1", 5, 3, 11.0, -1),
    ]
    for name in ("pack-v2-changed", "pack-v2-other", "pack-v2-merged"):
        assert verify(DATA / name, workers=1).problems == ()
