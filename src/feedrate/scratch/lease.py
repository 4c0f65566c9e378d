# SPDX-License-Identifier: Apache-2.0
"""Leases: a copy is in use as long as some process holds one.

A lease is a file that its process holds locked: it lives while the lock is held, whatever the clock says, and
ends however the process ends. A lease is added, and a copy is deleted, only under the copy's gate.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from feedrate import documents
from feedrate.files.atomic import explain_write_error, writing
from feedrate.files.lock import LOOK, is_locked, lock_fd
from feedrate.scratch.marker import describe_maker
from feedrate.scratch.results import LeaseInfo

_LARGEST_BYTES = 64 * 1024
_numbers = itertools.count()


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

    def __exit__(self, *_: object) -> None:
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
        except OSError as error:
            raise explain_write_error(error, path) from error
        break
    try:
        with writing(path):
            lock_fd(fd)
            os.fchmod(fd, 0o644 if is_public else 0o600)
        note_holder(path)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    touch(used)
    return Lease(path, fd, used, holder)


def note_holder(path: Path) -> None:
    """Write into a file that this process holds locked who that is, and since when.

    A full disk takes the file, and no text: the lock decides, the text is for people.
    """
    about = {**describe_maker(), "command": " ".join(sys.argv)[:500], "since": time.time()}
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(about))


def live_leases(folder: Path) -> tuple[LeaseInfo, ...]:
    """Return who uses a copy now; one whose lease cannot be looked at counts as a user."""
    return tuple(read_holder(path) for path in _files(folder) if is_locked(path))


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


def read_holder(path: Path) -> LeaseInfo:
    """Return who holds a file; its `pid` is 0 where nobody wrote that down."""
    try:
        fd = os.open(path, LOOK)
        with open(fd, "rb") as file:
            return documents.load(LeaseInfo, json.loads(file.read(_LARGEST_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pid = path.name.split("-")[0]
        return LeaseInfo(int(pid) if pid.isdigit() else 0, "", "", "", "", 0.0)


def touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # of a copy of root's that takes no notice of others
        os.utime(path)
