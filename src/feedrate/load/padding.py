# SPDX-License-Identifier: Apache-2.0
"""Crops that reach beyond their image: the part inside is decoded, and put where it belongs in the crop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import numpy as np

from feedrate import kernel
from feedrate.format.fields import Field, Kind
from feedrate.kernel import I64, U8, DecodeReport
from feedrate.load.geometry import Geometry, Places, read_sides
from feedrate.load.image import RandomCrop, scale_edges
from feedrate.load.tally import Tally

Decode = Callable[[Places, Field, Geometry, U8, "kernel.Pool | None"], DecodeReport]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Of each sample, along one axis: what is decoded, and which of its pixels come where in the crop.

    Pixel x of the crop is pixel `low + x` of an image that has `side` pixels, of which `size` from `first` on
    are there: those that are decoded from `start` to `stop`. Where a crop is resized, so is the part inside.
    """

    start: I64
    stop: I64
    size: I64
    low: I64
    side: I64
    first: I64

    def part(self, i: int, length: int) -> tuple[slice, slice]:
        """Return which pixels of the crop come from inside, and where those are among the decoded ones."""
        low, first = int(self.low[i]), int(self.first[i])
        start = min(max(0, -low), length)
        stop = max(start, min(length, int(self.side[i]) - low))
        return slice(start, stop), slice(low + start - first, low + stop - first)

    def sources(self, i: int, length: int, mode: str) -> I64:
        """Return, of each pixel of the crop, which of the decoded ones it repeats."""
        at, side = int(self.low[i]) + np.arange(length), int(self.side[i])
        if mode == "edge":
            at = np.clip(at, 0, side - 1)
        elif mode == "symmetric":
            at = np.minimum(at % (2 * side), 2 * side - 1 - at % (2 * side))
        else:
            period = max(1, 2 * (side - 1))
            at = np.minimum(at % period, period - at % period)
        return at - int(self.first[i])


def decode_crops(
    decode: Decode, operation: object, places: Places, pixels: Field, geometry: Geometry, out: U8,
    pool: kernel.Pool | None,
) -> DecodeReport:  # fmt: skip
    """Decode a field into `out` with `decode`; with padding, also what lies outside of the images."""
    if not isinstance(operation, RandomCrop) or not operation.is_padded:
        return decode(places, pixels, geometry, out, pool)
    sides = read_sides(pixels, places.rows)
    count, height, width, channels = out.shape
    edges = scale_edges(geometry.boxes, geometry.sides, sides).astype(np.int64)
    across = _lay(edges[:, 0], edges[:, 2], sides[0], width)
    down = _lay(edges[:, 1], edges[:, 3], sides[1], height)
    boxes = np.stack([across.start, down.start, across.stop, down.stop], axis=1).astype(np.int32)
    sizes = np.stack([down.size, across.size], axis=1)
    inside = replace(geometry, boxes=boxes, sides=sides)
    if (sizes == (height, width)).all():  # most often: decoded in place, and moved there
        report = decode(places, pixels, inside, out, pool)
        moved = (across.low != across.first) | (down.low != down.first)
        for i in np.flatnonzero(moved & (report.statuses == 0)).tolist():
            _fill(out[i], out[i].copy(), i, geometry, across, down, operation, pixels)
        return report
    tally = Tally(count)
    for height, width in np.unique(sizes, axis=0).tolist():
        at = np.flatnonzero((sizes == (height, width)).all(axis=1))
        made = np.empty((len(at), height, width, channels), np.uint8)
        part = Places(places.pack, places.rows[at], places.positions[at])
        report = decode(part, pixels, inside.take(at), made, pool)
        tally.add(report, at=at)
        for decoded, i in zip(made, at.tolist(), strict=True):
            _fill(out[i], decoded, i, geometry, across, down, operation, pixels)
    return tally.report()


def _fill(
    crop: U8, decoded: U8, i: int, geometry: Geometry, across: _Axis, down: _Axis, operation: RandomCrop,
    pixels: Field,
) -> None:  # fmt: skip
    """Make a crop of what was decoded for it."""
    if geometry.flips[i]:  # so is what was decoded
        decoded, crop = decoded[:, ::-1], crop[:, ::-1]
    height, width = crop.shape[:2]
    mode = operation.padding_mode
    if mode == "constant":
        (to_x, from_x), (to_y, from_y) = across.part(i, width), down.part(i, height)
        crop[...] = 0 if pixels.kind is Kind.MASK else operation.fill
        crop[to_y, to_x] = decoded[from_y, from_x]
    else:
        rows = decoded.take(down.sources(i, height, mode), axis=0)
        crop[...] = rows.take(across.sources(i, width, mode), axis=1)


def _lay(low: I64, high: I64, side: I64, length: int) -> _Axis:
    """Return how crops of `length` pixels, from `low` to `high` of an image, are made."""
    span, side = np.maximum(high - low, 1), np.maximum(side, 1)
    # As many pixels as the crop has, moved until they are inside: alike in number for images of one size.
    size = np.minimum(side, length)
    first = np.clip(low, 0, side - size)
    as_it_is = _Axis(first, first + size, size, low, side, first)
    is_resized = span != length
    if not is_resized.any():
        return as_it_is
    start = np.clip(low, 0, side - 1)
    stop = np.clip(high, start + 1, side)
    begin = np.clip(np.rint((start - low) * (length / span)), 0, length - 1).astype(np.int64)
    end = np.clip(np.rint((stop - low) * (length / span)), begin + 1, length).astype(np.int64)
    resized = _Axis(start, stop, end - begin, -begin, end - begin, np.zeros_like(begin))
    pairs = zip(astuple(resized), astuple(as_it_is), strict=True)
    return _Axis(*(np.where(is_resized, one, other) for one, other in pairs))
