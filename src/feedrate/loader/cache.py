# SPDX-License-Identifier: Apache-2.0
"""`Cache`: how much memory, disk and GPU memory decoded samples may take; `Loader(cache=...)` fills it."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from feedrate.cache.limits import parse_size, parse_tiers
from feedrate.errors import UsageError

if TYPE_CHECKING:
    from feedrate.cache.store import SampleCache


class Cache:
    """Room for decoded samples, filled in the first epoch: each goes to the nearest tier with room and stays.

    All processes of a job on one node share it, and it goes with the last of them. Limits hold for each pack
    that is loaded with it. Whole images are kept, so that crops and flips stay random; of operations that are
    not random, what they make of an image, if that is smaller.

    Args:
        ram: "auto": as much as the job's memory limit allows, with a margin; a size such as "8GB"; 0: none.
            When memory runs short some of it is given back, whatever was asked for.
            None: "auto", and with `gpu` none.
        disk: a folder on a local disk and a size, "/scr:200GB"; a folder alone: as much as there is room for.
        gpu: memory of the GPU that batches go to, for the loaders of this process together: a size such as
            "20GB", "auto": what is free there, less a margin; 0: none. Each process has its own.
    """

    def __init__(
        self, ram: int | str | None = None, disk: str | os.PathLike[str] | None = None, gpu: int | str = 0
    ) -> None:
        limit = None if gpu == "auto" else parse_size("gpu", gpu)
        self.gpu = None if limit == 0 else GpuBudget(gpu, limit)
        if ram is None:
            ram = "auto" if self.gpu is None else 0
        self.tiers = parse_tiers(ram, disk, is_needed=self.gpu is None)
        self._arguments = (ram, disk, gpu)
        self._lock = threading.Lock()
        self._stores: dict[str, SampleCache] = {}
        self._is_closed = False

    def open_store(self, key: str, samples: int, keep_bytes: int = 0) -> SampleCache:
        """Return the store of a pack; one that is open already stays as it is."""
        from feedrate.cache.store import SampleCache

        if self._is_closed:
            raise UsageError("this cache is closed; make a new one")
        with self._lock:
            if key not in self._stores:
                self._stores[key] = SampleCache(key, samples, self.tiers, keep_bytes=keep_bytes)
            return self._stores[key]

    def close(self) -> None:
        """Give its memory and disk back, unless other processes of the job use it. May be called twice."""
        self._is_closed = True
        for store in self._stores.values():
            store.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, self._arguments

    def __repr__(self) -> str:
        ram, disk, gpu = self._arguments
        return f"Cache(ram={ram!r}, disk={disk!r}{f', gpu={gpu!r}' if self.gpu is not None else ''})"


class GpuBudget:
    """How much of a GPU's memory the loaders of one process may fill. Any thread may use it.

    Attributes:
        asked: as the user wrote it.
        limit_bytes: None: as much as there is room for ("auto").
    """

    def __init__(self, asked: int | str, limit_bytes: int | None) -> None:
        self.asked, self.limit_bytes = asked, limit_bytes
        self._taken, self._lock = 0, threading.Lock()

    @property
    def left(self) -> int:
        """How many bytes may still be taken, where there is a limit."""
        return max((self.limit_bytes or 0) - self._taken, 0)

    def take(self, least: int, most: int) -> int:
        """Take from `least` to `most` bytes; return how many, 0 where fewer are left."""
        with self._lock:
            granted = most if self.limit_bytes is None else min(most, self.limit_bytes - self._taken)
            granted = granted if granted >= least else 0
            self._taken += granted
            return granted

    def give(self, size_bytes: int) -> None:
        with self._lock:
            self._taken -= size_bytes
