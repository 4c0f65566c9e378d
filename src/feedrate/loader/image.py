# SPDX-License-Identifier: Apache-2.0
"""Image operations: from widths, heights and random numbers to crop boxes, for a whole batch at once.

An operation decides *where* to cut and *how large* the result is; the kernel cuts. Boxes are left, top,
right, bottom. `decode` is for one image file, without a pack.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.arrays import F64, I32, I64, U8, U16
from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.filters import FILTERS, Filter, Interpolation, check_filter, check_interpolation
from feedrate.kernel.depth import Depth
from feedrate.loader.arguments import (
    Size,
    as_pair,
    check_choice,
    check_depth,
    check_pair,
    check_size,
    is_whole,
    options_by_name,
)

_TRIES = 10
Source = str | os.PathLike[str] | bytes | bytearray | memoryview
BYTES = (bytes, bytearray, memoryview)


class ImageOp(Protocol):
    """What the loader asks of an operation."""

    @property
    def out_size(self) -> Size: ...

    @property
    def uniforms(self) -> int:
        """How many random numbers a sample needs; 0: the operation is not random."""
        ...

    def place(self, widths: I64, heights: I64, uniforms: F64) -> I32:
        """Return the boxes, N x 4."""
        ...

    def refuse(self, width: int, height: int) -> str | None:
        """Return why an image of this size cannot be used, in words; None when it can."""
        ...

    @property
    def min_size(self) -> Size: ...


@dataclass(frozen=True, repr=False)
class _Sized:
    size: int | Size

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "size", check_size(self.size, name))
        words = check_interpolation(getattr(self, "interpolation", "bilinear"), name)
        object.__setattr__(self, "interpolation", words)

    def __repr__(self) -> str:
        # Keys of caches hold this text: what came later stands there only where it was given.
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name != "interpolation" or getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def out_size(self) -> Size:
        return as_pair(self.size)

    @property
    def uniforms(self) -> int:
        return 0

    @property
    def min_size(self) -> Size:
        return (1, 1)

    def refuse(self, width: int, height: int) -> str | None:
        least_height, least_width = self.min_size
        if width >= least_width and height >= least_height:
            return None
        return (
            f"the image has {width}x{height} pixels, smaller than {self!r}; "
            f"RandomResizedCrop, Resize or CenterCrop with resize= take images of any size"
        )


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(_Sized):
    """A random part of the image, resized; torchvision's rule.

    Args:
        size: output height and width; one number: a square.
        scale: share of the image's area, lowest and highest.
        ratio: width over height of the part, lowest and highest.
        interpolation: the filter: "bilinear", "bicubic", "lanczos", "box", "hamming" or "nearest"; of
            several, one is drawn for each image. Masks are always resized by nearest neighbour.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = check_pair(self.scale, "scale")
        if not 0 < low <= high <= 1:
            raise UsageError(f"scale must be two numbers with 0 < low <= high <= 1, got {self.scale}")
        low, high = check_pair(self.ratio, "ratio")
        if not 0 < low <= high:
            raise UsageError(f"ratio must be two numbers with 0 < low <= high, got {self.ratio}")

    @property
    def uniforms(self) -> int:
        return 2 * _TRIES + 2

    def place(self, widths: I64, heights: I64, uniforms: F64) -> I32:
        low, high = self.scale
        areas = (widths * heights)[:, None] * (low + (high - low) * uniforms[:, :_TRIES])
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = np.exp(low + (high - low) * uniforms[:, _TRIES : 2 * _TRIES])
        tries_w, tries_h = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (tries_w > 0) & (tries_w <= widths[:, None]) & (tries_h > 0) & (tries_h <= heights[:, None])
        first = fits.argmax(axis=1)
        every = np.arange(len(widths))
        found = fits[every, first]
        crop_w = np.where(found, tries_w[every, first], 0).astype(np.int64)
        crop_h = np.where(found, tries_h[every, first], 0).astype(np.int64)
        left = np.floor(uniforms[:, -2] * (widths - crop_w + 1)).astype(np.int64)
        top = np.floor(uniforms[:, -1] * (heights - crop_h + 1)).astype(np.int64)
        missed = np.flatnonzero(~found)
        if missed.size:
            w, h = self._fall_back(widths[missed], heights[missed])
            crop_w[missed], crop_h[missed] = w, h
            left[missed], top[missed] = (widths[missed] - w) // 2, (heights[missed] - h) // 2
        return _boxes(left, top, crop_w, crop_h)

    def _fall_back(self, widths: I64, heights: I64) -> tuple[I64, I64]:
        """Return the largest central part with an allowed ratio."""
        shape = widths / heights
        w = np.where(shape > self.ratio[1], np.rint(heights * self.ratio[1]), widths)
        h = np.where(shape < self.ratio[0], np.rint(widths / self.ratio[0]), heights)
        # torchvision would cut nothing at all out of a line one pixel wide.
        return np.maximum(w, 1).astype(np.int64), np.maximum(h, 1).astype(np.int64)


PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True, repr=False)
class RandomCrop(_Sized):
    """A random part of `size`, pixels as they are; torchvision's rule. A smaller image is a bad sample.

    Args:
        size: output height and width; one number: a square.
        padding: pixels around the image from which parts are cut, too: one number, (left and right, top and
            bottom) or (left, top, right, bottom).
        pad_if_needed: take images that are smaller still, with as much padding as they need.
        fill: the value of the padding; in masks it is 0.
        padding_mode: "constant", "edge" (the last pixel again), "reflect" or "symmetric" (mirrored, without
            or with the last pixel).
        interpolation: the filter where a view, or a field of another size, is resized; as in
            `RandomResizedCrop`.
    """

    padding: int | tuple[int, ...] | None = None
    pad_if_needed: bool = False
    fill: int = 0
    padding_mode: str = "constant"
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.padding, list):
            object.__setattr__(self, "padding", tuple(self.padding))
        edges = self.padding if isinstance(self.padding, tuple) else (self.padding or 0,)
        if len(edges) not in (1, 2, 4) or not all(is_whole(edge, 0, 2**20) for edge in edges):
            raise UsageError(
                "RandomCrop: padding must be a number of pixels, (left and right, top and bottom) or "
                f"(left, top, right, bottom), from 0 to {2**20:,}; got {self.padding!r}"
            )
        if not is_whole(self.fill, 0, 255):
            raise UsageError(f"RandomCrop: fill must be a whole number from 0 to 255, got {self.fill!r}")
        if self.padding_mode not in PADDING_MODES:
            raise UsageError(
                f"RandomCrop: padding_mode must be one of {', '.join(PADDING_MODES)}, "
                f"got {self.padding_mode!r}"
            )
        most = min(self.out_size)
        if self.is_mirrored and max(edges) >= most:
            raise UsageError(
                f"RandomCrop: what padding_mode='{self.padding_mode}' adds must be below the crop's {most} "
                f"pixels, got padding={self.padding!r}"
            )

    def __repr__(self) -> str:
        given = [
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default
        ]
        return f"RandomCrop({', '.join(given)})"

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """The padding, as left, top, right, bottom."""
        edges = self.padding if isinstance(self.padding, tuple) else (self.padding or 0,)
        left, top, right, bottom = edges * (4 // len(edges))
        return left, top, right, bottom

    @property
    def is_mirrored(self) -> bool:
        return self.padding_mode in ("reflect", "symmetric")

    @property
    def is_padded(self) -> bool:
        return any(self.edges) or self.pad_if_needed

    @property
    def uniforms(self) -> int:
        return 2

    @property
    def min_size(self) -> Size:
        (height, width), (left, top, right, bottom) = self.out_size, self.edges
        if self.pad_if_needed:
            height, width = 1, 1
        # What is mirrored must be there.
        least = max(left, top, right, bottom) + 1 if self.is_mirrored else 1
        return max(least, height - top - bottom), max(least, width - left - right)

    def place(self, widths: I64, heights: I64, uniforms: F64) -> I32:
        (height, width), (left, top, right, bottom) = self.out_size, self.edges
        lows = []
        for sides, length, before, after, draws in (
            (widths, width, left, right, uniforms[:, 0]),
            (heights, height, top, bottom, uniforms[:, 1]),
        ):
            room = sides + before + after - length  # below 0: what is lacking comes on either side
            lows.append(np.floor(draws * (np.abs(room) + 1)).astype(np.int64) - before + np.minimum(room, 0))
        return _boxes(lows[0], lows[1], np.full_like(lows[0], width), np.full_like(lows[1], height))


@dataclass(frozen=True, repr=False)
class CenterCrop(_Sized):
    """The centre of the image.

    Args:
        size: output height and width; one number: a square.
        resize: take the part that `Resize(resize)` followed by `CenterCrop(size)` would show, in one step and
            to the nearest pixel of the source. None: pixels as they are; an image smaller than `size` is a
            bad sample.
        interpolation: the filter, as in `RandomResizedCrop`.
    """

    resize: int | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        least = max(self.out_size)
        is_int = isinstance(self.resize, int) and not isinstance(self.resize, bool)
        if self.resize is not None and not (is_int and self.resize >= least):
            raise UsageError(f"resize must be at least {least} (the crop); got {self.resize!r}")

    @property
    def min_size(self) -> Size:
        return self.out_size if self.resize is None else (1, 1)

    def place(self, widths: I64, heights: I64, uniforms: F64) -> I32:
        del uniforms
        height, width = self.out_size
        if self.resize is None:
            left, top = np.rint((widths - width) / 2), np.rint((heights - height) / 2)
            return _boxes(left, top, np.full_like(widths, width), np.full_like(widths, height))
        short = np.minimum(widths, heights)
        resized_w, resized_h = self.resize * widths // short, self.resize * heights // short
        left, right = _central(widths, resized_w, width)
        top, bottom = _central(heights, resized_h, height)
        return _boxes(left, top, right - left, bottom - top)


@dataclass(frozen=True, repr=False)
class Resize(_Sized):
    """The whole image, resized to `size`; its shape is not kept. `interpolation`: as in RandomResizedCrop."""

    interpolation: Interpolation = "bilinear"

    def place(self, widths: I64, heights: I64, uniforms: F64) -> I32:
        del uniforms
        return whole(widths, heights)


@dataclass(frozen=True)
class View:
    """A field once more, with the same draw, at another output size: `View("image", size=24)` in `fields`.

    `name` is its key in the dict that `transform` sees; "image_24" unless given. `interpolation` is its
    filter; None: the one that the image operation has, or draws.
    """

    field: str
    size: int | Size
    name: str = ""
    interpolation: Interpolation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise UsageError(f"View's first argument must be the name of a field, got {self.field!r}")
        object.__setattr__(self, "size", check_size(self.size, "View"))
        if self.interpolation is not None:
            object.__setattr__(self, "interpolation", check_interpolation(self.interpolation, "View"))
        height, width = self.out_size
        suffix = str(height) if height == width else f"{height}x{width}"
        object.__setattr__(self, "name", self.name or f"{self.field}_{suffix}")

    @property
    def out_size(self) -> Size:
        return as_pair(self.size)


def whole(widths: I64, heights: I64) -> I32:
    """Return the boxes of whole images."""
    nothing = np.zeros_like(widths)
    return _boxes(nothing, nothing, widths, heights)


def scale_edges(boxes: I32, source: tuple[I64, I64], target: tuple[I64, I64]) -> I32:
    """Return boxes on images of one size, moved to images of another: (widths, heights) each."""
    if np.array_equal(source[0], target[0]) and np.array_equal(source[1], target[1]):
        return boxes
    out = np.empty_like(boxes)
    for edge in range(4):
        # A damaged width of 0 must reach the kernel as a bad box, not end as a division by zero.
        out[:, edge] = np.rint(boxes[:, edge] * (target[edge % 2] / np.maximum(source[edge % 2], 1)))
    return out


def scale_boxes(boxes: I32, source: tuple[I64, I64], target: tuple[I64, I64]) -> I32:
    """Return boxes inside of images of one size, moved to images of another; inside of them and not empty."""
    scaled = scale_edges(boxes, source, target)
    if scaled is boxes:
        return boxes
    for axis in range(2):
        scaled[:, axis] = np.minimum(scaled[:, axis], np.maximum(target[axis] - 1, 0))
        scaled[:, axis + 2] = np.clip(scaled[:, axis + 2], scaled[:, axis] + 1, np.maximum(target[axis], 1))
    return scaled


def _central(lengths: I64, resized: I64, wanted: int) -> tuple[I64, I64]:
    start = np.rint((resized - wanted) / 2)
    low = np.minimum(np.rint(start * lengths / resized), lengths - 1)
    high = np.clip(np.rint((start + wanted) * lengths / resized), low + 1, lengths)
    return low.astype(np.int64), high.astype(np.int64)


def _boxes(
    left: npt.NDArray[Any], top: npt.NDArray[Any], width: npt.NDArray[Any], height: npt.NDArray[Any]
) -> I32:
    out = np.empty((len(left), 4), np.int32)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = left, top, left + width, top + height
    return out


@options_by_name
def decode(
    source: Source,
    crop: tuple[int, int, int, int] | None = None,
    size: int | Size | None = None,
    *,
    mode: str = "RGB",
    flip: bool = False,
    interpolation: Filter = "bilinear",
    depth: Depth | None = None,
) -> U8 | U16:
    """Decode an image to uint8 pixels of shape height, width, channels.

    Args:
        source: a path, or the file's bytes.
        crop: left, top, right, bottom: the part to decode; None: all of it.
        size: height and width to resize that part to; one number: a square; None: as it is.
        mode: "RGB" or "L" (gray, one channel, as Pillow's `convert("L")` makes it of the colours).
        flip: mirror left to right.
        interpolation: the filter of the resize: "bilinear", "bicubic", "lanczos", "box", "hamming" or
            "nearest".
        depth: what becomes of gray of more than 8 bits, which is an error without it: "clip" cuts at 255, as
            Pillow's `convert("L")` does; "uint16": pixels are uint16, values as they are, and those of images
            with 8 bits times 257; (low, high): that range becomes 0 to 255.

    Raises:
        NotFound: there is no such file.
        UsageError: it is not an image that can be decoded, or the arguments make no sense.
    """
    check_choice("mode", mode, "RGB", "L")
    depth = check_depth(depth)
    if crop is not None:
        crop = _check_crop(crop)
    if size is not None:
        size = as_pair(check_size(size, "decode"))
    filter_ = FILTERS[check_filter(interpolation, "decode")]
    name, data = read_source(source)
    try:
        return kernel.decode_one(
            data, box=crop, size=size, flip=bool(flip), mode=mode, filter_=filter_, depth=depth
        )
    except (ValueError, OSError) as error:
        raise UsageError(f"{name} cannot be decoded: {error}") from error


def _check_crop(crop: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    try:
        whole = all(isinstance(edge, (int, np.integer)) for edge in crop)
        left, top, right, bottom = (int(edge) for edge in crop)
    except (TypeError, ValueError):
        whole, left, top, right, bottom = False, 0, 0, 0, 0
    if not (whole and 0 <= left < right and 0 <= top < bottom):
        raise UsageError(
            f"crop must be left, top, right, bottom in whole pixels, not empty and not negative; got {crop!r}"
        )
    return left, top, right, bottom


def read_source(source: Source) -> tuple[str, bytes]:
    """Return what to call an image, and its bytes."""
    if isinstance(source, BYTES):
        return f"the image of {len(source)} bytes", bytes(source)
    try:
        path = Path(source)
    except TypeError:
        raise UsageError(f"decode takes a path or bytes, got {type(source).__name__}") from None
    try:
        return str(path), path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no file at {path}") from None
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise StorageError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
