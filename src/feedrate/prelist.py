# SPDX-License-Identifier: Apache-2.0
"""Folders that will be asked for soon, listed while Python still loads what will ask.

The kernel lists without Python's lock, and here without numpy: loading that and all that packing needs takes
as long as looking at 60,000 files does. `feedrate.kernel.list_folder` takes what was found.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
)

# The errno, then names and what is known of them, each as bytes: see `native/module.cpp`.
Listed = tuple[int, bytes, bytes, bytes, bytes, bytes]

# So many names are soon listed and take little memory; further folders wait until they are asked for.
_MOST_NAMES = 1 << 17
_FOLDER = 2  # kernel.Entry.FOLDER


class EarlyFolders:
    """Lists a folder and those in it, in the order of their names, in a thread of its own."""

    def __init__(self, root: str, suffixes: Sequence[str]) -> None:
        from feedrate import _native

        self._list = _native.list_folder
        self._suffixes = [suffix.encode() for suffix in suffixes]
        self._found: dict[bytes, Listed] = {}
        self._coming = deque([os.path.join(os.fsencode(root), b"")])
        self._changed = threading.Condition()
        self._stop = bytearray(1)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def take(self, path: bytes, suffixes: Sequence[bytes]) -> Listed | None:
        """Return what a folder holds, once; waits if it is about to be listed. None: another user has to."""
        if suffixes != self._suffixes:
            return None
        with self._changed:
            self._changed.wait_for(lambda: path in self._found or path not in self._coming)
            return self._found.pop(path, None)

    def close(self) -> None:
        self._stop[0] = 1
        self._thread.join()

    def _run(self) -> None:
        # One core is Python's.
        threads = max(1, len(os.sched_getaffinity(0)) - 1) if hasattr(os, "sched_getaffinity") else 1
        top, names = self._coming[0], 0
        try:
            while self._coming and names < _MOST_NAMES and not self._stop[0]:
                path = self._coming[0]
                found = self._list(path, self._suffixes, threads, self._stop)
                names += len(found[-1])
                with self._changed:
                    self._found[path] = found
                    self._coming.popleft()
                    self._coming += _folders_in(top, found) if path == top else ()
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._coming.clear()
                self._changed.notify_all()


def _folders_in(top: bytes, found: Listed) -> list[bytes]:
    _, names, starts, *_, kinds = found
    at = memoryview(starts).cast("q")
    return [top + names[at[i] : at[i + 1]] for i, kind in enumerate(kinds) if kind == _FOLDER]


_early: EarlyFolders | None = None


@contextlib.contextmanager
def listing_early(root: str, suffixes: Sequence[str]) -> Iterator[None]:
    """Begin to list a folder for whoever asks for it in the block; what is no folder does no harm."""
    global _early
    try:
        _early = EarlyFolders(root, suffixes)
    except ImportError:  # `feedrate.kernel` says it in words
        yield
        return
    try:
        yield
    finally:
        _early.close()
        _early = None


def take_listed(path: bytes, suffixes: Sequence[bytes]) -> Listed | None:
    return None if _early is None else _early.take(path, suffixes)
