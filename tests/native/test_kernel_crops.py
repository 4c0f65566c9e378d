# SPDX-License-Identifier: Apache-2.0
"""Crops of images in memory: what `decode_batch` makes of the same files, whatever crops share an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import SAMPLINGS, encode, make_jpeg, make_pixels, random_box

from feedrate import kernel
from feedrate.kernel import pillow
from feedrate.kernel.binding import native


def make_crops(rng: np.random.Generator, sides: list[tuple[int, int]], count: int) -> kernel.Crops:
    image = rng.integers(0, len(sides), count).astype(np.int32)
    boxes = np.array([random_box(rng, *sides[n]) for n in image], np.int32)
    boxes[::9, 2] += 100  # outside
    return kernel.Crops(
        image, boxes, rng.integers(0, 2, count).astype(bool), rng.integers(0, 6, count, np.uint8)
    )


def by_batch(folder: Path, images: list[bytes], entries: list[bytes], crops: kernel.Crops, shape: Any) -> Any:
    """Return the pixels and the report of files that hold the same."""

    def write(name: str, parts: list[bytes]) -> kernel.Ranges:
        for i, part in enumerate(parts):
            (folder / f"{i}.{name}").write_bytes(part)
        lengths = np.array([len(parts[n]) for n in crops.image], np.int64)
        number = crops.image + (len(images) if name == "entries" else 0)
        return kernel.Ranges(number.astype(np.int32), np.zeros(len(number), np.int64), lengths)

    ranges = write("image", images), write("entries", entries)
    files = kernel.Files(
        [folder / f"{i}.{name}" for name in ("image", "entries") for i in range(len(images))]
    )
    out = np.empty((len(crops.image), *shape), np.uint8)
    report = kernel.decode_batch(
        files, ranges[0], out, boxes=crops.boxes, flips=crops.flips, filters=crops.filters, entries=ranges[1]
    )
    return out, report


@pytest.mark.parametrize("with_entries", [True, False])
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("seed", range(3))
def test_crops_are_those_of_a_batch_of_files(
    tmp_path: Path, with_entries: bool, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sides = [(int(w), int(h)) for w, h in rng.integers(1, 120, (10, 2))]
    images = [make_jpeg(*side, kind, seed=seed) for side, kind in zip(sides, SAMPLINGS, strict=False)]
    images += [encode(make_pixels(*sides[5]), progressive=True), encode(make_pixels(*sides[6]), "PNG")]
    images += [make_jpeg(*side)[:-30] for side in sides[7:9]] + [b"no image"]
    entries = [kernel.scan(one, 100).entries if with_entries else b"" for one in images]
    crops = make_crops(rng, sides, 60)
    pool = kernel.Pool(threads) if threads else None
    out = np.full((60, 19, 23, 3), 77, np.uint8)
    report = kernel.decode_crops(images, entries, crops, out, pool)
    wanted, other = by_batch(tmp_path, images, entries, crops, (19, 23, 3))
    assert np.array_equal(out, wanted)
    assert report.statuses.tolist() == other.statuses.tolist()
    assert report.reasons == other.reasons
    assert (report.by_pillow, report.pillow_reasons) == (other.by_pillow, other.pillow_reasons)
    assert report.statuses.any()
    assert not out[report.statuses != 0].any()


def test_a_fault_below_some_crops_is_that_of_those_that_need_it_alone() -> None:
    data = make_jpeg(160, 160, quality=95)
    cut = data[: len(data) // 2]
    boxes = np.array([(0, 0, 160, 16), (0, 0, 100, 20), (0, 100, 160, 160)], np.int32)
    crops = kernel.Crops(np.zeros(3, np.int32), boxes, np.zeros(3, bool), np.full(3, 2, np.uint8))
    out = np.empty((3, 16, 16, 3), np.uint8)
    report = kernel.decode_crops([cut], [b""], crops, out)
    assert (report.statuses != 0).tolist() == [False, False, True]
    assert np.array_equal(out[0], kernel.decode_one(data, box=(0, 0, 160, 16), size=(16, 16)))


def test_a_window_beyond_pillows_limit_is_not_decoded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_jpeg(100, 100)
    boxes = np.array([(0, 0, 9, 9), (90, 90, 100, 100)], np.int32)
    crops = kernel.Crops(np.zeros(2, np.int32), boxes, np.zeros(2, bool), np.full(2, 2, np.uint8))
    wanted, out = np.empty((2, 8, 8, 3), np.uint8), np.empty((2, 8, 8, 3), np.uint8)
    kernel.decode_crops([data], [b""], crops, wanted)
    monkeypatch.setattr(pillow, "most_pixels", lambda: 5000)
    monkeypatch.setattr(native, "resize_one", None)
    kernel.decode_crops([data], [b""], crops, out)
    assert np.array_equal(out, wanted)


def test_images_that_wait_for_their_crops_are_few_where_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = [make_jpeg(100, 60), encode(make_pixels(100, 60), "PNG"), make_jpeg(100, 60, seed=3)] * 2
    boxes = np.array([(0, 0, 100, 50), (0, 10, 100, 60)] * 6, np.int32)
    image = np.repeat(np.arange(6, dtype=np.int32), 2)
    crops = kernel.Crops(image, boxes, np.zeros(12, bool), np.full(12, 2, np.uint8))
    steps: list[str] = []
    decode, resize, crop = kernel.decoding._decode_part, native.resize_one, pillow.crop_rows
    monkeypatch.setattr(kernel.decoding, "_decode_part", lambda *a: steps.append("image") or decode(*a))
    monkeypatch.setattr(native, "resize_one", lambda *a: steps.append("crop") or resize(*a))
    monkeypatch.setattr(pillow, "crop_rows", lambda *a: steps.append("crop") or crop(*a))
    made = []
    for most, at_once in ((1 << 30, 2), (2 * 18_000, 2), (2 * 18_000 - 1, 1), (0, 1)):
        monkeypatch.setattr(kernel.decoding, "_MOST_WAITING_BYTES", most, raising=False)
        steps.clear()
        out = np.empty((12, 8, 8, 3), np.uint8)
        kernel.decode_crops(images, [b""] * 6, crops, out)
        assert steps == (["image"] * at_once + ["crop"] * 2 * at_once) * (6 // at_once)
        made.append(out)
    assert all(np.array_equal(one, made[0]) for one in made)


@pytest.mark.parametrize("data", [encode(make_pixels(90, 60), "PNG"), make_jpeg(90, 60, seed=5)])
def test_entry_points_of_another_file_are_found_whatever_crops_share_the_image(data: bytes) -> None:
    entries = kernel.scan(make_jpeg(90, 60)).entries
    for count in (1, 2):
        boxes = np.array([(0, 0, 90, 60)] * count, np.int32)
        crops = kernel.Crops(
            np.zeros(count, np.int32), boxes, np.zeros(count, bool), np.full(count, 2, np.uint8)
        )
        out = np.ones((count, 8, 8, 3), np.uint8)
        report = kernel.decode_crops([data], [entries], crops, out)
        assert report.statuses.tolist() == [kernel.Status.BAD_ENTRIES] * count
        assert not out.any()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pixels": np.zeros(11, np.uint8)}, "pixels have the wrong size"),
        ({"size": (0, 4)}, "pixels have the wrong size"),
        ({"box": (0, 0, 3, 2)}, "the box is not inside the pixels"),
        ({"box": (-1, 0, 2, 2)}, "the box is not inside the pixels"),
        ({"box": (1, 1, 1, 2)}, "the box is not inside the pixels"),
        ({"out": np.zeros(13, np.uint8)}, "out has the wrong size"),
        ({"shape": (0, 2)}, "shape must be height and width"),
        ({"filter_": 6}, "filter must be one of Pillow's numbers"),
    ],
    ids=str,
)
def test_a_resize_that_does_not_fit_its_memory_is_refused(changed: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "pixels": np.zeros(12, np.uint8), "size": (2, 2), "box": (0, 0, 2, 2), "out": np.zeros(12, np.uint8),
        "shape": (2, 2), "flip": False, "filter_": 2, "before_13": False,
    }  # fmt: skip
    native.resize_one(*good.values())
    with pytest.raises(ValueError, match=words):
        native.resize_one(*(good | changed).values())
