# SPDX-License-Identifier: Apache-2.0
"""What packing does to image files: list them, look at them without decoding, lay them out as a tar."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import I64, U8, U32, U64
from feedrate.kernel import pillow
from feedrate.kernel.binding import Pool, Status, as_bytes, native

__all__ = [
    "BYTES_PER_ENTRY", "TAR_BLOCK_BYTES", "Entry", "FolderList", "ImageKind", "Members", "Scan",
    "crc32c_rows", "crc32c_texts", "find_entry_points", "find_first", "hash_stems", "join_pieces",
    "list_folder", "make_members", "scan", "scan_headers", "to_baseline",
]  # fmt: skip

# How far apart entry points are unless somebody asks for others; native/jpeg.h says why.
BYTES_PER_ENTRY = 1000


class Scan(NamedTuple):
    """What one pass over an image file found."""

    width: int
    height: int
    sampling: str  # "4:4:4", "4:2:0", "gray", ...; "" when the kernel does not take the file
    reason: str | None  # why the kernel does not take it, in words; None when it does
    damaged: bool  # the reason is damage, not kind
    entries: bytes  # entry points, opaque; b"" when the kernel does not take the file


def scan(data: bytes, bytes_per_entry: int = BYTES_PER_ENTRY) -> Scan:
    """Look at an image file once: geometry, whether the kernel decodes it, its entry points.

    Args:
        bytes_per_entry: how far apart entry points are to be, about: at most a row of blocks apart, which is
            where there always is one, and at least a block.

    Never raises for bad bytes: `reason` and `damaged` say what is wrong. What the kernel does not take is
    decoded once by Pillow, to know its size and whether it is whole.
    """
    status, words, width, height, sampling, entries, _ = native.scan(as_bytes(data), bytes_per_entry)
    found = Scan(width, height, sampling, None, False, entries)
    return _conclude(found, status, words, lambda: pillow.check(data))


def _conclude(found: Scan, status: int, words: str, measure: Callable[[], tuple[int, int]]) -> Scan:
    """Return what was found, or why the kernel does not take it; `measure` asks Pillow for its size."""
    if status == Status.OK:
        return found
    found = found._replace(sampling="", reason=words, damaged=status != Status.NOT_TAKEN, entries=b"")
    if found.damaged:
        return found
    try:
        width, height = measure()
    except pillow.Undecodable as error:
        return found._replace(reason=f"{words}; {error}", damaged=True)
    return found._replace(width=width, height=height)


def find_entry_points(data: Any, bytes_per_entry: int) -> bytes:
    """Return the entry points of an image file; b"" for one that the kernel does not take."""
    return native.scan(as_bytes(data), bytes_per_entry)[5]


def scan_headers(data: bytes) -> Scan:
    """Look at the headers of an image file alone: no entry points, and damage in its pixels is not seen."""
    status, words, width, height = native.probe(as_bytes(data))
    found = Scan(width, height, "", None, False, b"")
    return _conclude(found, status, words, lambda: pillow.measure(data)[:2])


def to_baseline(data: bytes, orientation: int = 1) -> bytes | None:
    """Return a Huffman-coded JPEG, progressive or not, as baseline JPEG with the very same coefficients.

    With `orientation` (EXIF, 1 to 8) the image is turned upright. Application data and comments are kept as
    they are. None: it is none of these, it is damaged, or it cannot be turned without loss, since an edge is
    not a whole block; or it is larger than whole images may be.
    """
    if not 1 <= orientation <= 8:
        raise ValueError(f"orientation must be 1 to 8, got {orientation}")
    _, _, width, height = native.probe(as_bytes(data))
    if width * height > pillow.most_pixels():
        return None
    status, _, file = native.to_baseline(as_bytes(data), orientation)
    return file if status == Status.OK and file else None


TAR_BLOCK_BYTES = 512
_MEMBER_FACTS = ("left", "crc32c", "width", "height", "kind", "has_exif", "key_bytes", "entries_bytes")

# How a folder is listed: by so many threads, if there are cores; stopped by nobody.
_MANY, _NEVER = 8, bytes(1)


class Entry(enum.IntEnum):
    """What is in a folder."""

    WANTED = 0  # a regular file with one of the suffixes that were asked for
    OTHER = 1  # another regular file
    FOLDER = 2
    ODD = 3
    UNKNOWN = 4  # it cannot be looked at: its size is the errno


class FolderList(NamedTuple):
    """What is in a folder, sorted by name; name `i` is `names[starts[i]:starts[i + 1]]`."""

    names: bytes
    starts: I64
    sizes: I64
    times_ns: I64
    kinds: U8


def list_folder(path: bytes, suffixes: Sequence[str]) -> FolderList:
    """List a folder; links are followed, names that begin with a dot are left out.

    Raises:
        OSError: it cannot be listed.
    """
    wanted = [suffix.encode() for suffix in suffixes]
    error, names, *arrays = native.list_folder(path, wanted, _MANY, _NEVER)
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    starts, sizes, times_ns = (np.frombuffer(array, np.int64) for array in arrays[:3])
    return FolderList(names, starts, sizes, times_ns, np.frombuffer(arrays[3], np.uint8))


def hash_stems(paths: bytes, starts: I64) -> U64:
    """Return a hash of each path without its suffix, dots of its last part written as '_'."""
    out = np.zeros(len(starts) - 1, np.uint64)
    native.hash_stems(np.frombuffer(paths, np.uint8), np.ascontiguousarray(starts, np.int64), out)
    return out


def find_first(texts: bytes, starts: I64) -> int:
    """Return the number of the text that is first by alphabet; of equal ones the first."""
    return native.find_first(as_bytes(texts), np.ascontiguousarray(starts, np.int64))


def join_pieces(data: bytes | U8, starts: I64, lengths: I64, before: bytes = b"") -> bytes:
    """Return pieces of `data` one behind the other, each with `before` in front of it."""
    out = np.empty(int(lengths.sum()) + len(before) * len(lengths), np.uint8)
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int64)
    native.join_pieces(as_bytes(data), starts, lengths, before, out)
    return out.tobytes()


def crc32c_rows(rows: np.ndarray[Any, np.dtype[Any]]) -> U32:
    """Return the CRC-32C of each row of a structured array, without its last four bytes."""
    out = np.zeros(len(rows), np.uint32)
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    native.crc32c_rows(raw, rows.dtype.itemsize, out)
    return out


def crc32c_texts(texts: bytes | U8, starts: I64) -> U32:
    """Return the CRC-32C of each text; text `i` is `texts[starts[i]:starts[i + 1]]`."""
    out = np.zeros(len(starts) - 1, np.uint32)
    native.crc32c_texts(as_bytes(texts), np.ascontiguousarray(starts, np.int64), out)
    return out


class ImageKind(enum.IntEnum):
    """What `make_members` takes; of PNGs: the kinds of pixels that need no second look."""

    JPEG = 0
    GRAY_JPEG = 1
    PNG_GRAY = 2
    PNG_RGB = 3
    PNG_PALETTE = 4
    PNG_GRAY_ALPHA = 5
    PNG_RGB_ALPHA = 6
    PNG_BITS = 7


class Members(NamedTuple):
    """Image files as members of a tar. `facts` has a column per name and a row per sample.

    The members of sample `i` are `buffer[starts[i]:starts[i + 1]]`, unless `left` says that it is for the
    caller; `keys` and `entries` of the others are one behind the other.
    """

    buffer: U8
    starts: I64
    facts: dict[str, I64]
    keys: bytes
    entries: bytes


def make_members(
    root: bytes,
    paths: bytes,
    path_starts: I64,
    sizes: I64,
    labels: I64 | None,
    *,
    header: bytes,
    scan: bool = True,
    bytes_per_entry: int = BYTES_PER_ENTRY,
    pool: Pool | None = None,
    memory: U8 | None = None,
) -> Members:
    """Read image files, look at each, and lay them out as members of a tar: KEY.jpg, and KEY.cls with labels.

    Args:
        paths: relative to `root`; path `i` is `paths[path_starts[i]:path_starts[i + 1]]`.
        header: a tar header for an empty name and size 0.
        scan: note entry points; else only the headers of JPEGs are read.
        bytes_per_entry: as for `scan`.
        memory: for the members, if it is large enough: pages that were used before cost nothing.

    A sample is left to the caller when anything about it is out of the ordinary: its name, its size, its
    image.
    """
    if pool is not None and pool._closed:
        raise ValueError("the pool is closed")
    sizes = np.ascontiguousarray(sizes, np.int64)
    rooms = TAR_BLOCK_BYTES + -(-sizes // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
    rooms += 0 if labels is None else 2 * TAR_BLOCK_BYTES
    starts = np.concatenate(([0], np.cumsum(rooms))).astype(np.int64)
    room = int(starts[-1])
    buffer = memory[:room] if memory is not None and len(memory) >= room else np.empty(room, np.uint8)
    facts = np.zeros((len(sizes), len(_MEMBER_FACTS)), np.int64)
    keys, entries = native.make_members(
        root, as_bytes(paths), np.ascontiguousarray(path_starts, np.int64), sizes,
        None if labels is None else np.ascontiguousarray(labels, np.int64), np.frombuffer(header, np.uint8),
        scan, bytes_per_entry, starts, buffer, None if pool is None else pool._native, facts.reshape(-1),
    )  # fmt: skip
    return Members(buffer, starts, dict(zip(_MEMBER_FACTS, facts.T, strict=True)), keys, entries)
