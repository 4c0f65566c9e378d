# SPDX-License-Identifier: Apache-2.0
"""TFRecord shards: one tf.train.Example per sample, a feature per field, named like it, and `key`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence

from feedrate import kernel
from feedrate.errors import PackError
from feedrate.format.containers.contract import Content, Member, Output, TooLarge
from feedrate.format.containers.example import (
    BYTES,
    FLOATS,
    INTS,
    Feature,
    dump_example,
    find_features,
    pack_float,
    pack_int,
)
from feedrate.format.fields import Field

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_HEAD_BYTES = 12
# Protocol buffers count in signed 32 bits.
_LARGEST_EXAMPLE = 2**31 - 1


def mask_crc(crc32c: int) -> int:
    """Return a checksum as TFRecord stores it: turned and moved, so that checksums of checksums stay good."""
    return ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
        return _read_members(path)


class TFRecordWriter:
    def __init__(self, output: Output) -> None:
        self.output = output

    def add(self, key: str, contents: Sequence[Content]) -> list[int]:
        features = [Feature("key", BYTES, key.encode("ascii")), *map(_as_feature, contents)]
        pieces, starts = dump_example(features)
        size_bytes = sum(map(len, pieces))
        if size_bytes > _LARGEST_EXAMPLE:
            raise TooLarge(f"has {size_bytes:,} bytes, and a TFRecord's Example holds at most 2 GB")
        length = _LENGTH.pack(size_bytes)
        begin = self.output.size_bytes + _HEAD_BYTES
        self.output.put(length + _CRC.pack(mask_crc(kernel.crc32c(length))))
        crc = 0
        for piece in pieces:
            self.output.put(piece)
            crc = kernel.crc32c(piece, crc)
        self.output.put(_CRC.pack(mask_crc(crc)))
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


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a TFRecord file, each with the byte where its data begins.

    Raises:
        PackError: the file is not a TFRecord, or is damaged or cut short.
    """
    name = os.path.basename(path)
    with open(path, "rb") as file:
        size_bytes, at = os.fstat(file.fileno()).st_size, 0
        while at < size_bytes:
            head = file.read(_HEAD_BYTES)
            if len(head) < _HEAD_BYTES:
                raise PackError(f"{name} ends inside the header of a record at byte {at}")
            (length,), (check,) = _LENGTH.unpack_from(head), _CRC.unpack_from(head, 8)
            if mask_crc(kernel.crc32c(head[:8])) != check:
                raise PackError(f"{name} has no record at byte {at}: the checksum of its length is wrong")
            if length > size_bytes - at - _HEAD_BYTES - _CRC.size:
                raise PackError(f"{name} ends inside the record at byte {at}")
            data, tail = file.read(length), file.read(_CRC.size)
            if _CRC.pack(mask_crc(kernel.crc32c(data))) != tail:
                raise PackError(f"{name}: the record at byte {at} is damaged (checksum)")
            yield at + _HEAD_BYTES, data
            at += _HEAD_BYTES + length + _CRC.size


def _read_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    for begin, data in read_records(path):
        try:
            key, *places = find_features(data)
            name = data[key.offset : key.offset + key.size_bytes].decode("ascii")
        except ValueError as error:
            raise PackError(
                f"{os.path.basename(path)}: the record at byte {begin} is not a sample of a pack: {error}"
            ) from error
        for place in places:
            yield Member(f"{name}.{place.name}", begin + place.offset, place.size_bytes)
