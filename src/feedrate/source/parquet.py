# SPDX-License-Identifier: Apache-2.0
"""Parquet files with images in them, as on the Hugging Face Hub; read once, batch by batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedrate.errors import FeedrateError, SourceError, need
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.labels import NumberColumn
from feedrate.source.names import image_suffix, is_label_name, is_mask_name, name_fields, record_name
from feedrate.source.record import Record, Value
from feedrate.source.spool import Spool, SpooledReader
from feedrate.source.values import UnusableValue, dump_array
from feedrate.units import printable

_BATCH_ROWS = 64
_PEEK_ROWS = 20


@dataclass(frozen=True, slots=True)
class Column:
    """`form` is how a cell becomes a value: "number", "text", "file" (bytes), "array" or "json"."""

    name: str
    kind: Kind
    form: str
    classes: tuple[str, ...] | None = None


class ParquetReader(SpooledReader):
    """A sample per row. Images are structs of bytes and path, or binary columns that begin like images.

    Raises, when iterated:
        SourceError: a file is damaged, has other columns than the first, or holds no images.
    """

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool) -> None:
        self.root = place.root
        self.ignored: dict[str, int] = {}
        self._place, self._files, self._spool = place, files, spool
        self._columns: dict[str, Column] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[str, NumberColumn] = {}

    def _read(self) -> Iterator[Record | Rejection]:
        pa = need("pyarrow")
        parquet = need("pyarrow.parquet")

        others: Counter[str] = Counter()
        schema = None
        for file in self._files:
            address = self._place.address(file.path)
            try:
                with self._place.open(file.path) as stream, parquet.ParquetFile(stream) as opened:
                    if schema is None:
                        schema = opened.schema_arrow
                        self._choose_fields(opened, address)
                    elif not schema.equals(opened.schema_arrow):
                        raise SourceError(
                            f"{address} has other columns than {self._place.address(self._files[0].path)}",
                            hint="pack each by itself",
                        )
                    others.update(f"column {name}" for name in schema.names if name not in self._names)
                    yield from self._read_rows(opened, file)
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, FeedrateError):
                    raise
                raise SourceError(f"{address} cannot be read as Parquet: {error}") from error
        self.ignored = dict(sorted(others.items()))

    def fields(self) -> tuple[Field, ...]:
        return tuple(
            self._numbers[name].field()
            if name in self._numbers
            else Field(field, self._columns[name].kind, classes=self._columns[name].classes)
            for name, field in self._names.items()
        )

    def _read_rows(self, opened: Any, file: PlacedFile) -> Iterator[Record | Rejection]:
        number = 0
        for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=list(self._names)):
            columns = {name: batch.column(name) for name in self._names}
            for row in range(batch.num_rows):
                yield self._read_row(record_name(file.path, number), {n: c[row] for n, c in columns.items()})
                number += 1

    def _read_row(self, name: bytes, cells: dict[str, Any]) -> Record | Rejection:
        values: dict[str, Value] = {}
        field = ""
        try:
            for column_name, field in self._names.items():
                column = self._columns[column_name]
                path = name + (b"" if field == "image" else b"." + field.encode())
                values[field] = self._read_cell(column, cells[column_name].as_py(), path)
        except (UnusableValue, ValueError) as error:
            return Rejection(printable(name), field, str(error))
        return Record(name, values)

    def _read_cell(self, column: Column, cell: Any, path: bytes) -> Value:
        if column.form == "number":
            if cell is None:
                raise UnusableValue(f"the row has no '{column.name}'")
            return self._numbers[column.name].add(int(cell) if isinstance(cell, bool) else cell)
        if column.form == "text":
            return self._spool.keep(
                path + b".txt", ("" if cell is None else str(cell)).encode("utf-8", "replace")
            )
        if column.form == "array":
            array = (
                _multi_hot(column.classes, cell)
                if column.classes
                else np.asarray(cell if cell is not None else [])
            )
            return self._spool.keep(path + b".npy", dump_array(array))
        if column.form == "json":
            return self._spool.keep(
                path + b".json", json.dumps(cell, ensure_ascii=False, default=str).encode()
            )
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if data is None:
            elsewhere = cell.get("path") if isinstance(cell, dict) else None
            raise UnusableValue(
                "the row has no image" + (f", only its path '{elsewhere}'" if elsewhere else "")
            )
        suffix = image_suffix(data) if column.kind is not Kind.BYTES else "bin"
        return self._spool.add(path + b"." + (suffix or "bin").encode(), data)

    def _choose_fields(self, opened: Any, address: str) -> None:
        features = _features(opened.schema_arrow.metadata or {})
        head = next(opened.iter_batches(batch_size=_PEEK_ROWS), None)
        if head is None or not head.num_rows:
            raise SourceError(f"{address} has no rows")
        self._columns = {}
        for name in opened.schema_arrow.names:
            feature = features.get(name)
            column = _column_of(name, head.column(name), feature if isinstance(feature, dict) else {})
            if (
                column is not None
                and column.kind is Kind.NUMBER
                and not is_label_name(name)
                and _nulls(opened, name)
            ):
                column = Column(name, Kind.JSON, "json")  # where null is a value
            if column is not None:
                self._columns[name] = column
        if not any(c.kind is Kind.NUMBER and is_label_name(n) for n, c in self._columns.items()):
            for name, column in self._columns.items():
                if column.form == "text" and is_label_name(name):
                    self._columns[name] = Column(name, Kind.NUMBER, "number")
        if not any(column.form == "file" for column in self._columns.values()):
            raise SourceError(
                f"{address} has no column of images: {', '.join(opened.schema_arrow.names)[:200]}",
                hint="a table that names files goes beside them: feedrate pack FOLDER PACK --labels TABLE",
            )
        names = name_fields({name: column.kind for name, column in self._columns.items()})
        order = sorted(names, key=lambda name: (names[name] != "image", names[name] != "label"))
        self._names = {name: names[name] for name in order}
        self._numbers = {
            name: NumberColumn(field, self._columns[name].classes)
            for name, field in self._names.items()
            if self._columns[name].kind is Kind.NUMBER
        }


def _column_of(name: str, head: Any, feature: dict[str, Any]) -> Column | None:
    types = need("pyarrow.types")

    kind = head.type
    if types.is_struct(kind) and any(kind.field(i).name == "bytes" for i in range(kind.num_fields)):
        return Column(name, Kind.MASK if is_mask_name(name) else Kind.IMAGE, "file")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        values = [cell.as_py() for cell in head if cell.is_valid]
        are_images = bool(values) and all(image_suffix(value) for value in values)
        return Column(
            name, (Kind.MASK if is_mask_name(name) else Kind.IMAGE) if are_images else Kind.BYTES, "file"
        )
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Column(name, Kind.NUMBER, "number", _classes(feature))
    if types.is_dictionary(kind):
        kind = kind.value_type
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_temporal(kind)
        or types.is_decimal(kind)
    ):
        return Column(name, Kind.TEXT, "text")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = feature.get("feature")
        classes = _classes(inner) if isinstance(inner, dict) else None
        element = kind.value_type
        if types.is_integer(element) or types.is_floating(element) or types.is_boolean(element):
            return Column(name, Kind.ARRAY, "array", classes)
    return None if types.is_null(kind) else Column(name, Kind.JSON, "json")


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return what the Hub's own metadata tell about the columns; nothing where there are none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _classes(feature: dict[str, Any]) -> tuple[str, ...] | None:
    names = feature.get("names")
    if feature.get("_type") != "ClassLabel" or not isinstance(names, list) or not names:
        return None
    return tuple(str(name) for name in names)


def _multi_hot(classes: tuple[str, ...], cell: Any) -> np.ndarray:
    """Return 1 at the classes that a sample has."""
    hot = np.zeros(len(classes), np.uint8)
    for number in cell or ():
        if not isinstance(number, int) or not 0 <= number < len(classes):
            raise UnusableValue(f"has class {number}, and there are {len(classes):,}")
        hot[number] = 1
    return hot


def _nulls(opened: Any, name: str) -> bool:
    metadata = opened.metadata
    index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name), None)
    if index is None:
        return True
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(index).statistics
        if statistics is None or statistics.null_count:
            return True
    return False
