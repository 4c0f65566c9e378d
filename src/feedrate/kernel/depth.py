# SPDX-License-Identifier: Apache-2.0
"""Gray images of more than 8 bits: which of their values become pixels, as `depth=` says.

These are Pillow's modes I;16, I and F. Colours of 16 bits are none of them: Pillow keeps their high byte.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from feedrate.arrays import U8, U16

if TYPE_CHECKING:
    from PIL import Image

Depth = Literal["clip", "uint16"] | tuple[float, float]
# White of 8 bits times this is white of 16.
WIDEN = np.uint16(257)
_MOST = 65535
_RANGE_OR_CLIP = (
    'depth=(low, high) scales that range to 0 to 255, depth="clip" cuts at 255 as Pillow\'s convert("L") does'
)


class TooDeep(ValueError):
    """The values of an image do not become pixels with the depth that was given, or without one."""


def is_deep(mode: str) -> bool:
    """Return whether an image of this mode of Pillow's is gray, of more than 8 bits."""
    return mode.startswith(("I", "F"))


def check_mode(mode: str, depth: Depth | None) -> None:
    """Look whether a depth says what to make of images of a mode.

    Raises:
        TooDeep: it does not.
    """
    if not is_deep(mode):
        return
    if depth is None:
        raise TooDeep(
            f"its gray has more than 8 bits (mode {mode}), and depth= must say what becomes of them: "
            f'depth="uint16" keeps the values, {_RANGE_OR_CLIP}'
        )
    if depth == "uint16" and mode == "F":
        raise TooDeep(
            f'its gray has floating-point values, which depth="uint16" cannot hold: {_RANGE_OR_CLIP}'
        )


def to_8_bits(image: Image.Image, depth: Depth | None) -> Image.Image:
    """Return a deep image in mode L: clipped as Pillow does it, or a range scaled."""
    from PIL import Image

    if not isinstance(depth, tuple):
        return image.convert("L")
    values = np.asarray(image)
    if values.dtype.itemsize == 2:
        return Image.fromarray(_make_table(*depth)[values])
    return Image.fromarray(_scale(values, *depth))


def crop_uint16(
    image: Image.Image, box: tuple[int, int, int, int], size: tuple[int, int], filter_: int
) -> U16:
    """Return a part of a deep image in its own values, H x W; resized in floats, where `size` is another.

    Raises:
        TooDeep: it holds other values than 0 to 65535.
    """
    if image.mode == "I":
        low, high = (int(value) for value in image.getextrema())  # type: ignore[arg-type]
        if low < 0 or high > _MOST:
            raise TooDeep(
                f'its gray has values from {low} to {high}, and depth="uint16" holds 0 to {_MOST}: '
                f"{_RANGE_OR_CLIP}"
            )
    part = image.crop(box)
    if part.size == size:
        return np.asarray(part).astype(np.uint16)
    resized = np.asarray(part.convert("F").resize(size, filter_))
    whole: U16 = np.rint(np.clip(resized, 0, _MOST)).astype(np.uint16)  # some filters go beyond the values
    return whole


@lru_cache(maxsize=8)
def _make_table(low: float, high: float) -> U8:
    return _scale(np.arange(_MOST + 1), low, high)


def _scale(values: npt.NDArray[Any], low: float, high: float) -> U8:
    scaled = np.clip((values.astype(np.float64) - low) * (255 / (high - low)), 0, 255)
    return np.rint(np.nan_to_num(scaled)).astype(np.uint8)  # what is no number is black
