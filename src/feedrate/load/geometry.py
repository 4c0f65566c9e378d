# SPDX-License-Identifier: Apache-2.0
"""One geometric draw per sample, shared by all its images, masks and boxes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from feedrate import kernel, pillow
from feedrate.draws import F64, Purpose, draw_uniforms, make_key
from feedrate.filters import BILINEAR, find_filters
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack, Rows
from feedrate.kernel import I32, I64, U8
from feedrate.load.image import ImageOp, Resize, Size, scale_boxes, whole

Sides = tuple[I64, I64]  # widths, heights
# As in native/raw.h; no other format has longer sides. A damaged index claims up to 2**32, and the product of
# two sides must stay within 64 bits.
_LONGEST_SIDE = 1 << 30


@dataclass(frozen=True, slots=True)
class Geometry:
    """Crop boxes on the reference field, flips, and the samples that the operation refuses.

    `filters`: by Pillow's numbers; of several, `choices` (from 0 to 1) says which one each sample gets.
    """

    boxes: I32
    flips: npt.NDArray[np.bool_]
    sides: Sides
    refused: dict[int, str] = field(default_factory=dict)
    filters: tuple[int, ...] = (BILINEAR,)
    choices: F64 | None = None

    def filter_each(self) -> U8:
        """Return the filter of each sample."""
        filters = np.array(self.filters, np.uint8)
        if len(filters) == 1:
            return np.repeat(filters, len(self.boxes))
        assert self.choices is not None
        return filters[(self.choices * len(filters)).astype(np.int64)]

    def take(self, at: I64) -> Geometry:
        """Return the draws of some of the samples, without what is refused."""
        choices = None if self.choices is None else self.choices[at]
        sides = self.sides[0][at], self.sides[1][at]
        return Geometry(self.boxes[at], self.flips[at], sides, {}, self.filters, choices)

    def boxes_on(self, target: Field, rows: Rows) -> I32:
        """Return the same part of another field, in that field's own pixels."""
        return scale_boxes(self.boxes, self.sides, read_sides(target, rows))


def read_sides(pixels: Field, rows: Rows) -> Sides:
    """Return widths and heights as the index claims them; what no image can have is cut just above that."""
    widths, heights = (
        np.minimum(rows[f"{pixels.name}.{side}"], _LONGEST_SIDE + 1).astype(np.int64)
        for side in ("width", "height")
    )
    return widths, heights


@dataclass(frozen=True, slots=True)
class Artist:
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


def decode_pixels(
    places: Places, pixels: Field, geometry: Geometry, out: U8, pool: kernel.Pool | None
) -> kernel.DecodeReport:
    """Decode an image or mask field into `out`."""
    pack, rows, positions = places.pack, places.rows, places.positions
    is_image = pixels.kind is Kind.IMAGE
    boxes = geometry.boxes_on(pixels, rows)
    while True:
        files, images, entries = pack.find_values(pixels.name, rows, positions, with_entries=is_image)
        report = kernel.decode_batch(
            files, images, out, boxes=boxes, flips=geometry.flips, filters=geometry.filter_each(),
            entries=entries, nearest=pixels.kind is Kind.MASK, raw=pixels.coding is Coding.RAW, pool=pool,
        )  # fmt: skip
        if not pack.turn_to_source(pixels.name, rows, positions, report.statuses):
            return report


def refuse_size(place: Places, pixels: Field, size: Size, *, always: bool = False) -> str | None:
    """Return why no memory is taken for one whole image or mask of the size that the index claims.

    None: it may be. Of large ones (`always`: of any) the headers are read first: an index may come from a
    stranger.
    """
    height, width = size
    if width * height <= kernel.TRUSTED_PIXELS and not always:
        return None
    pack, rows, positions = place.pack, place.rows, place.positions
    while True:
        files, images, _ = pack.find_values(pixels.name, rows, positions)
        is_raw = pixels.coding is Coding.RAW
        status, reason = kernel.check_size(files, images, (width, height), raw=is_raw)
        if not pack.turn_to_source(pixels.name, rows, positions, np.array([status], np.int32)):
            return reason if status else None
