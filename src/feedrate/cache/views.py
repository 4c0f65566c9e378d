# SPDX-License-Identifier: Apache-2.0
"""A sample's bytes in a cache as memory that may be written to, without copying them.

Each view is a private mapping of its own: pages are those of the cache, shared by all processes, until
somebody writes to them; changes stay in that view and go with it. So a crop of a large picture
touches the pages under the crop alone, and an augmentation that works in place spoils nothing.

Memory that a view shows must not be given back meanwhile. A view holds a read lock on its bytes, which ends
with its process at the latest (OFD: a lock of an open file); memory is given back under a write lock
(`nobody_looks`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from feedrate.kernel import U8
from feedrate.machine.memory import load_libc

_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
_FLOCK = struct.Struct("hhqqi")  # struct flock: kind, whence, start, length, process (0)
_MUNMAP = load_libc().munmap
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # a view is written to in few places, if at all


class Views:
    """Views of one file, of one process. Safe to use from any thread."""

    def __init__(self, path: str) -> None:
        # A descriptor of its own: locks belong to it, and a fork would share the cache's.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.RLock()  # a garbage collection may end a view in the middle of `open`
        self._held: dict[int, int] = {}
        self._is_closed = False

    def open(self, offset: int, length: int, is_still_there: Callable[[], bool]) -> U8 | None:
        """Return bytes of the file as an array; None: they cannot be mapped, or are just being given back.

        Args:
            is_still_there: asked when the bytes can no longer be given back: are they what they were?
        """
        if _SET_LOCK is None or not length or not self._hold(offset, length):
            return None
        view = _View(self, offset, length)
        is_open = False
        try:
            is_open = is_still_there() and view.map(self._descriptor)
        finally:
            if not is_open:
                self.release(offset, length)
        array: U8 | None = np.asarray(view) if is_open else None
        return array

    def close(self) -> None:
        """Open no more views; those that live stay what they are."""
        with self._lock:
            self._is_closed = True
            self._close_if_idle()

    def _hold(self, offset: int, length: int) -> bool:
        with self._lock:
            self._held[offset] = self._held.get(offset, 0) + 1
            if self._held[offset] > 1 or _try_lock(self._descriptor, fcntl.F_RDLCK, offset, length):
                return True
            del self._held[offset]
            return False

    def release(self, offset: int, length: int) -> None:
        with self._lock:
            self._held[offset] -= 1
            if not self._held[offset]:
                del self._held[offset]
                _try_lock(self._descriptor, fcntl.F_UNLCK, offset, length)
                self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and not self._held and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Views keep this object, so none lives any more. The function is bound: while the interpreter ends,
        # names of modules are None.
        if getattr(self, "_descriptor", -1) >= 0:
            close(self._descriptor)


class _View:
    """The memory of a view: numpy asks it where the bytes are, and keeps it while an array of them lives."""

    __slots__ = ("_address", "_length", "_offset", "_process", "_size", "_views")

    def __init__(self, views: Views, offset: int, length: int) -> None:
        self._views, self._offset, self._length = views, offset, length
        self._process = os.getpid()
        self._address = self._size = 0

    def map(self, descriptor: int) -> bool:
        """Map the pages; False: the kernel says no, since a process has 65,530 mappings at most."""
        skipped = self._offset % mmap.PAGESIZE
        size, access = skipped + self._length, mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        address = load_libc().mmap(None, size, access, flags, descriptor, self._offset - skipped)
        if address in (None, ctypes.c_void_p(-1).value):
            return False
        self._address, self._size = address, size
        return True

    @property
    def __array_interface__(self) -> dict[str, Any]:
        place = self._address + self._offset % mmap.PAGESIZE
        return {"shape": (self._length,), "typestr": "|u1", "data": (place, False), "version": 3}

    def __del__(self, getpid: Callable[[], int] = os.getpid, munmap: Any = _MUNMAP) -> None:
        if self._size:
            self._size, size = 0, self._size
            munmap(self._address, size)
            # In a fork this is a copy of the parent's view, and the lock is the parent's.
            if getpid() == self._process:
                self._views.release(self._offset, self._length)


@contextlib.contextmanager
def nobody_looks(descriptor: int, offset: int, length: int) -> Iterator[bool]:
    """Say whether no view shows these bytes; while this lasts, none begins to.

    Args:
        descriptor: of the file, opened for writing, and another one than `Views` have.
    """
    is_free = _SET_LOCK is None or _try_lock(descriptor, fcntl.F_WRLCK, offset, length)
    try:
        yield is_free
    finally:
        if is_free and _SET_LOCK is not None:
            _try_lock(descriptor, fcntl.F_UNLCK, offset, length)


def _try_lock(descriptor: int, kind: int, offset: int, length: int) -> bool:
    assert _SET_LOCK is not None
    try:
        fcntl.fcntl(descriptor, _SET_LOCK, _FLOCK.pack(kind, os.SEEK_SET, offset, max(length, 1), 0))
    except OSError:
        return False
    return True
