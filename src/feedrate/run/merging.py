# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of the entry points: the folder where they are kept, and journals put into one file.

Any number of runs, ranks and nodes may do this at once: one at a time holds the folder's lock, the others
leave it to that one or to the next run. Where a file system has no locks nothing is merged, and nothing lost
but time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedrate.cache.entry_file import (
    HEAD_BYTES,
    TABLE_BYTES,
    U64,
    EntryFile,
    list_scanned,
    make_head,
    split_places,
)
from feedrate.cache.entry_folder import (
    ENTRIES,
    LOCK,
    MARK,
    find_cache_folder,
    home_of,
    is_journal,
    open_plain,
    opened_home,
)
from feedrate.errors import StorageError
from feedrate.files.atomic import atomic_write, remove_temporaries, say_reason
from feedrate.files.lock import Gone, Lock, lock_fd, take_lock
from feedrate.files.permissions import anchor
from feedrate.run.inside.entries import LIMIT_BYTES

_PIECE_BYTES = 8 << 20
_TRIAL_BYTES = 64 << 10
_WORTH_BYTES = 64 << 10  # of new records, while a command runs
_MOST_JOURNALS = 200  # that are open at a time


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge came to.

    Attributes:
        records, size_bytes: images whose entry points are kept now, and what the file takes.
        dropped: the oldest ones, which had to go for the limit.
        problem: why nothing was merged, a sentence; "": no problem.
    """

    records: int = 0
    size_bytes: int = 0
    dropped: int = 0
    problem: str = ""


def find_folder(
    wish: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda _: None,
) -> Path | None:
    """Return the folder for entry points in the one that was wished for, made if need be, else in the user's
    cache folder; None: there is none.

    `say`: told why there is none, or why nothing can be added to it, in a sentence.
    """
    above = find_cache_folder(environ) if wish is None else Path(os.path.abspath(wish))
    if above is None:
        say(_say("there is no home folder"))
        return None
    place = home_of(above)
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
        with opened_home(place) as folder:
            _try_to_write(anchor(folder, place))
    except OSError as error:
        say(_say(f"{place} cannot be written to: {say_reason(error, place)}"))
        with contextlib.suppress(OSError), opened_home(place):
            return place  # what is there already can be read
        return None
    return place


def _say(why: str) -> str:
    return f"entry points of JPEGs are not kept for the next run: {why}; name another folder: --cache DIR"


def _try_to_write(place: Path) -> None:
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        if file.write(bytes(_TRIAL_BYTES)) < _TRIAL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with _open_lock(place) as fd:
        if not os.fstat(fd).st_size:
            os.pwrite(fd, MARK, 0)
        lock_fd(fd, wait=False)


@contextlib.contextmanager
def _open_lock(place: Path) -> Iterator[int]:
    fd = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def merge(place: Path, *, is_last: bool = True, limit_bytes: int = LIMIT_BYTES) -> Merged:
    """Put the journals of a folder into the file that all processes read; those of ended processes go.

    While another process merges it does nothing.

    Args:
        is_last: False, while a command runs: only where so much was added that it is worth writing all anew,
            so it may be called often.
    """
    try:
        with opened_home(place) as folder, _open_lock(anchor(folder, place)) as fd:
            os.utime(fd)
            if not lock_fd(fd, wait=False):
                return Merged()
            path = anchor(folder, place)
            remove_temporaries(path)
            names = sorted(filter(is_journal, os.listdir(folder)), key=lambda name: _find_time(path / name))
            if not is_last and not _has_grown(path, names):
                return Merged()
            dropped = 0
            for first in range(0, len(names) or 1, _MOST_JOURNALS):
                # A quarter is left for the journals of the next run.
                some = names[first : first + _MOST_JOURNALS]
                merged = _merge_some(path, folder, some, limit_bytes - limit_bytes // 4)
                dropped += merged.dropped
            return dataclasses.replace(merged, dropped=dropped)
    except OSError as error:
        reason = str(error) if isinstance(error, StorageError) else say_reason(error, place)
        return Merged(problem=_say(f"{place} could not be brought up to date: {reason}"))


def _find_time(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime_ns
    return 0


def _has_grown(path: Path, names: Sequence[str]) -> bool:
    """Return whether journals that were written to since the last merge hold much, beside what is kept."""
    merged, kept_bytes = _find_time(path / ENTRIES), 0
    with contextlib.suppress(OSError):
        kept_bytes = os.lstat(path / ENTRIES).st_size
    added_bytes = 0
    for name in names:
        with contextlib.suppress(OSError):
            info = os.lstat(path / name)
            added_bytes += info.st_size if info.st_mtime_ns >= merged else 0
    return added_bytes >= max(_WORTH_BYTES, kept_bytes // 4)


class _Source(NamedTuple):
    """A file, and what is in it, the oldest first. `lock`: of a journal whose process has ended."""

    fd: int
    keys: U64
    places: U64
    name: str = ""
    lock: Lock | None = None
    is_damaged: bool = False


def _merge_some(path: Path, folder: int, names: Sequence[str], limit_bytes: int) -> Merged:
    began = time.time_ns()
    with contextlib.ExitStack() as stack:
        entries = _read_entries(folder, stack)
        journals = [one for name in names if (one := _read_journal(name, path, folder, stack)) is not None]
        ended = [one for one in journals if one.lock is not None]
        known = np.empty(0, np.uint64) if entries is None else entries.keys
        size_bytes = 0 if entries is None else os.fstat(entries.fd).st_size
        is_needed = size_bytes > limit_bytes or (entries is not None and entries.is_damaged)
        # Other values of known keys can wait for the end of their process.
        last = 0 if entries is None else os.fstat(entries.fd).st_mtime_ns
        is_needed |= any(len(one.keys) and os.fstat(one.fd).st_mtime_ns >= last for one in ended)
        merged = Merged(len(known), size_bytes)
        try:
            if is_needed or not all(np.isin(one.keys, known).all() for one in journals):
                sources = [*([] if entries is None else [entries]), *journals]
                merged = _write(path, sources, limit_bytes, began)
        except OSError:
            _remove(ended, folder)  # what cannot be merged must not be what fills the disk
            raise
        _remove(ended, folder)
        return merged


def _remove(journals: Sequence[_Source], folder: int) -> None:
    for journal in journals:
        with contextlib.suppress(OSError):
            os.unlink(journal.name, dir_fd=folder)


def _read_entries(folder: int, stack: contextlib.ExitStack) -> _Source | None:
    try:
        fd = open_plain(ENTRIES, folder)
    except OSError:  # not there, or not to be believed: then it is replaced
        return None
    stack.callback(os.close, fd)
    try:
        return _Source(fd, *EntryFile(os.dup(fd)).list_places())
    except ValueError:
        return _Source(fd, *list_scanned(fd, os.fstat(fd).st_size), is_damaged=True)


def _read_journal(name: str, path: Path, folder: int, stack: contextlib.ExitStack) -> _Source | None:
    lock = None
    with contextlib.suppress(OSError, Gone):
        fd = open_plain(name, folder)
        stack.callback(os.close, fd)
        if (lock := take_lock(path / name, wait=False)) is not None:
            stack.enter_context(lock)
        return _Source(fd, *list_scanned(fd, os.fstat(fd).st_size), name, lock)
    return None


def _write(path: Path, sources: Sequence[_Source], limit_bytes: int, began: int) -> Merged:
    """Write what the sources hold into one file: of a key the last value, and of all the newest that fit."""
    keys = np.concatenate([one.keys for one in sources])
    numbers = np.repeat(np.arange(len(sources)), [len(one.keys) for one in sources])
    offsets, sizes = split_places(np.concatenate([one.places for one in sources]))
    _, from_behind = np.unique(keys[::-1], return_index=True)
    chosen = np.sort(len(keys) - 1 - from_behind)
    taken = np.cumsum((sizes[chosen] + np.uint64(TABLE_BYTES))[::-1])[::-1]
    kept = chosen[taken + np.uint64(HEAD_BYTES) <= limit_bytes]
    head = make_head(keys[kept], sizes[kept])
    size_bytes = len(head) + int(sizes[kept].sum())
    with atomic_write(path / ENTRIES, expected_bytes=size_bytes, is_durable=False) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(head)
        for number, begin, end in _join(numbers[kept], offsets[kept], sizes[kept]):
            _copy(sources[number].fd, begin, end, file)
        file.flush()
        os.utime(file.fileno(), ns=(began, began))  # a journal that is written to from then on is newer
    return Merged(len(kept), size_bytes, len(chosen) - len(kept))


def _join(numbers: Any, offsets: U64, sizes: U64) -> Iterator[tuple[int, int, int]]:
    """Yield source, begin and end of what lies one behind the other."""
    ends = offsets + sizes
    is_first = np.ones(len(ends), bool)
    is_first[1:] = (numbers[1:] != numbers[:-1]) | (offsets[1:] != ends[:-1])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(ends))[: len(firsts)] - 1
    yield from zip(numbers[firsts].tolist(), offsets[firsts].tolist(), ends[lasts].tolist(), strict=True)


def _copy(fd: int, begin: int, end: int, file: BinaryIO) -> None:
    while begin < end:
        piece = os.pread(fd, min(_PIECE_BYTES, end - begin), begin)
        if not piece:
            raise OSError(errno.EIO, "a file became shorter meanwhile")
        file.write(piece)
        begin += len(piece)
