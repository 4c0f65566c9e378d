# SPDX-License-Identifier: Apache-2.0
"""Bytes and rows of files, by the number of the file and the place in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from feedrate.kernel.door import I32, I64, U8, U32, Pool, Status, checked, native

_MOST_PER_CALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Ranges:
    """Byte ranges in files, one per sample; arrays of equal length."""

    file: I32
    offset: I64
    length: I64
    crc32c: U32 | None = None  # None: not checked

    def __len__(self) -> int:
        return len(self.file)


class Files:
    """Files that the kernel reads by number; opened when first needed, at most a bounded number at a time."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [os.fspath(path) for path in paths]
        # As bytes: a name need not be valid UTF-8.
        self._native = native.Files([os.fsencode(path) for path in self.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __reduce__(self) -> tuple[type[Files], tuple[list[str]]]:
        return Files, (self.paths,)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        self._native.close()


def gather_rows(files: Files, file: I32, row: I64, bases: I64, strides: I64, dtype: np.dtype[Any]) -> Any:
    """Read rows of a columnar table straight from its file, and check each row's last column.

    Column `c` of row `r` lies at `bases[i, c] + r * strides[c]` in `files[file[i]]`. Returns `(rows,
    statuses)`: `rows` is a structured array of `dtype` (packed, one field per column); its last field holds
    the CRC-32C of the bytes before it. `bases` has one row per *sample*. A bad row is zeroed.
    """
    sizes = _column_sizes(dtype)
    n, columns = len(file), len(sizes)
    file, row = checked(file, np.int32, (n,), "file"), checked(row, np.int64, (n,), "row")
    bases = checked(bases, np.int64, (n, columns), "bases")
    strides = checked(strides, np.int64, (columns,), "strides")
    rows, details = np.zeros(n, dtype), np.zeros((n, 4), np.int64)
    native.gather_rows(
        files._native, file, row, bases.reshape(-1), strides, sizes, rows.view(np.uint8), details.reshape(-1)
    )
    return rows, details[:, 0].astype(np.int32)


@lru_cache(maxsize=64)
def _column_sizes(dtype: np.dtype[Any]) -> I64:
    if dtype.names is None or dtype.fields is None:
        raise ValueError(f"dtype must have one field per column, got {dtype}")
    sizes = np.array([dtype.fields[name][0].itemsize for name in dtype.names], np.int64)
    if sizes.sum() != dtype.itemsize or sizes[-1] != 4:
        raise ValueError(f"dtype must be packed and end with a field of 4 bytes, got {dtype}")
    return sizes


def read_ranges(files: Files, ranges: Ranges, pool: Pool | None = None) -> tuple[U8, I64, I32]:
    """Read ranges one behind the other into one buffer: `(buffer, starts, statuses)`, `starts` of length N+1.

    A range that cannot be read leaves its part of the buffer zeroed; one that lies outside of its file has
    no part: lengths are a stranger's claims, so that they are checked before memory is taken for them.
    """
    buffer, starts, details = _read(files, ranges, pool)
    return buffer, starts, details[:, 0].astype(np.int32)


def read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Return so many bytes of an open file from `offset` on; fewer where it ends, nothing where it cannot be.

    Linux reads 2 GB at the most in one call, others refuse more. Memory is taken for what the file holds,
    whatever a stranger's index claims.

    Raises:
        OSError: it cannot be read.
    """
    left_bytes = min(size_bytes, os.fstat(descriptor).st_size - offset) if offset >= 0 else 0
    pieces: list[bytes] = []
    while left_bytes > 0 and (piece := os.pread(descriptor, min(left_bytes, _MOST_PER_CALL), offset)):
        pieces.append(piece)
        left_bytes, offset = left_bytes - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def arrays_of(ranges: Ranges, n: int) -> tuple[I32, I64, I64, U32]:
    crc = np.empty(0, np.uint32) if ranges.crc32c is None else ranges.crc32c
    return (
        checked(ranges.file, np.int32, (n,), "file"),
        checked(ranges.offset, np.int64, (n,), "offset"),
        checked(ranges.length, np.int64, (n,), "length"),
        checked(crc, np.uint32, (0,) if ranges.crc32c is None else (n,), "crc32c"),
    )


def say_outcome(files: Files, ranges: Ranges, i: int, detail: I64) -> str:
    words = native.words(*map(int, detail))
    number = int(ranges.file[i])
    if detail[0] == Status.UNREADABLE and 0 <= number < len(files):
        return f"{files.paths[number]} {words}"
    return words


def _read(files: Files, ranges: Ranges, pool: Pool | None) -> tuple[U8, I64, I64]:
    n = len(ranges)
    file, offset, length, crc32c = arrays_of(ranges, n)
    threads = None if pool is None else pool._native
    claims, details = np.zeros((n, 4), np.int64), np.zeros((n, 4), np.int64)
    native.check_ranges(files._native, (file, offset, length, crc32c), threads, claims.reshape(-1))
    outside = claims[:, 0] != 0
    if outside.any():
        offset, length = np.where(outside, 0, offset), np.where(outside, 0, length)
    total_bytes = float(length.sum(dtype=np.float64))
    if total_bytes >= 2**62:  # each lies in its file, but together they would leave 64 bits
        raise MemoryError(f"{n} values of {total_bytes:.3g} bytes together")
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(length, out=starts[1:])
    buffer = np.empty(int(starts[-1]), np.uint8)
    inside = (file, offset, length, crc32c)
    native.read_ranges(files._native, inside, starts, buffer, threads, details.reshape(-1))
    details[outside] = claims[outside]
    return buffer, starts, details


def read_one(files: Files, ranges: Ranges, i: int) -> tuple[bytes, I64]:
    crc = None if ranges.crc32c is None else ranges.crc32c[i : i + 1]
    one = Ranges(ranges.file[i : i + 1], ranges.offset[i : i + 1], ranges.length[i : i + 1], crc)
    buffer, _, details = _read(files, one, None)
    return buffer.tobytes(), details[0]
