# SPDX-License-Identifier: Apache-2.0
"""What is in the files of a source: facts about images and arrays, and words for what nobody could load."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass

import numpy as np

from feedrate import kernel, pillow
from feedrate.source.values import UnusableValue


@dataclass(frozen=True, slots=True)
class ImageFacts:
    width: int
    height: int
    entries: bytes
    pillow_reason: str | None  # why the kernel leaves it to Pillow; None: it does not
    is_damaged: bool  # the kernel says so, Pillow does not mind
    is_gray: bool | None  # None: the kernel does not know


def dump_number(value: int | float) -> bytes:
    return json.dumps(value).encode()


def inspect_image(data: bytes) -> ImageFacts:
    """Look at an image file. What the kernel does not take, or finds damaged, Pillow has decoded in full.

    Raises:
        UnusableValue: neither of them decodes it.
    """
    if not data:
        raise UnusableValue("the file is empty")
    scan = kernel.scan(data)
    if not scan.damaged:
        is_gray = scan.sampling == "gray" if scan.reason is None else None
        return ImageFacts(scan.width, scan.height, scan.entries, scan.reason, False, is_gray)
    try:
        width, height = pillow.check(data)
    except pillow.Undecodable as error:
        raise UnusableValue(scan.reason or str(error)) from error
    return ImageFacts(width, height, b"", scan.reason, True, None)


def inspect_array(data: bytes) -> tuple[tuple[int, ...], str | None]:
    """Return shape and dtype of a .npy file.

    Raises:
        UnusableValue: it is not one, or holds pickled objects.
    """
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, MemoryError) as error:
        raise UnusableValue(f"is not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise UnusableValue("is a .npz archive; a field holds one array")
    if array.dtype.fields:
        return array.shape, None
    return array.shape, array.dtype.name if array.dtype.isnative else array.dtype.str
