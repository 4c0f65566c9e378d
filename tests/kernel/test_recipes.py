# SPDX-License-Identifier: Apache-2.0
"""Recipes: their pixels against Pillow's."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from feedrate.kernel import Recipe, apply_table, draw, draw_from, scan_clean


def make_jpeg(width: int, height: int, mode: str = "RGB") -> bytes:
    values = np.random.default_rng(width).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).convert(mode).resize((width, height)).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_recipe_is_drawn_as_pillow_does_it() -> None:
    data = make_jpeg(90, 70)
    scan = scan_clean(data)
    assert scan is not None
    assert (scan.width, scan.height, scan.mode, scan.end) == (90, 70, "RGB", len(data))
    recipe = Recipe("RGB", (10, 5, 80, 65), (32, 24), mirrored=True, upside_down=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    wanted = image.crop(recipe.crop).resize((32, 24), 2).transpose(Image.Transpose.ROTATE_180)
    for entries in (b"", scan.entries):
        assert np.array_equal(draw(data, entries, recipe, horizontal_first=False), wanted)
    assert np.array_equal(draw_from(np.asarray(image), recipe, horizontal_first=False), wanted)


def test_a_damaged_jpeg_is_not_clean() -> None:
    data = make_jpeg(90, 70)
    assert scan_clean(data[: len(data) // 2]) is None
    assert scan_clean(b"") is None


def test_a_table_takes_the_place_of_values() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    table = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    wanted = np.stack([table[c][pixels[:, :, c]] for c in range(3)])
    assert np.array_equal(apply_table(pixels, table, True), wanted)
    assert np.array_equal(apply_table(pixels, table, False), wanted.transpose(1, 2, 0))
