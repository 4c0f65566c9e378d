# SPDX-License-Identifier: Apache-2.0
"""The wire format of protocol buffers: fields of a message as stretches of its bytes, every bound checked."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


class BadMessage(ValueError):
    """Says what is wrong with the bytes."""


def read_fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and start and end of the value, of each field of a message.

    Raises:
        BadMessage: the bytes are no message.
    """
    while start < end:
        tag, start = _read_varint(data, start, end)
        wire = tag & 7
        if wire == VARINT:
            _, stop = _read_varint(data, start, end)
        elif wire == DELIMITED:
            length, start = _read_varint(data, start, end)
            stop = start + length
        elif wire in (FIXED32, FIXED64):
            stop = start + (4 if wire == FIXED32 else 8)
        else:
            raise BadMessage(f"a field of the unknown wire type {wire}")
        if stop > end:
            raise BadMessage(f"a field of {stop - start:,} bytes where {end - start:,} are left")
        if not tag >> 3:
            raise BadMessage("a field with the number 0")
        yield tag >> 3, wire, start, stop
        start = stop


def dump_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while start < end:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
        if shift > 63:
            break
    raise BadMessage("a number that does not end")
