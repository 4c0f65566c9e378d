# SPDX-License-Identifier: Apache-2.0
"""Are these Pillow's pixels? The reference as torchvision's users have it, and how far others are from it."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feedrate.filters import BILINEAR
from feedrate.kernel import U8
from feedrate.kernel.pillow import Box
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.loader.results import PixelCheck
from feedrate.loader.samples import open_pack

if TYPE_CHECKING:
    from PIL import Image

# Two exact decoders differ in how they round, by a level or two in places. Half a level everywhere: 54 dB.
LOWEST_PSNR_DB = 54.0
LARGEST_DIFFERENCE = 2

# Rows of pixels, as a pack may hold them in place of an image file.
_NPY = b"\x93NUMPY"

FloatBox = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two pictures of equal size. A pixel differs by as much as its channel that differs most."""

    psnr_db: float | None  # None: every pixel is equal
    largest: int
    levels: tuple[int, int, int, int]  # pixels that differ by 0, 1, 2 and more

    @property
    def is_rounding(self) -> bool:
        """Whether two exact decoders may differ by this much."""
        return self.psnr_db is None or (self.psnr_db >= LOWEST_PSNR_DB and self.largest <= LARGEST_DIFFERENCE)


def decode_as_torchvision(file: bytes, box: Box, side: int, flip: bool, filter_: int = BILINEAR) -> U8:
    """Return what `Compose([RandomResizedCrop(side), RandomHorizontalFlip()])` makes of an image file.

    Written with Pillow alone, and apart from feedrate's own way through Pillow, which it checks.

    Raises:
        Exception: whatever Pillow raises for a file that it does not decode.
    """
    return _finish(_open(file).crop(box).resize((side, side), filter_), flip)


def decode_part(file: bytes, box: FloatBox, side: int, flip: bool, filter_: int = BILINEAR) -> U8:
    """Return the same of a part whose edges lie between pixels; `resize` alone can cut there."""
    return _finish(_open(file).resize((side, side), filter_, box=box), flip)


def compare_pixels(ours: U8, theirs: U8) -> Difference:
    difference = np.abs(ours.astype(np.int16) - theirs.astype(np.int16))
    largest = int(difference.max())
    counts = np.bincount(np.minimum(difference.max(axis=-1), 3).reshape(-1), minlength=4)
    levels = (int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3]))
    return Difference(_psnr(difference), largest, levels)


def check_pixels(pack_path: str, *, side: int, images: int = 24, seed: int = 0) -> PixelCheck:
    """Decode random crops of up to `images` samples, spread over the pack, both ways.

    Raises:
        BadSample: one of them cannot be decoded.
    """
    pack = open_anywhere(pack_path)
    try:
        positions = np.unique(np.linspace(0, len(pack) - 1, min(images, len(pack))).astype(np.int64))
        with open_pack(pack, positions) as samples:
            geometry = samples.draw(side, seed)
            ours = np.zeros((len(samples), side, side, 3), np.uint8)
            report = samples.decode(geometry, ours)
            for number, reason in report.reasons.items():
                raise pack.describe_bad(int(positions[number]), "image", samples.rows[number], reason)
            boxes, flips = geometry.boxes.tolist(), geometry.flips.tolist()
            theirs = [
                decode_as_torchvision(samples.read(i), tuple(boxes[i]), side, flips[i])
                for i in range(len(samples))
            ]
    finally:
        pack.close()
    return judge_pixels(ours, np.stack(theirs), report.by_pillow)


def judge_pixels(ours: U8, theirs: U8, by_pillow: int = 0) -> PixelCheck:
    found = [compare_pixels(a, b) for a, b in zip(ours, theirs, strict=True)]
    psnrs = [one.psnr_db for one in found if one.psnr_db is not None]
    return PixelCheck(
        images=len(found),
        lowest_psnr_db=min(psnrs, default=None),
        largest_difference=max(one.largest for one in found),
        is_same=all(one.is_rounding for one in found),
        by_pillow=by_pillow,
    )


def _open(file: bytes) -> Image.Image:
    from PIL import Image

    if file.startswith(_NPY):
        rows: U8 = np.load(io.BytesIO(file), allow_pickle=False)
        image: Image.Image = Image.fromarray(rows)
    else:
        image = Image.open(io.BytesIO(file))
    with image:
        pixels: Image.Image = image.convert("RGB")
    return pixels


def _finish(image: object, flip: bool) -> U8:
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels


def _psnr(difference: npt.NDArray[np.int16]) -> float | None:
    error = float((difference.astype(np.float64) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else None
