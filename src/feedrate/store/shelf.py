# SPDX-License-Identifier: Apache-2.0
"""A bounded store of samples that never evicts, shared by the processes of a job on one node.

A shelf has a table (one row per sample, memory that all processes map) and a file without a name per tier:
anonymous memory for `ram`, an unlinked file on a disk for `disk`. So nothing of a shelf outlives its last
process, however that ends; `sharing.py` says how processes come by each other's files.

States of a sample:  ABSENT --put: room reserved, bytes written--> HELD --discard, or memory runs short-->
ABSENT. A place in a file is given out once and never again: what a reader finds there is the sample that its
row named, or bytes that fail their checksum. Rows and bytes carry checksums; whoever reads must look at them.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.errors import StorageError, UsageError
from feedrate.kernel import I64, U8
from feedrate.results import TierStats
from feedrate.store.budget import MemoryWatch, Watcher
from feedrate.store.sharing import Meeting, name_job

TierKind = Literal["ram", "disk"]
VERSION = 1
MOST_TIERS = 4  # near to far; a tier in GPU memory will come before them
_ALIGNMENT = 64
_DISK_LEFT_FREE = 0.02  # of the file system: the disk is not ours alone
_MAGIC = b"feedrate"
_HEADER = np.dtype(
    [("magic", "S8"), ("token", "V16"), ("version", "<i8"), ("samples", "<i8"), ("shrinks", "<i8"),
     ("returned_bytes", "<i8"), ("damaged", "<i8"), ("next", "<i8", MOST_TIERS), ("held", "<i8", MOST_TIERS),
     ("bytes", "<i8", MOST_TIERS), ("source_bytes", "<i8", MOST_TIERS), ("is_full", "<i8", MOST_TIERS)]
)  # fmt: skip
_HEADER_BYTES = 4096
# `head`: how many of the bytes describe the others; `mark`: the owner's. `check` covers what stands before it.
_ROW = np.dtype(
    [("number", "<i8"), ("tier", "<i4"), ("mark", "<i4"), ("offset", "<i8"), ("length", "<i8"), ("source",
      "<i8"), ("head", "<i4"), ("crc32c", "<u4"), ("spare", "<u4"), ("check", "<u4")]
)  # fmt: skip
Rows = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Tier:
    """Where samples may lie.

    Attributes:
        limit_bytes: None: as much as there is room for: "auto".
        folder: of a disk.
    """

    kind: TierKind
    limit_bytes: int | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Located:
    """Where samples lie, one row each; use no row that `found` does not name.

    `rows` has tier (a number of `Shelf.paths`), offset, length, head, crc32c (of all its bytes) and mark.
    """

    found: npt.NDArray[np.bool_]
    rows: Rows


class Shelf:
    """Samples by number, 0 to `samples - 1`. Safe to use from any thread and after a fork.

    Pickles as its arguments: another process of the job then finds the same shelf while this one has it open.

    Args:
        key: what the samples are: shelves of one job with one key are one shelf.
        samples: how many there can be.
        tiers: near to far; a sample goes to the first that has room.
        keep_bytes: page cache to leave to others (see `MemoryWatch`).
    """

    def __init__(self, key: str, samples: int, tiers: Sequence[Tier], *, keep_bytes: int = 0) -> None:
        if len(tiers) > MOST_TIERS or samples < 0:
            raise UsageError(f"a shelf has up to {MOST_TIERS} tiers and 0 or more samples")
        self.key, self.samples, self.tiers, self.keep_bytes = key, samples, tuple(tiers), keep_bytes
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.key, self.samples, self.tiers, self.keep_bytes)

    def put(
        self, number: int, *parts: bytes | bytearray | memoryview | U8, source_bytes: int = 0, mark: int = 0
    ) -> bool:
        """Keep a sample; False: no tier has room for it.

        Args:
            parts: its bytes, one behind the other; the first of several is the head (`Located`).
            source_bytes: how many bytes it was made of, for `stats`.
            mark: a number that `locate` returns.
        """
        opened = self._open()
        views = [memoryview(part).cast("B") for part in parts]
        if opened.holds(number):
            return True
        return any(
            opened.put(tier, number, views, source_bytes, mark)
            for tier in range(len(self.tiers))
        )

    def get(self, number: int) -> memoryview | None:
        """Return a copy of a sample's bytes, checked; None: it is not here (any more)."""
        opened = self._open()
        located = opened.locate(np.array([number], np.int64))
        if not located.found[0]:
            return None
        row = located.rows[0]
        data = opened.read(row)
        if data is None:
            opened.discard(number, row)
        return data

    def has_room(self, size_bytes: int) -> bool:
        """Say whether a `put` of this size would find room: a look, no promise."""
        opened = self._open()
        return any(opened.room(tier, size_bytes) for tier in range(len(self.tiers)))

    def locate(self, numbers: I64) -> Located:
        """Return where samples lie: bytes of `paths[tier]`."""
        return self._open().locate(numbers)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the tiers, by names that hold in this process while the shelf is open."""
        return self._open().paths

    def discard(self, number: int, row: Any) -> bool:
        """Forget a sample whose bytes are not what `row` (of `locate`) says; False: it was gone already."""
        return self._open().discard(number, row)

    def relieve(self) -> int:
        """Give memory back if the job runs short of it; returns how much. A thread calls this ten times a second."""
        return self._open().relieve()

    def tier_stats(self, numbers: I64 | None = None) -> tuple[TierStats, ...]:
        """Return what lies in each tier: of some samples, or of all."""
        return self._open().tier_stats(numbers)

    @property
    def damaged(self) -> int:
        """How many samples were found to be not what was put here; they are read from the source again."""
        return int(self._open().header["damaged"])

    @property
    def returned_bytes(self) -> int:
        """How much memory was given back because the job ran short of it."""
        return int(self._open().header["returned_bytes"])

    def close(self) -> None:
        """Leave the shelf; it goes with its last process. May be called twice."""
        if self._finalizer is not None:
            self._finalizer()

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and opened.process == os.getpid():
            return opened
        if opened is not None:
            # A fork of the process that opened it. The lock may have been held there.
            self._lock = threading.Lock()
        with self._lock:
            if self._opened is None or self._opened.process != os.getpid():
                if self._finalizer is not None:
                    self._finalizer.detach()
                self._opened = _Opened(self, self._opened)
                self._finalizer = weakref.finalize(self, self._opened.close)
            return self._opened


def _rebuild(key: str, samples: int, tiers: tuple[Tier, ...], keep_bytes: int) -> Shelf:
    return Shelf(key, samples, tiers, keep_bytes=keep_bytes)
