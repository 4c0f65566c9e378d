# SPDX-License-Identifier: Apache-2.0
"""The memory that this process may use, that processes use, and the share of files in the page cache."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feedrate.machine.cpu import PROC, ROOT, read_numbers, walk_groups
from feedrate.machine.process import read_memory_info, read_rollup
from feedrate.machine.process_tree import list_tree

NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


_STATS = {
    1: ("total_inactive_file", "total_active_file", "total_dirty", "total_writeback", "total_cache",
        "total_shmem"),
    2: ("inactive_file", "active_file", "file_dirty", "file_writeback", "file", "shmem"),
}  # fmt: skip


class MemoryUse(NamedTuple):
    """Of one group: bytes in use (page cache included), the limit, the page cache that can be given back."""

    used_bytes: int
    limit_bytes: int
    cache_bytes: int | None


class MemoryGroup(NamedTuple):
    """The group with the tightest limit; its files are read again and again."""

    version: int
    folder: Path
    limit_bytes: int

    def read(self) -> MemoryUse | None:
        used = self.read_used()
        return None if used is None else MemoryUse(used, self.limit_bytes, self._read_cache())

    def read_used(self) -> int | None:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None

    def read_file_pages(self) -> tuple[int, int]:
        """Return the page cache that can be dropped, and how much of it must be written to disk before that.

        Counted by the lists that it is reclaimed from: memory of /dev/shm and locked pages are on others.
        """
        inactive, active, dirty, writeback, *_ = (number or 0 for number in self._read_stat())
        return inactive + active, min(inactive + active, dirty + writeback)

    def _read_cache(self) -> int | None:
        *_, cache, shared = self._read_stat()
        # Pages of /dev/shm count as "file" and as "cache" too, and cannot be given back.
        return None if cache is None else max(0, cache - (shared or 0))

    def _read_stat(self) -> list[int | None]:
        return read_numbers(self.folder / "memory.stat", _STATS[self.version])


def find_limited_groups(proc: Path = PROC, root: Path = ROOT) -> list[MemoryGroup]:
    """Return every group above a process that has a memory limit, the leaf first.

    A group above the tightest one may be shared with others, and be nearer to its limit.
    """
    # Past memory.high a group is slowed down and its memory reclaimed: a limit too.
    return _list_groups(proc, root, "memory.max", "memory.high")


def find_memory_group(proc: Path = PROC, root: Path = ROOT) -> MemoryGroup | None:
    """Return the tightest memory limit above a process; None when nothing limits it."""
    groups = _list_groups(proc, root, "memory.max")
    return min(groups, key=lambda group: group.limit_bytes, default=None)


def _list_groups(proc: Path, root: Path, *names: str) -> list[MemoryGroup]:
    groups = []
    for version, folder in walk_groups("memory", proc, root):
        files = names if version == 2 else ("memory.limit_in_bytes",)
        limit = min(_read_limit(folder / name) for name in files)
        if limit < NO_LIMIT_BYTES:
            groups.append(MemoryGroup(version, folder, limit))
    return groups


def _read_limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return NO_LIMIT_BYTES
    return int(text) if text.isdigit() else NO_LIMIT_BYTES


def count_machine_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def count_usable_memory_bytes() -> int:
    """Return the machine's memory, or the tightest limit of a cgroup above this process."""
    return min(count_machine_memory_bytes(), read_memory_limit() or NO_LIMIT_BYTES)


def read_memory_limit(proc: Path = PROC, root: Path = ROOT) -> int | None:
    """Return the tightest memory limit of the cgroups above this process; None when none limits it."""
    group = find_memory_group(proc, root)
    return None if group is None else group.limit_bytes


def measure_tree_memory(pid: int) -> int:
    """Return the bytes that a process and its descendants use together, pages that they share counted once.

    That is the sum of their proportional set sizes (PSS); a process that has ended counts as nothing.
    """
    found = (read_rollup(one.pid) for one in list_tree(pid))
    return sum(rollup[0] for rollup in found if rollup is not None)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Memory that this process and those beside it may still take.

    Attributes:
        free_bytes: until the limit that is nearest now; page cache that can be dropped counts as free.
        unwritten_bytes: how much of that page cache must be written to a disk before it can be dropped.
        limit_bytes: that limit: of a control group, or the machine's memory.
    """

    free_bytes: int
    unwritten_bytes: int
    limit_bytes: int


class MemoryGauge:
    """Measures the least room that the control groups above this process, and the machine, leave.

    Quick enough to be asked many times a second: which groups have a limit is looked up once in a second.
    """

    def __init__(
        self, proc: Path = PROC, root: Path = ROOT, meminfo: Path = Path("/proc/meminfo"), keep_s: float = 1.0
    ) -> None:
        self._proc, self._root, self._meminfo, self._keep_s = proc, root, meminfo, keep_s
        self._groups: tuple[float, list[MemoryGroup]] | None = None

    def measure(self) -> MemoryRoom:
        rooms = [_measure_machine(self._meminfo)]
        for group in self._find_groups():
            used = group.read_used()
            if used is not None:
                droppable, unwritten = group.read_file_pages()
                rooms.append(MemoryRoom(group.limit_bytes - used + droppable, unwritten, group.limit_bytes))
        return min(rooms, key=lambda room: room.free_bytes)

    def _find_groups(self) -> list[MemoryGroup]:
        groups, now = self._groups, time.monotonic()
        if groups is None or now - groups[0] >= self._keep_s:
            groups = self._groups = now, find_limited_groups(self._proc, self._root)
        return groups[1]


def _measure_machine(meminfo: Path) -> MemoryRoom:
    found = read_memory_info(os.fspath(meminfo))
    return MemoryRoom(
        found.get("MemAvailable", 0),
        found.get("Dirty", 0) + found.get("Writeback", 0),
        found.get("MemTotal", 0),
    )


_PAGES_PER_FILE = 8
# A page that is in memory is copied within 2 µs. RWF_NOWAIT starts to read a missing page, and where the
# disk is quick the page is there before the call returns (seen on a virtual disk): such a call takes longer.
_FROM_MEMORY_NS = 12_000
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def measure_residency(paths: Sequence[str | os.PathLike[str]], limit: int = 200) -> float | None:
    """Return the share of the files' pages that are in the page cache, from at most `limit` files.

    None: unknown, because no file could be read or the file system does not tell.
    """
    step = max(1, -(-len(paths) // limit))
    return average_residency(measure_file_residency(path) for path in paths[::step])


def average_residency(found: Iterable[tuple[int, float] | None]) -> float | None:
    """Return the share of all bytes in the page cache, from results of `measure_file_residency`."""
    known = [one for one in found if one is not None]
    total = sum(size for size, _ in known)
    return sum(size * share for size, share in known) / total if total else None


def measure_file_residency(path: str | os.PathLike[str]) -> tuple[int, float] | None:
    """Return a file's size in bytes and the share of its pages in the page cache; None: unknown."""
    try:
        descriptor = open_quietly(path)
    except OSError:
        return None
    try:
        size_bytes = os.fstat(descriptor).st_size
        share = measure_open_residency(descriptor, path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if share is None else (size_bytes, share)


def measure_open_residency(
    descriptor: int, path: str | os.PathLike[str], start: int = 0, stop: int | None = None
) -> float | None:
    """Return the share of an open file's pages, of a part of it, in the page cache; None: unknown."""
    try:
        facts = os.fstat(descriptor)
        stop = facts.st_size if stop is None else min(stop, facts.st_size)
        if stop <= start:
            return None
        # For a file that one may only read, mincore claims that every page is there.
        if os.geteuid() in (0, facts.st_uid) or os.access(path, os.W_OK):
            return _ask_mincore(descriptor, start, stop)
        return _try_pages(descriptor, start, stop)
    except OSError:
        return None


def open_quietly(path: str | os.PathLike[str]) -> int:
    """Open a file for reading, without a new access time where that is allowed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, flags)


def _ask_mincore(descriptor: int, begin: int, end: int) -> float | None:
    libc, page = load_libc(), os.sysconf("SC_PAGE_SIZE")
    first = begin // page
    pages = -(-end // page) - first
    # Of a huge file, its first and last parts and one in the middle: a vector of a byte per page adds up.
    most = 1 << 18
    starts = [0] if pages <= most else [0, (pages - most) // 2, pages - most]
    resident = looked = 0
    for start in starts:
        count = min(pages - start, most)
        at = (first + start) * page
        address = libc.mmap(None, count * page, 1, 1, descriptor, at)  # PROT_READ, MAP_SHARED
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        vector = ctypes.create_string_buffer(count)
        failed = libc.mincore(address, count * page, vector)
        libc.munmap(address, count * page)
        if failed:
            return None
        resident += vector.raw.count(1)  # Linux writes 0 and 1; a loop takes 4 ms per 256 MB
        looked += count
    return resident / looked


@functools.cache
def load_libc() -> Any:
    """Return the C library, with the types of its functions for memory that is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    void, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [void, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [void, size]
    libc.mincore.argtypes = [void, size, ctypes.c_char_p]
    return libc


def _try_pages(descriptor: int, begin: int, end: int) -> float | None:
    if not hasattr(os, "RWF_NOWAIT"):  # a Python that was built with old headers
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    first = begin // page
    pages = -(-end // page) - first
    # No read-ahead: a missing page that is asked for loads itself alone.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    count, buffer, resident = min(pages, _PAGES_PER_FILE), bytearray(1), 0
    for number in range(count):
        offset, got, began = (first + number * pages // count) * page, 0, time.perf_counter_ns()
        try:
            got = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return None
            raise
        if got and time.perf_counter_ns() - began < _FROM_MEMORY_NS:
            resident += 1
        else:
            os.posix_fadvise(descriptor, offset, page, os.POSIX_FADV_DONTNEED)
    return resident / count
