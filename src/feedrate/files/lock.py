# SPDX-License-Identifier: Apache-2.0
"""Locks that end with their process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

from feedrate.errors import StorageError
from feedrate.files.atomic import shown

# Others may put anything beside the leases of a copy of root's: no link is followed, no pipe waited for.
LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


# Locks of a process that is forked would outlive it in its children: those close these.
_close_in_children: set[int] = set()


def _close_inherited() -> None:
    for fd in _close_in_children:
        with contextlib.suppress(OSError):
            os.close(fd)
    _close_in_children.clear()


os.register_at_fork(after_in_child=_close_inherited)


class CopyGone(Exception):
    """The copy was deleted by somebody who held its gate, or was never there."""


class Lock:
    """A file that is held locked. Closed in children: only this process holds it."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        _close_in_children.add(fd)
        self._process = os.getpid()

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and self._process == os.getpid():
            _close_in_children.discard(fd)
            fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was made just now may not have closed it yet
            os.close(fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def take_lock(path: Path, *, wait: bool) -> Lock | None:
    """Lock a file that is there; None: somebody else holds it.

    Raises:
        CopyGone: there is no such file, or it was deleted while this waited.
        StorageError: its file system has no locks.
        OSError: it cannot be opened.
    """
    try:
        fd = _open(path)
    except FileNotFoundError:
        raise CopyGone from None
    lock = Lock(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        is_there = os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except BlockingIOError:
        lock.release()
        return None
    except FileNotFoundError:
        is_there = False
    except OSError as error:
        lock.release()
        raise StorageError(
            f"{shown(path.parent)} lies on a file system without locks ({error.strerror})",
            hint="name a folder on a local disk: --scratch DIR",
        ) from error
    except BaseException:
        lock.release()
        raise
    if not is_there:
        lock.release()
        raise CopyGone
    return lock


def is_locked(path: Path) -> bool:
    """Return whether a process holds this file; also where that cannot be known."""
    try:
        fd = os.open(path, LOOK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Shared: two who only look must not take each other for a holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:  # a copy of root's; a lock needs no more than this, but for NFS
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
