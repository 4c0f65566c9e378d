# SPDX-License-Identifier: Apache-2.0
"""TFRecord's framing: length, checksum, record, checksum; and so on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from feedrate import kernel

HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
LARGEST_RECORD = 2**31 - 1  # protocol buffers count in signed 32 bits
_CHUNK_BYTES = 2**24


class BadRecord(ValueError):
    """Says what is wrong, from "at byte ..." on; `at` is where the record would begin."""

    def __init__(self, at: int, words: str) -> None:
        super().__init__(f"at byte {at:,} {words}")
        self.at = at


class NoRecord(BadRecord):
    """What stands there was never a record, as far as one can tell."""


def mask_crc(crc32c: int) -> int:
    """Return a checksum as TFRecord stores it: turned and moved, so that checksums of checksums stay good."""
    return ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    return mask_crc(kernel.crc32c(data))


def dump_head(size_bytes: int) -> bytes:
    """Return what stands before a record."""
    length = struct.pack("<Q", size_bytes)
    return length + TAIL.pack(masked_crc32c(length))


def read_records(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each record and where it begins, every byte checked.

    Raises:
        BadRecord: the file is damaged or cut short; NoRecord: it is damaged, or something else.
    """
    at = 0
    while head := stream.read(HEAD.size):
        if len(head) < HEAD.size:
            raise BadRecord(at, f"{len(head)} bytes instead of a record's head: it is cut short")
        length, crc = HEAD.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            raise NoRecord(at, "stands no TFRecord: it is damaged")
        if length > LARGEST_RECORD:
            raise BadRecord(at, f"a record of {length:,} bytes: refused, protobuf ends at {LARGEST_RECORD:,}")
        data = read_in_pieces(stream, length)
        tail = stream.read(TAIL.size)
        if len(data) < length or len(tail) < TAIL.size:
            raise BadRecord(at, f"a record of {length:,} bytes, and {len(data):,} are there: it is cut short")
        if TAIL.pack(masked_crc32c(data)) != tail:
            raise BadRecord(at, "a record with a wrong checksum: it is damaged")
        yield at + HEAD.size, data
        at += HEAD.size + length + TAIL.size


def read_in_pieces(stream: BinaryIO, length: int) -> bytes:
    """Read so many bytes, or what is there: a length that lies costs no more memory than that."""
    if length <= _CHUNK_BYTES:
        return stream.read(length)
    pieces = []
    while length and (piece := stream.read(min(length, _CHUNK_BYTES))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
