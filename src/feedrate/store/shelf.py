# SPDX-License-Identifier: Apache-2.0
"""A bounded store of samples that never evicts, shared by the processes of a job on one node.

A shelf has a table (one row per sample, memory that all its processes map) and a file without a name per
tier: memory for `ram`, an unlinked file on a disk for `disk`. So nothing of it outlives its last process,
however that ends; `sharing.py` says how processes come by each other's files.

A sample:  ABSENT --put: a place reserved, bytes written, row published--> HELD
           HELD --discard: it was damaged; or memory ran short--> ABSENT

A place is given out once and never again: a reader finds there what its row named, or bytes that fail their
checksum, and then takes the sample from its source.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedrate.errors import UsageError
from feedrate.kernel import I64, U8
from feedrate.results.load import TierStats
from feedrate.store.budget import MemoryWatch
from feedrate.store.opened_shelf import OpenedShelf
from feedrate.store.sharing import Meeting, find_meeting_folder, name_job
from feedrate.store.shelf_table import MOST_TIERS, Located, Rows
from feedrate.store.tiers import Tier, parse_tiers

Buffer = bytes | bytearray | memoryview | U8


class Shelf:
    """Samples by number, 0 to `samples - 1`. Safe to use from any thread, and after a fork.

    Pickles as its arguments: another process of the job finds the same shelf, while this one has it open.

    Args:
        key: what the samples are: shelves of one job with one key and the same tiers are one shelf.
        samples: how many there can be.
        tiers: near to far, as `parse_tiers` gives them; a sample goes to the first one that has room.
        keep_bytes: page cache that memory without a limit leaves alone: what the samples are made of, less
            that of those which are here.
    """

    def __init__(self, key: str, samples: int, tiers: Sequence[Tier], *, keep_bytes: int = 0) -> None:
        if not 1 <= len(tiers) <= MOST_TIERS or samples < 0:
            raise UsageError(f"a shelf has 1 to {MOST_TIERS} tiers and 0 or more samples")
        self.key, self.samples, self.tiers, self.keep_bytes = key, samples, tuple(tiers), keep_bytes
        self.watch = MemoryWatch()
        self._lock = threading.Lock()
        self._opened: OpenedShelf | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._open()
        _SHELVES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.key, self.samples, self.tiers, self.keep_bytes)

    def put(self, number: int, *parts: Buffer, source_bytes: int = 0, mark: int = 0) -> bool:
        """Keep a sample; False: no tier has room for it.

        Args:
            parts: its bytes, one behind the other; the first of several is the head (see `Located`).
            source_bytes: how many bytes it was made of, for `tier_stats`.
            mark: a number of the owner's.
        """
        views = [memoryview(part).cast("B") for part in parts]  # type: ignore[arg-type]
        return self._open().put(self._check(number), views, source_bytes, mark)

    def get(self, number: int) -> memoryview | None:
        """Return a sample's bytes, checked, as a copy that is the caller's; None: it is not here."""
        opened = self._open()
        located = opened.table.locate(np.array([self._check(number)], np.int64))
        if not located.found[0]:
            return None
        return self.read(located.rows[0])

    def read(self, row: Rows) -> memoryview | None:
        """Return the bytes of a located row as `get` does; None: they are not what was put there."""
        opened = self._open()
        data = opened.read(row)
        if data is None:
            opened.discard(row)
        return data

    def has_room(self, size_bytes: int) -> bool:
        """Say whether a `put` of so many bytes would find room: a look, no promise."""
        opened = self._open()
        return any(opened.has_room(tier, size_bytes) for tier in range(len(self.tiers)))

    def locate(self, numbers: I64) -> Located:
        """Return where samples lie: which bytes of which of `paths`."""
        return self._open().table.locate(numbers)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the tiers, by names that hold in this process while the shelf is open."""
        return self._open().paths

    def discard(self, row: Rows) -> bool:
        """Forget a sample whose bytes are not what its row (of `locate`) says; False: it was gone already."""
        return self._open().discard(row)

    def tier_stats(self, numbers: I64 | None = None) -> tuple[TierStats, ...]:
        """Return what lies in each tier: of some samples, or of all."""
        return self._open().tier_stats(numbers)

    @property
    def damaged(self) -> int:
        """How many samples were no longer what was put here; they came from the source again."""
        return int(self._open().table.totals["damaged"][0])

    @property
    def returned_bytes(self) -> int:
        """How much memory was given back because the job ran short of it."""
        return int(self._open().table.totals["returned_bytes"][0])

    def count(self, *, hits: int, misses: int) -> None:
        """Add to what all processes count together."""
        self._open().count(hits, misses)

    @property
    def counted(self) -> tuple[int, int]:
        """Hits and misses that were counted."""
        totals = self._open().table.totals
        return int(totals["hits"][0]), int(totals["misses"][0])

    def relieve(self) -> int:
        """Give memory back if the job runs short of it; returns how much. A thread does this by itself."""
        return self._open().relieve()

    def close(self) -> None:
        """Leave the shelf: it goes with its last process. May be called twice."""
        if self._finalizer is not None:
            self._finalizer()

    def _check(self, number: int) -> int:
        if not 0 <= number < self.samples:
            raise IndexError(f"sample {number} of a shelf that has {self.samples}")
        return int(number)

    def _open(self) -> OpenedShelf:
        opened, process = self._opened, os.getpid()
        if opened is not None and opened.is_closed:
            raise UsageError("this cache is closed; make a new one")
        if opened is not None and opened.process == process:
            return opened
        with self._lock:
            opened = self._opened
            if opened is None or opened.process != process:
                if self._finalizer is not None:
                    self._finalizer.detach()
                meeting = Meeting(self._name(), find_meeting_folder())
                opened = OpenedShelf(meeting, self, opened)
                self._opened, self._finalizer = opened, weakref.finalize(self, opened.close)
            return opened

    def _name(self) -> str:
        words = repr((name_job(), self.key, self.samples, self.tiers))
        return hashlib.sha256(words.encode()).hexdigest()[:24]


_SHELVES: weakref.WeakSet[Shelf] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a fork: threads of the parent that held locks are not there to let go."""
    for shelf in list(_SHELVES):
        shelf._lock, shelf.watch = threading.Lock(), shelf.watch.renew()


os.register_at_fork(after_in_child=_renew_locks)


def _rebuild(key: str, samples: int, tiers: tuple[Tier, ...], keep_bytes: int) -> Shelf:
    return Shelf(key, samples, tiers, keep_bytes=keep_bytes)


__all__ = ["Located", "Shelf", "Tier", "parse_tiers"]
