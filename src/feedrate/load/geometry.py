# SPDX-License-Identifier: Apache-2.0
"""One geometric draw per sample, shared by all its images, masks and boxes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.draws import F64, Purpose, draw_uniforms, make_key
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack, Rows
from feedrate.kernel import I32, I64, U8
from feedrate.load.image import ImageOp, scale_boxes, whole

Sides = tuple[I64, I64]  # widths, heights


@dataclass(frozen=True, slots=True)
class Geometry:
    """Crop boxes on the reference field, flips, and the samples that the operation refuses."""

    boxes: I32
    flips: npt.NDArray[np.bool_]
    sides: Sides
    refused: dict[int, str] = field(default_factory=dict)

    def boxes_on(self, target: Field, rows: Rows) -> I32:
        """Return the same part of another field, in that field's own pixels."""
        return scale_boxes(self.boxes, self.sides, read_sides(target, rows))


def read_sides(pixels: Field, rows: Rows) -> Sides:
    return rows[f"{pixels.name}.width"].astype(np.int64), rows[f"{pixels.name}.height"].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Artist:
    """Makes the draws of a batch from (seed, epoch, number)."""

    reference: Field
    image: ImageOp | None
    flip: float
    seed: int

    def draw(self, epoch: int, rows: Rows, slots: I64 | None) -> Geometry:
        widths, heights = sides = read_sides(self.reference, rows)
        flips = np.zeros(len(rows), np.bool_)
        if self.flip:
            flips = self._uniforms(Purpose.FLIP, epoch, rows, slots, 1)[:, 0] < self.flip
        if self.image is None:
            return Geometry(whole(widths, heights), flips, sides)
        least_height, least_width = self.image.min_size
        small = np.flatnonzero((widths < least_width) | (heights < least_height))
        refused = {int(i): self.image.refuse(int(widths[i]), int(heights[i])) or "refused" for i in small}
        # A box is made for refused samples too, of an image that would do; they are dropped later.
        widths, heights = np.maximum(widths, least_width), np.maximum(heights, least_height)
        uniforms = self._uniforms(Purpose.CROP, epoch, rows, slots, self.image.uniforms)
        boxes = self.image.place(widths, heights, uniforms)
        if refused:
            boxes[small] = whole(sides[0][small], sides[1][small])
        return Geometry(boxes, flips, sides, refused)

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
            files, images, out, boxes=boxes, flips=geometry.flips, entries=entries,
            nearest=pixels.kind is Kind.MASK, raw=pixels.coding is Coding.RAW, pool=pool,
        )  # fmt: skip
        if not pack.turn_to_source(pixels.name, rows, positions, report.statuses):
            return report
