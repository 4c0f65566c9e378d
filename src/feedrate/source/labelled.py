# SPDX-License-Identifier: Apache-2.0
"""A folder of any files, and a table whose rows say which of them belong together, with which label."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import file_suffix, has_image_suffix, printable
from feedrate.results import Rejection
from feedrate.source.options import FieldSpec, SourceOptions
from feedrate.source.record import Reader, Record, Stored, Value
from feedrate.source.remote import walk
from feedrate.source.table import Table, is_missing, read_numbers, read_table
from feedrate.source.values import UnusableValue, dump_value
from feedrate.source.walk import Walk

FILE_KINDS = frozenset((Kind.IMAGE, Kind.MASK, Kind.ARRAY, Kind.BYTES))
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image")
LABEL_COLUMNS = ("label", "class", "target")


class LabelledFolder(Reader):
    """A sample per row of the table; what a row names that is not there, or not usable, rejects the row.

    Raises, when it is made or iterated:
        NotFound: there is no such folder or table.
        SourceError: the table has not the columns that are needed, or names no file that is there.
    """

    def __init__(self, root: str, options: SourceOptions) -> None:
        assert options.labels is not None
        self.root = root
        self.table: Table = read_table(options.labels)
        self.ignored: dict[str, int] = {}
        self._walk = walk(root)
        self._columns = _pick_columns(self.table, options)

    def fields(self) -> tuple[Field, ...]:
        return tuple(column.field for column in self._columns)

    def __iter__(self) -> Iterator[Record | Rejection]:
        finder = _Finder(self._walk)
        names = self._columns[0].values
        if not any(finder.find(name) for name in names):
            files = sorted(finder.files, key=lambda path: not has_image_suffix(path))
            example = f"{self.root} holds '{printable(files[0])}'" if files else "the folder is empty"
            raise SourceError(
                f"none of the files that {self.table.path} names is in {self.root}: "
                f"the table says '{names[0]}', {example}",
                hint="names in the table are relative to the folder: pack the folder that they start from",
            )
        first_row: dict[bytes, int] = {}
        for number, cells in enumerate(zip(*(column.values for column in self._columns), strict=True)):
            yield self._read_row(number, cells, finder, first_row)
        table_path = finder.relative(str(self.table.path.resolve()))
        rest = [path for path in finder.files if path not in finder.asked]
        self.unlisted = sum(has_image_suffix(path) for path in rest)
        ignored = (path for path in rest if not has_image_suffix(path) and path != table_path)
        self.ignored = dict(sorted(Counter(file_suffix(path) for path in ignored).items()))

    def _read_row(
        self, number: int, cells: tuple[object, ...], finder: _Finder, first_row: dict[bytes, int]
    ) -> Record | Rejection:
        name = finder.relative(cells[0]) or str(cells[0]).encode("utf-8", "surrogateescape")
        values: dict[str, Value] = {}
        field = self._columns[0].field
        try:
            for column, cell in zip(self._columns, cells, strict=True):
                field = column.field
                values[field.name] = _read_cell(field, cell, finder)
        except UnusableValue as error:
            return Rejection(printable(name), field.name, str(error))
        first = first_row.setdefault(name, number)
        if first != number:
            reason = f"row {number + 1} of the table names it again, after row {first + 1}"
            return Rejection(printable(name), field.name, reason)
        return Record(name, values)


def _pick_columns(table: Table, options: SourceOptions) -> list[_Column]:
    path_column = table.pick(options.path_column, PATH_COLUMNS, "files")
    if path_column is None:
        raise SourceError(
            f"{table.path} has no column that says which file a row is about",
            hint=f"name it: --path-column COLUMN; there are: {', '.join(table.columns)}",
        )
    label_column = table.pick(options.label_column, LABEL_COLUMNS, "labels")
    if label_column is None and not options.fields:
        raise SourceError(
            f"{table.path} has no column of labels",
            hint=f"name it: --label-column COLUMN; there are: {', '.join(table.columns)}",
        )
    columns = [_Column(Field("image", Kind.IMAGE), table.columns[path_column])]
    if label_column is not None:
        columns.append(_label_column(table.columns[label_column]))
    return columns + [_further_column(table, spec) for spec in options.fields]


@dataclass(frozen=True, slots=True)
class _Column:
    field: Field
    values: Sequence[object]


class _Finder:
    """Finds the file that a cell of a table names."""

    def __init__(self, walk: Walk) -> None:
        self.root = walk.root
        self.asked: set[bytes] = set()
        self.files: dict[bytes, Stored] = {}
        self._odd: dict[bytes, str] = {}
        for found in walk:
            if found.odd is None:
                self.files[found.path] = Stored(found.path, found.size_bytes, found.path, 0, found.mtime_ns)
            else:
                self._odd[found.path] = found.odd
        self._odd.update(walk.unlisted)

    def find(self, name: object) -> Stored | None:
        path = self.relative(name)
        return None if path is None else self.files.get(path)

    def read(self, name: object) -> Stored:
        path = self.relative(name)
        if path is None:
            raise UnusableValue("lies outside the source folder")
        self.asked.add(path)
        if path not in self.files:
            raise UnusableValue(self._odd.get(path, "no such file in the source folder"))
        return self.files[path]

    def relative(self, name: object) -> bytes | None:
        if not isinstance(name, str):
            return None
        if os.path.isabs(name):
            # The file itself may be a link to elsewhere; only the folders on the way are resolved.
            folder, base = os.path.split(name)
            name = os.path.relpath(os.path.join(os.path.realpath(folder), base), os.path.realpath(self.root))
        try:
            path = os.fsencode(posixpath.normpath(name))
        except UnicodeEncodeError:
            return None
        return None if path == b".." or path.startswith(b"../") or b"\0" in path else path


def _label_column(values: list[object]) -> _Column:
    numbers = read_numbers(values)
    if numbers is not None:
        return _Column(Field("label", Kind.NUMBER, dtype=numbers[0]), numbers[1])
    names = [None if is_missing(value) else str(value) for value in values]
    classes = sorted({name for name in names if name is not None})
    number_of = {name: number for number, name in enumerate(classes)}
    field = Field("label", Kind.NUMBER, dtype="int64", classes=tuple(classes))
    return _Column(field, [None if name is None else number_of[name] for name in names])


def _further_column(table: Table, spec: FieldSpec) -> _Column:
    column = table.pick(spec.column, (), f"field '{spec.name}'")
    values = table.columns[column or spec.column]
    if spec.kind is not Kind.NUMBER:
        return _Column(Field(spec.name, spec.kind), values)
    numbers = read_numbers(values)
    if numbers is None:
        raise SourceError(
            f"column '{column}' of {table.path} is not made of numbers", hint=f"try {spec.name}:text"
        )
    return _Column(Field(spec.name, Kind.NUMBER, dtype=numbers[0]), numbers[1])


def _read_cell(field: Field, cell: object, finder: _Finder) -> Value:
    if cell is None or (is_missing(cell) and field.kind is not Kind.TEXT):
        what = "label" if field.name == "label" else f"value for '{field.name}'"
        raise UnusableValue(f"the table has no {what}")
    if field.kind in FILE_KINDS:
        return finder.read(cell)
    if field.kind is Kind.NUMBER:
        assert isinstance(cell, (int, float))
        return cell
    return dump_value(field.kind, cell)
