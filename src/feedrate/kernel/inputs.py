# SPDX-License-Identifier: Apache-2.0
"""Image files of one call, in memory or by their paths, as the native threads take them: without a copy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedrate.arrays import I32, I64, U8
from feedrate.kernel.binding import Pool, as_bytes, native

__all__ = ["Inputs"]

_AS_THEY_ARE = {bytes, str, type(None)}


class Inputs:
    """Image files of one call, and the entry points of each.

    Files are read by the threads that need them, once. Bytes that nobody may write to are used in place.
    """

    def __init__(self, images: Sequence[Any], entries: Sequence[Any] | None = None) -> None:
        """Take paths or files' bytes, and for each the bytes of its entry points; None: there are none."""
        self._native = native.Inputs(_freeze(images), _freeze(entries or ()))
        self._count = len(images)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[U8, U8]:
        """Return a file's bytes and its entry points, as far as they have been read and found."""
        return self._native.at(number)

    def load(self, numbers: I32, pool: Pool | None = None) -> int:
        """Read files that were not yet; return how many bytes those with these numbers have."""
        return self._native.load(numbers, None if pool is None else pool._native)

    def measure(self, numbers: I64, pool: Pool | None = None) -> tuple[I32, I32]:
        """Read the files with these numbers; return N x 2 widths and heights, and why each cannot be read.

        That is an errno, or 0. A size is 0 where the kernel does not decode the file: Pillow may know.
        """
        facts = np.zeros((len(numbers), 3), np.int32)
        self._native.measure(numbers, None if pool is None else pool._native, facts.reshape(-1))
        return facts[:, :2], facts[:, 2]


def _freeze(values: Sequence[Any]) -> list[Any]:
    listed = list(values)
    return listed if _AS_THEY_ARE.issuperset(map(type, listed)) else [_freeze_one(one) for one in listed]


def _freeze_one(value: Any) -> Any:
    if value is None or isinstance(value, (bytes, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    view = memoryview(value)
    return as_bytes(view) if view.readonly and view.c_contiguous else bytes(view)
