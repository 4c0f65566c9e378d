# SPDX-License-Identifier: Apache-2.0
"""Parquet files with images in them, as on the Hugging Face Hub; read once, batch by batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from feedrate.errors import FeedrateError, SourceError, need
from feedrate.format.fields import Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import PlacedFile
from feedrate.source.columns import ColumnReader, Columns, find_word_labels
from feedrate.source.names import image_suffix, is_label_name, is_mask_name, record_name
from feedrate.source.record import Record, UnusableValue, Value, dump_array

_BATCH_ROWS = 64
_PEEK_ROWS = 20
_FILE_KINDS = (Kind.IMAGE, Kind.MASK, Kind.BYTES)
Classes = tuple[str, ...] | None


class ParquetReader(ColumnReader):
    """A sample per row. Images are structs of bytes and path, or binary columns that begin like images.

    Raises, when iterated:
        SourceError: a file is damaged, has other columns than the first, or holds no images.
    """

    def _read(self) -> Iterator[Record | Rejection]:
        pa = need("pyarrow")
        parquet = need("pyarrow.parquet")

        others: Counter[str] = Counter()
        schema = None
        for file in self.files:
            address = self._place.address(file.path)
            try:
                with self._place.open(file.path) as stream, parquet.ParquetFile(stream) as opened:
                    if schema is None:
                        schema = opened.schema_arrow
                        self._columns = _choose_columns(opened, address)
                    elif not schema.equals(opened.schema_arrow):
                        raise SourceError(
                            f"{address} has other columns than {self._place.address(self.files[0].path)}",
                            hint="pack each by itself",
                        )
                    names = self._columns.names
                    others.update(f"column {name}" for name in schema.names if name not in names)
                    yield from self._read_rows(opened, file)
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, FeedrateError):
                    raise
                raise SourceError(f"{address} cannot be read as Parquet: {error}") from error
        self.ignored = dict(sorted(others.items()))

    def _read_rows(self, opened: Any, file: PlacedFile) -> Iterator[Record | Rejection]:
        number = 0
        for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=list(self._columns.names)):
            columns = {name: batch.column(name) for name in self._columns.names}
            for row in range(batch.num_rows):
                cells = {name: column[row] for name, column in columns.items()}
                yield self._read_row(record_name(file.path, number), cells)
                number += 1

    def _read_row(self, name: bytes, cells: dict[str, Any]) -> Record | Rejection:
        return self._columns.read(
            name, lambda column, path: self._read_cell(column, cells[column].as_py(), path)
        )

    def _read_cell(self, column: str, cell: Any, path: bytes) -> Value:
        kind, classes = self._columns.kinds[column], self._columns.classes[column]
        if kind is Kind.NUMBER:
            if cell is None:
                raise UnusableValue(f"the row has no '{column}'", "incomplete")
            return self._columns.numbers[column].add(int(cell) if isinstance(cell, bool) else cell)
        if kind is Kind.TEXT:
            text = "" if cell is None else str(cell)
            return self._spool.keep(path + b".txt", text.encode("utf-8", "replace"))
        if kind is Kind.ARRAY:
            array = _multi_hot(classes, cell) if classes else np.asarray([] if cell is None else cell)
            return self._spool.keep(path + b".npy", dump_array(array))
        if kind is Kind.JSON:
            text = json.dumps(cell, ensure_ascii=False, default=str)
            return self._spool.keep(path + b".json", text.encode())
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if data is None:
            image_path = cell.get("path") if isinstance(cell, dict) else None
            only = f", only its path '{image_path}'" if image_path else ""
            raise UnusableValue(f"the row has no image{only}", "incomplete")
        suffix = image_suffix(data) if kind is not Kind.BYTES else "bin"
        return self._spool.add(path + b"." + (suffix or "bin").encode(), data)


def _choose_columns(opened: Any, address: str) -> Columns:
    names = opened.schema_arrow.names
    features = _features(opened.schema_arrow.metadata or {})
    head = next(opened.iter_batches(batch_size=_PEEK_ROWS), None)
    if head is None or not head.num_rows:
        raise SourceError(f"{address} has no rows")
    kinds: dict[str, Kind] = {}
    classes: dict[str, Classes] = {}
    for name in names:
        feature = features.get(name)
        found = _kind_of(name, head.column(name), feature if isinstance(feature, dict) else {})
        if found is not None:
            kinds[name], classes[name] = found
        if kinds.get(name) is Kind.NUMBER and not is_label_name(name) and _has_nulls(opened, name):
            kinds[name], classes[name] = Kind.JSON, None  # where null is a value
    kinds |= dict.fromkeys(find_word_labels(kinds), Kind.NUMBER)
    if not any(kind in _FILE_KINDS for kind in kinds.values()):
        raise SourceError(
            f"{address} has no column of images: {', '.join(names)[:200]}",
            hint="a table that names files goes beside them: feedrate pack FOLDER PACK --labels TABLE",
        )
    return Columns(kinds, classes=classes)


def _kind_of(name: str, head: Any, feature: dict[str, Any]) -> tuple[Kind, Classes] | None:
    """Return what field a column makes, and the names of its classes; None: it makes none."""
    types = need("pyarrow.types")

    kind = head.type
    image = Kind.MASK if is_mask_name(name) else Kind.IMAGE
    if types.is_struct(kind) and any(kind.field(i).name == "bytes" for i in range(kind.num_fields)):
        return image, None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        values = [cell.as_py() for cell in head if cell.is_valid]
        return image if values and all(image_suffix(value) for value in values) else Kind.BYTES, None
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Kind.NUMBER, _classes(feature)
    if types.is_dictionary(kind):
        kind = kind.value_type
    texts = (types.is_string, types.is_large_string, types.is_temporal, types.is_decimal)
    if any(is_text(kind) for is_text in texts):
        return Kind.TEXT, None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner, element = feature.get("feature"), kind.value_type
        if types.is_integer(element) or types.is_floating(element) or types.is_boolean(element):
            return Kind.ARRAY, _classes(inner) if isinstance(inner, dict) else None
    return None if types.is_null(kind) else (Kind.JSON, None)


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return what the Hub's own metadata tell about the columns; nothing where there are none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _classes(feature: dict[str, Any]) -> Classes:
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


def _has_nulls(opened: Any, name: str) -> bool:
    metadata = opened.metadata
    index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name), None)
    if index is None:
        return True
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(index).statistics
        if statistics is None or statistics.null_count:
            return True
    return False
