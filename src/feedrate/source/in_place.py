# SPDX-License-Identifier: Apache-2.0
"""Records whose values all lie in files as they are, so that an index of them is enough.

Values that do not (a list of numbers in an Example, a deflated member) are left out, field by field. Rows of
contiguous HDF5 datasets do, although a reader would hand them out one by one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place
from feedrate.source.hdf5 import open_hdf5
from feedrate.source.record import ContainerValue, FileRange, Reader, Record, Value
from feedrate.units import printable


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
            hint="it can be packed: feedrate pack SOURCE PACK",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
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
        if rows is None or not self._is_alike(field, rows):
            return None
        offset = rows.offset + row * rows.row_bytes
        return FileRange(value.path, rows.row_bytes, value.file, offset, value.mtime_ns)

    def _is_alike(self, field: str, rows: _Rows) -> bool:
        before = self._of_field.setdefault(field, rows)
        return (before.dtype, before.shape) == (rows.dtype, rows.shape)

    def describe(self, field: Field) -> Field:
        """Return a field as its values lie in the file: bare, so that type and shape must be the field's."""
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


def home_of(record: Record) -> bytes | None:
    """Return the one file that holds a record's values; None: each of them is a file.

    Raises:
        SourceError: they lie in several files, and not each in its own.
    """
    stored = [value for value in record.values.values() if isinstance(value, FileRange)]
    if all(value.file == value.path and not value.offset for value in stored):
        return None
    files = {value.file for value in stored}
    if len(files) > 1:
        names = ", ".join(sorted(printable(os.path.basename(file)) for file in files))
        raise SourceError(f"'{printable(record.name)}' lies in several files ({names}): it cannot be indexed")
    return files.pop()
