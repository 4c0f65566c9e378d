# SPDX-License-Identifier: Apache-2.0
"""Progressive and turned JPEGs become baseline ones without the loss of a single coefficient."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_images import SAMPLINGS, encode, find_frame, make_jpeg, make_pixels
from PIL import Image

from feedrate import kernel
from support.examples import examples

# What has to be done to a picture with this EXIF orientation.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
BACK = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}


def pixels_of(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


@given(
    width=st.integers(1, 70), height=st.integers(1, 70), quality=st.integers(1, 100), seed=st.integers(0, 99),
    sampling=st.sampled_from(["gray", "4:4:4", "4:2:2", "4:2:0"]), progressive=st.booleans(),
    restart=st.sampled_from([0, 0, 1, 5]),
)  # fmt: skip
@settings(max_examples=examples(80), deadline=None)
def test_a_progressive_jpeg_keeps_every_pixel(
    width: int, height: int, quality: int, seed: int, sampling: str, progressive: bool, restart: int
) -> None:
    data = make_jpeg(
        width, height, sampling, seed=seed, quality=quality, progressive=progressive,
        restart_marker_blocks=restart,
    )  # fmt: skip
    baseline = kernel.to_baseline(data)
    assert baseline is not None
    assert kernel.scan(baseline).reason is None
    np.testing.assert_array_equal(pixels_of(baseline), pixels_of(data))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("orientation", TURNS)
def test_a_turned_image_of_whole_blocks_is_turned_back_to_the_same_file(
    sampling: str, orientation: int
) -> None:
    data = make_jpeg(96, 64, sampling, quality=90)
    upright = kernel.to_baseline(data)
    turned = kernel.to_baseline(data, orientation)
    assert turned is not None
    assert kernel.to_baseline(turned, BACK[orientation]) == upright


@pytest.mark.parametrize("sampling", ["gray", "4:4:4"])
@pytest.mark.parametrize("orientation", TURNS)
def test_turned_pixels_differ_from_pixels_turned_by_rounding_alone(sampling: str, orientation: int) -> None:
    data = make_jpeg(48, 32, sampling, quality=90)
    turned = kernel.to_baseline(data, orientation)
    assert turned is not None
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.transpose(TURNS[orientation]))
    difference = np.abs(pixels_of(turned).astype(int) - expected)
    assert difference.max() <= 3
    assert difference.mean() < 0.2


@pytest.mark.parametrize("orientation", [2, 3, 6, 7])
def test_an_edge_that_is_not_a_whole_block_cannot_come_to_lie_inside(orientation: int) -> None:
    width, height = (60, 64) if orientation < 5 else (64, 60)
    assert kernel.to_baseline(make_jpeg(width, height, "4:2:0"), orientation) is None


def test_rows_become_columns_also_with_edges_that_are_not_whole() -> None:
    data = make_jpeg(61, 43, "4:4:4")
    turned = kernel.to_baseline(data, 5)
    assert turned is not None
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.transpose(Image.Transpose.TRANSPOSE))
    assert np.abs(pixels_of(turned).astype(int) - expected).max() <= 3


def test_application_data_and_comments_are_kept() -> None:
    data = make_jpeg(32, 32, "4:2:0", progressive=True, comment=b"said", icc_profile=b"profile" * 20)
    baseline = kernel.to_baseline(data)
    assert baseline is not None
    with Image.open(io.BytesIO(baseline)) as image:
        assert image.info["comment"] == b"said"
        assert image.info["icc_profile"] == b"profile" * 20


def test_other_files_and_cmyk_are_left_alone() -> None:
    assert kernel.to_baseline(encode(make_pixels(20, 20), "PNG")) is None
    assert kernel.to_baseline(b"") is None
    buffer = io.BytesIO()
    Image.new("CMYK", (16, 16)).save(buffer, "JPEG")
    assert kernel.to_baseline(buffer.getvalue()) is None


def test_a_progressive_file_with_scans_missing_is_left_alone() -> None:
    data = make_jpeg(64, 64, "4:2:0", progressive=True)
    last_scan = data.rindex(b"\xff\xda")
    assert kernel.to_baseline(data[:last_scan] + b"\xff\xd9") is None


def test_a_size_that_would_take_gigabytes_is_refused_before_they_are_taken() -> None:
    data = bytearray(make_jpeg(16, 16, "4:2:0", progressive=True))
    struct.pack_into(">HH", data, find_frame(data, 0xC2) + 5, 65000, 65000)
    assert kernel.to_baseline(bytes(data)) is None


def test_a_file_with_a_quantiser_of_zero_is_left_alone() -> None:
    data = bytearray(make_jpeg(16, 16, "4:2:0", progressive=True))
    data[data.index(b"\xff\xdb") + 5] = 0
    assert kernel.to_baseline(bytes(data)) is None


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_damage_ends_in_none_or_in_a_sound_file(data: st.DataObject) -> None:
    jpeg = bytearray(make_jpeg(40, 24, data.draw(st.sampled_from(["gray", "4:2:0"])), progressive=True))
    for _ in range(data.draw(st.integers(1, 4))):
        jpeg[data.draw(st.integers(2, len(jpeg) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(jpeg)))
    written = kernel.to_baseline(bytes(jpeg[:cut] if data.draw(st.booleans()) else jpeg))
    if written is not None:
        assert not kernel.scan(written).damaged


def test_an_orientation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="orientation must be 1 to 8, got 9"):
        kernel.to_baseline(b"", 9)
