# SPDX-License-Identifier: Apache-2.0
"""--normalise: what the kernel does not take, or what lies on its side, becomes upright baseline JPEG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from feedrate import FieldSpec, PackOptions, Recode, kernel, pack, unpack, verify
from feedrate.errors import AlreadyExists
from feedrate.format.fields import Kind
from feedrate.format.manifest import read_manifest
from feedrate.packing.check.describe import describe
from feedrate.packing.recode import recode_image
from feedrate.packing.values import find_orientation, inspect_image, set_upright
from support.images import read_tree, save_image

NORMAL = PackOptions(workers=1, recode=Recode(normalise=True))


def encode(pixels: np.ndarray | Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, format, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x010F] = "a camera"
    tags[0x0112] = orientation
    return tags


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def pixels_of(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def normalise(data: bytes, **options: Any) -> Any:
    return recode_image(Recode(normalise=True, **options), data, inspect_image(data))


@given(
    width=st.integers(1, 64), height=st.integers(1, 64), quality=st.integers(5, 100),
    subsampling=st.integers(0, 2), mode=st.sampled_from(["RGB", "L"]), seed=st.integers(0, 50),
)  # fmt: skip
def test_a_progressive_jpeg_keeps_every_pixel(
    width: int, height: int, quality: int, subsampling: int, mode: str, seed: int
) -> None:
    image = picture(width, height, seed).convert(mode)
    data = encode(image, progressive=True, quality=quality, subsampling=subsampling)
    made = normalise(data)
    assert made.pixels is None
    assert kernel.scan(made.data).reason is None
    np.testing.assert_array_equal(pixels_of(made.data), pixels_of(data))


@given(
    width=st.sampled_from([16, 32, 48]), height=st.sampled_from([16, 64]), orientation=st.integers(2, 8),
    subsampling=st.sampled_from([0, 2]), progressive=st.booleans(), seed=st.integers(0, 50),
)  # fmt: skip
def test_a_turned_jpeg_of_whole_blocks_keeps_every_coefficient(
    width: int, height: int, orientation: int, subsampling: int, progressive: bool, seed: int
) -> None:
    data = encode(
        picture(width, height, seed), subsampling=subsampling, progressive=progressive,
        exif=exif(orientation),
    )  # fmt: skip
    made = normalise(data)
    assert made.pixels is None
    assert find_orientation(made.data) == 1
    back = {6: 8, 8: 6}.get(orientation, orientation)
    original = kernel.to_baseline(data)
    again = kernel.to_baseline(made.data, back)
    assert again is not None
    assert original is not None
    np.testing.assert_array_equal(pixels_of(again), pixels_of(original))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("size", [(61, 43), (64, 48)])
def test_a_turned_jpeg_comes_upright_with_its_other_tags(orientation: int, size: tuple[int, int]) -> None:
    data = encode(picture(*size), subsampling=0, quality=95, exif=exif(orientation))
    made = normalise(data)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image)).astype(int)
    found = pixels_of(made.data).astype(int)
    assert found.shape == expected.shape == (made.height, made.width, 3)
    assert np.abs(found - expected).mean() < 2
    with Image.open(io.BytesIO(made.data)) as image:
        assert image.getexif().get(0x0112, 1) == 1
        if made.pixels is None:
            assert image.getexif()[0x010F] == "a camera"


@given(
    format=st.sampled_from(["PNG", "BMP", "TIFF", "GIF"]), mode=st.sampled_from(["RGB", "L"]),
    width=st.integers(1, 40), height=st.integers(1, 40),
)  # fmt: skip
def test_with_raw_normalising_costs_no_pixel_of_any_format(
    format: str, mode: str, width: int, height: int
) -> None:
    data = encode(picture(width, height).convert(mode), format)
    made = normalise(data, raw=True)
    expected = pixels_of(encode(Image.open(io.BytesIO(data)).convert(mode), "PNG"))
    found = made.pixels if made.pixels.ndim == expected.ndim else made.pixels[..., 0]
    np.testing.assert_array_equal(found, expected)


def test_raw_rows_of_a_turned_image_are_upright_to_the_last_bit() -> None:
    data = encode(picture(61, 43), exif=exif(6))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(normalise(data, raw=True).pixels, expected)


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    root = tmp_path / "odd"
    save_image(root / "plain.jpg", 1)
    save_image(root / "progressive.jpg", 2, progressive=True)
    save_image(root / "cmyk.jpg", 3, mode="CMYK")
    save_image(root / "rotated.jpg", 4, exif=exif(6))
    save_image(root / "rotated_odd.jpg", 5, width=61, height=43, exif=exif(3))
    save_image(root / "alpha.png", 6, mode="RGBA")
    save_image(root / "web.webp", 7)
    picture(20, 20).convert("L").save(root / "gray.bmp")
    picture(20, 20).save(root / "pages.tiff")
    picture(20, 20).save(root / "still.gif")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20)).save(root / "deep.png")
    return root


def test_everything_becomes_what_the_kernel_takes_and_each_kind_is_counted(
    odd_folder: Path, tmp_path: Path
) -> None:
    result = pack(odd_folder, tmp_path / "p", NORMAL)
    assert (result.by_kernel, result.by_pillow) == (10, {"not a JPEG (PNG)": 1})  # the deep one
    assert result.recoded is not None
    assert result.recoded.rewritten == {"progressive JPEG": 1, "rotated JPEG": 1}
    assert result.recoded.encoded == {
        "CMYK JPEG": 1, "rotated JPEG": 1, "PNG": 1, "WEBP": 1, "BMP": 1, "TIFF": 1, "GIF": 1
    }  # fmt: skip
    assert (result.recoded.lossless, result.recoded.kept, result.recoded.resized) == (2, 2, 0)
    assert verify(tmp_path / "p").is_good


def test_what_needs_nothing_stays_bit_for_bit(odd_folder: Path, tmp_path: Path) -> None:
    pack(odd_folder, tmp_path / "p", NORMAL)
    unpack(tmp_path / "p", tmp_path / "back")
    before, after = read_tree(odd_folder), read_tree(tmp_path / "back")
    assert after["plain.jpg"] == before["plain.jpg"]
    assert after["deep.png"] == before["deep.png"]
    assert {"alpha.png.jpg", "web.webp.jpg", "gray.bmp.jpg", "still.gif.jpg"} < set(after)


def test_the_choice_is_said_recorded_and_part_of_a_resume(odd_folder: Path, tmp_path: Path) -> None:
    pack(odd_folder, tmp_path / "p", NORMAL)
    assert read_manifest(tmp_path / "p").settings["normalise"] == "quality 95"
    words = "normalised to baseline JPEG, quality 95 where not lossless"
    assert describe(tmp_path / "p").pixels == words
    with pytest.raises(AlreadyExists, match="normalise is not set here, quality 95 there"):
        pack(odd_folder, tmp_path / "p", PackOptions(workers=1))


def test_a_smaller_image_is_upright_too(odd_folder: Path, tmp_path: Path) -> None:
    recode = Recode(normalise=True, resize=24)
    pack(odd_folder, tmp_path / "p", PackOptions(workers=1, recode=recode))
    unpack(tmp_path / "p", tmp_path / "back")
    with Image.open(tmp_path / "back" / "rotated.jpg") as image:
        assert image.size == (24, 32)
        assert image.getexif().get(0x0112, 1) == 1


def test_images_with_masks_or_boxes_are_not_turned(tmp_path: Path) -> None:
    root = tmp_path / "street"
    save_image(root / "a.jpg", 1, exif=exif(6))
    save_image(root / "m.png", 2, mode="L")
    (root / "labels.csv").write_text("path,label,mask\na.jpg,0,m.png\n")
    options = PackOptions(
        labels=root / "labels.csv", fields=(FieldSpec("mask", Kind.MASK, "mask"),), workers=1,
        recode=Recode(normalise=True),
    )  # fmt: skip
    result = pack(root, tmp_path / "p", options)
    unpack(tmp_path / "p", tmp_path / "back")
    assert (tmp_path / "back" / "a.jpg").read_bytes() == (root / "a.jpg").read_bytes()
    assert result.quality is not None
    assert [o.done for o in result.quality.oddities if o.code == "rotated"] == [{"kept": 1}]


def test_a_damaged_image_is_not_given_a_new_coat(tmp_path: Path) -> None:
    data = bytearray((save_image(tmp_path / "x" / "a.jpg", 1)).read_bytes())
    data[-2:] = b""  # the kernel takes it; without its last bytes it does not
    for cut in range(1, 60):
        file = bytes(data[:-cut])
        facts = None
        try:
            facts = inspect_image(file)
        except Exception:
            continue
        if facts.damage is not None:
            assert recode_image(Recode(normalise=True), file, facts) is None


@pytest.mark.parametrize("order", ["little", "big"])
def test_orientation_is_found_and_set_in_either_byte_order(order: str) -> None:
    letters = b"II*\0" if order == "little" else b"MM\0*"

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, order)  # type: ignore[arg-type]

    tags = letters + number(8, 4) + number(1, 2) + number(0x112, 2) + number(3, 2) + number(1, 4)
    tags += number(8, 2) + bytes(2) + bytes(4)
    data = encode(picture(16, 16), exif=b"Exif\0\0" + tags)
    assert find_orientation(data) == 8
    assert find_orientation(set_upright(data)) == 1
    assert len(set_upright(data)) == len(data)


@given(st.binary(max_size=200))
def test_any_bytes_have_an_orientation(tail: bytes) -> None:
    data = b"\xff\xd8\xff\xe1" + (len(tail) + 8).to_bytes(2, "big") + b"Exif\0\0" + tail
    assert 1 <= find_orientation(data) <= 8
    assert len(set_upright(data)) == len(data)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_png_is_turned_by_its_tag_too(orientation: int) -> None:
    data = encode(picture(20, 10), "PNG", exif=exif(orientation))
    made = normalise(data)
    assert (made.width, made.height) == ((20, 10) if orientation == 1 else (10, 20))
