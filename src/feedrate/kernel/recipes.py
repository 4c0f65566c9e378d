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
from feedrate.kernel.decoding import WITH_LOBES
from feedrate.kernel.members import BYTES_PER_ENTRY
from feedrate.kernel.pillow import Box

__all__ = ["CleanScan", "Recipe", "apply_table", "draw", "draw_from", "scan_clean"]


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
    entries: bytes  # entry points, opaque
    end: int  # offset behind the end of the image


def scan_clean(data: Any) -> CleanScan | None:
    """Scan a JPEG to its end; None: it is damaged, or the kernel leaves it to Pillow."""
    status, _, width, height, sampling, entries = native.scan(as_bytes(data), BYTES_PER_ENTRY)
    end = bytes(data).rfind(b"\xff\xd9") + 2
    if status != Status.OK or end < 2:
        return None
    return CleanScan(width, height, "L" if sampling == "gray" else "RGB", entries, end)


def draw(data: Any, entries: Any, recipe: Recipe, *, horizontal_first: bool) -> U8:
    """Return the pixels of a recipe, H x W x C, decoding only what they need.

    Args:
        data: the bytes of the file.
        entries: its entry points; b"": none.
        horizontal_first: the order of a resize's passes is that of Pillow before 13.

    Raises:
        ValueError: the kernel cannot, in words; Pillow then does it.
    """
    _check(recipe, horizontal_first)
    out = np.empty((*recipe.shape, 3 if recipe.mode == "RGB" else 1), np.uint8)
    status, words = native.decode_one(
        as_bytes(data), as_bytes(entries), recipe.crop, out.reshape(-1), out.shape, recipe.mirrored,
        recipe.filter, horizontal_first,
    )  # fmt: skip
    if status != Status.OK:
        raise ValueError(words)
    return out[::-1].copy() if recipe.upside_down else out


def draw_from(pixels: U8, recipe: Recipe, *, horizontal_first: bool) -> U8:
    """Return what `draw` does, from the whole image's pixels, H x W x C of the recipe's mode."""
    _check(recipe, horizontal_first)
    height, width, channels = pixels.shape
    rgb = np.ascontiguousarray(pixels if channels == 3 else pixels.repeat(3, axis=2))
    out = np.empty((*recipe.shape, 3), np.uint8)
    native.resize_one(
        rgb.reshape(-1), (height, width), recipe.crop, out.reshape(-1), recipe.shape, recipe.mirrored,
        recipe.filter, horizontal_first,
    )  # fmt: skip
    out = out[:, :, :channels]
    return np.ascontiguousarray(out[::-1] if recipe.upside_down else out)


def _check(recipe: Recipe, horizontal_first: bool) -> None:
    if recipe.window or recipe.reach:
        raise ValueError("the kernel makes no part of a resize yet")
    if horizontal_first and recipe.size is not None and recipe.filter not in WITH_LOBES:
        raise ValueError("the kernel has this order of passes for filters with lobes only")


def apply_table(pixels: U8, table: F32, out_planar: bool) -> F32:
    """Return uint8 pixels, H x W x C, with each value replaced by the one that `table`, C x 256, has for it.

    Args:
        out_planar: the result is C x H x W, not H x W x C.
    """
    channels = pixels.shape[2]
    table = checked(table, np.float32, (channels, 256), "table")
    planes = np.stack([table[c].take(pixels[:, :, c]) for c in range(channels)])
    return planes if out_planar else np.ascontiguousarray(planes.transpose(1, 2, 0))
