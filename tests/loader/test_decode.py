# SPDX-License-Identifier: Apache-2.0
"""The single decode: pixels as Pillow's, errors in sentences."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import feedrate
from feedrate.errors import NotFound, StorageError, UsageError
from support.packs import encode_image, make_image

DATA = encode_image(make_image(3, 60, 44), quality=92)


def by_pillow(crop=None, size=None, mode: str = "RGB") -> np.ndarray:
    with Image.open(io.BytesIO(DATA)) as file:
        image = file.convert(mode)
    image = image.crop(crop) if crop else image
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR) if size else image)


@pytest.mark.parametrize("crop", [None, (5, 6, 40, 30)])
@pytest.mark.parametrize("size", [None, (17, 23)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_those_of_pillow(crop, size, mode: str):
    pixels = feedrate.decode(DATA, crop=crop, size=size, mode=mode)
    expected = by_pillow(crop, size, mode)
    assert pixels.shape == (*expected.shape[:2], 3 if mode == "RGB" else 1)
    assert np.abs(pixels.reshape(expected.shape).astype(int) - expected).max() <= 4


def test_flip_mirrors():
    np.testing.assert_array_equal(feedrate.decode(DATA, flip=True), feedrate.decode(DATA)[:, ::-1])


def test_paths_strings_and_buffers_are_taken(tmp_path: Path):
    path = tmp_path / "a.jpg"
    path.write_bytes(DATA)
    for source in (path, str(path), bytearray(DATA), memoryview(DATA)):
        np.testing.assert_array_equal(feedrate.decode(source, size=9), feedrate.decode(DATA, size=(9, 9)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_other_kinds_of_images_are_taken_too(kind: str):
    assert feedrate.decode(encode_image(make_image(0, 8, 6), kind)).shape == (6, 8, 3)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(NotFound, match=r"no file at .*nothing.jpg"):
        feedrate.decode(tmp_path / "nothing.jpg")


def test_a_name_that_no_file_can_have_is_an_error_of_storage():
    with pytest.raises(StorageError, match=r"cannot read .*: embedded null"):
        feedrate.decode("a\0b.jpg")


def test_a_file_that_is_no_image_is_named(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("not pixels")
    with pytest.raises(UsageError, match=r"notes.txt cannot be decoded: .+"):
        feedrate.decode(path)
    with pytest.raises(UsageError, match="the image of 0 bytes cannot be decoded"):
        feedrate.decode(b"")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "CMYK"}, "mode must be .* got 'CMYK'"),
        ({"size": 0}, "size must be .* got 0"),
        ({"crop": (5, 5, 5, 9)}, r"not empty and not negative; got \(5, 5, 5, 9\)"),
        ({"crop": (-1, 0, 5, 9)}, "not negative"),
        ({"crop": "all"}, "got 'all'"),
        ({"crop": (0.5, 0, 5, 9)}, "whole pixels"),
        ({"crop": (0, 0, 61, 44)}, "is not inside the image of 60 x 44"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict, words: str):
    with pytest.raises(UsageError, match=words):
        feedrate.decode(DATA, **options)


def test_only_paths_and_bytes_are_decoded():
    with pytest.raises(UsageError, match="takes a path or bytes, got int"):
        feedrate.decode(3)  # type: ignore[arg-type]
