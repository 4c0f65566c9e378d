# SPDX-License-Identifier: Apache-2.0
"""Which share of some files lies in the page cache? Asked without loading them."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Sequence

_PAGES_PER_FILE = 8
# A page that lies in memory is copied within 2 µs. RWF_NOWAIT starts to read a missing page, and where the
# disk is quick the page is there before the call returns (seen on a virtual disk): such a call takes longer.
_FROM_MEMORY_NS = 12_000
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def measure_residency(paths: Sequence[str | os.PathLike[str]], limit: int = 200) -> float | None:
    """Return the share of the files' pages that lie in the page cache, from at most `limit` files.

    None: unknown, because no file could be read or the file system does not tell.
    """
    step = max(1, -(-len(paths) // limit))
    found = [share for path in paths[::step] if (share := measure_file_residency(path)) is not None]
    total = sum(size for size, _ in found)
    return sum(size * share for size, share in found) / total if total else None


def measure_file_residency(path: str | os.PathLike[str]) -> tuple[int, float] | None:
    """Return a file's size in bytes and the share of its pages in the page cache; None: unknown."""
    try:
        descriptor = open_quietly(path)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if facts.st_size == 0:
            return None
        # For a file that one may only read, mincore claims that every page is there.
        if os.geteuid() in (0, facts.st_uid) or os.access(path, os.W_OK):
            share = _ask_mincore(descriptor, facts.st_size)
        else:
            share = _try_pages(descriptor, facts.st_size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if share is None else (facts.st_size, share)


def open_quietly(path: str | os.PathLike[str]) -> int:
    """Open a file for reading, without a new access time where that is allowed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, flags)


def _ask_mincore(descriptor: int, size_bytes: int) -> float | None:
    libc = _load_libc()
    if libc is None:
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    pages = -(-size_bytes // page)
    # Of a huge file, its first and last parts and one in the middle: a vector of a byte per page adds up.
    most = 1 << 18
    starts = [0] if pages <= most else [0, (pages - most) // 2, pages - most]
    resident = looked = 0
    for start in starts:
        count = min(pages - start, most)
        address = libc.mmap(None, count * page, 1, 1, descriptor, start * page)  # PROT_READ, MAP_SHARED
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


def _load_libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return None
    void, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [void, size, number, number, number, ctypes.c_int64]
    libc.munmap.argtypes = [void, size]
    libc.mincore.argtypes = [void, size, ctypes.c_char_p]
    return libc


def _try_pages(descriptor: int, size_bytes: int) -> float | None:
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    pages = -(-size_bytes // page)
    # No read-ahead: a missing page that is asked for loads itself alone.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    count = min(pages, _PAGES_PER_FILE)
    buffer = bytearray(1)
    resident = 0
    for number in range(count):
        offset = (number * pages // count) * page
        is_there = _try_page(descriptor, buffer, offset)
        if is_there is None:
            return None
        resident += is_there
        if not is_there:
            os.posix_fadvise(descriptor, offset, page, os.POSIX_FADV_DONTNEED)
    return resident / count


def _try_page(descriptor: int, buffer: bytearray, offset: int) -> bool | None:
    began = time.perf_counter_ns()
    try:
        got = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return got > 0 and time.perf_counter_ns() - began < _FROM_MEMORY_NS
