# SPDX-License-Identifier: Apache-2.0
"""What an image file is, without decoding it, and as another file with the same coefficients."""

from __future__ import annotations

from typing import Any, NamedTuple

from feedrate.kernel import pillow
from feedrate.kernel.door import Status, as_bytes, native

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
    status, words, width, height, sampling, entries = native.scan(as_bytes(data), bytes_per_entry)
    if status == Status.OK:
        return Scan(width, height, sampling, None, False, entries)
    if status != Status.NOT_TAKEN:
        return Scan(width, height, "", words, True, b"")
    try:
        width, height = pillow.check(data)
    except pillow.Undecodable as error:
        return Scan(width, height, "", f"{words}; {error}", True, b"")
    return Scan(width, height, "", words, False, b"")


def find_entry_points(data: Any, bytes_per_entry: int) -> bytes:
    """Return the entry points of an image file; b"" for one that the kernel does not take."""
    return native.scan(as_bytes(data), bytes_per_entry)[5]


def scan_headers(data: bytes) -> Scan:
    """Look at the headers of an image file alone: no entry points, and damage in its pixels is not seen."""
    status, words, width, height = native.probe(as_bytes(data))
    if status == Status.OK:
        return Scan(width, height, "", None, False, b"")
    if status != Status.NOT_TAKEN:
        return Scan(width, height, "", words, True, b"")
    try:
        width, height, _ = pillow.measure(data)
    except pillow.Undecodable as error:
        return Scan(width, height, "", f"{words}; {error}", True, b"")
    return Scan(width, height, "", words, False, b"")


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
