# SPDX-License-Identifier: Apache-2.0
"""Crop boxes: inside the image, of the right distribution, and the same part on every field."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedrate import CenterCrop, RandomCrop, RandomResizedCrop, Resize, View
from feedrate.draws import draw_uniforms
from feedrate.errors import UsageError
from feedrate.loader.image import scale_boxes
from support.examples import examples

OPERATIONS = [
    RandomResizedCrop(32),
    RandomResizedCrop((8, 20), (0.5, 0.6), (2, 3)),
    Resize(16),
    CenterCrop(20, 24),
]


def place(operation, widths, heights, key: int = 1) -> np.ndarray:
    widths, heights = np.array(widths, np.int64), np.array(heights, np.int64)
    uniforms = draw_uniforms(key, np.arange(len(widths), dtype=np.int64), operation.uniforms)
    return operation.place(widths, heights, uniforms)


def crop_like_torchvision(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params, one image at a time."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = rng.randint(0, height - h), rng.randint(0, width - w)
            return left, top, left + w, top + h
    ratio = width / height
    w, h = width, height
    if ratio < 3 / 4:
        h = round(w / (3 / 4))
    elif ratio > 4 / 3:
        w = round(h * (4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (300, 60), (20, 400)])
def test_random_resized_crop_has_torchvisions_distribution(width: int, height: int):
    n = 20_000
    ours = place(RandomResizedCrop(224), [width] * n, [height] * n)
    rng = random.Random(4)
    theirs = np.array([crop_like_torchvision(width, height, rng) for _ in range(n)])
    for measure in (_area, _ratio, lambda b: b[:, 0], lambda b: b[:, 1], lambda b: b[:, 2]):
        # Two-sample Kolmogorov-Smirnov: 0.0195 is exceeded by chance once in a thousand.
        assert _ks_distance(measure(ours), measure(theirs)) < 0.0195


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _ratio(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1])


def _ks_distance(one: np.ndarray, two: np.ndarray) -> float:
    grid = np.sort(np.concatenate([one, two]))
    first, second = (np.searchsorted(np.sort(v), grid, side="right") / len(v) for v in (one, two))
    return float(np.abs(first - second).max())


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=30),
    st.integers(0, 99),
)
@settings(max_examples=examples(60), deadline=None)
def test_boxes_are_inside_the_image_and_not_empty(sizes: list[tuple[int, int]], key: int):
    widths, heights = map(list, zip(*sizes, strict=True))
    for operation in OPERATIONS:
        boxes = place(operation, widths, heights, key)
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2] <= widths).all()
        assert (boxes[:, 3] <= heights).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_an_image_that_no_try_fits_gets_the_central_crop():
    box = place(RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)), [300], [100])[0]
    assert box.tolist() == [100, 0, 200, 100]


def test_random_crop_keeps_the_size_and_reaches_both_ends():
    boxes = place(RandomCrop((2, 3)), [5] * 500, [4] * 500)
    assert set(boxes[:, 0].tolist()) == {0, 1, 2}
    assert set(boxes[:, 1].tolist()) == {0, 1, 2}
    assert (boxes[:, 2] - boxes[:, 0] == 3).all()
    assert (boxes[:, 3] - boxes[:, 1] == 2).all()


def test_center_crop_takes_the_middle():
    assert place(CenterCrop(4), [10], [6])[0].tolist() == [3, 1, 7, 5]


def test_center_crop_with_resize_takes_what_two_steps_would_show():
    # Resize(256) makes 683x512 into 341x256; CenterCrop(224) then takes 58..282 of 341, 16..240 of 256.
    box = place(CenterCrop(224, resize=256), [683], [512])[0]
    assert box.tolist() == [round(58 * 683 / 341), 32, round(282 * 683 / 341), 480]


def test_resize_takes_the_whole_image():
    assert place(Resize((3, 5)), [10], [6])[0].tolist() == [0, 0, 10, 6]
    assert Resize((3, 5)).out_size == (3, 5)


def test_only_operations_without_resize_refuse_small_images():
    assert RandomResizedCrop(224).refuse(1, 1) is None
    assert CenterCrop(224, resize=256).refuse(1, 1) is None
    assert "has 100x300 pixels, smaller than RandomCrop(size=224)" in (RandomCrop(224).refuse(100, 300) or "")
    assert CenterCrop(224).refuse(224, 224) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomResizedCrop(0), "RandomResizedCrop: size must be .* at least 1; got 0"),
        (lambda: Resize((3, 0)), r"got \(3, 0\)"),
        (lambda: Resize("large"), "got 'large'"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), r"0 < low <= high <= 1, got \(0.5, 0.1\)"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), r"0 < low <= high, got \(0, 1\)"),
        (lambda: RandomResizedCrop(8, scale=0.5), "scale must be two numbers, got 0.5"),
        (lambda: CenterCrop(224, resize=200), r"resize must be at least 224 \(the crop\)"),
        (lambda: View("image", size=-1), "View: size"),
        (lambda: View(3, size=1), "name of a field, got 3"),
    ],
)
def test_operations_that_make_no_sense_are_refused(make, words: str):
    with pytest.raises(UsageError, match=words):
        make()


def test_operations_compare_by_value_and_cannot_be_changed():
    assert RandomResizedCrop(224) == RandomResizedCrop(224)
    assert hash(Resize(3)) == hash(Resize(3))
    with pytest.raises(AttributeError):
        Resize(3).size = 4  # type: ignore[misc]


def test_boxes_on_a_field_of_half_the_size_show_the_same_part():
    boxes = np.array([[10, 20, 50, 60]], np.int32)
    full, half = (np.array([100]), np.array([80])), (np.array([50]), np.array([40]))
    assert scale_boxes(boxes, full, half).tolist() == [[5, 10, 25, 30]]
    assert scale_boxes(boxes, full, full) is boxes


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_scaled_boxes_stay_inside_and_not_empty(w: int, h: int, other_w: int, other_h: int, key: int):
    boxes = place(RandomResizedCrop(8), [w], [h], key)
    source, target = (np.array([w]), np.array([h])), (np.array([other_w]), np.array([other_h]))
    left, top, right, bottom = scale_boxes(boxes, source, target)[0].tolist()
    assert 0 <= left < right <= other_w
    assert 0 <= top < bottom <= other_h
