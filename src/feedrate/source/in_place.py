# SPDX-License-Identifier: Apache-2.0
"""Records whose values all are in files as they are, so that an index of them is enough.

Values that do not (a list of numbers in an Example, a deflated member) are left out, field by field. Rows of
contiguous HDF5 datasets do, although a reader would hand them out one by one. Shards behind an address are
read one by one, each by itself, once all agree on their fields.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import SourceError, UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.manifest import find_address_problem
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.remote.retry import OPENING, Outage, Retry
from feedrate.source.archives import Archive, strip_suffix
from feedrate.source.detect import SourceKind, is_compressed
from feedrate.source.hdf5 import open_hdf5
from feedrate.source.opening import open_reader
from feedrate.source.options import SourceOptions
from feedrate.source.record import ContainerValue, FileRange, Reader, Record, Spool, Value
from feedrate.source.tfrecord import ExampleReader
from feedrate.source.webdataset import ShardReader
from feedrate.units import printable

_PACK_IT = "it can be packed: feedrate pack SOURCE PACK"


class InPlace:
    """Iterates over a reader's records; `fields` is whole afterwards.

    Attributes:
        left_out: field -> why its values cannot be found in place.

    Raises, when iterated:
        SourceError: images cannot be found in place.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.left_out: dict[str, str] = {}
        self._rows = _RowsInPlace(reader.root)

    def __iter__(self) -> Iterator[Record | Rejection]:
        try:
            for record in self.reader:
                yield record if isinstance(record, Rejection) else self._place(record)
        finally:
            self._rows.close()

    def fields(self) -> tuple[Field, ...]:
        numbers = {f.name for f in self.reader.fields() if f.kind is Kind.NUMBER}
        self.left_out = {name: why for name, why in self.left_out.items() if name not in numbers}
        for field in self.reader.fields():
            if field.has_pixels and field.name in self.left_out:
                raise self._refuse(field.name)
        return tuple(self._rows.describe(f) for f in self.reader.fields() if f.name not in self.left_out)

    def _place(self, record: Record) -> Record:
        values: dict[str, Value] = {}
        for name, value in record.values.items():
            if isinstance(value, ContainerValue):
                placed = self._rows.find(name, value) if value.container == "hdf5" else None
                if placed is None:
                    self.left_out.setdefault(name, f"compressed, or made of a {value.container} file")
                    if name == "image":
                        raise self._refuse(name)
                    continue
                values[name] = placed
                continue
            if isinstance(value, (bytes, str)):
                # A word may still turn out to be a class: what kind the field is, only the end says.
                self.left_out.setdefault(name, "not stored as a file")
            values[name] = value
        return Record(record.name, values)

    def _refuse(self, name: str) -> SourceError:
        return SourceError(
            f"field '{name}' of {self.reader.root} does not lie there as it is: {self.left_out[name]}",
            hint=_PACK_IT,
        )


def home_of(record: Record) -> bytes | None:
    """Return the one file that holds a record's values; None: each of them is a file.

    Raises:
        SourceError: they are in several files, and not each in its own.
    """
    stored = [value for value in record.values.values() if isinstance(value, FileRange)]
    if all(value.file == value.path and not value.offset for value in stored):
        return None
    files = {value.file for value in stored}
    if len(files) > 1:
        names = ", ".join(sorted(printable(os.path.basename(file)) for file in files))
        raise SourceError(f"'{printable(record.name)}' lies in several files ({names}): it cannot be indexed")
    return files.pop()


class _Rows(NamedTuple):
    """A contiguous dataset: where its rows begin, and what they are."""

    offset: int
    row_bytes: int
    dtype: str
    shape: tuple[int, ...]


class _RowsInPlace:
    """Finds rows of contiguous HDF5 datasets in their files."""

    def __init__(self, root: str) -> None:
        self._place = Place(root)
        self._opened: tuple[bytes, Any] | None = None
        self._known: dict[str, _Rows | None] = {}
        self._of_field: dict[str, _Rows] = {}

    def find(self, field: str, value: ContainerValue) -> FileRange | None:
        dataset, row, form = str(value.place[0]), int(value.place[1]), value.place[2]
        if self._opened is None or self._opened[0] != value.file:
            self.close()
            self._opened = (value.file, open_hdf5(self._place, value.file))
        if dataset not in self._known:
            self._known[dataset] = _look_at(self._opened[1][dataset], str(form))
        rows = self._known[dataset]
        if rows is None:
            return None
        before = self._of_field.setdefault(field, rows)
        if (before.dtype, before.shape) != (rows.dtype, rows.shape):
            return None
        offset = rows.offset + row * rows.row_bytes
        return FileRange(value.path, rows.row_bytes, value.file, offset, value.mtime_ns)

    def describe(self, field: Field) -> Field:
        """Return a field as its values are in the file: bare, so that type and shape must be the field's."""
        rows = self._of_field.get(field.name)
        if rows is None:
            return field
        dtype = np.dtype(rows.dtype)
        if field.kind is Kind.IMAGE:
            return dataclasses.replace(field, coding=Coding.RAW, shape=rows.shape[:2])
        name = dtype.name if dtype.isnative else dtype.str
        return dataclasses.replace(field, coding=Coding.RAW, dtype=name, shape=rows.shape)

    def close(self) -> None:
        self._known = {}
        if self._opened is not None:
            _, file = self._opened
            self._opened = None
            file.close()


def _look_at(dataset: Any, form: str) -> _Rows | None:
    offset = None if dataset.chunks is not None else dataset.id.get_offset()
    shape = tuple(int(n) for n in dataset.shape[1:])
    if offset is None or form not in ("pixels", "array") or dataset.compression is not None:
        return None
    if form == "pixels":
        shape = shape[:2] if len(shape) == 3 and shape[2] == 1 else shape
        if len(shape) == 3 and shape[2] != 3:
            return None  # channels first, or with transparency: rows that the kernel does not read
    row_bytes = int(dataset.dtype.itemsize * np.prod(shape, dtype=object))
    return _Rows(int(offset), row_bytes, dataset.dtype.str, shape) if row_bytes else None


@dataclass(frozen=True, slots=True)
class Shards:
    """What one address names: small and picklable.

    Attributes:
        root: the address that the files are relative to.
        is_tar: WebDataset's tars; else TFRecord files.
        chosen: what the reader of that kind chose as fields.
        is_single: there is one shard alone, so that its name need not tell it from others.
    """

    root: str
    files: tuple[PlacedFile, ...]
    is_tar: bool
    chosen: Mapping[str, Any]
    is_single: bool

    def pick(self, number: int) -> Shards:
        """Return one of them, which is still one of many."""
        return dataclasses.replace(self, files=(self.files[number],))

    def address(self, file: PlacedFile) -> str:
        return f"{self.root.rstrip('/')}/{os.fsdecode(file.path)}"

    def top(self, file: PlacedFile) -> bytes:
        """Return what is put in front of a tar's keys, to tell shards apart."""
        return b"" if self.is_single else strip_suffix(file.path) + b"/"

    def open(self, place: Place, file: PlacedFile, spool: Spool) -> Reader:
        """Return the reader of one shard, which is in `place` now."""
        if self.is_tar:
            archive = Archive(place, file, spool, SourceKind.TAR, self.top(file))
            return ShardReader(place, [archive], spool, self.chosen)
        return ExampleReader(place, [file], spool, self.chosen)


def find_shards(source: str, options: SourceOptions) -> Shards:
    """Look at an address, and at the first samples there.

    Raises:
        NotFound: there is nothing of that name.
        UsageError: the address holds a secret, or is one that pack.json cannot have.
        SourceError: what is there cannot be indexed from afar.
        StorageError: it does not answer.
    """
    check_secrets(source)
    if options != SourceOptions():
        raise UsageError("--labels goes with a folder of images on this machine", hint=_PACK_IT)
    return Retry(Outage(source, OPENING), source).run(lambda: _look(source))


def check_secrets(source: str) -> None:
    """Refuse an address that must not be written down; the sentence does not repeat what is secret."""
    scheme, _, rest = source.partition("://")
    host = rest.partition("/")[0]
    shown = f"{scheme}://{host.rpartition('@')[2]}/..."
    if ":" in host.rpartition("@")[0]:
        raise UsageError(
            f"the address {shown} has a password in it, and pack.json would keep it",
            hint="leave it out, and give it to fsspec: in its configuration or the environment",
        )
    if scheme.lower() in ("http", "https") and ("?" in rest or "#" in rest):
        raise UsageError(
            f"the address {shown} has a query behind '?', as signed addresses have; they end, and "
            "pack.json would keep it",
            hint="use an address without one (s3:// and its credentials), or pack it: feedrate pack",
        )
    if "::" in source:
        raise UsageError(f"{source} lies inside of another file: it cannot be indexed there", hint=_PACK_IT)


def _look(source: str) -> Shards:
    reader = open_reader(source)
    if not isinstance(reader, (ShardReader, ExampleReader)):
        raise SourceError(
            f"{source} holds neither WebDataset shards nor TFRecord files: only these are indexed where they"
            " lie behind an address",
            hint=_PACK_IT,
        )
    place, files = Place(reader.root), reader.files
    is_tar = isinstance(reader, ShardReader)
    if is_compressed(place.read(files[0].path, 0, 2)):
        raise SourceError(
            f"{place.address(files[0].path)} is compressed: samples do not lie there as they are",
            hint=_PACK_IT,
        )
    shards = Shards(reader.root, tuple(files), is_tar, dict(reader.choose()), len(files) == 1)
    for file in files:
        folder = shards.address(file).rpartition("/")[0]
        problem = find_address_problem(folder)
        if problem is not None:
            raise UsageError(f"cannot index shards in {folder}: the address {problem}", hint=_PACK_IT)
    tops = {shards.top(file) for file in files}
    if is_tar and len(tops) < len(files):
        raise SourceError(
            f"two shards in {reader.root} differ only in their suffix", hint="rename one of them"
        )
    return shards
