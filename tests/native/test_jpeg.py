# SPDX-License-Identifier: Apache-2.0
"""The kernel's pixels against Pillow's, for sound files."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from kernel_images import (
    RESIZE_TOLERANCE,
    SAMPLINGS,
    by_pillow,
    decode_with_entries,
    encode,
    find_frame,
    make_jpeg,
    make_pixels,
    random_box,
)
from PIL import Image

from feedrate import kernel

SIZES = [
    (1, 1),
    (2, 1),
    (1, 2),
    (3, 5),
    (7, 9),
    (8, 8),
    (15, 17),
    (16, 16),
    (17, 33),
    (64, 48),
    (97, 61),
    (130, 131),
]


def assert_taken(data: bytes) -> None:
    assert kernel.scan(data).reason is None


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_whole_images_are_those_of_pillow(sampling: str, width: int, height: int) -> None:
    data = make_jpeg(width, height, sampling)
    assert_taken(data)
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("quality", [5, 30, 75, 95, 100])
def test_every_quality_is_decoded_exactly(sampling: str, quality: int) -> None:
    data = make_jpeg(90, 70, sampling, quality=quality, seed=quality)
    assert_taken(data)
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


@pytest.mark.parametrize(
    "options",
    [
        {"optimize": True},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 7},
        {"restart_marker_rows": 1},
        {"restart_marker_rows": 3},
        {"exif": b"Exif\0\0junk"},
        {"comment": b"hello"},
        {"icc_profile": bytes(70_000)},
    ],
)
@pytest.mark.parametrize("sampling", ["gray", "4:4:4", "4:2:0"])
def test_ways_to_write_a_file_do_not_matter(sampling: str, options: dict) -> None:
    data = make_jpeg(100, 83, sampling, **options)
    assert_taken(data)
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_scan_names_size_and_sampling(sampling: str) -> None:
    scan = kernel.scan(make_jpeg(50, 40, sampling))
    assert (scan.width, scan.height, scan.sampling, scan.reason, scan.damaged) == (
        50,
        40,
        sampling,
        None,
        False,
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("restart", [0, 5])
def test_crops_equal_the_same_part_of_a_whole_decode(tmp_path, sampling: str, restart: int) -> None:
    rng = np.random.default_rng(restart)
    data = make_jpeg(150, 117, sampling, restart_marker_blocks=restart)
    whole, entries = by_pillow(data), kernel.scan(data).entries
    boxes = [
        (0, 0, 1, 1),
        (149, 116, 150, 117),
        (0, 0, 150, 1),
        (0, 0, 1, 117),
        (15, 15, 17, 17),
        (16, 16, 32, 32),
    ]
    for i, box in enumerate(boxes + [random_box(rng, 150, 117) for _ in range(40)]):
        left, top, right, bottom = box
        expected = whole[top:bottom, left:right]
        np.testing.assert_array_equal(kernel.decode_one(data, box=box), expected)
        folder = tmp_path / str(i)
        folder.mkdir()
        pixels, report = decode_with_entries(folder, data, entries, box)
        assert report.reasons == {}
        np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_resized_crops_are_those_of_pillow(sampling: str) -> None:
    rng = np.random.default_rng(3)
    data = make_jpeg(260, 190, sampling)
    for _ in range(25):
        box, size = random_box(rng, 260, 190), tuple(rng.integers(1, 120, 2).tolist())
        difference = kernel.decode_one(data, box=box, size=size).astype(int) - by_pillow(data, box, size)
        assert np.abs(difference).max() <= RESIZE_TOLERANCE


@pytest.mark.parametrize("size", [(70, 31), (70, 200), (33, 90), (150, 90)])
def test_a_resize_in_one_direction_is_exactly_that_of_pillow(size: tuple[int, int]) -> None:
    data = make_jpeg(90, 70, "4:4:4")
    np.testing.assert_array_equal(kernel.decode_one(data, size=size), by_pillow(data, size=size))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gray_output_is_that_of_convert_l(sampling: str) -> None:
    data = make_jpeg(83, 47, sampling)
    np.testing.assert_array_equal(kernel.decode_one(data, mode="L"), by_pillow(data, mode="L"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_flip_mirrors_left_to_right_after_the_resize(mode: str) -> None:
    data = make_jpeg(83, 47)
    straight = kernel.decode_one(data, size=(20, 31), mode=mode)
    np.testing.assert_array_equal(
        kernel.decode_one(data, size=(20, 31), mode=mode, flip=True), straight[:, ::-1]
    )


def test_an_image_20000_pixels_wide_is_decoded() -> None:
    data = make_jpeg(20_000, 40, "4:2:0")
    np.testing.assert_array_equal(
        kernel.decode_one(data, box=(19_900, 3, 20_000, 40)), by_pillow(data)[3:, 19_900:]
    )


def test_a_large_reduction_is_that_of_pillow() -> None:
    data = make_jpeg(1500, 750, "4:2:0")
    difference = kernel.decode_one(data, size=(3, 2)).astype(int) - by_pillow(data, size=(3, 2))
    assert np.abs(difference).max() <= RESIZE_TOLERANCE


def test_a_gray_file_with_sampling_factors_of_two_is_still_gray() -> None:
    data = bytearray(make_jpeg(37, 29, "gray"))
    data[find_frame(data) + 11] = 0x22
    assert_taken(bytes(data))
    np.testing.assert_array_equal(kernel.decode_one(bytes(data)), by_pillow(bytes(data)))


def test_fill_bytes_before_markers_are_skipped() -> None:
    data = make_jpeg(40, 30)
    at = find_frame(data)
    data = data[:at] + b"\xff\xff\xff" + data[at:]
    assert_taken(data)
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


def test_quantisation_tables_of_16_bits_are_read() -> None:
    data = make_jpeg(40, 30, "gray")
    at = find_frame(data, 0xDB)
    table = data[at + 5 : at + 69]
    wide = (
        b"\xff\xdb"
        + struct.pack(">HB", 3 + 128, 0x10)
        + b"".join(struct.pack(">H", value) for value in table)
    )
    data = data[:at] + wide + data[at + 69 :]
    assert_taken(data)
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


def test_an_extended_sequential_file_is_decoded() -> None:
    data = bytearray(make_jpeg(40, 30))
    data[find_frame(data) + 1] = 0xC1
    assert_taken(bytes(data))
    np.testing.assert_array_equal(kernel.decode_one(bytes(data)), by_pillow(bytes(data)))


def test_bytes_after_the_image_do_not_matter() -> None:
    data = make_jpeg(40, 30)
    np.testing.assert_array_equal(kernel.decode_one(data + bytes(1000) + data), kernel.decode_one(data))


def adobe_segment(transform: int) -> bytes:
    return b"\xff\xee" + struct.pack(">H", 14) + b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform)


def without_jfif(data: bytes) -> bytes:
    length = struct.unpack_from(">H", data, 4)[0]
    return data[:2] + data[4 + length :]


@pytest.mark.parametrize(
    ("transform", "reason"), [(1, None), (2, None), (0, "RGB colour (Adobe transform 0)")]
)
def test_colour_follows_the_adobe_marker(transform: int, reason: str | None) -> None:
    data = without_jfif(make_jpeg(40, 30, "4:4:4"))
    data = data[:2] + adobe_segment(transform) + data[2:]
    assert kernel.scan(data).reason == reason
    np.testing.assert_array_equal(kernel.decode_one(data), by_pillow(data))


def test_component_ids_r_g_b_mean_rgb() -> None:
    data = bytearray(without_jfif(make_jpeg(40, 30, "4:4:4")))
    frame, scan = find_frame(data), find_frame(data, 0xDA)
    for i, letter in enumerate(b"RGB"):
        data[frame + 10 + 3 * i] = data[scan + 5 + 2 * i] = letter
    assert kernel.scan(bytes(data)).reason == "RGB colour (component ids R, G, B)"
    np.testing.assert_array_equal(kernel.decode_one(bytes(data)), by_pillow(bytes(data)))


def test_entry_points_take_less_than_one_percent_of_a_photograph() -> None:
    data = encode(make_pixels(500, 375), quality=95, subsampling=0)
    assert len(kernel.scan(data).entries) < len(data) / 100


def cmyk() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(make_pixels(30, 20)).convert("CMYK").save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make_jpeg(30, 20, progressive=True), "progressive"),
        (cmyk(), "CMYK"),
        (encode(make_pixels(30, 20), "PNG"), "not a JPEG (PNG)"),
        (encode(make_pixels(30, 20), "WEBP"), "not a JPEG (WebP)"),
        (encode(make_pixels(30, 20), "GIF"), "not a JPEG (GIF)"),
        (encode(make_pixels(30, 20), "BMP"), "not a JPEG (BMP)"),
        (encode(make_pixels(30, 20), "TIFF"), "not a JPEG (TIFF)"),
    ],
)
def test_other_kinds_of_image_go_through_pillow(data: bytes, reason: str) -> None:
    scan = kernel.scan(data)
    assert (scan.width, scan.height, scan.reason, scan.damaged, scan.entries) == (30, 20, reason, False, b"")
    np.testing.assert_array_equal(
        kernel.decode_one(data, box=(3, 2, 29, 19), size=(10, 12)), by_pillow(data, (3, 2, 29, 19), (10, 12))
    )
