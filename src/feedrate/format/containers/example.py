# SPDX-License-Identifier: Apache-2.0
"""tf.train.Example in the wire format of protocol buffers, as much of it as a pack needs.

Example    1: Features
Features   1: repeated (1: name, 2: Feature)
Feature    1: BytesList | 2: FloatList | 3: Int64List      each: 1: repeated value, numbers packed
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from feedrate.format.containers.wire import DELIMITED, dump_varint, read_fields

BYTES, FLOATS, INTS = 1, 2, 3


class Feature(NamedTuple):
    """One feature whose value is one stretch of bytes: a byte string, or packed numbers."""

    name: str
    type: int  # BYTES, FLOATS or INTS
    data: bytes


class Place(NamedTuple):
    """Where a feature's value lies in the bytes of its Example."""

    name: str
    type: int
    offset: int
    size_bytes: int


def pack_int(value: int) -> bytes:
    """Return a packed int64."""
    return dump_varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def pack_float(value: float) -> bytes:
    """Return a packed float: 32 bits, as all that TensorFlow stores."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def dump_example(features: Sequence[Feature]) -> tuple[list[bytes], list[int]]:
    """Return an Example in pieces, values uncopied, and at which byte of it each feature's value begins."""
    pieces: list[bytes] = []
    starts, length = [], 0
    for name, kind, data in features:
        # From the inside out: the value, its list, the feature, the entry of the map.
        value = b"\x0a" + dump_varint(len(data))
        head = bytes([kind << 3 | DELIMITED]) + dump_varint(len(value) + len(data)) + value
        label = name.encode()
        head = b"\x0a" + dump_varint(len(label)) + label + b"\x12" + dump_varint(len(head) + len(data)) + head
        head = b"\x0a" + dump_varint(len(head) + len(data)) + head
        starts.append(length + len(head))
        pieces += [head, data]
        length += len(head) + len(data)
    top = b"\x0a" + dump_varint(length)
    return [top, *pieces], [start + len(top) for start in starts]


def find_features(example: bytes) -> Iterator[Place]:
    """Yield where each feature with exactly one stretch of values lies.

    Raises:
        ValueError: the bytes are not an Example, or a feature has several values side by side.
    """
    for number, start, stop in _fields(example, 0, len(example)):
        if number == 1:
            for inner, a, b in _fields(example, start, stop):
                if inner == 1:
                    yield _find_feature(example, a, b)


def _find_feature(example: bytes, start: int, stop: int) -> Place:
    name, feature = "", (stop, stop)
    for number, a, b in _fields(example, start, stop):
        if number == 1:
            name = example[a:b].decode("utf-8")
        elif number == 2:
            feature = (a, b)
    kind, values = 0, (stop, stop)
    for number, a, b in _fields(example, *feature):
        kind, values = number, (a, b)
    found = [(a, b) for number, a, b in _fields(example, *values) if number == 1]
    if len(found) != 1:
        raise ValueError(f"feature '{name}' has {len(found)} values side by side, not 1")
    return Place(name, kind, found[0][0], found[0][1] - found[0][0])


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the length-delimited fields of a message as (number, start, stop); others are passed over."""
    for number, wire, a, b in read_fields(data, start, end):
        if wire == DELIMITED:
            yield number, a, b
