# SPDX-License-Identifier: Apache-2.0
"""`Cache`: how much memory and disk decoded samples may take; `Loader(cache=...)` fills it."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from feedrate.errors import UsageError
from feedrate.store.tiers import parse_tiers

if TYPE_CHECKING:
    from feedrate.store.shelf import Shelf


class Cache:
    """Room for decoded samples, filled in the first epoch: each goes to the nearest tier with room and stays.

    All processes of a job on one node share it, and it goes with the last of them. Limits hold for each pack
    that is loaded with it. Whole images are kept, so that crops and flips stay random; of operations that are
    not random, what they make of an image, if that is smaller.

    Args:
        ram: "auto": as much as the job's memory limit allows, with a margin; a size such as "8GB"; 0: none.
            When memory runs short some of it is given back, whatever was asked for.
        disk: a folder on a local disk and a size, "/scr:200GB"; a folder alone: as much as there is room for.
    """

    def __init__(self, ram: int | str = "auto", disk: str | os.PathLike[str] | None = None) -> None:
        self.tiers = parse_tiers(ram, disk)
        self._arguments = (ram, disk)
        self._lock = threading.Lock()
        self._shelves: dict[str, Shelf] = {}
        self._is_closed = False

    def open_shelf(self, key: str, samples: int, keep_bytes: int = 0) -> Shelf:
        """Return the shelf of a pack; one that is open already stays as it is."""
        from feedrate.store.shelf import Shelf

        if self._is_closed:
            raise UsageError("this cache is closed; make a new one")
        with self._lock:
            if key not in self._shelves:
                self._shelves[key] = Shelf(key, samples, self.tiers, keep_bytes=keep_bytes)
            return self._shelves[key]

    def close(self) -> None:
        """Give its memory and disk back, unless other processes of the job use it. May be called twice."""
        self._is_closed = True
        for shelf in self._shelves.values():
            shelf.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, self._arguments

    def __repr__(self) -> str:
        return f"Cache(ram={self._arguments[0]!r}, disk={self._arguments[1]!r})"
