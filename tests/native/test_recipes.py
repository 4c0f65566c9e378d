# SPDX-License-Identifier: Apache-2.0
"""Recipes: the kernel's pixels against Pillow's."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import SAMPLINGS, encode, make_jpeg, make_pixels

from feedrate import kernel
from feedrate.kernel import Recipe, apply_table, draw, draw_from, scan_clean
from support.recipes import FILTERS, HORIZONTAL_FIRST, decode, follow, is_narrow, make_recipe

SIZES = [(1, 1), (2, 1), (1, 2), (3, 5), (15, 17), (16, 16), (33, 70), (130, 61), (201, 300), (4, 350)]
WHOLE = Recipe("RGB", (0, 0, 90, 70))


def draw_here(data: bytes, entries: bytes, recipe: Recipe) -> np.ndarray:
    return draw(data, entries, recipe, horizontal_first=HORIZONTAL_FIRST)


@given(st.sampled_from(SAMPLINGS), st.sampled_from(SIZES), st.randoms(use_true_random=False))
def test_a_recipe_gives_the_pixels_of_pillow(sampling: str, size: tuple[int, int], random: Random) -> None:
    data = make_jpeg(*size, sampling)
    scan = scan_clean(data)
    assert scan is not None
    for _ in range(10):
        recipe = make_recipe(random, *size)
        if HORIZONTAL_FIRST and is_narrow(recipe):
            continue
        wanted = follow(data, recipe)
        assert recipe.shape == wanted.shape[:2]
        np.testing.assert_array_equal(draw_here(data, b"", recipe), wanted)
        np.testing.assert_array_equal(draw_here(data, scan.entries, recipe), wanted)
        whole = decode(data, recipe.mode)
        np.testing.assert_array_equal(draw_from(whole, recipe, horizontal_first=HORIZONTAL_FIRST), wanted)


@pytest.mark.parametrize("filter_", FILTERS)
def test_a_window_is_what_the_whole_result_has_there(filter_: int) -> None:
    data = make_jpeg(90, 70)
    for size in [(40, 30), (200, 150), (90, 30), (40, 70), (90, 300)]:
        recipe = Recipe("RGB", (3, 2, 88, 69), size, filter_)
        for horizontal_first in (False, True):
            whole = draw(data, b"", recipe, horizontal_first=horizontal_first)
            part = draw(data, b"", recipe._replace(window=(7, 9, 31, 30)), horizontal_first=horizontal_first)
            np.testing.assert_array_equal(part, whole[9:30, 7:31])


@pytest.mark.parametrize("filter_", FILTERS[1:])
def test_the_orders_of_passes_differ_where_pillow_13_goes_down_first(filter_: int) -> None:
    data = make_jpeg(64, 300, quality=100)
    recipe = Recipe("RGB", (0, 0, 64, 300), (51, 40), filter_)
    older, newer = (draw(data, b"", recipe, horizontal_first=first) for first in (True, False))
    assert not np.array_equal(older, newer)
    # The other order is the first one of the image that was turned.
    turned = np.ascontiguousarray(decode(data, "RGB").transpose(1, 0, 2))
    across = recipe._replace(crop=(0, 0, 300, 64), size=(40, 51))
    np.testing.assert_array_equal(draw_from(turned, across, horizontal_first=True).transpose(1, 0, 2), newer)


def test_a_scan_says_where_the_image_ends() -> None:
    data = make_jpeg(90, 70)
    scan = scan_clean(data + b"more" + data)
    assert scan is not None
    assert scan == (90, 70, "RGB", "4:2:0", kernel.scan(data + b"more" + data).entries, len(data))
    gray = scan_clean(make_jpeg(9, 7, "gray"))
    assert gray is not None
    assert gray.mode == "L"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xd8", make_jpeg(90, 70)[:-400], make_jpeg(90, 70)[:-2],
        make_jpeg(90, 70)[:-2] + b"\xff\xfe\0\2",
        make_jpeg(90, 70, progressive=True), encode(make_pixels(9, 7), "PNG"),
    ],
    ids=["empty", "headers", "cut short", "no end", "another marker", "progressive", "PNG"],
)  # fmt: skip
def test_what_is_not_clean_is_left_to_pillow(data: bytes) -> None:
    assert scan_clean(data) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "CMYK"}, "mode must be RGB or L"),
        ({"crop": (0, 0, 91, 70)}, "the crop box is not inside the image of 90 x 70 pixels"),
        ({"crop": (5, 0, 5, 70)}, "must make at least 1 x 1 pixels, got 0 x 70"),
        ({"crop": (-1, 0, 5, 70)}, "the crop is empty, or not inside an image"),
        ({"size": (0, 3)}, "must make at least 1 x 1 pixels, got 0 x 3"),
        (
            {"size": (1 << 25, 3), "window": (0, 0, 1, 1)},
            "the size must be 1 to 16,777,216 pixels to each side",
        ),
        ({"filter": 6}, "the kernel does not have this filter"),
        ({"reach": (0, 0, 9, 9)}, "a recipe of no size has no reach"),
        ({"size": (4, 4), "reach": (0, 0, 91, 9)}, "the reach is empty, or not inside the crop"),
        ({"size": (4, 4), "reach": (0, 9, 9, 9)}, "the reach is empty, or not inside the crop"),
        ({"size": (4, 4), "reach": (0, float("nan"), 9, 9)}, "the reach is empty, or not inside the crop"),
        ({"size": (4, 4), "window": (0, 0, 4, 5)}, "the window is empty, or not inside the size"),
        ({"window": (2, 2, 99, 9)}, "the window is empty, or not inside the size"),
    ],
    ids=str,
)
def test_a_recipe_that_cannot_be_made_is_refused(changed: dict, words: str) -> None:
    recipe, data = WHOLE._replace(**changed), make_jpeg(90, 70)
    with pytest.raises(ValueError, match=words):
        draw_here(data, b"", recipe)
    with pytest.raises(
        ValueError,
        match=words.replace("crop box is not inside the image of 90 x 70", "crop is not inside the"),
    ):
        draw_from(decode(data, "RGB"), recipe, horizontal_first=HORIZONTAL_FIRST)


def test_a_narrow_image_is_left_to_versions_of_pillow_before_13() -> None:
    data = make_jpeg(2, 300)
    recipe = Recipe("RGB", (0, 0, 2, 300), (4, 100))
    with pytest.raises(ValueError, match="versions of Pillow before 13 differ"):
        draw(data, b"", recipe, horizontal_first=True)
    draw(data, b"", recipe, horizontal_first=False)
    draw(data, b"", recipe._replace(size=(4, 300)), horizontal_first=True)


def test_entries_of_another_file_are_refused() -> None:
    scan = scan_clean(make_jpeg(90, 70, seed=1))
    assert scan is not None
    with pytest.raises(ValueError, match="entry points belong to another file"):
        draw_here(make_jpeg(90, 70), scan.entries, WHOLE)


@pytest.mark.parametrize("shape", [(70, 90), (70, 90, 1), (71, 90, 3)])
def test_pixels_of_another_mode_or_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape|the crop is not inside the pixels"):
        draw_from(np.zeros(shape, np.uint8), WHOLE._replace(crop=(0, 0, 90, 72)), horizontal_first=True)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (1, 3), (5, 7), (224, 224), (17, 513)])
def test_a_table_takes_the_place_of_values(size: tuple[int, int], channels: int) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (*size, channels), np.uint8)
    table = rng.normal(size=(channels, 256)).astype(np.float32)
    wanted = np.stack([table[c][pixels[:, :, c]] for c in range(channels)])
    np.testing.assert_array_equal(apply_table(pixels, table, True), wanted)
    np.testing.assert_array_equal(apply_table(pixels, table, False), wanted.transpose(1, 2, 0))


def test_a_table_of_other_channels_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"table must be float32 of shape \(3, 256\), got float32 of shape \(1, 256\)"
    ):
        apply_table(np.zeros((4, 4, 3), np.uint8), np.zeros((1, 256), np.float32), True)
