# SPDX-License-Identifier: Apache-2.0
"""Entry points of JPEGs in files, each found by its file's length and checksum.

    head     what this is, how many there are, checksums of what follows
    firsts   the first key of each block of the table; a reader keeps these in memory
    table    key and place of each record, by key, in blocks of 4 KB
    records  a mark, a checksum, key, size, value; the oldest first

A journal is records alone. Nothing is believed: a value passes its checksum, or it is not found. Files are
read by their descriptor rather than mapped: processes share the page cache all the same, and a file that
another node has replaced, or somebody has cut, ends in an error; a mapping would end the user's process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from feedrate.kernel import crc32c, read_at

U64 = npt.NDArray[np.uint64]
_MARK = b"\xfeEP1"
_RECORD = struct.Struct("<4sIQI")  # mark, checksum of what follows, key, size of the value
_KEY_AND_SIZE, _CHECKED_FROM = struct.Struct("<QI"), 8
_HEAD = struct.Struct("<20sIQII")  # magic, checksum of what follows; records, checksums of firsts and table
_MAGIC = b"feedrate entries 1\n\0"
_CHECKED = 24  # bytes of the head that its checksum is not of
HEAD_BYTES = 64
_ROW_BYTES = 16
TABLE_BYTES = 24  # at most, that a record takes in firsts and table
_BLOCK_ROWS = 256
_SIZE_BITS = 24  # of a place: what lies above them is the offset
_SIZE_MASK = (1 << _SIZE_BITS) - 1
LARGEST_VALUE = 4 << 20
_CHUNK_BYTES = 4 * LARGEST_VALUE


def make_key(length: int, crc: int) -> int | None:
    """Return what a file is known by; None: it is larger than any JPEG."""
    return crc << 32 | length if 0 <= length < 1 << 32 and 0 <= crc < 1 << 32 else None


def make_record(key: int, value: bytes) -> bytes:
    checked = _KEY_AND_SIZE.pack(key, len(value)) + value
    return _MARK + crc32c(checked).to_bytes(4, "little") + checked


def read_value(record: bytes, key: int) -> bytes | None:
    """Return the value of a record; None: it is damaged, or of another key."""
    if len(record) < _RECORD.size:
        return None
    mark, check, found, size = _RECORD.unpack_from(record)
    is_good = mark == _MARK and found == key and _RECORD.size + size == len(record)
    return record[_RECORD.size :] if is_good and crc32c(memoryview(record)[_CHECKED_FROM:]) == check else None


def scan_records(fd: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield key and place of all good records before `end`; whatever else lies there is passed over."""
    begin = 0
    while begin < end and (data := read_at(fd, min(_CHUNK_BYTES, end - begin), begin)):
        is_last = begin + len(data) >= end or len(data) < _CHUNK_BYTES
        # A record that begins after this may not be here whole.
        until = len(data) if is_last else len(data) - _RECORD.size - LARGEST_VALUE
        view, at = memoryview(data), data.find(_MARK)
        while 0 <= at < until:
            if len(data) - at >= _RECORD.size:
                _, check, key, size = _RECORD.unpack_from(data, at)
                end_of_it = at + _RECORD.size + size
                is_whole = size <= LARGEST_VALUE and end_of_it <= len(data)
                if is_whole and crc32c(view[at + _CHECKED_FROM : end_of_it]) == check:
                    yield key, make_place(begin + at, _RECORD.size + size)
                    at = data.find(_MARK, end_of_it)
                    continue
            at = data.find(_MARK, at + 1)
        if is_last:
            return
        begin += at if at >= 0 else len(data) - len(_MARK) + 1


def make_place(offset: int, size: int) -> int:
    return offset << _SIZE_BITS | size


def split_places(places: U64) -> tuple[U64, U64]:
    """Return offsets and sizes."""
    return places >> np.uint64(_SIZE_BITS), places & np.uint64(_SIZE_MASK)


def read_place(fd: int, place: int, key: int) -> bytes | None:
    return read_value(os.pread(fd, place & _SIZE_MASK, place >> _SIZE_BITS), key)


def make_head(keys: U64, sizes: U64) -> bytes:
    """Return all that stands before records of these keys and sizes, which follow one behind the other."""
    blocks = -(-len(keys) // _BLOCK_ROWS)
    begin = HEAD_BYTES + 8 * blocks + _ROW_BYTES * len(keys)
    offsets = np.cumsum(sizes, dtype=np.uint64) - sizes + np.uint64(begin)
    by_key = np.argsort(keys, kind="stable")
    table = np.stack([keys, offsets << np.uint64(_SIZE_BITS) | sizes], axis=1)[by_key].astype("<u8")
    firsts = np.ascontiguousarray(table[::_BLOCK_ROWS, 0])
    facts = struct.pack("<QII", len(keys), crc32c(firsts), crc32c(np.ascontiguousarray(table)))
    head = _MAGIC + struct.pack("<I", crc32c(facts)) + facts
    return head.ljust(HEAD_BYTES, b"\0") + firsts.tobytes() + table.tobytes()


def read_count(fd: int) -> int:
    """Return how many records a file has.

    Raises:
        ValueError: it is no file of entry points, or is damaged.
    """
    return int(_read_head(fd)[0])


def _read_head(fd: int) -> tuple[int, int, int]:
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) != _HEAD.size or not head.startswith(_MAGIC):
        raise ValueError("no file of entry points")
    _, check, count, firsts_check, table_check = _HEAD.unpack(head)
    if check != crc32c(head[_CHECKED:]) or count * _ROW_BYTES > os.fstat(fd).st_size:
        raise ValueError("damaged")
    return count, firsts_check, table_check


class EntryFile:
    """A file of entry points that is open; any number of threads and forks may look into it at once.

    Raises:
        ValueError: it is no file of entry points, or is damaged.
    """

    def __init__(self, fd: int) -> None:
        """Take over the descriptor, also where this raises."""
        self.fd, self.info = fd, os.fstat(fd)
        self.count, check, self._table_check = _read_head(fd)
        blocks = -(-self.count // _BLOCK_ROWS)
        firsts = read_at(fd, 8 * blocks, HEAD_BYTES)
        if len(firsts) != 8 * blocks or crc32c(firsts) != check:
            raise ValueError("damaged")
        self._firsts = memoryview(firsts).cast("Q")
        self._table_at = HEAD_BYTES + 8 * blocks

    def __del__(self) -> None:
        close_own(self.fd, self.info)

    def is_of(self, info: os.stat_result) -> bool:
        """Return whether this is what a name stands for now."""
        return (info.st_dev, info.st_ino, info.st_mtime_ns) == (
            self.info.st_dev, self.info.st_ino, self.info.st_mtime_ns,
        )  # fmt: skip

    def find(self, key: int) -> bytes | None:
        """Return the value of a key; None: it is not here, or damaged.

        Raises:
            OSError: the file cannot be read any more.
        """
        block = bisect_right(self._firsts, key) - 1
        if block < 0:
            return None
        first = block * _BLOCK_ROWS
        wanted = _ROW_BYTES * min(_BLOCK_ROWS, self.count - first)
        data = os.pread(self.fd, wanted, self._table_at + _ROW_BYTES * first)
        rows = memoryview(data[: len(data) // _ROW_BYTES * _ROW_BYTES]).cast("Q")
        keys = rows[::2]
        at = bisect_left(keys, key)
        return read_place(self.fd, rows[2 * at + 1], key) if at < len(keys) and keys[at] == key else None

    def list_places(self) -> tuple[U64, U64]:
        """Return all keys and places, the oldest record first.

        Raises:
            ValueError: the table is damaged.
        """
        table = read_at(self.fd, _ROW_BYTES * self.count, self._table_at)
        if len(table) != _ROW_BYTES * self.count or crc32c(table) != self._table_check:
            raise ValueError("damaged")
        keys, places = np.frombuffer(table, "<u8").reshape(-1, 2).T.astype(np.uint64)
        offsets, sizes = split_places(places)
        is_here = offsets + sizes <= np.uint64(self.info.st_size)  # not so after a power cut
        keys, places = keys[is_here], places[is_here]
        by_age = np.argsort(places)
        return keys[by_age], places[by_age]


def list_scanned(fd: int, end: int) -> tuple[U64, U64]:
    found = np.fromiter(itertools.chain.from_iterable(scan_records(fd, end)), np.uint64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def close_own(fd: int, info: os.stat_result) -> None:
    """Close a descriptor, unless the user's code has closed it and its number is another file's now."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(fd), info):
            os.close(fd)
