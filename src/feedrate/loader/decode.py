# SPDX-License-Identifier: Apache-2.0
"""`feedrate.decode`: one image file or its bytes, to pixels."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.arrays import U8
from feedrate.errors import NotFound, StorageError, UsageError
from feedrate.filters import FILTERS, Filter, check_filter
from feedrate.loader.arguments import Size, check_choice, check_size, options_by_name

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
BYTES = (bytes, bytearray, memoryview)


@options_by_name
def decode(
    source: Source,
    crop: tuple[int, int, int, int] | None = None,
    size: int | Size | None = None,
    *,
    mode: str = "RGB",
    flip: bool = False,
    interpolation: Filter = "bilinear",
) -> U8:
    """Decode an image to uint8 pixels of shape height, width, channels.

    Args:
        source: a path, or the file's bytes.
        crop: left, top, right, bottom: the part to decode; None: all of it.
        size: height and width to resize that part to; one number: a square; None: as it is.
        mode: "RGB" or "L" (gray, one channel, as Pillow's `convert("L")` makes it of the colours).
        flip: mirror left to right.
        interpolation: the filter of the resize: "bilinear", "bicubic", "lanczos", "box", "hamming" or
            "nearest".

    Raises:
        NotFound: there is no such file.
        UsageError: it is not an image that can be decoded, or the arguments make no sense.
    """
    check_choice("mode", mode, "RGB", "L")
    if crop is not None:
        crop = _check_crop(crop)
    if size is not None:
        checked = check_size(size, "decode")
        size = checked if isinstance(checked, tuple) else (checked, checked)
    filter_ = FILTERS[check_filter(interpolation, "decode")]
    name, data = read_source(source)
    try:
        return kernel.decode_one(data, box=crop, size=size, flip=bool(flip), mode=mode, filter_=filter_)
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
