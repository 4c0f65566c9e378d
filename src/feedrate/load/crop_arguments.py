# SPDX-License-Identifier: Apache-2.0
"""The arguments of `feedrate.decode_batch`, as arrays; what makes no sense gets a sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import GpuError, UsageError
from feedrate.filters import FILTERS, check_filter
from feedrate.kernel import I32, Crops
from feedrate.load.image import Size, check_size

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

_BYTES = (bytes, bytearray, memoryview)
# Of the output: what a plan for the GPU takes.
_LONGEST_SIDE = 16384
_LARGEST_EDGE = 2**31 - 1


class Wanted(NamedTuple):
    """What was asked for.

    Attributes:
        has_boxes: there are crops; else the boxes are zero, and those of whole images are wanted.
        size: height and width.
        entries: one per image; None: none at all.
    """

    images: Sequence[Source]
    crops: Crops
    has_boxes: bool
    size: Size
    entries: Sequence[bytes | None] | None


def check_wanted(
    images: Any, crops: Any, size: Any, flips: Any, interpolation: Any, entries: Any, image_index: Any
) -> Wanted:
    """Return the arguments in their final form.

    Raises:
        UsageError: one of them makes no sense.
    """
    images = _check_images(images)
    index = _check_index(image_index, len(images))
    count, per = len(index), "image" if image_index is None else "number in image_index"
    checked = check_size(size, "decode_batch")
    height, width = checked if isinstance(checked, tuple) else (checked, checked)
    if max(height, width) > _LONGEST_SIDE:
        raise UsageError(f"decode_batch: size must be at most {_LONGEST_SIDE} pixels a side, got {size!r}")
    filter_ = FILTERS[check_filter(interpolation, "decode_batch")]
    boxes = np.zeros((count, 4), np.int32) if crops is None else _check_crops(crops, count, per)
    return Wanted(
        images,
        Crops(index, boxes, _check_flips(flips, count, per), np.full(count, filter_, np.uint8)),
        crops is not None,
        (height, width),
        _check_entries(entries, len(images)),
    )


def parse_device(device: Any) -> Any:
    """Return a GPU as a torch.device; None: the CPU.

    Raises:
        UsageError: it is neither.
        GpuError: torch is not there.
    """
    if device == "cpu":
        return None
    is_named = isinstance(device, str) and device.partition(":")[0] == "cuda"
    if is_named or type(device).__module__.partition(".")[0] == "torch":
        try:
            import torch
        except (ImportError, OSError) as error:
            raise GpuError(
                f"device={device!r} is used by way of torch, which cannot be imported: {error}",
                hint='pip install torch; device="cpu" needs none',
            ) from error
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError):
            found = None
        if found is not None and found.type in ("cuda", "cpu"):
            return None if found.type == "cpu" else found
    raise UsageError(f'device must be "cuda", "cuda:1", a torch.device of these, or "cpu"; got {device!r}')


def _check_images(images: Any) -> Sequence[Source]:
    if isinstance(images, (str, os.PathLike, *_BYTES)) or not _is_sized(images):
        raise UsageError(
            f"images must be a list of paths or of image files' bytes, got {type(images).__name__}",
            hint="for one image: decode_batch([image])",
        )
    listed: list[Source] = list(images)
    if not listed:
        raise UsageError("images is empty: there is nothing to decode")
    for i, image in enumerate(listed):
        if not isinstance(image, (str, os.PathLike, *_BYTES)):
            raise UsageError(
                f"images[{i}] must be a path or an image file's bytes, got {type(image).__name__}"
            )
    return listed


def _check_index(index: Any, images: int) -> I32:
    if index is None:
        return np.arange(images, dtype=np.int32)
    array = _to_array(index)
    if array is None or array.ndim != 1 or not (array.dtype.kind in "iu" or not array.size):
        raise UsageError(f"image_index must be whole numbers, one per crop, got {_show(index)}")
    if not array.size:
        raise UsageError("image_index is empty: there is nothing to decode")
    outside = np.flatnonzero((array < 0) | (array >= images))
    if outside.size:
        last = f"0 to {images - 1}" if images > 1 else "0 alone"
        raise UsageError(f"image_index[{outside[0]}] is {array[outside[0]]}: the images have numbers {last}")
    return np.asarray(array, np.int32)


def _check_crops(crops: Any, count: int, per: str) -> I32:
    _check_length("crops", crops, count, per)
    array = _to_array(crops)
    if array is not None and array.ndim == 2 and array.shape[1] == 4 and array.dtype.kind in "iu":
        left, top, right, bottom = array.T
        good = (left >= 0) & (left < right) & (top >= 0) & (top < bottom)
        good &= (right <= _LARGEST_EDGE) & (bottom <= _LARGEST_EDGE)
        if good.all():
            return np.asarray(array, np.int32)
        i = int(np.flatnonzero(~good)[0])
        what = f"crops[{i}] is {tuple(array[i].tolist())}"
    else:
        what = f"got {_show(crops)}"
    raise UsageError(
        "crops must be left, top, right, bottom for each, in whole pixels, not empty and not negative; "
        + what
    )


def _check_flips(flips: Any, count: int, per: str) -> Any:
    if flips is None:
        return np.zeros(count, np.bool_)
    _check_length("flips", flips, count, per)
    array = _to_array(flips)
    if array is None or array.ndim != 1 or array.dtype != np.bool_:
        raise UsageError(f"flips must be True or False for each crop, got {_show(flips)}")
    return array


def _check_entries(entries: Any, count: int) -> Sequence[bytes | None] | None:
    if entries is None:
        return None
    if isinstance(entries, _BYTES):
        raise UsageError("entries must be a list, bytes for each image, got bytes")
    _check_length("entries", entries, count, "image")
    for i, one in enumerate(entries):
        if one is not None and not isinstance(one, _BYTES):
            raise UsageError(f"entries[{i}] must be bytes, b'' or None, got {type(one).__name__}")
    return list(entries)


def _check_length(name: str, values: Any, count: int, per: str) -> None:
    if not _is_sized(values):
        raise UsageError(f"{name} must be a list, one for each {per}, got {type(values).__name__}")
    if len(values) != count:
        raise UsageError(f"{name} has {len(values)}, and {count} are needed: one for each {per}")


def _is_sized(values: Any) -> bool:
    if isinstance(values, dict) or getattr(values, "ndim", 1) == 0:  # a number in the form of an array
        return False
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


def _to_array(values: Any) -> Any:
    """Return numbers as an array; None: they are none, or of unequal lengths."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(values, torch.Tensor):
            values = values.detach().cpu().numpy()
        return np.asarray(values)
    except (
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
    ):  # numpy has no such numbers, or no tensor has
        return None


def _show(values: Any) -> str:
    text = repr(values)
    return text if len(text) <= 80 else f"{text[:77]}..."
