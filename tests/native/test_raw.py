# SPDX-License-Identifier: Apache-2.0
"""Raw images in the kernel: only the rows under the crop, Pillow's pixels, and a status for every lie."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import RESIZE_TOLERANCE, Store
from PIL import Image

from feedrate import kernel
from feedrate.format import raw
from feedrate.kernel import Status


def make_pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, 3) if channels == 3 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def make_store(folder: Path, *images: np.ndarray) -> Store:
    stored = [raw.dump_raw(pixels) for pixels in images]
    return Store(folder, stored, entries=[raw.dump_table(data) for data in stored])


def resize(pixels: np.ndarray, box: tuple[int, ...], size: tuple[int, int], mode: str = "RGB") -> np.ndarray:
    image = Image.fromarray(pixels).convert(mode).crop(box)
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR)).reshape(*size, -1)


def change_table(table: bytes, at: int, value: bytes) -> bytes:
    """Change some bytes of a table and make its own checksum right again."""
    changed = bytearray(table)
    changed[at : at + len(value)] = value
    changed[20:24] = struct.pack("<I", kernel.crc32c(changed[24:], kernel.crc32c(bytes(changed[:20]))))
    return bytes(changed)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(32, 32), (7, 90), (40, 50), (1, 1)])
def test_pixels_are_those_of_pillows_crop_and_resize(
    tmp_path: Path, channels: int, mode: str, size: tuple[int, int]
) -> None:
    pixels = make_pixels(120, 97, channels)
    box = (11, 30, 61, 70)
    store = make_store(tmp_path, pixels)
    out, report = store.decode([box], size=size, channels=len(mode) if mode == "RGB" else 1, raw=True)
    assert report.statuses.tolist() == [0], report.reasons
    assert_near(out[0], resize(pixels, box, size, mode))


def assert_near(pixels: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(pixels.astype(int), expected.astype(int), rtol=0, atol=RESIZE_TOLERANCE)


@given(st.data())
def test_any_crop_of_any_image_is_pillows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 3000))
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (left, top, data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height)))
    pixels = make_pixels(height, width)
    store = make_store(tmp_path_factory.mktemp("raw"), pixels)
    out, report = store.decode([box], size=(9, 11), flips=[True], raw=True)
    assert report.statuses.tolist() == [0]
    assert_near(out[0], resize(pixels, box, (9, 11))[:, ::-1])


def test_only_the_blocks_under_the_crop_are_read(tmp_path: Path) -> None:
    # 300 bytes a row: 27 rows fill a block.
    store = make_store(tmp_path, make_pixels(270, 100))
    assert store.entries is not None
    table = int(store.entries.length[0])
    for (top, bottom), rows in {
        (0, 270): 270,
        (0, 1): 27,
        (26, 28): 54,
        (27, 54): 27,
        (269, 270): 27,
    }.items():
        _, report = store.decode([(0, top, 100, bottom)], raw=True)
        assert report.bytes_read == table + rows * 300, (top, bottom)


def test_damage_is_found_where_it_is_read_and_nowhere_else(tmp_path: Path) -> None:
    store = make_store(tmp_path, make_pixels(270, 100))
    data = bytearray(store.path.read_bytes())
    data[128 + 30 * 300 + 7] ^= 1  # row 30, in the second block
    store.path.write_bytes(data)
    out, report = store.decode([(0, 10, 100, 40)], raw=True)
    assert report.statuses.tolist() == [Status.CRC_MISMATCH]
    assert report.reasons[0] == "rows 27 to 53 are not those that were packed (checksum)"
    assert not out.any()
    assert store.decode([(0, 54, 100, 270)], raw=True)[1].statuses.tolist() == [0]


def test_a_file_that_is_cut_short_is_a_status(tmp_path: Path) -> None:
    stored = raw.dump_raw(make_pixels(60, 100))
    store = Store(tmp_path, [stored])
    (tmp_path / "tables").mkdir()
    tables = Store(tmp_path / "tables", [raw.dump_table(stored)])
    store.path.write_bytes(stored[:-1])
    store.files = kernel.Files([store.path, tables.path])
    entries = kernel.Ranges(np.ones(1, np.int32), tables.images.offset, tables.images.length)
    out, report = store.decode([(0, 50, 100, 60)], raw=True, entries=entries)
    assert report.statuses.tolist() == [Status.CUT_SHORT]
    assert not out.any()
    assert store.decode([(0, 0, 100, 20)], raw=True, entries=entries)[1].statuses.tolist() == [0]


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ((0, 0, 0, 5), "the crop box is empty"),
        ((0, 5, 9, 5), "the crop box is empty"),
        ((-1, 0, 9, 9), "is not inside the image of 20 x 30 pixels"),
        ((0, 0, 21, 9), "is not inside the image of 20 x 30 pixels"),
        ((0, 0, 9, 31), "is not inside the image of 20 x 30 pixels"),
    ],
)
def test_a_box_that_is_not_inside_is_a_status(tmp_path: Path, box: tuple[int, ...], words: str) -> None:
    _, report = make_store(tmp_path, make_pixels(30, 20)).decode([box], raw=True)
    assert report.statuses.tolist() == [Status.BAD_BOX]
    assert words in report.reasons[0]


BIG = struct.pack("<I", 2**32 - 1)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, b"\x01", "no table of raw rows that this kernel reads (kind 1, version 1)"),
        (1, b"\x02", "no table of raw rows that this kernel reads (kind 82, version 2)"),
        (2, b"\x02", "do not fit the size of the image"),
        (2, b"\x01", "raw image of 1928 bytes, the index speaks of 728"),
        (4, b"\0\0\0\0", "do not fit the size of the image"),
        (4, BIG, "do not fit the size of the image"),
        (8, b"\0\0\0\0", "do not fit the size of the image"),
        (8, BIG, "do not fit the size of the image"),
        (8, struct.pack("<I", 2**30), "raw image of 1928 bytes"),
        (12, struct.pack("<I", 2**30), "entry points have 28 bytes"),
        (12, BIG, "do not fit the size of the image"),
        (16, BIG, "raw image of 1928 bytes"),
    ],
)
def test_a_table_that_lies_is_a_status(tmp_path: Path, at: int, value: bytes, words: str) -> None:
    stored = raw.dump_raw(make_pixels(30, 20))
    table = change_table(raw.dump_table(stored), at, value)
    out, report = Store(tmp_path, [stored], entries=[table]).decode([(0, 0, 5, 5)], raw=True)
    assert report.statuses.tolist() == [Status.BAD_ENTRIES]
    assert words in report.reasons[0]
    assert not out.any()


@pytest.mark.parametrize("length", [0, 1, 23, 24, 27])
def test_a_table_that_is_too_short_is_a_status(tmp_path: Path, length: int) -> None:
    stored = raw.dump_raw(make_pixels(30, 20))
    table = raw.dump_table(stored)[:length]
    _, report = Store(tmp_path, [stored], entries=[table]).decode([(0, 0, 5, 5)], raw=True)
    assert report.statuses.tolist() == [Status.BAD_ENTRIES]


def test_a_table_with_a_changed_bit_is_a_status(tmp_path: Path) -> None:
    stored = raw.dump_raw(make_pixels(30, 20))
    table = bytearray(raw.dump_table(stored))
    table[26] ^= 4
    _, report = Store(tmp_path, [stored], entries=[bytes(table)]).decode([(0, 0, 5, 5)], raw=True)
    assert report.reasons == {0: "entry points are damaged (their checksum differs)"}


def test_an_offset_at_the_end_of_the_numbers_is_a_status(tmp_path: Path) -> None:
    store = make_store(tmp_path, make_pixels(30, 20))
    store.images.offset[0] = 2**63 - 10
    _, report = store.decode([(0, 0, 5, 5)], raw=True)
    assert report.statuses.tolist() == [Status.UNREADABLE]


def test_jpegs_are_no_raw_images_and_raw_images_no_jpegs(tmp_path: Path) -> None:
    store = make_store(tmp_path, make_pixels(30, 20))
    _, report = store.decode([(0, 0, 5, 5)])
    assert report.statuses.tolist() == [Status.BAD_ENTRIES]
    with pytest.raises(ValueError, match="raw images need entries, and are not masks"):
        store.decode([(0, 0, 5, 5)], raw=True, entries=None)


def test_threads_give_the_same_pixels(tmp_path: Path) -> None:
    images = [make_pixels(40 + i, 60, seed=i) for i in range(30)]
    store = make_store(tmp_path, *images)
    boxes = [(i, i, 30 + i, 31 + i) for i in range(30)]
    pool = kernel.Pool(4)
    out, report = store.decode(boxes, raw=True, pool=pool)
    pool.close()
    assert not report.statuses.any()
    assert np.array_equal(out, np.stack([resize(p, b, (32, 32)) for p, b in zip(images, boxes, strict=True)]))


def test_a_stored_image_is_what_numpy_loads(tmp_path: Path) -> None:
    pixels = make_pixels(30, 20)
    (tmp_path / "image.npy").write_bytes(raw.dump_raw(pixels))
    assert np.array_equal(np.load(tmp_path / "image.npy"), pixels)
    assert np.array_equal(raw.parse_raw(raw.dump_raw(pixels))[0], pixels)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5), np.uint16), "is an array of uint16"),
        (np.zeros((4, 5, 4), np.uint8), r"shape \(4, 5, 4\), not rows of uint8"),
        (np.zeros((0, 5), np.uint8), r"shape \(0, 5\), not rows of uint8"),
    ],
)
def test_other_arrays_are_no_raw_images(array: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raw.parse_raw(raw.dump_raw(array))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_words_or_pixels(data: bytes) -> None:
    for text in (data, raw.dump_raw(make_pixels(3, 4))[: len(data)] + data):
        try:
            raw.dump_table(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017
