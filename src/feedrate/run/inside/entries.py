# SPDX-License-Identifier: Apache-2.0
"""Entry points that were found before, of this run and earlier ones: looked up and added by a user's process.

What is added waits in memory and goes to the disk by the block, into a journal of this process's own; a
process that is killed loses what waits. The launcher puts journals into the file that all processes read
(merging.py). Nothing here raises: whatever fails costs a scan, and is said once, in `problem`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from feedrate.cache.entry_file import (
    LARGEST_VALUE,
    EntryFile,
    close_own,
    make_key,
    make_place,
    make_record,
    read_place,
)
from feedrate.cache.entry_folder import (
    ENTRIES,
    LOCK,
    make_journal_name,
    measure_bytes,
    open_plain,
    opened_home,
)
from feedrate.files.atomic import say_reason
from feedrate.files.lock import lock_fd, unlock_fd

LIMIT_BYTES = 2_000_000_000  # of all files of the folder together
LARGEST_SHARE = 64  # a value is at most this part of its file
_FIRST_BLOCK, _LARGEST_BLOCK = 4 << 10, 64 << 10
_MEASURE_EVERY_BYTES = 4 << 20
_TRIES = 10
_LOOK_EVERY = 512  # finds; to ask a file server for a file's facts takes as long as a small scan
_MOST_OWN = 1 << 16  # values of this process's journal that it finds again: some 10 MB


class Entries:
    """Entry points by length and checksum of their files; safe in any number of threads, and after a fork.

    Attributes:
        problem: what the user should be told, a sentence; "": nothing.
    """

    def __init__(self, folder: str | None, say: Callable[[str], None] = lambda _: None) -> None:
        """`say`: told the problem at once, in the process that has it."""
        self.problem, self._say = "", say
        self._folder, self._folder_fd = folder, -1
        self._info: os.stat_result | None = None
        self._file: EntryFile | None = None
        self._finds = 0
        self._journal, self._is_announced = _Journal(), False
        _all_entries.add(self)

    def __del__(self) -> None:
        if self._info is not None:
            self._journal.end()
            close_own(self._folder_fd, self._info)

    def open(self) -> None:
        if self._folder is None:
            return
        try:
            with opened_home(Path(self._folder)) as fd:
                self._folder_fd, self._info = os.dup(fd), os.fstat(fd)
        except OSError as error:
            self._fail(error)
            return
        with contextlib.suppress(OSError):
            os.utime(LOCK, dir_fd=self._folder_fd, follow_symlinks=False)
        self._look()

    def find(self, length: int, crc: int) -> bytes | None:
        """Return what was added for a file of this length and checksum; None: nothing."""
        key = make_key(length, crc)
        if key is None or self._info is None:
            return None
        self._finds += 1
        if not self._finds % _LOOK_EVERY:
            self._look()
        value = self._journal.find(key)
        file = self._file
        if value is None and file is not None:
            try:
                value = file.find(key)
            except (OSError, ValueError):  # replaced by another node, and gone from the server
                self._file = None
        return value

    def add(self, length: int, crc: int, value: bytes) -> None:
        """Keep a value; one that is too large for its file is not kept."""
        key = make_key(length, crc)
        if key is None or self._info is None or len(value) > min(length // LARGEST_SHARE, LARGEST_VALUE):
            return
        if not self._is_announced:
            self._is_announced = True
            _flush_at_end(weakref.ref(self))
        if self._journal.add(key, value):
            self.flush()

    def flush(self) -> None:
        """Write what waits; a process that ends well, and an epoch, may end with this."""
        if self._info is None or not self._journal.waiting:
            return
        try:
            _check_own(self._folder_fd, self._info)
            self._journal.write(self._folder_fd)
        except OSError as error:
            self._journal.stop()
            self._fail(error)

    def begin_anew(self) -> None:
        """In a child: what waits, and the journal, are its parent's."""
        self._journal.leave()
        self._journal, self._is_announced = _Journal(), False
        self._finds = -1  # there may be a newer file

    def _look(self) -> None:
        """Take the newest file. Its maker has read this process's journal, so that a new one begins."""
        try:
            info = os.stat(ENTRIES, dir_fd=self._folder_fd, follow_symlinks=False)
            if self._file is None or not self._file.is_of(info):
                self._file = EntryFile(open_plain(ENTRIES, self._folder_fd))
                self._journal.end()
        except FileNotFoundError:
            pass
        except ValueError:  # damaged: the next merge makes another
            self._file = None
        except OSError as error:
            self._file = None
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        assert self._folder is not None
        if not self.problem:
            self.problem = (
                f"entry points of JPEGs are not kept in {self._folder}:"
                f" {say_reason(error, Path(self._folder))}; name another folder: --cache DIR"
            )
            self._say(self.problem)


class _Journal:
    """What this process has added: what waits, and where the rest lies in its file.

    Only `write` touches the disk. `waiting` is replaced and never emptied, so `find` needs no lock.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, bytes] = {}
        self._places: dict[int, int] = {}
        self._waiting_bytes = self._written_bytes = 0
        self._gate = threading.Lock()
        self._fd = -1
        self._info: os.stat_result | None = None
        self._is_stopped = self._is_full = False
        self._measure_at = 0

    def find(self, key: int) -> bytes | None:
        value = self.waiting.get(key)
        place = self._places.get(key) if value is None else None
        if place is not None:
            with contextlib.suppress(OSError):
                value = read_place(self._fd, place, key)
        return value

    def add(self, key: int, value: bytes) -> bool:
        """Return whether enough waits for a block: the more there is, the more a kill may cost."""
        with self._gate:
            if self._is_stopped or self.waiting.get(key) == value:
                return False
            self.waiting[key] = bytes(value)
            self._waiting_bytes += len(value)
            return self._waiting_bytes + 64 * len(self.waiting) >= min(
                max(_FIRST_BLOCK, self._written_bytes), _LARGEST_BLOCK
            )

    def write(self, folder_fd: int) -> None:
        """Append all that waits, in one call.

        Raises:
            OSError: the disk did not take it.
        """
        with self._gate:
            added, self.waiting, self._waiting_bytes = self.waiting, {}, 0
            if self._is_stopped:
                return
            if self._info is None:
                self._open(folder_fd)
            if self._written_bytes >= self._measure_at:
                self._is_full = measure_bytes(folder_fd) > LIMIT_BYTES
                self._measure_at = self._written_bytes + _MEASURE_EVERY_BYTES
            if self._is_full:
                return
            assert self._info is not None
            begin = _check_own(self._fd, self._info)
            records = [make_record(key, value) for key, value in added.items()]
            block = b"".join(records)
            if os.write(self._fd, block) < len(block):
                os.ftruncate(self._fd, begin.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._written_bytes += len(block)
            at = begin.st_size
            for key, record in zip(added, records, strict=True):
                self._places[key] = make_place(at, len(record))
                at += len(record)
            while len(self._places) > _MOST_OWN:
                del self._places[next(iter(self._places))]

    def _open(self, folder_fd: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(_TRIES):
            name = make_journal_name()
            fd = os.open(name, flags, 0o600, dir_fd=folder_fd)
            try:
                # A merge that comes before the lock takes the file for one of a process that has ended.
                if lock_fd(fd, wait=False) and os.fstat(fd).st_nlink:
                    self._fd, self._info = fd, os.fstat(fd)
                    return
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder_fd)
                os.close(fd)
                raise
            os.close(fd)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def end(self) -> None:
        """Leave the file to the launcher; what is added from now on goes into another."""
        with self._gate:
            if self._info is not None:
                with contextlib.suppress(OSError):
                    _check_own(self._fd, self._info)
                    unlock_fd(self._fd)  # a child that was made just now may not have closed it yet
            self.leave()

    def leave(self) -> None:
        """Close the file; the lock is its process's as long as that goes on."""
        if self._info is not None:
            close_own(self._fd, self._info)
        self._fd, self._info, self._places, self._measure_at = -1, None, {}, 0

    def stop(self) -> None:
        """Keep nothing more."""
        self._is_stopped, self.waiting = True, {}
        self.end()


def _check_own(fd: int, info: os.stat_result) -> os.stat_result:
    """The user's code may close what it did not open: then a number can be another file's.

    Raises:
        OSError: it is.
    """
    now = os.fstat(fd)
    if not os.path.samestat(now, info):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return now


_all_entries: weakref.WeakSet[Entries] = weakref.WeakSet()


def _begin_anew() -> None:
    for entries in list(_all_entries):
        entries.begin_anew()


def _flush_at_end(reference: weakref.ref[Entries]) -> None:
    def flush() -> None:
        entries = reference()
        if entries is not None:
            entries.flush()

    # Children of multiprocessing end without atexit.
    util = sys.modules.get("multiprocessing.util")
    atexit.register(flush) if util is None else util.Finalize(None, flush, exitpriority=0)


os.register_at_fork(after_in_child=_begin_anew)


def open_cache(folder: str | None, say: Callable[[str], None] = lambda _: None) -> Entries:
    """Return what is kept in a folder that the launcher found; None: nothing is found and nothing kept."""
    entries = Entries(folder, say)
    entries.open()
    return entries
