# SPDX-License-Identifier: Apache-2.0
"""The tiers of a cache from the words of a user (`ram="8GB"`, `disk="/scr:200GB"`), and what they may take.

Free memory is what the tightest limit above this process leaves: page cache that can be dropped counts as
free, memory in /dev/shm and the cache itself do not. A margin of it is never taken. Filling stops half a
margin earlier than giving back begins, so that a cache does not fill and shrink in turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from feedrate.errors import UsageError
from feedrate.machine.disk import describe_storage
from feedrate.machine.memory import MemoryGauge, MemoryRoom
from feedrate.units import parse_bytes

TierKind = Literal["ram", "disk"]


@dataclass(frozen=True, slots=True)
class Tier:
    """Where samples may be.

    Attributes:
        limit_bytes: None: as much as there is room for ("auto").
        folder: of a disk.
        keep: a name under which what is there is found again by later jobs (persistent.py).
    """

    kind: TierKind
    limit_bytes: int | None = None
    folder: str | None = None
    keep: str | None = None


def parse_tiers(
    ram: int | str = "auto", disk: str | os.PathLike[str] | None = None, *, is_needed: bool = True
) -> tuple[Tier, ...]:
    """Return the tiers that a user asked for, near to far.

    Args:
        ram: "auto", a size such as "8GB", a number of bytes; 0: none.
        disk: "FOLDER:SIZE", or a folder alone: as much as there is room for; None: none.
        is_needed: there must be one.

    Raises:
        UsageError: it is none of these, or the folder cannot be used; in words.
    """
    tiers = []
    if ram == "auto":
        tiers.append(Tier("ram"))
    elif limit := parse_size("ram", ram):
        tiers.append(Tier("ram", limit))
    if disk is not None:
        tiers.append(_parse_disk(disk))
    if not tiers and is_needed:
        raise UsageError(
            "a cache needs memory or a disk, got ram=0 and disk=None", hint='ram="auto", or disk="/scr:200GB"'
        )
    return tuple(tiers)


def parse_size(name: str, size: Any) -> int:
    """Return a number of bytes from a user's words: a size such as "8GB", a number; 0: none."""
    if isinstance(size, str) and size.strip() != "0":
        return parse_bytes(size)
    if isinstance(size, str):
        return 0
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
        raise UsageError(f'{name} must be "auto", a size such as "8GB" or a number of bytes, got {size!r}')
    return int(size)


def _parse_disk(disk: str | os.PathLike[str]) -> Tier:
    if not isinstance(disk, (str, os.PathLike)) or not os.fspath(disk):
        raise UsageError(f'disk must be a folder and a size such as "/scr:200GB", got {disk!r}')
    text = os.fspath(disk)
    folder, colon, size = text.rpartition(":")
    if not colon or os.path.isdir(text):
        folder, size = text, ""
    folder = os.path.abspath(os.path.expanduser(folder))
    limit = parse_bytes(size) if size else None
    if not os.path.isdir(folder):
        raise UsageError(
            f"the cache's disk {folder} is not a folder", hint='name one that is there: disk="/scr:200GB"'
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the cache's disk {folder} cannot be written to")
    storage = describe_storage(folder)
    if storage.is_memory:
        # Its pages count as the job's memory and nothing could give them back.
        raise UsageError(f"the cache's disk {folder} is memory ({storage.kind})", hint="use ram= for memory")
    return Tier("disk", limit, folder)


_LEAST_MARGIN_BYTES = 64 << 20
_MOST_MARGIN_BYTES = 4 << 30
_MARGIN = 0.1  # of the limit
_FILL_MARGINS = 1.5
# A look costs about 0.2 ms; two looks apart, all processes of a job together must take less than the margin.
_LOOK_EVERY_S = 0.02
_LOOK_EVERY_MARGINS = 1 / 32
_WATCH_EVERY_S = 0.1
_WATCH_CLOSELY_EVERY_S = 0.02
_NEAR_MARGINS = 3


def margin_of(limit_bytes: int) -> int:
    """Return the memory that stays free: a tenth of the limit, 64 MiB at least, 4 GiB at most."""
    return min(max(int(limit_bytes * _MARGIN), _LEAST_MARGIN_BYTES), _MOST_MARGIN_BYTES)


class MemoryWatch:
    """Looks at the job's memory when asked, not more often than needed."""

    def __init__(
        self, measure: Callable[[], MemoryRoom] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure, self._clock = measure or MemoryGauge().measure, clock
        self._lock = threading.Lock()
        self._room: MemoryRoom | None = None
        self._looked_at = 0.0
        self._taken_bytes = 0
        self.is_near = False  # to the limit, when last looked at

    def renew(self) -> MemoryWatch:
        """Return the same watch for a fork, where the lock of this one may be held by nobody who lives."""
        return MemoryWatch(self._measure, self._clock)

    def may_take(self, size_bytes: int, keep_bytes: int = 0) -> bool:
        """Say whether so much may be taken now. Page cache that has yet to be written counts as used.

        `keep_bytes`: page cache to leave alone: files that are read again and again are worth more there than
        a few more samples are here.
        """
        with self._lock:
            room = self._room
            if (
                room is None
                or self._clock() - self._looked_at >= _LOOK_EVERY_S
                or self._taken_bytes + size_bytes >= margin_of(room.limit_bytes) * _LOOK_EVERY_MARGINS
            ):
                room = self._room = self._measure()
                self._looked_at, self._taken_bytes = self._clock(), 0
            left = room.free_bytes - room.unwritten_bytes - self._taken_bytes - keep_bytes
            return left - size_bytes >= margin_of(room.limit_bytes) * _FILL_MARGINS

    def take(self, size_bytes: int) -> None:
        """Note that so much was taken since the last look."""
        with self._lock:
            self._taken_bytes += size_bytes

    def must_return(self) -> int:
        """Return how much has to be given back now; 0: nothing."""
        room = self._measure()
        margin = margin_of(room.limit_bytes)
        self.is_near = room.free_bytes < _NEAR_MARGINS * margin
        if room.free_bytes >= margin:
            return 0
        return int(margin * _FILL_MARGINS) - room.free_bytes


class Watcher:
    """A thread that calls `relieve` ten times a second, near the limit fifty times, until it is stopped."""

    def __init__(self, relieve: Callable[[], object], watch: MemoryWatch) -> None:
        self._relieve, self._watch = relieve, watch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedrate-memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_WATCH_CLOSELY_EVERY_S if self._watch.is_near else _WATCH_EVERY_S):
            self._relieve()

    def stop(self) -> None:
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
