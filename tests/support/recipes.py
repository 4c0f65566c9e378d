# SPDX-License-Identifier: Apache-2.0
"""Recipes that are made up, and what Pillow makes of them."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import numpy as np
import PIL
from PIL import Image

from feedrate.kernel import Recipe

HORIZONTAL_FIRST = int(PIL.__version__.split(".")[0]) < 13
FILTERS = range(6)


def make_recipe(random: Random, width: int, height: int) -> Recipe:
    """Return a recipe for an image of this size: any filter, reach, window, flips and size."""
    crop = (0, 0, width, height) if random.random() < 0.3 else make_box(random, width, height)
    recipe = Recipe(random.choice(["RGB", "RGB", "L"]), crop)
    recipe = recipe._replace(mirrored=random.random() < 0.5, upside_down=random.random() < 0.5)
    if random.random() < 0.85:
        recipe = make_resize(random, recipe)
    if recipe.size is not None and random.random() < 0.5:
        recipe = recipe._replace(window=make_box(random, *recipe.size))
    return recipe


def make_resize(random: Random, recipe: Recipe) -> Recipe:
    left, top, right, bottom = recipe.crop
    across, down = right - left, bottom - top
    size = random.choice([
        (random.randint(1, 60), random.randint(1, 60)),
        (random.randint(1, across + 3), random.randint(1, down + 3)),
        (across, random.randint(1, 300)), (random.randint(1, 300), down),
    ])  # fmt: skip
    recipe = recipe._replace(size=size, filter=random.choice(FILTERS))
    kind = random.choice(["whole", "whole", "pixels", "moved", "floats"])
    if kind in ("pixels", "moved"):
        left, top, right, bottom = reach = make_box(random, across, down)
        size = (right - left, bottom - top) if kind == "moved" else size
        return recipe._replace(reach=reach, size=size)
    if kind == "floats":
        left, top = random.uniform(0, across - 0.01), random.uniform(0, down - 0.01)
        right, bottom = random.uniform(left + 0.01, across), random.uniform(top + 0.01, down)
        return recipe._replace(reach=(left, top, right, bottom))
    return recipe


def make_box(random: Random, width: int, height: int) -> tuple[int, int, int, int]:
    left, top = random.randint(0, width - 1), random.randint(0, height - 1)
    return left, top, random.randint(left + 1, width), random.randint(top + 1, height)


def decode(data: bytes, mode: str) -> np.ndarray:
    """Return what Pillow decodes, H x W x C."""
    return to_rows(Image.open(io.BytesIO(data)).convert(mode))


def follow(data: bytes, recipe: Recipe) -> np.ndarray:
    """Return what Pillow makes of a recipe, H x W x C."""
    image: Any = Image.open(io.BytesIO(data)).convert(recipe.mode).crop(recipe.crop)
    if recipe.size is not None:
        image = image.resize(recipe.size, recipe.filter, box=recipe.reach)
    image = image.crop(recipe.window) if recipe.window else image
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if recipe.mirrored else image
    return to_rows(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if recipe.upside_down else image)


def to_rows(image: Any) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def is_narrow(recipe: Recipe) -> bool:
    """Say whether versions of Pillow before 13 differ in how they resize it."""
    left, top, right, bottom = recipe.crop
    return bool(recipe.size) and bottom - top > 100 * (right - left)
