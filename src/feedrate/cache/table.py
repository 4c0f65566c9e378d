# SPDX-License-Identifier: Apache-2.0
"""The table of a cache: a row per sample and a few counters, in memory that all processes map.

A row is used only if its own checksum is right, so one that is being written counts as absent. Who changes
rows or counters holds the cache's lock; who reads does not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.kernel import I64

MOST_TIERS = 4
Rows = np.ndarray[Any, np.dtype[Any]]

_MAGIC = b"feedrate"
_VERSION = 1
_TOTALS = np.dtype(
    [("magic", "S8"), ("version", "<i8"), ("samples", "<i8"), ("shrinks", "<i8"), ("returned_bytes", "<i8"),
     ("damaged", "<i8"), ("hits", "<i8"), ("misses", "<i8")]
)  # fmt: skip
_TIER = np.dtype([(name, "<i8") for name in ("next", "reserved", "held", "bytes", "source_bytes", "is_full")])
ROW = np.dtype(
    [("number", "<i8"), ("offset", "<i8"), ("length", "<i8"), ("source_bytes", "<i8"), ("tier", "<i4"),
     ("mark", "<i4"), ("head", "<i4"), ("crc32c", "<u4"), ("is_there", "<u4"), ("check", "<u4")]
)  # fmt: skip
_ROWS_AT = 4096


@dataclass(frozen=True, slots=True)
class Located:
    """Where samples are, one row each; use no row that `found` does not name.

    `rows` has tier (which of `SampleCache.paths`), offset, length, head (how many bytes at the beginning
    describe the others), crc32c (of all bytes) and mark (the owner's number).
    """

    found: npt.NDArray[np.bool_]
    rows: Rows


def make_memory(name: str) -> int:
    """Return the descriptor of an empty file that lives in memory and has no name anywhere.

    Not a file in /dev/shm: that would be left behind by a process that is killed, and containers make that
    folder small.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(buffering=0) as file:  # macOS
        return os.dup(file.fileno())


def make_table(samples: int) -> int:
    """Return the descriptor of an empty table."""
    descriptor = make_memory("feedrate-table")
    os.ftruncate(descriptor, _size(samples))
    totals = np.zeros(1, _TOTALS)
    totals["magic"], totals["version"], totals["samples"] = _MAGIC, _VERSION, samples
    os.pwrite(descriptor, totals.tobytes(), 0)
    return descriptor


def is_table(descriptor: int, samples: int) -> bool:
    """Say whether a file is a table of that many samples."""
    head = os.pread(descriptor, _TOTALS.itemsize, 0)
    if len(head) < _TOTALS.itemsize or os.fstat(descriptor).st_size != _size(samples):
        return False
    totals = np.frombuffer(head, _TOTALS)[0]
    return bool(totals["magic"] == _MAGIC and totals["version"] == _VERSION and totals["samples"] == samples)


def _size(samples: int) -> int:
    return _ROWS_AT + samples * ROW.itemsize


class Table:
    """The mapped table. `totals` has one row, `tiers` one per tier; both are what all processes see."""

    def __init__(self, descriptor: int, samples: int) -> None:
        self._map = mmap.mmap(descriptor, _size(samples))
        self.totals: Rows = np.frombuffer(self._map, _TOTALS, 1)
        self.tiers: Rows = np.frombuffer(self._map, _TIER, MOST_TIERS, _TOTALS.itemsize)
        self._rows: Rows = np.frombuffer(self._map, ROW, samples, _ROWS_AT)

    def locate(self, numbers: I64) -> Located:
        rows = self._rows[numbers]
        # A row of zeros has no right checksum: that of zeros is not zero.
        found = (
            (rows["check"] == kernel.crc32c_rows(rows))
            & (rows["number"] == numbers)
            & (rows["is_there"] == 1)
        )
        return Located(found, rows)

    def holds(self, number: int) -> bool:
        return bool(self.locate(np.array([number], np.int64)).found[0])

    def publish(self, row: Rows) -> None:
        """Write a row of `make_row` and count it."""
        self._rows[row["number"]] = row
        self._count(row, 1)

    def clear(self, rows: Rows) -> None:
        """Forget samples of one tier by their rows, and count them no longer."""
        self._rows[rows["number"]] = np.zeros((), ROW)
        self._count(rows, -1)

    def is_same(self, row: Rows) -> bool:
        """Say whether a row that was located is still in the table."""
        return bool(self._rows[int(row["number"])].tobytes() == row.tobytes())

    def select(self, tier: int) -> Rows:
        """Return a copy of all rows of a tier, the nearest places first."""
        rows = self._rows[(self._rows["is_there"] == 1) & (self._rows["tier"] == tier)]
        ordered: Rows = rows[np.argsort(rows["offset"])]
        return ordered

    def _count(self, rows: Rows, sign: int) -> None:
        counts = self.tiers[int(rows["tier"][0])]
        counts["held"] += sign * len(rows)
        for name, column in (("bytes", "length"), ("source_bytes", "source_bytes")):
            counts[name] += sign * int(rows[column].sum())

    def close(self) -> None:
        del self.totals, self.tiers, self._rows
        # An array that somebody still holds keeps the mapping; it goes with that.
        with contextlib.suppress(BufferError):
            self._map.close()


def make_row(
    number: int,
    tier: int,
    offset: int,
    lengths: tuple[int, int],
    *,
    source_bytes: int,
    mark: int,
    crc32c: int,
) -> Rows:
    """Return a row for `Table.publish`; `lengths`: of the head, and of all."""
    row = np.zeros(1, ROW)
    head, length = lengths
    row["number"], row["offset"], row["length"], row["source_bytes"] = number, offset, length, source_bytes
    row["tier"], row["mark"], row["head"], row["crc32c"], row["is_there"] = tier, mark, head, crc32c, 1
    row["check"] = kernel.crc32c_rows(row)
    return row
