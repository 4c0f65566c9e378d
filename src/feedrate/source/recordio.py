# SPDX-License-Identifier: Apache-2.0
"""MXNet's RecordIO of images: records with a label in front of each image's file."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.containers.tfrecord import read_in_pieces
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.columns import NumberColumn
from feedrate.source.detect import RECORDIO_MAGIC
from feedrate.source.names import image_suffix, record_name
from feedrate.source.record import FileRange, Record, Spool, SpooledReader, Value
from feedrate.source.values import dump_array
from feedrate.units import printable

_HEAD = struct.Struct("<II")
_IMAGE_HEAD = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LARGEST_RECORD = 2**31
_HINT = "RecordIO files of images, as MXNet's im2rec makes them, can be packed"


@dataclass(frozen=True, slots=True)
class RawRecord:
    """`start` is where its bytes are in the file; None: they are in several pieces."""

    position: int
    start: int | None
    data: bytes


class ImageRecordReader(SpooledReader):
    """A sample per record with an image; one label is a number, several are an array, `labels`.

    Raises, when iterated:
        SourceError: a file is damaged, or its records hold no images.
    """

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool) -> None:
        super().__init__(place, files, spool)
        self._label = NumberColumn("label")
        self._are_several = False

    def _read(self) -> Iterator[Record | Rejection]:
        self._label = NumberColumn("label")
        others: Counter[str] = Counter()
        samples = 0
        for file in self.files:
            address = self._place.address(file.path)
            with self._place.open(file.path) as stream:
                for number, raw in enumerate(read_records(stream, address)):
                    labels, start = _parse_head(raw, address)
                    if start == len(raw.data):
                        others["record without an image"] += 1
                        continue
                    if not samples:
                        self._are_several = labels.size > 1
                    samples += 1
                    yield self._read_record(file, record_name(file.path, number), raw, (labels, start))
        if not samples:
            raise SourceError(f"no images in {self._place.address(self.files[0].path)}")
        self.ignored = dict(others)

    def fields(self) -> tuple[Field, ...]:
        label = Field("labels", Kind.ARRAY) if self._are_several else self._label.field()
        return Field("image", Kind.IMAGE), label

    def _read_record(
        self, file: PlacedFile, name: bytes, raw: RawRecord, parsed: tuple[np.ndarray, int]
    ) -> Record | Rejection:
        labels, start = parsed
        suffix = image_suffix(raw.data[start : start + 16])
        if suffix is None:
            return Rejection(printable(name), "image", "the record holds no image that begins like one")
        path = name + b"." + suffix.encode()
        if raw.start is None:
            image: Value = self._spool.add(path, raw.data[start:], file.mtime_ns)
        else:
            image = FileRange(path, len(raw.data) - start, file.path, raw.start + start, file.mtime_ns)
        if self._are_several:
            kept = self._spool.keep(name + b".labels.npy", dump_array(labels))
            return Record(name, {"image": image, "labels": kept})
        if labels.size != 1:
            return Rejection(printable(name), "label", f"has {labels.size} labels, the first record had one")
        label = labels[0].item()
        try:
            number = self._label.add(int(label) if label.is_integer() else label)
        except ValueError as error:
            return Rejection(printable(name), "label", str(error))
        return Record(name, {"image": image, "label": number})


def _parse_head(raw: RawRecord, address: str) -> tuple[np.ndarray, int]:
    """Return the labels, and where the image's file begins."""
    if len(raw.data) < _IMAGE_HEAD.size:
        raise SourceError(
            f"{address}: the record at byte {raw.position:,} is too short for an image's head",
            hint=_HINT,
        )
    count, label, _, _ = _IMAGE_HEAD.unpack_from(raw.data)
    start = _IMAGE_HEAD.size + 4 * count
    if start > len(raw.data):
        raise SourceError(
            f"{address}: a record of {len(raw.data):,} bytes with {count:,} labels, at byte {raw.position:,}",
            hint=_HINT,
        )
    if not count:
        return np.array([label], np.float32), start
    return np.frombuffer(raw.data, "<f4", count, _IMAGE_HEAD.size), start


def read_records(stream: BinaryIO, address: str) -> Iterator[RawRecord]:
    """Yield the records of a file. A record that contains the magic number is stored in pieces, cut there.

    Raises:
        SourceError: the file is damaged, cut short, or not RecordIO.
    """
    position = begun = 0
    pieces: list[bytes] = []
    while head := stream.read(_HEAD.size):
        where = f"{address}: at byte {position:,}"
        if len(head) < _HEAD.size:
            raise SourceError(f"{where} {len(head)} bytes instead of a record's head: it is cut short")
        if head[:4] != RECORDIO_MAGIC:
            raise SourceError(
                f"{where} stands no record: it is damaged"
                if position
                else f"{address} is not a RecordIO file"
            )
        word = _HEAD.unpack(head)[1]
        part, length = word >> 29, word & (2**29 - 1)
        data = read_in_pieces(stream, length + -length % 4)
        if len(data) < length:
            raise SourceError(
                f"{where} a record of {length:,} bytes, and {len(data):,} are there: it is cut short"
            )
        if (part in (_WHOLE, _FIRST)) != (not pieces) or part > _LAST:
            raise SourceError(
                f"{where} a piece of a record that does not follow the one before: it is damaged"
            )
        begun = begun if pieces else position
        if part == _WHOLE:
            yield RawRecord(position, position + _HEAD.size, data[:length])
        else:
            pieces.append(data[:length])
            if sum(map(len, pieces)) > _LARGEST_RECORD:
                raise SourceError(f"{where} a record of more than {_LARGEST_RECORD:,} bytes: refused")
            if part == _LAST:
                yield RawRecord(begun, None, RECORDIO_MAGIC.join(pieces))
                pieces = []
        position += _HEAD.size + len(data)
    if pieces:
        raise SourceError(f"{address} ends inside a record: it is cut short")
