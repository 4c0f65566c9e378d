# SPDX-License-Identifier: Apache-2.0
"""Columns of labels: looked through once to learn what they hold, then read cell by cell.

Numbers stay numbers, words become classes, and several classes at once (a list, a separated text, or columns
of 0 and 1) become an array with a 1 for each class that a sample has.

Files in a folder or an archive, and a table whose rows say which belong together, with which labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import file_suffix, has_image_suffix
from feedrate.progress import Rejection
from feedrate.remote.addresses import explained
from feedrate.source.finder import Finder, MemberFinder
from feedrate.source.names import Repeats, safe_field
from feedrate.source.options import FieldSpec, SourceOptions
from feedrate.source.record import Reader, Record, Value
from feedrate.source.table import Row, Table, is_missing, is_no_number, read_number, read_table
from feedrate.source.values import UnusableValue, dump_array, dump_value
from feedrate.units import printable

_MOST_CLASSES = 100_000


class LabelColumn:
    """One column. `separator`: what stands between the classes of a sample that may have several.

    `are_classes`: the user has said that words in it are classes, whatever stands beside them.
    """

    def __init__(
        self, field: str, column: str, separator: str | None = None, *, are_classes: bool = False
    ) -> None:
        self.name, self.column, self.separator = field, column, separator
        self._are_classes = are_classes
        self._cells = 0
        self._fraction, self._word = "", ""  # an example of each
        self.are_flags = True  # only 0 and 1, or -1 and 1
        self._are_whole = True
        self._has_numbers = self._has_gaps = False
        self._are_lists = separator is not None
        self._texts: set[str] = set()
        self._numbers: dict[str, int] = {}

    def look(self, cell: object) -> None:
        """Learn from a cell; all of them are shown before the first is read."""
        if is_missing(cell):
            return
        self._are_lists |= isinstance(cell, (list, tuple))
        self._cells += 1
        for one in self._split(cell):
            number = read_number(one)
            self.are_flags &= number in (-1, 0, 1) or is_no_number(one)
            if number is not None:
                self._has_numbers = True
                is_whole = isinstance(number, int) and -(2**63) <= number < 2**63
                self._are_whole &= is_whole
                self._fraction = self._fraction or ("" if is_whole else str(one))
            elif is_no_number(one):
                self._has_gaps = True
            else:
                self._word = self._word or str(one)
            if len(self._texts) <= _MOST_CLASSES:
                self._texts.add(str(one))

    def settle(self) -> Field:
        """Return the field that the column makes."""
        if self._are_lists:
            classes = self._class_names()
            self._numbers = {name: number for number, name in enumerate(classes)}
            self.name = "labels" if self.name == "label" else self.name
            return Field(self.name, Kind.ARRAY, dtype="uint8", shape=(len(classes),), classes=tuple(classes))
        if self._are_numbers:
            return Field(self.name, Kind.NUMBER, dtype="int64" if self._are_whole else "float64")
        if self._fraction and not self._are_classes:
            raise SourceError(
                f"column '{self.column}' holds numbers such as {self._fraction}, and '{self._word}':"
                " neither numbers nor classes",
                hint="correct the table, or leave the cell empty; if they are names of classes:"
                f" --field {self.name}:label={self.column}",
            )
        classes = self._class_names()
        self._numbers = {name: number for number, name in enumerate(classes)}
        return Field(self.name, Kind.NUMBER, dtype="int64", classes=tuple(classes))

    @property
    def is_prose(self) -> bool:
        """Return whether it rather holds sentences than classes: words, most of which occur once."""
        has_spaces = any(" " in text.strip() for text in self._texts)
        return bool(self._word) and not self._are_lists and has_spaces and 2 * len(self._texts) > self._cells

    @property
    def _are_numbers(self) -> bool:
        # 'nan' among numbers is no number; among words it is one of them.
        return not self._word and (self._has_numbers or not self._has_gaps)

    def read(self, cell: object) -> Value:
        """Return a cell's value.

        Raises:
            UnusableValue: the cell is empty.
        """
        if self._are_lists:
            hot = np.zeros(len(self._numbers), np.uint8)
            if cell is None:
                raise UnusableValue(f"the table has no {_what(self.name)}")
            hot[[self._numbers[str(one)] for one in self._split(cell)]] = 1
            return dump_array(hot)
        is_empty = is_no_number(cell) if self._are_numbers else is_missing(cell)
        if is_empty:
            raise UnusableValue(f"the table has no {_what(self.name)}")
        if not self._are_numbers:
            return self._numbers[str(cell)]
        number = read_number(cell)
        assert number is not None
        if isinstance(number, float) and math.isinf(number):
            raise UnusableValue(f"{number} is not a number to train with")
        return number if self._are_whole else float(number)

    def _split(self, cell: object) -> list[object]:
        if isinstance(cell, (list, tuple)):
            return list(cell)
        if self.separator is None or not isinstance(cell, str):
            return [cell]
        return [one.strip() for one in cell.split(self.separator) if one.strip()]

    def _class_names(self) -> list[str]:
        if len(self._texts) > _MOST_CLASSES:
            raise SourceError(
                f"column '{self.column}' has more than {_MOST_CLASSES:,} different texts: no classes",
                hint=f"pack it as a text: --field NAME:text={self.column}",
            )
        if self._are_numbers and self._are_whole and not self._has_gaps:
            return sorted(self._texts, key=int)
        return sorted(self._texts)


class FlagColumns:
    """Several columns of 0 and 1: one array of them, whose classes are the columns' names."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def settle(self) -> Field:
        return Field("labels", Kind.ARRAY, dtype="uint8", shape=(len(self.columns),), classes=self.columns)

    def read(self, cells: Sequence[object]) -> Value:
        numbers = []
        for column, cell in zip(self.columns, cells, strict=True):
            number = read_number(cell)
            if number is None:
                raise UnusableValue(f"the table has no value for '{column}'")
            numbers.append(number > 0)
        return dump_array(np.array(numbers, np.uint8))


def _what(name: str) -> str:
    return "label" if name in ("label", "labels") else f"value for '{name}'"


FILE_KINDS = frozenset((Kind.IMAGE, Kind.MASK, Kind.ARRAY, Kind.BYTES))
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "filepath", "file_path")
LABEL_COLUMNS = ("label", "labels", "class", "target")
TEXT_COLUMNS = ("text", "caption")
ALL_COLUMNS = "*"
DEFAULT_SEPARATOR = "|"  # where a column is said to hold several classes


@dataclass(frozen=True, slots=True)
class _Column:
    """A field, and how it is read from those cells of a row."""

    field: Field
    cells: slice
    read: Callable[[Row], Value]


class LabelledFiles(Reader):
    """A sample per row of the table; what a row names that is not there, or not usable, rejects the row.

    The table is read twice: to learn what its columns hold, and to give the samples. `shown` is what the user
    calls the place of the files.

    Raises, when it is made or iterated:
        NotFound: there is no such folder or table.
        SourceError: the table has not the columns that are needed, or names no file that is there.
    """

    def __init__(self, finder: Finder | MemberFinder, options: SourceOptions, shown: str = "") -> None:
        assert options.labels is not None
        self.root = finder.root
        self.table: Table = read_table(options.labels)
        self.ignored: dict[str, int] = {}
        self._finder, self._shown = finder, shown or finder.root
        self._names: list[str] = []  # the table's columns that are read, as they are needed
        self._columns: list[_Column] = []
        self._prose: list[str] = []  # among all columns, those of texts
        self._choose(options)

    def fields(self) -> tuple[Field, ...]:
        return tuple(column.field for column in self._columns)

    def __iter__(self) -> Iterator[Record | Rejection]:
        with explained(self.root), self._finder:
            yield from self._read()

    def _read(self) -> Iterator[Record | Rejection]:
        repeated = self._find_repeated()
        first_row: dict[bytes, int] = {}
        found = 0
        for number, cells in enumerate(self.table.rows(self._names)):
            sample = self._read_row(number, cells, repeated, first_row)
            found += isinstance(sample, Record) or sample.field != "image"
            yield sample
        if not found:
            raise self._nothing_found()
        others: Counter[str] = Counter()
        self.unlisted = 0
        table_path = self._finder.relative(str(self.table.path.resolve()))
        for path in self._finder.not_asked():
            if has_image_suffix(path):
                self.unlisted += 1
            elif path != table_path:
                others[file_suffix(path)] += 1
        self.ignored = dict(sorted(others.items()))

    def _read_row(
        self, number: int, cells: Row, repeated: set[bytes], first_row: dict[bytes, int]
    ) -> Record | Rejection:
        name = self._finder.relative(cells[0]) or str(cells[0]).encode("utf-8", "surrogateescape")
        values: dict[str, Value] = {}
        field = self._columns[0].field
        try:
            for column in self._columns:
                field = column.field
                values[field.name] = column.read(cells[column.cells])
            _refuse_repeated(name, number, first_row)
        except UnusableValue as error:
            return Rejection(printable(name), field.name, str(error))
        if name in repeated:
            first_row[name] = number
        return Record(name, values)

    def _find_repeated(self) -> set[bytes]:
        """Return the names that the table has twice; only of those the first row must be remembered."""
        repeats = Repeats()
        path_column = self._names[:1]

        def names() -> Iterator[bytes]:
            return (self._finder.relative(cells[0]) or b"" for cells in self.table.rows(path_column))

        for name in names():
            repeats.add(name)
        return repeats.find_all(names())

    def _nothing_found(self) -> SourceError:
        example = self._finder.example()
        holds = f"{self._shown} holds '{printable(example)}'" if example else "the folder is empty"
        first = next(self.table.rows(self._names[:1]))[0]
        return SourceError(
            f"none of the files that {self.table.path} names is in {self._shown}: "
            f"the table says '{first}', {holds}",
            hint="names in the table are relative to the folder: pack the folder that they start from",
        )

    def _choose(self, options: SourceOptions) -> None:
        table = self.table
        path_column = table.pick(options.path_column, PATH_COLUMNS, "files")
        if path_column is None:
            raise SourceError(
                f"{table.path} has no column that says which file a row is about",
                hint=f"name it: --path-column COLUMN; there are: {', '.join(table.columns)}",
            )
        self._add(Field("image", Kind.IMAGE), [path_column], self._file)
        for column in self._label_columns(options, path_column):
            if isinstance(column, FlagColumns):
                self._add(column.settle(), column.columns, column.read)
            else:
                self._add(column.settle(), [column.column], _first_cell(column.read))
        for column_name in self._prose:
            field = Field(safe_field(column_name), Kind.TEXT)
            self._add(field, [column_name], _value_reader(field.name, field.kind))
        for spec in options.fields:
            self._add_field(spec, options.label_separator or DEFAULT_SEPARATOR)
        if len(self._columns) == 1:
            self._add_text_or_refuse()

    def _label_columns(self, options: SourceOptions, path_column: str) -> Sequence[LabelColumn | FlagColumns]:
        table = self.table
        wanted = [] if options.label_column is None else [c.strip() for c in options.label_column.split(",")]
        if options.label_column in table.columns:
            wanted = [str(options.label_column)]
        elif wanted == [ALL_COLUMNS]:
            used = {path_column, *(spec.column for spec in options.fields)}
            wanted = [name for name in table.columns if name not in used]
        names = [table.pick(name, (), "labels") or name for name in wanted]
        if not names:
            guess = table.pick(None, LABEL_COLUMNS, "labels")
            names = [guess] if guess is not None and guess != path_column else []
        is_single = len(names) == 1
        columns = [
            LabelColumn("label" if is_single else safe_field(name), name, options.label_separator)
            for name in names
        ]
        self._look(columns)
        if len(columns) > 1 and all(column.are_flags for column in columns):
            return [FlagColumns(names)]
        if options.label_column == ALL_COLUMNS:
            self._prose = [one.column for one in columns if one.is_prose]
        return [one for one in columns if one.column not in self._prose]

    def _add_field(self, spec: FieldSpec, separator: str) -> None:
        column = self.table.pick(spec.column, (), f"field '{spec.name}'") or spec.column
        if spec.form:
            label = LabelColumn(
                spec.name, column, separator if spec.form == "labels" else None, are_classes=True
            )
            self._look([label])
            self._add(label.settle(), [column], _first_cell(label.read))
        elif spec.kind is Kind.NUMBER:
            number = LabelColumn(spec.name, column)
            self._look([number])
            field = number.settle()
            if field.kind is not Kind.NUMBER or field.classes is not None:
                raise SourceError(
                    f"column '{column}' of {self.table.path} is not made of numbers",
                    hint=f"try {spec.name}:text, or {spec.name}:label for classes",
                )
            self._add(field, [column], _first_cell(number.read))
        elif spec.kind in FILE_KINDS:
            self._add(Field(spec.name, spec.kind), [column], self._file)
        else:
            self._add(Field(spec.name, spec.kind), [column], _value_reader(spec.name, spec.kind))

    def _add_text_or_refuse(self) -> None:
        column = self.table.pick(None, TEXT_COLUMNS, "texts")
        if column is None:
            raise SourceError(
                f"{self.table.path} has no column of labels",
                hint=f"name it: --label-column COLUMN; there are: {', '.join(self.table.columns)}",
            )
        self._add(Field("text", Kind.TEXT), [column], _value_reader("text", Kind.TEXT))

    def _add(self, field: Field, columns: Sequence[str], read: Callable[[Row], Value]) -> None:
        if any(column.field.name == field.name for column in self._columns):
            raise SourceError(
                f"two columns of {self.table.path} would be the field '{field.name}'",
                hint=f"name one of them otherwise: --field NAME:label={columns[0]}",
            )
        start = len(self._names)
        self._names += columns
        self._columns.append(_Column(field, slice(start, len(self._names)), read))

    def _look(self, columns: Sequence[LabelColumn]) -> None:
        if not columns:
            return
        for cells in self.table.rows([column.column for column in columns]):
            for column, cell in zip(columns, cells, strict=True):
                column.look(cell)

    def _file(self, cells: Row) -> Value:
        if is_missing(cells[0]):
            raise UnusableValue("the table names no file")
        return self._finder.read(cells[0])


def _first_cell(read: Callable[[object], Value]) -> Callable[[Row], Value]:
    return lambda cells: read(cells[0])


def _value_reader(name: str, kind: Kind) -> Callable[[Row], Value]:
    def read(cells: Row) -> Value:
        if cells[0] is None or (is_missing(cells[0]) and kind is not Kind.TEXT):
            raise UnusableValue(f"the table has no value for '{name}'")
        return dump_value(kind, cells[0])

    return read


def _refuse_repeated(name: bytes, number: int, first_row: dict[bytes, int]) -> None:
    if name in first_row:
        raise UnusableValue(f"row {number + 1} of the table names it again, after row {first_row[name] + 1}")
