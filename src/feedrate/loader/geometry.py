# SPDX-License-Identifier: Apache-2.0
"""One geometric draw per sample, shared by all its images, masks and boxes; and the decoding of such crops.

Of a crop that reaches beyond its image, the part inside is decoded, and put where it belongs in the crop.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.arrays import F32, F64, I32, I64, U8, Flags, Pixels
from feedrate.draws import Purpose, draw_uniforms, make_key
from feedrate.errors import BadSample, UsageError
from feedrate.filters import BILINEAR, find_filters
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack, Rows
from feedrate.kernel import DecodeReport, Status, pillow
from feedrate.kernel.depth import WIDEN, Depth
from feedrate.loader.arguments import Size
from feedrate.loader.image import ImageOp, RandomCrop, Resize, scale_boxes, scale_edges, whole


class Tally:
    """Adds up reports; any thread may add."""

    def __init__(self, samples: int) -> None:
        self._lock = threading.Lock()
        self._statuses = np.zeros(samples, np.int32)
        self._reasons: dict[int, str] = {}
        self._by_pillow: Counter[str] = Counter()
        self._bytes_read = 0

    def count(self, report: DecodeReport) -> None:
        """Add what was read and what went through Pillow, and nothing of how samples ended."""
        with self._lock:
            self._by_pillow.update(report.pillow_reasons)
            self._bytes_read += report.bytes_read

    def add(self, report: DecodeReport, but: I64 | None = None, *, at: I64 | None = None) -> None:
        """Add a report of all samples `but` some, or of those `at` these places."""
        self.count(report)
        places = np.arange(len(self._statuses)) if at is None else at
        left_out = set() if but is None else set(but.tolist())
        for i, place in enumerate(places.tolist()):
            if place not in left_out:
                self._statuses[place] = report.statuses[i]
                if i in report.reasons:
                    self._reasons[place] = report.reasons[i]

    def report(self) -> DecodeReport:
        reasons = dict(sorted(self._reasons.items()))
        return DecodeReport(self._statuses, reasons, dict(self._by_pillow), self._bytes_read)


Sides = tuple[I64, I64]  # widths, heights
# As in native/raw.h; no other format has longer sides. A damaged index claims up to 2**32, and the product of
# two sides must stay within 64 bits.
_LONGEST_SIDE = 1 << 30


@dataclass(frozen=True, slots=True)
class Geometry:
    """Crop boxes on the reference field, flips, and the samples that the operation refuses.

    `filters`: by Pillow's numbers; of several, `choices` (from 0 to 1) says which one each sample gets.
    `depth`: what becomes of gray of more than 8 bits.
    """

    boxes: I32
    flips: Flags
    sides: Sides
    refused: dict[int, str] = field(default_factory=dict)
    filters: tuple[int, ...] = (BILINEAR,)
    choices: F64 | None = None
    depth: Depth | None = None

    def filter_each(self) -> U8:
        """Return the filter of each sample."""
        filters = np.array(self.filters, np.uint8)
        if len(filters) == 1:
            return np.repeat(filters, len(self.boxes))
        assert self.choices is not None
        return filters[(self.choices * len(filters)).astype(np.int64)]

    def take(self, at: I64) -> Geometry:
        """Return the draws of some of the samples, without the refusals."""
        choices = None if self.choices is None else self.choices[at]
        sides = self.sides[0][at], self.sides[1][at]
        return Geometry(self.boxes[at], self.flips[at], sides, {}, self.filters, choices, self.depth)


def read_sides(pixels: Field, rows: Rows) -> Sides:
    """Return widths and heights as the index claims them; what no image can have is cut just above that."""
    widths, heights = (
        np.minimum(rows[f"{pixels.name}.{side}"], _LONGEST_SIDE + 1).astype(np.int64)
        for side in ("width", "height")
    )
    return widths, heights


@dataclass(frozen=True, slots=True)
class CropSampler:
    """Makes the draws of a batch from (seed, epoch, number).

    `is_shown`: pixels are wanted, too. `has_choices`: views draw from filters of their own.
    """

    reference: Field
    image: ImageOp | None
    flip: float
    seed: int
    is_shown: bool = True
    has_choices: bool = False

    @property
    def filters(self) -> tuple[int, ...]:
        return find_filters(self.image)

    @property
    def is_random(self) -> bool:
        is_placed = self.image is not None and self.image.uniforms > 0
        return bool(self.flip) or is_placed or len(self.filters) > 1

    def draw(self, epoch: int, rows: Rows, slots: I64 | None) -> Geometry:
        widths, heights = sides = read_sides(self.reference, rows)
        flips = np.zeros(len(rows), np.bool_)
        if self.flip:
            flips = self._uniforms(Purpose.FLIP, epoch, rows, slots, 1)[:, 0] < self.flip
        refused = self._refuse(widths, heights)
        if self.image is None:
            boxes = whole(widths, heights)
        else:
            # A box is made for refused samples too, of an image that would do; they are dropped later.
            least_height, least_width = self.image.min_size
            widths, heights = np.maximum(widths, least_width), np.maximum(heights, least_height)
            uniforms = self._uniforms(Purpose.CROP, epoch, rows, slots, self.image.uniforms)
            boxes = self.image.place(widths, heights, uniforms)
        if refused:
            boxes[list(refused)] = 0  # nothing of them is decoded
        filters, choices = self.filters, None
        if self.has_choices or len(filters) > 1:
            choices = self._uniforms(Purpose.FILTER, epoch, rows, slots, 1)[:, 0]
        return Geometry(boxes, flips, sides, refused, filters, choices)

    def move_boxes(self, column: list[F32 | None], geometry: Geometry) -> None:
        """Put boxes where they are on the images of a draw: clipped, without those left empty.

        Args:
            column: of each sample, None: it has none; it is changed.
        """
        for i, boxes in enumerate(column if self.image is not None or self.flip else ()):
            if boxes is None or i in geometry.refused:
                continue
            left, top, right, bottom = (float(edge) for edge in geometry.boxes[i])
            height, width = (bottom, right) if self.image is None else self.image.out_size
            moved = boxes.copy()
            moved[:, [0, 2]] = (boxes[:, [0, 2]] - left) * (width / (right - left))
            moved[:, [1, 3]] = (boxes[:, [1, 3]] - top) * (height / (bottom - top))
            if geometry.flips[i]:
                moved[:, [0, 2]] = width - moved[:, [2, 0]]
            moved[:, :4] = np.clip(moved[:, :4], 0, np.array([width, height, width, height], np.float32))
            column[i] = moved[(moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])]

    def _refuse(self, widths: I64, heights: I64) -> dict[int, str]:
        """Return which samples cannot be used, by the sizes that the index claims, and why."""
        is_whole = self.is_shown and (self.image is None or isinstance(self.image, Resize))
        least_height, least_width = (1, 1) if self.image is None else self.image.min_size
        least = max(1, least_height, least_width)
        most = min(_LONGEST_SIDE, pillow.most_pixels() ** 0.5) if is_whole else _LONGEST_SIDE
        # Most often none of them is odd, and a look at one sample must not cost more than its draws.
        if not ((np.minimum(widths, heights) < least) | (np.maximum(widths, heights) > most)).any():
            return {}
        refused: dict[int, str] = {}
        if is_whole:
            for i in np.flatnonzero(widths * heights > pillow.most_pixels()).tolist():
                refused[i] = pillow.say_too_large(int(widths[i]), int(heights[i]))
        if self.image is not None:
            for i in np.flatnonzero((widths < least_width) | (heights < least_height)).tolist():
                refused[i] = self.image.refuse(int(widths[i]), int(heights[i])) or "refused"
        if self.is_shown:
            strange = (np.minimum(widths, heights) < 1) | (np.maximum(widths, heights) > _LONGEST_SIDE)
            words = f"the index says that it has no pixels, or more than {_LONGEST_SIDE:,} in a row or column"
            refused |= dict.fromkeys(np.flatnonzero(strange).tolist(), words)
        return refused

    def _uniforms(self, purpose: Purpose, epoch: int, rows: Rows, slots: I64 | None, count: int) -> F64:
        return draw_uniforms(make_key(self.seed, epoch, purpose), rows["number"], count, slots)


@dataclass(frozen=True, slots=True)
class Places:
    """Some samples of a pack: their positions and their rows of the index."""

    pack: Pack
    rows: Rows
    positions: I64

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, at: Any) -> Places:
        return Places(self.pack, self.rows[at], self.positions[at])

    def describe_bad(self, i: int, field: str, reason: str) -> BadSample:
        """Return the error that names one of them, which cannot be used."""
        return self.pack.describe_bad(int(self.positions[i]), field, self.rows[i], reason)


@dataclass(frozen=True, slots=True)
class FieldCrops:
    """One crop per sample, of one image or mask field."""

    places: Places
    field: Field
    geometry: Geometry

    def __len__(self) -> int:
        return len(self.places)

    def take(self, at: I64) -> FieldCrops:
        return FieldCrops(self.places.take(at), self.field, self.geometry.take(at))

    @property
    def sides(self) -> Sides:
        """Widths and heights of the field's images, as the index claims them."""
        return read_sides(self.field, self.places.rows)

    @property
    def boxes(self) -> I32:
        """The boxes, in the field's own pixels."""
        return scale_boxes(self.geometry.boxes, self.geometry.sides, self.sides)


def decode_pixels(crops: FieldCrops, out: Pixels, pool: kernel.Pool | None) -> DecodeReport:
    """Decode an image or mask field into `out`."""
    places, field, geometry, boxes = crops.places, crops.field, crops.geometry, crops.boxes
    found = field.name, places.rows, places.positions
    while True:
        files, images, entries = places.pack.find_values(*found, with_entries=field.kind is Kind.IMAGE)
        report = kernel.decode_batch(
            files, images, out, boxes=boxes, flips=geometry.flips, filters=geometry.filter_each(),
            entries=entries, nearest=field.kind is Kind.MASK, raw=field.coding is Coding.RAW,
            depth=geometry.depth, pool=pool,
        )  # fmt: skip
        if not places.pack.turn_to_source(*found, report.statuses):
            return report


def check_depths(report: DecodeReport, crops: FieldCrops) -> None:
    """Raise a UsageError where an image needs another `depth`: the setting is wrong, and no sample is bad."""
    found = np.flatnonzero(report.statuses == Status.TOO_DEEP)
    if found.size:
        i = int(found[0])
        raise UsageError(crops.places.describe_bad(i, crops.field.name, report.reasons[i]).message)


def check_size(place: Places, pixels: Field, size: Size, *, always: bool = False) -> str | None:
    """Return why no memory is taken for one whole image or mask of the size that the index claims.

    None: it may be. Of large ones (`always`: of any) the headers are read first: an index may come from a
    stranger.
    """
    height, width = size
    if width * height <= kernel.TRUSTED_PIXELS and not always:
        return None
    found = pixels.name, place.rows, place.positions
    while True:
        files, images, _ = place.pack.find_values(*found)
        is_raw = pixels.coding is Coding.RAW
        status, reason = kernel.check_size(files, images, (width, height), raw=is_raw)
        if not place.pack.turn_to_source(*found, np.array([status], np.int32)):
            return reason if status else None


Decode = Callable[[FieldCrops, Pixels, "kernel.Pool | None"], DecodeReport]


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
    decode: Decode, operation: object, crops: FieldCrops, out: Pixels, pool: kernel.Pool | None
) -> DecodeReport:
    """Decode a field into `out` with `decode`; with padding, also the parts outside of the images."""
    if not isinstance(operation, RandomCrop) or not operation.is_padded:
        return decode(crops, out, pool)
    geometry, sides, mode = crops.geometry, crops.sides, operation.padding_mode
    count, height, width, channels = out.shape
    edges = scale_edges(geometry.boxes, geometry.sides, sides).astype(np.int64)
    across = _lay(edges[:, 0], edges[:, 2], sides[0], width)
    down = _lay(edges[:, 1], edges[:, 3], sides[1], height)
    boxes = np.stack([across.start, down.start, across.stop, down.stop], axis=1).astype(np.int32)
    sizes = np.stack([down.size, across.size], axis=1)
    inside = replace(crops, geometry=replace(geometry, boxes=boxes, sides=sides))
    value = 0 if crops.field.kind is Kind.MASK else operation.fill
    value = value if out.dtype == np.uint8 else value * WIDEN

    def fill(i: int, decoded: Pixels) -> None:
        crop = out[i]
        if geometry.flips[i]:  # so are the decoded pixels
            decoded, crop = decoded[:, ::-1], crop[:, ::-1]
        if mode == "constant":
            (to_x, from_x), (to_y, from_y) = across.part(i, width), down.part(i, height)
            crop[...] = value
            crop[to_y, to_x] = decoded[from_y, from_x]
        else:
            rows = decoded.take(down.sources(i, height, mode), axis=0)
            crop[...] = rows.take(across.sources(i, width, mode), axis=1)

    if (sizes == (height, width)).all():  # most often: decoded in place, and moved there
        report = decode(inside, out, pool)
        moved = (across.low != across.first) | (down.low != down.first)
        for i in np.flatnonzero(moved & (report.statuses == 0)).tolist():
            fill(i, out[i].copy())
        return report
    tally = Tally(count)
    for size in np.unique(sizes, axis=0):
        at = np.flatnonzero((sizes == size).all(axis=1))
        made = np.empty((len(at), *size, channels), out.dtype)
        tally.add(decode(inside.take(at), made, pool), at=at)
        for i, decoded in zip(at.tolist(), made, strict=True):
            fill(i, decoded)
    return tally.report()


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
