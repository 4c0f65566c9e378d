# SPDX-License-Identifier: Apache-2.0
"""Operations on colours give what Pillow, colorsys and numpy make of the same pixels."""

from __future__ import annotations

import colorsys
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from feedrate import ColorJitter, GaussianBlur, Grayscale, Solarize
from feedrate.errors import UsageError
from support.finishing import load_images, write_exact, write_pictures, write_plain
from support.packs import make_image

pytest.importorskip("torch")
FLOAT: dict[str, Any] = {"dtype": "float32"}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pack")


def pictures() -> list[np.ndarray]:
    return [make_image(i, 20, 16) for i in range(12)]


@pytest.mark.parametrize(
    ("step", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.7])
def test_jitter_is_what_pillow_makes_of_it(pack: Path, step: str, enhance: Any, factor: float) -> None:
    jitter = ColorJitter(**{step: (factor, factor)})
    got = load_images(pack, on_device=[jitter])
    assert got.dtype == np.uint8
    want = [np.asarray(enhance(Image.fromarray(one)).enhance(factor)) for one in pictures()]
    assert np.abs(got.astype(int) - np.array(want, int)).max() <= 2


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.25])
def test_hue_is_shifted_as_in_hsv(pack: Path, shift: float) -> None:
    def turn(pixel: np.ndarray) -> tuple[float, float, float]:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        return colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)

    got = load_images(pack, on_device=[ColorJitter(hue=(shift, shift))], **FLOAT)
    want = np.apply_along_axis(turn, 3, np.array(pictures()) / 255)
    assert np.abs(got - want).max() < 1e-5


def test_gray_pixels_have_no_hue_to_shift(tmp_path: Path) -> None:
    pack = write_plain(tmp_path / "pack", [0, 7, 255])
    got = load_images(pack, on_device=[ColorJitter(hue=0.5)])
    assert got[:, 0, 0].tolist() == [[0] * 3, [7] * 3, [255] * 3]


def blend(image: np.ndarray, other: Any, factor: float) -> np.ndarray:
    return np.clip(factor * image + (1 - factor) * other, 0, 1)


def change(image: np.ndarray, step: int, factor: float) -> np.ndarray:
    gray = (image @ np.array([0.2989, 0.587, 0.114]))[..., None]
    if step == 3:
        hsv = np.apply_along_axis(lambda p: colorsys.rgb_to_hsv(*p), 2, image)
        hsv[..., 0] = (hsv[..., 0] + factor) % 1
        return np.apply_along_axis(lambda p: colorsys.hsv_to_rgb(*p), 2, hsv)
    return blend(image, (0, gray.mean(), gray)[step], factor)


def test_the_four_steps_come_in_an_order_of_each_samples_own(tmp_path: Path) -> None:
    pixels = [make_image(i, 5, 4) for i in range(40)]
    factors = (1.4, 0.5, 2.0, 0.2)
    jitter = ColorJitter(*((factor, factor) for factor in factors))
    got = load_images(write_exact(tmp_path / "pack", pixels), on_device=[jitter], batch_size=40, **FLOAT)
    seen = set()
    for image, came in zip(pixels, got, strict=True):
        found = []
        for order in itertools.permutations(range(4)):
            want = image / 255
            for step in order:
                want = change(want, step, factors[step])
            if np.abs(came - want).max() < 1e-4:
                found.append(order)
        assert found, "no order of the steps gives this image"
        seen.add(found[0])
    assert len(seen) > 12


def test_factors_are_spread_over_their_range(tmp_path: Path) -> None:
    pack = write_plain(tmp_path / "pack", [100] * 200, side=2)
    got = load_images(pack, on_device=[ColorJitter(brightness=0.4)], **FLOAT)[:, 0, 0, 0] * 2.55
    assert 0.6 <= got.min() < 0.63
    assert 1.37 < got.max() <= 1.4
    assert abs(got.mean() - 1) < 0.04


def test_gray_is_that_of_pillow_in_three_channels(pack: Path) -> None:
    got = load_images(pack, on_device=[Grayscale(p=1)])
    want = [np.asarray(Image.fromarray(one).convert("L")) for one in pictures()]
    assert got.shape[3] == 3
    assert np.abs(got.astype(int) - np.array(want, int)[..., None]).max() <= 1


@pytest.mark.parametrize("kernel_size", [1, 5, (9, 3), (1, 31)])
def test_blur_is_a_weighted_mean_of_mirrored_neighbours(pack: Path, kernel_size: Any) -> None:
    across, down = kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)
    got = load_images(pack, on_device=[GaussianBlur(kernel_size, sigma=1.5)], **FLOAT)
    want = np.array(pictures()) / 255
    for side, axis in ((across, 2), (down, 1)):
        weights = np.exp(-0.5 * ((np.arange(side) - side // 2) / 1.5) ** 2)
        pads = [(0, 0)] * 4
        pads[axis] = (side // 2, side // 2)
        padded = np.pad(want, pads, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, side, axis)
        want = windows @ (weights / weights.sum())
    assert np.abs(got - want).max() < 1e-5


def test_each_sample_is_blurred_by_a_width_of_its_own(tmp_path: Path) -> None:
    point = np.zeros((9, 9, 3), np.uint8)
    point[4, 4] = 255
    got = load_images(
        write_exact(tmp_path / "pack", [point] * 50), on_device=GaussianBlur(7, sigma=(0.3, 3)), **FLOAT
    )
    peaks = got[:, 4, 4, 0]
    assert len(set(peaks.tolist())) == 50
    assert peaks.min() < 0.06
    assert peaks.max() > 0.5


@pytest.mark.parametrize("threshold", [0, 1, 100, 128, 255])
def test_solarized_images_are_those_of_pillow(tmp_path: Path, threshold: int) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)[..., None].repeat(3, 2)
    got = load_images(write_exact(tmp_path / "pack", [ramp, ramp]), on_device=[Solarize(threshold, p=1)])
    assert np.array_equal(got[0], np.asarray(ImageOps.solarize(Image.fromarray(ramp), threshold)))


@pytest.mark.parametrize(
    "make", [Grayscale, Solarize, lambda p: ColorJitter(0.9, p=p), lambda p: GaussianBlur(5, p=p)]
)
def test_only_the_share_p_of_the_samples_is_changed(tmp_path: Path, make: Any) -> None:
    pixels = [make_image(i, 8, 8) for i in range(100)]
    pack = write_exact(tmp_path / "pack", pixels)
    changed = {}
    for p in (0, 0.3, 0.6):
        got = load_images(pack, on_device=[make(p=p)])
        changed[p] = {i for i, one in enumerate(pixels) if not np.array_equal(got[i], one)}
    assert not changed[0]
    assert 15 <= len(changed[0.3]) <= 45
    assert changed[0.3] < changed[0.6]


def test_one_channel_has_brightness_and_contrast_and_no_colours(pack: Path) -> None:
    options: dict[str, Any] = {"mode": "L", **FLOAT}
    plain = load_images(pack, **options)
    colours = [ColorJitter(saturation=0.9, hue=0.5), Grayscale(p=1)]
    assert np.array_equal(load_images(pack, on_device=colours, **options), plain)
    got = load_images(pack, on_device=[ColorJitter(contrast=(0.5, 0.5))], **options)
    assert np.allclose(got, 0.5 * plain + 0.5 * plain.mean((1, 2, 3), keepdims=True), atol=1e-6)


def test_operations_come_as_they_stand_in_the_list(pack: Path) -> None:
    half, invert = ColorJitter(brightness=(0.5, 0.5)), Solarize(0, p=1)
    want = np.array(pictures()) / 255
    assert np.allclose(load_images(pack, on_device=[half, invert], **FLOAT), 1 - want / 2, atol=1e-6)
    assert np.allclose(load_images(pack, on_device=[invert, half], **FLOAT), (1 - want) / 2, atol=1e-6)


def test_two_of_a_kind_draw_for_themselves(tmp_path: Path) -> None:
    pack = write_plain(tmp_path / "pack", [10] * 30, side=2)
    once, twice = (
        load_images(pack, on_device=[ColorJitter(brightness=(1, 3))] * count, **FLOAT)[:, 0, 0, 0] * 25.5
        for count in (1, 2)
    )
    assert np.abs(twice / once - once).max() > 0.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ColorJitter(brightness=-1), "brightness must be a number from 0 on"),
        (lambda: ColorJitter(contrast=(2, 1)), r"contrast must be .* got \(2, 1\)"),
        (lambda: ColorJitter(saturation="much"), "saturation must be .* got 'much'"),
        (lambda: ColorJitter(hue=0.6), "hue must be a number from 0 to 0.5"),
        (lambda: ColorJitter(hue=(-0.6, 0)), "hue must be a number from 0 to 0.5"),
        (lambda: ColorJitter(p=2), "ColorJitter: p must be a probability"),
        (lambda: Grayscale(p=-0.1), "Grayscale: p must be a probability from 0 to 1, got -0.1"),
        (lambda: Grayscale(p=float("nan")), "Grayscale: p must be a probability"),
        (lambda: GaussianBlur(4), "kernel_size must be an odd number of pixels"),
        (lambda: GaussianBlur((3, 3, 3)), "kernel_size must be an odd number of pixels"),
        (lambda: GaussianBlur(3, sigma=0), "sigma must be a number above 0"),
        (lambda: GaussianBlur(3, sigma=(0, 1)), "sigma must be a number above 0"),
        (lambda: Solarize(256), "threshold must be a number from 0 to 255, got 256"),
        (lambda: Solarize(p="half"), "Solarize: p must be a probability"),
    ],
)
def test_arguments_without_sense_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_a_kernel_that_reaches_beyond_the_image_is_refused(pack: Path) -> None:
    with pytest.raises(UsageError, match=r"kernel_size=33 reaches beyond images of 20x16 pixels") as caught:
        load_images(pack, on_device=[GaussianBlur(33)])
    assert caught.value.hint == "at most 31"
