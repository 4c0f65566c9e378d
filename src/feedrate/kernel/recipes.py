# SPDX-License-Identifier: Apache-2.0
"""Recipes: what is still to be done to a JPEG before it has pixels, as Pillow does it; and those pixels.

All run in the calling thread, without a pool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import F32, U8
from feedrate.filters import BILINEAR
from feedrate.kernel.binding import Status, as_bytes, checked, native
from feedrate.kernel.members import BYTES_PER_ENTRY
from feedrate.kernel.pillow import Box

__all__ = ["CleanScan", "Recipe", "apply_table", "draw", "draw_from", "scan_clean"]

_NARROW = 100  # height over width


class Recipe(NamedTuple):
    """Pillow's `convert(mode).crop(crop).resize(size, filter, reach).crop(window)`, then flips."""

    mode: str  # "RGB" or "L"
    crop: Box  # left, top, right, bottom in pixels of the file
    size: tuple[int, int] | None = None  # width and height that the crop is resized to
    filter: int = BILINEAR  # Pillow's number
    reach: tuple[float, float, float, float] | None = (
        None  # resize(box=...), inside the crop; None: all of it
    )
    window: Box | None = None  # what is kept of the resized image
    mirrored: bool = False
    upside_down: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Return height and width of what it makes."""
        left, top, right, bottom = self.window or (self.crop if self.size is None else (0, 0, *self.size))
        return bottom - top, right - left


class CleanScan(NamedTuple):
    """What one pass over a sound JPEG found."""

    width: int
    height: int
    mode: str  # "RGB" or "L", as Pillow opens it
    sampling: str  # "4:2:0", "gray", ...
    entries: bytes  # entry points, opaque
    end: int  # offset behind the end of the image


def scan_clean(data: Any) -> CleanScan | None:
    """Scan a JPEG to its end; None: it is damaged, or the kernel leaves it to Pillow."""
    status, _, width, height, sampling, entries, end = native.scan(as_bytes(data), BYTES_PER_ENTRY)
    if status != Status.OK or not end:
        return None
    return CleanScan(width, height, "L" if sampling == "gray" else "RGB", sampling, entries, end)


def draw(data: Any, entries: Any, recipe: Recipe, *, horizontal_first: bool) -> U8:
    """Return the pixels of a recipe, H x W x C, decoding only what they need.

    Args:
        data: the bytes of the file.
        entries: its entry points; b"": none.
        horizontal_first: the order of a resize's passes is that of Pillow before 13.

    Raises:
        ValueError: the kernel cannot, in words; Pillow then does it.
    """
    out = _make_out(recipe, horizontal_first)
    status, words = native.draw(as_bytes(data), as_bytes(entries), recipe, horizontal_first, out.reshape(-1))
    if status != Status.OK:
        raise ValueError(words)
    return out


def draw_from(pixels: U8, recipe: Recipe, *, horizontal_first: bool) -> U8:
    """Return what `draw` does, from the whole image's pixels, H x W x C of the recipe's mode."""
    out = _make_out(recipe, horizontal_first)
    flat = checked(pixels, np.uint8, (*pixels.shape[:2], out.shape[2]), "pixels").reshape(-1)
    native.draw_from(flat, pixels.shape[:2], recipe, horizontal_first, out.reshape(-1))
    return out


def _make_out(recipe: Recipe, horizontal_first: bool) -> U8:
    left, top, right, bottom = recipe.crop
    height, width = recipe.shape
    # Pillow 12.2 and 12.3 resize a narrow image downwards first.
    if horizontal_first and recipe.size and bottom - top > max(_NARROW * (right - left), recipe.size[1]):
        raise ValueError("versions of Pillow before 13 differ in how they resize so narrow an image")
    if height < 1 or width < 1:
        raise ValueError(f"a recipe must make at least 1 x 1 pixels, got {width} x {height}")
    return np.empty((height, width, 1 if recipe.mode == "L" else 3), np.uint8)


def apply_table(pixels: U8, table: F32, out_planar: bool) -> F32:
    """Return uint8 pixels, H x W x C, with each value replaced by the one that `table`, C x 256, has for it.

    Args:
        out_planar: the result is C x H x W, not H x W x C.
    """
    channels = pixels.shape[2]
    table = checked(table, np.float32, (channels, 256), "table")
    height, width = pixels.shape[:2]
    out = np.empty((channels, height, width) if out_planar else (height, width, channels), np.float32)
    flat = checked(pixels, np.uint8, pixels.shape, "pixels").reshape(-1)
    native.apply_table(flat, channels, table.reshape(-1), out_planar, out.reshape(-1))
    return out
