# SPDX-License-Identifier: Apache-2.0
"""Locks that end with their process, however that ends: who holds a file is decided by `flock` alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import AlreadyExists, StorageError
from feedrate.files.atomic import explain_write_error, shown

# Others may put anything beside the leases of a copy of root's: no link is followed, no pipe waited for.
LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LOCK_NAME = ".packing.lock"  # hidden: it may be in a folder that is just being indexed


def lock_fd(fd: int, *, wait: bool = True) -> bool:
    """Lock an open file for its descriptor, and for copies that forks get of it; False: another holds it.

    Raises:
        OSError: its file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock_fd(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


# Locks of a process that is forked would outlive it in its children: those close these.
_close_in_children: set[int] = set()


def _close_inherited() -> None:
    for fd in _close_in_children:
        with contextlib.suppress(OSError):
            os.close(fd)
    _close_in_children.clear()


os.register_at_fork(after_in_child=_close_inherited)


class Gone(Exception):
    """What was looked for was deleted by another process, or was never there."""


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
            unlock_fd(fd)  # a child that was made just now may not have closed it yet
            os.close(fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def make_lock(path: Path) -> Lock:
    """Make a file that is held locked; one that is there and held is waited for, and may be deleted then.

    Raises:
        StorageError: its file system has no locks.
        OSError: it cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        lock_fd(fd)
    except OSError as error:
        os.close(fd)
        raise _no_locks(path.parent.parent, error) from error
    return Lock(fd)


def take_lock(path: Path, *, wait: bool) -> Lock | None:
    """Lock a file that is there; None: another process holds it.

    Raises:
        Gone: there is no such file, or it was deleted while this waited.
        StorageError: its file system has no locks.
        OSError: it cannot be opened.
    """
    try:
        fd = _open(path)
    except FileNotFoundError:
        raise Gone from None
    lock = Lock(fd)
    try:
        if not lock_fd(fd, wait=wait):
            lock.release()
            return None
        is_there = is_same_file(fd, path)
    except OSError as error:
        lock.release()
        raise _no_locks(path.parent, error) from error
    except BaseException:
        lock.release()
        raise
    if not is_there:
        lock.release()
        raise Gone
    return lock


def _no_locks(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{shown(folder)} lies on a file system without locks ({error.strerror})",
        hint="name a folder on a local disk: --scratch DIR",
    )


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


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Yield whether no process holds this file, which is held meanwhile; False where that is not known."""
    try:
        fd = _open(path)
    except OSError:
        yield False
        return
    try:
        is_free = False
        with contextlib.suppress(OSError):
            is_free = lock_fd(fd, wait=False)
        yield is_free
    finally:
        os.close(fd)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder in which a pack is made or changed; the lock dies with the process, however that ends.

    Raises:
        AlreadyExists: another process holds it.
        StorageError: the lock cannot be made.
    """
    path = folder / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise explain_write_error(error, path) from error
    try:
        try:
            is_free = lock_fd(fd, wait=False)
        except OSError as error:
            raise StorageError(
                f"{folder} lies on a file system without locks ({error.strerror})",
                hint="pack to a local disk, then copy the pack there",
            ) from error
        if not is_free:
            raise AlreadyExists(
                f"another 'feedrate pack' is writing {folder} right now",
                hint="wait for it, or choose another folder",
            )
        if not is_same_file(fd, path):
            raise AlreadyExists(f"another 'feedrate pack' has just finished with {folder}")
        try:
            yield
        finally:
            # Still locked: whoever opens the name from now on gets a new file, or finds this one gone. One
            # that stays is in nobody's way: its lock ends here.
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(fd)


def is_same_file(fd: int, path: Path) -> bool:
    """Return whether a path names what a descriptor has open, not something else of that name since."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:  # a copy of root's; a lock needs no more than this, but for NFS
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
