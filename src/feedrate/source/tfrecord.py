# SPDX-License-Identifier: Apache-2.0
"""TFRecord files: length, checksum, record, checksum; and so on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from feedrate import kernel
from feedrate.errors import SourceError

HEADER_BYTES, FOOTER_BYTES = 12, 4
_LARGEST_RECORD = 2**31 - 1  # what protobuf takes
_CHUNK_BYTES = 2**24


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord stores it."""
    crc = kernel.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(stream: BinaryIO, address: str) -> Iterator[tuple[int, bytes]]:
    """Yield each record and where it begins, every byte checked.

    Raises:
        SourceError: the file is damaged, cut short, or not TFRecord.
    """
    position = 0
    while header := stream.read(HEADER_BYTES):
        where = f"{address}: at byte {position:,}"
        if len(header) < HEADER_BYTES:
            raise SourceError(f"{where} {len(header)} bytes instead of a record's head: it is cut short")
        length, crc = struct.unpack("<QI", header)
        if masked_crc32c(header[:8]) != crc:
            raise SourceError(
                f"{where} stands no TFRecord: it is damaged"
                if position
                else f"{address} is not a TFRecord file",
                hint=None if position else "compressed by zlib? decompress it first (gzip is understood)",
            )
        if length > _LARGEST_RECORD:
            raise SourceError(
                f"{where} a record of {length:,} bytes: refused, protobuf ends at {_LARGEST_RECORD:,}"
            )
        data = read_in_pieces(stream, length)
        footer = stream.read(FOOTER_BYTES)
        if len(data) < length or len(footer) < FOOTER_BYTES:
            raise SourceError(
                f"{where} a record of {length:,} bytes, and {len(data):,} are there: it is cut short"
            )
        if masked_crc32c(data) != struct.unpack("<I", footer)[0]:
            raise SourceError(f"{where} a record with a wrong checksum: it is damaged")
        yield position + HEADER_BYTES, data
        position += HEADER_BYTES + length + FOOTER_BYTES


def read_in_pieces(stream: BinaryIO, length: int) -> bytes:
    """Read so many bytes, or what is there: a length that lies costs no more memory than that."""
    if length <= _CHUNK_BYTES:
        return stream.read(length)
    pieces = []
    while length and (piece := stream.read(min(length, _CHUNK_BYTES))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
