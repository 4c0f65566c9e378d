# SPDX-License-Identifier: Apache-2.0
"""TFRecord files of tf.train.Example: written as shards of a pack, and parsed with every bound checked.

A file is records one behind the other, each as length, checksum, bytes, checksum. The bytes of a record are
an Example in the wire format of protocol buffers:

    Example    1: Features
    Features   1: repeated (1: name, 2: Feature)
    Feature    1: BytesList | 2: FloatList | 3: Int64List      each: 1: repeated value, numbers packed

A pack has one Example per sample, a feature per field, named like it, and the feature `key`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from feedrate import kernel
from feedrate.errors import PackError
from feedrate.format.containers import Content, Member, Output, TooLarge
from feedrate.format.fields import Field

BYTES, FLOATS, INTS = 1, 2, 3
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
LARGEST_RECORD = 2**31 - 1  # protocol buffers count in signed 32 bits
_CHUNK_BYTES = 2**24


class TFRecord:
    name = "tfrecord"

    def shard_name(self, number: int) -> str:
        return f"shard-{number:05d}.tfrecord"

    def write(self, output: Output) -> TFRecordWriter:
        return TFRecordWriter(output)

    def member_name(self, key: str, content: Content) -> str:
        return f"{key}.{content.field.name}"

    def dump_number(self, field: Field, value: int | float) -> bytes:
        return pack_int(int(value)) if field.dtype == "int64" else pack_float(value)

    def read_members(
        self, path: str | os.PathLike[str], fields: Sequence[Field], samples: range
    ) -> Iterator[Member]:
        del fields, samples
        with open(path, "rb") as file:
            try:
                for begin, data in read_records(file):
                    yield from _members_of(data, begin)
            except ValueError as error:
                raise PackError(f"{os.path.basename(path)}: {error}") from error


class TFRecordWriter:
    def __init__(self, output: Output) -> None:
        self.output = output

    def add(self, key: str, contents: Sequence[Content]) -> list[int]:
        features = [Feature("key", BYTES, key.encode("ascii")), *map(_as_feature, contents)]
        pieces, starts = dump_example(features)
        size_bytes = sum(map(len, pieces))
        if size_bytes > LARGEST_RECORD:
            raise TooLarge(f"has {size_bytes:,} bytes, and a TFRecord's Example holds at most 2 GB")
        begin = self.output.size_bytes + HEAD.size
        self.output.put(dump_head(size_bytes))
        crc = 0
        for piece in pieces:
            self.output.put(piece)
            crc = kernel.crc32c(piece, crc)
        self.output.put(TAIL.pack(mask_crc(crc)))
        return [begin + start for start in starts[1:]]

    def end(self) -> Mapping[str, object]:
        return {}


def _as_feature(content: Content) -> Feature:
    name, number = content.field.name, content.number
    if number is None:
        return Feature(name, BYTES, content.data)
    if content.field.dtype == "int64":
        return Feature(name, INTS, pack_int(int(number)))
    return Feature(name, FLOATS, pack_float(number))


def _members_of(example: bytes, begin: int) -> Iterator[Member]:
    try:
        (_, start, stop), *others = _find_values(example)
        key = example[start:stop].decode("ascii")
    except ValueError as error:
        raise ValueError(f"the record at byte {begin:,} is not a sample of a pack: {error}") from error
    for name, start, stop in others:
        yield Member(f"{key}.{name}", begin + start, stop - start)


def _find_values(example: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield where the one value of each feature begins and ends."""
    for name, _, start, stop in read_features(example):
        fields = read_fields(example, start, stop)
        found = [(a, b) for number, wire, a, b in fields if number == 1 and wire == DELIMITED]
        if len(found) != 1:
            raise ValueError(f"feature '{name}' has {len(found)} values side by side, not 1")
        yield name, *found[0]


class Feature(NamedTuple):
    """One feature whose value is one range of bytes: a byte string, or packed numbers."""

    name: str
    type: int  # BYTES, FLOATS or INTS
    data: bytes


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


def read_features(example: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Yield each feature's name, the type of its list of values, and the list's bounds; type 0: it has none.

    Raises:
        BadMessage: the bytes are not an Example.
    """
    for number, wire, start, stop in read_fields(example, 0, len(example)):
        if number == 2 and wire == DELIMITED:
            raise BadMessage("it has lists of features, as a SequenceExample has")
        if number != 1 or wire != DELIMITED:
            continue
        for entry, entry_wire, entry_start, entry_stop in read_fields(example, start, stop):
            if entry == 1 and entry_wire == DELIMITED:
                yield _read_feature(example, entry_start, entry_stop)


def _read_feature(example: bytes, start: int, stop: int) -> tuple[str, int, int, int]:
    name, kind, values, feature = "", 0, (stop, stop), (stop, stop)
    for number, wire, a, b in read_fields(example, start, stop):
        if number == 1 and wire == DELIMITED:
            try:
                name = example[a:b].decode("utf-8")
            except UnicodeDecodeError:
                raise BadMessage("a feature's name is not UTF-8") from None
        elif number == 2 and wire == DELIMITED:
            feature = (a, b)
    # Of several lists the last one counts, as in every protobuf message.
    for number, wire, a, b in read_fields(example, *feature):
        if wire == DELIMITED and number in (BYTES, FLOATS, INTS):
            kind, values = number, (a, b)
    return name, kind, *values


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
    """Read so many bytes, or what is there: a length that is costs no more memory than that."""
    if length <= _CHUNK_BYTES:
        return stream.read(length)
    pieces = []
    while length and (piece := stream.read(min(length, _CHUNK_BYTES))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


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


def dump_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
