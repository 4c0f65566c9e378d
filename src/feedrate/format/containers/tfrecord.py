# SPDX-License-Identifier: Apache-2.0
"""TFRecord shards: one tf.train.Example per sample, a feature per field, named like it, and `key`."""

from __future__ import annotations

import os
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
from feedrate.format.containers.records import (
    HEAD,
    LARGEST_RECORD,
    TAIL,
    dump_head,
    mask_crc,
    read_records,
)
from feedrate.format.fields import Field


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


def _read_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    name = os.path.basename(path)
    with open(path, "rb") as file:
        try:
            for begin, data in read_records(file):
                yield from _members_of(data, begin)
        except ValueError as error:
            raise PackError(f"{name}: {error}") from error


def _members_of(example: bytes, begin: int) -> Iterator[Member]:
    try:
        key, *places = find_features(example)
        name = example[key.offset : key.offset + key.size_bytes].decode("ascii")
    except ValueError as error:
        raise ValueError(f"the record at byte {begin:,} is not a sample of a pack: {error}") from error
    for place in places:
        yield Member(f"{name}.{place.name}", begin + place.offset, place.size_bytes)
