# SPDX-License-Identifier: Apache-2.0
"""How far pictures differ, and the reference that they are held against."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate.lab.decode import compare_pixels, decode_as_torchvision, judge_pixels
from support.images import save_image


def test_equal_pictures_have_no_finite_psnr() -> None:
    picture = np.full((4, 4, 3), 7, np.uint8)
    found = compare_pixels(picture, picture)
    assert found.psnr_db is None
    assert found.levels == (16, 0, 0, 0)
    assert found.is_rounding


def test_a_pixel_counts_once_by_the_channel_that_differs_most() -> None:
    ours = np.zeros((2, 2, 3), np.uint8)
    theirs = ours.copy()
    theirs[0, 0] = (1, 2, 0)
    theirs[0, 1] = (0, 0, 1)
    theirs[1, 1] = (9, 1, 0)
    found = compare_pixels(ours, theirs)
    assert found.levels == (1, 1, 1, 1)
    assert found.largest == 9


@pytest.mark.parametrize(
    ("level", "share", "is_rounding"), [(1, 0.25, True), (1, 0.5, False), (3, 0.01, False)]
)
def test_rounding_is_at_most_two_levels_and_at_least_54_db(
    level: int, share: float, is_rounding: bool
) -> None:
    theirs = np.zeros((100, 100, 3), np.uint8)
    theirs[: int(100 * share)] = level
    assert compare_pixels(np.zeros_like(theirs), theirs).is_rounding is is_rounding


def test_one_picture_outside_makes_the_check_fail() -> None:
    ours = np.zeros((2, 4, 4, 3), np.uint8)
    theirs = ours.copy()
    theirs[1, 0, 0, 0] = 3
    check = judge_pixels(ours, theirs)
    assert (check.largest_difference, check.is_same) == (3, False)


def test_the_reference_is_crop_then_resize_then_flip(tmp_path: Path) -> None:
    path = save_image(tmp_path / "one.png", 3, width=60, height=40)
    pixels = np.asarray(Image.open(path))
    crop = np.asarray(Image.fromarray(pixels[5:25, 10:30]).resize((8, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(decode_as_torchvision(path.read_bytes(), (10, 5, 30, 25), 8, False), crop)
    assert np.array_equal(decode_as_torchvision(path.read_bytes(), (10, 5, 30, 25), 8, True), crop[:, ::-1])


def test_rows_of_pixels_are_taken_like_an_image_file(tmp_path: Path) -> None:
    path = save_image(tmp_path / "one.png", 3, width=60, height=40)
    rows = io.BytesIO()
    np.save(rows, np.asarray(Image.open(path)))
    box = (10, 5, 30, 25)
    by_rows = decode_as_torchvision(rows.getvalue(), box, 8, True)
    assert np.array_equal(by_rows, decode_as_torchvision(path.read_bytes(), box, 8, True))
