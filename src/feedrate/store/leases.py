# SPDX-License-Identifier: Apache-2.0
"""Locks that die with their process, and leases: a copy is in use as long as somebody holds one.

A lease is a file that its process holds locked: it lives while the lock is held, whatever the clock says, and
ends however the process ends. A lease is added, and a copy is deleted, only under the copy's gate.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from feedrate.errors import StorageError
from feedrate.results.scratch import LeaseInfo
from feedrate.store.files import shown
from feedrate.store.marker import describe_maker

_LARGEST_BYTES = 64 * 1024
# Others may put anything beside the leases of a copy of root's: no link is followed, no pipe waited for.
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_numbers = itertools.count()
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
            hint="name a folder on a local disk: --to FOLDER",
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
        fd = os.open(path, _LOOK)
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


class Lease:
    """This process uses a copy, until `release` or its end. Children made by fork share it.

    `holder`: what its paths need to lead anywhere, kept as long as the lease.
    """

    def __init__(self, path: Path, fd: int, used: Path, holder: object = None) -> None:
        self.path = path
        self._holder = holder
        self._fd: int | None = fd
        self._used = used
        self._process = os.getpid()

    def release(self) -> None:
        """End it. May be called twice."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._process == os.getpid():
            touch(self._used)
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def add_lease(folder: Path, used: Path, *, is_public: bool, holder: object = None) -> Lease:
    """Add a lease to those in `folder`. Only for who holds the copy's gate."""
    remove_stale(folder)
    while True:
        path = folder / f"{os.getpid()}-{next(_numbers)}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # of a process that had our number, here or in another container
            continue
        break
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.fchmod(fd, 0o644 if is_public else 0o600)
        about = {**describe_maker(), "command": " ".join(sys.argv)[:500], "since": time.time()}
        os.write(fd, json.dumps(about).encode())
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    touch(used)
    return Lease(path, fd, used, holder)


def live_leases(folder: Path) -> tuple[LeaseInfo, ...]:
    """Return who uses a copy now; one whose lease cannot be looked at counts as a user."""
    return tuple(_describe(path) for path in _files(folder) if is_locked(path))


def remove_stale(folder: Path) -> None:
    """Remove the leases of processes that have ended. Only for who holds the copy's gate."""
    for path in _files(folder):
        if not is_locked(path):
            with contextlib.suppress(OSError):
                path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names)


def _describe(path: Path) -> LeaseInfo:
    try:
        fd = os.open(path, _LOOK)
        with open(fd, "rb") as file:
            about = json.loads(file.read(_LARGEST_BYTES))
        return LeaseInfo(
            pid=int(about["pid"]),
            user=str(about["user"]),
            node=str(about["node"]),
            job=str(about["job"]),
            command=str(about["command"]),
            since=float(about["since"]),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pid = path.name.split("-")[0]
        return LeaseInfo(int(pid) if pid.isdigit() else 0, "", "", "", "", 0.0)


def touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # of a copy of root's that takes no notice of others
        os.utime(path)
