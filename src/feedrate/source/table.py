# SPDX-License-Identifier: Apache-2.0
"""Tables of labels: CSV, TSV, JSON lines and Parquet, read row by row, as often as needed.

A column of labels is looked through once to learn what it holds, then read cell by cell. Numbers stay
numbers, words become classes, and several classes at once (a list, a separated text, or columns of 0 and 1)
become an array with a 1 for each class that a sample has.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError, NotFound, SourceError, need, suggest_path
from feedrate.format.fields import Field, Kind
from feedrate.source.record import UnusableValue, Value, dump_array

_PIECE_BYTES = 2**20
_NO_NUMBER = frozenset(("nan", "na", "n/a", "null", "none"))
Row = tuple[object, ...]
_MOST_CLASSES = 100_000
_FEW_GAPS = 4  # rows without a label that are rejected, however small the table
_JOINED = re.compile(r"\w\s*[|;]\s*\w")  # texts that look like several classes


@dataclass(frozen=True, slots=True)
class Table:
    """A table on disk. Cells are plain Python values; None stands for a missing one."""

    path: Path
    columns: tuple[str, ...]

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield these columns of every row.

        Raises:
            SourceError: it is not a table after all, or a row does not fit the header.
        """
        with _explaining(self.path):
            yield from _KINDS[self.path.suffix.lower()][1](self.path, names)

    def pick(self, wanted: str | None, guesses: Sequence[str], what: str) -> str | None:
        """Return the column the user named, or the first of the usual names; None when there is none."""
        if wanted is None:
            lower = {name.lower(): name for name in reversed(self.columns)}
            return next((lower[g] for g in guesses if g in lower), None)
        if wanted not in self.columns:
            near = difflib.get_close_matches(wanted, self.columns, n=1)
            guess = f"did you mean '{near[0]}'? " if near else ""
            raise SourceError(
                f"{self.path} has no column '{wanted}' for the {what}",
                hint=f"{guess}it has: {', '.join(self.columns)}",
            )
        return wanted

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes."""
        with open(self.path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def measure(self) -> tuple[int, int]:
        """Return the file's size and crc32c."""
        size_bytes = crc32c = 0
        for piece in self.pieces():
            size_bytes, crc32c = size_bytes + len(piece), kernel.crc32c(piece, crc32c)
        return size_bytes, crc32c


def read_table(path: Path) -> Table:
    """Open a table.

    Raises:
        NotFound: there is no such file.
        SourceError: it is not a table, or has no rows.
    """
    suffix = path.suffix.lower()
    if suffix not in _KINDS:
        raise SourceError(f"cannot tell what kind of table {path} is", hint=f"known: {', '.join(_KINDS)}")
    try:
        path.open("rb").close()
    except OSError as error:
        hint = suggest_path(path) if isinstance(error, FileNotFoundError) else None
        raise NotFound(f"cannot read the table {path}: {error.strerror}", hint=hint) from None
    with _explaining(path):
        table = Table(path, tuple(_KINDS[suffix][0](path)))
    if next(table.rows(table.columns[:1]), None) is None:
        raise SourceError(f"the table {path} has no rows")
    return table


class LabelColumn:
    """One column. `separator`: what stands between the classes of a sample that may have several.

    `are_classes`: the user has said that words in it are classes, whatever stands beside them. `empty`: what
    stands for cells that are empty; None: such a cell is no label.
    """

    def __init__(
        self,
        field: str,
        column: str,
        separator: str | None = None,
        *,
        are_classes: bool = False,
        empty: str | None = None,
    ) -> None:
        self.name, self.column, self.separator = field, column, separator
        self.columns = (column,)
        self._are_classes, self._empty = are_classes, empty
        self._rows = self._cells = self._gaps = 0
        self._joined = ""  # an example of a text that looks like several classes
        self._fraction, self._word = "", ""  # an example of each
        self.are_flags = True  # only 0 and 1, or -1 and 1
        self._are_whole = True
        self._has_numbers = False
        self._not_numbers = 0  # cells that say so: 'NA'
        self._are_lists = separator is not None
        self._texts: set[str] = set()
        self._numbers: dict[str, int] = {}

    def look(self, cell: object) -> None:
        """Learn from a cell; all of them are shown before the first is read."""
        self._rows += 1
        if is_missing(cell):
            self._gaps += 1
            if self._empty is None:
                return
            cell = self._empty
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
                self._not_numbers += 1
            else:
                self._word = self._word or str(one)
                self._joined = self._joined or (str(one) if _JOINED.search(str(one)) else "")
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
        if self._joined and not self._are_classes:
            mark = "|" if "|" in self._joined else ";"
            raise SourceError(
                f"column '{self.column}' holds several classes in one cell: '{self._joined}'",
                hint=f"--label-separator '{mark}' makes each a class of its own; "
                "--label-separator none takes the text as one class",
            )
        classes = self._class_names()
        self._numbers = {name: number for number, name in enumerate(classes)}
        return Field(self.name, Kind.NUMBER, dtype="int64", classes=tuple(classes))

    def check_gaps(self, table: Path, *, gaps_may_be: float) -> None:
        """Stop where a good part of the rows has no label: they may be a class, such as the healthy.

        Raises:
            SourceError: more than `gaps_may_be` of the rows are empty; says the ways to go on.
        """
        gaps = self._gaps + (self._not_numbers if self._are_numbers and not self._are_lists else 0)
        if gaps > max(_FEW_GAPS, gaps_may_be * self._rows):
            several = "--empty-label none gives them none of the classes; " if self.separator else ""
            raise SourceError(
                f"{gaps:,} of {self._rows:,} rows of {table} have no label in column '{self.column}'",
                hint=f"{several}--empty-label CLASS makes them a class, such as 'healthy'; --empty-label "
                "reject leaves them out",
            )

    @property
    def is_prose(self) -> bool:
        """Return whether it rather holds sentences than classes: words, most of which occur once."""
        has_spaces = any(" " in text.strip() for text in self._texts)
        return bool(self._word) and not self._are_lists and has_spaces and 2 * len(self._texts) > self._cells

    @property
    def _are_numbers(self) -> bool:
        # 'nan' among numbers is no number; among words it is one of them.
        return not self._word and (self._has_numbers or not self._not_numbers)

    def read(self, cells: Row) -> Value:
        """Return the value of its cell.

        Raises:
            UnusableValue: the cell is empty.
        """
        (cell,) = cells
        if is_missing(cell) and self._empty is not None:
            cell = self._empty
        if self._are_lists:
            hot = np.zeros(len(self._numbers), np.uint8)
            if is_missing(cell) and self._empty is None:
                raise UnusableValue(f"the table has no {_what(self.name)}", "incomplete")
            hot[[self._numbers[str(one)] for one in self._split(cell)]] = 1
            return dump_array(hot)
        is_empty = is_no_number(cell) if self._are_numbers else is_missing(cell)
        if is_empty:
            raise UnusableValue(f"the table has no {_what(self.name)}", "incomplete")
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
        if self._are_numbers and self._are_whole and not self._not_numbers:
            return sorted(self._texts, key=int)
        return sorted(self._texts)


class FlagColumns:
    """Several columns of 0 and 1: one array of them, whose classes are the columns' names."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def settle(self) -> Field:
        return Field("labels", Kind.ARRAY, dtype="uint8", shape=(len(self.columns),), classes=self.columns)

    def read(self, cells: Row) -> Value:
        numbers = []
        for column, cell in zip(self.columns, cells, strict=True):
            number = read_number(cell)
            if number is None:
                raise UnusableValue(f"the table has no value for '{column}'", "incomplete")
            numbers.append(number > 0)
        return dump_array(np.array(numbers, np.uint8))


def _what(name: str) -> str:
    return "label" if name in ("label", "labels") else f"value for '{name}'"


def is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def is_no_number(value: object) -> bool:
    """Return whether a cell says, as tables of numbers do in several ways, that there is no number."""
    return is_missing(value) or (isinstance(value, str) and value.strip().lower() in _NO_NUMBER)


def read_number(value: object) -> int | float | None:
    """Return the number that a cell holds, as such or as text; None: it holds none."""
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if not isinstance(value, str):
        return None
    # int() and float() also take '1_000'; no table means a number by that.
    text = "" if "_" in value else value.strip()
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return None if math.isnan(number) else number
    return None


def read_numbers(values: Sequence[object]) -> tuple[str, list[int | float | None]] | None:
    """Return ("int64" or "float64", numbers) when every value is one, or no number; else None."""
    numbers = [read_number(value) for value in values]
    if any(n is None and not is_no_number(v) for n, v in zip(numbers, values, strict=True)):
        return None
    known = [n for n in numbers if n is not None]
    if all(isinstance(n, int) and -(2**63) <= n < 2**63 for n in known):
        return "int64", list(numbers)
    return "float64", [None if n is None else float(n) for n in numbers]


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except FeedrateError:
        raise
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is not written in UTF-8: it holds the byte 0x{error.object[error.start]:02x}",
            hint=f"convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(str(path))} > utf8{path.suffix.lower()}",
        ) from error
    except (ValueError, TypeError, OSError, csv.Error, RecursionError) as error:
        raise SourceError(f"{path} is not a {path.suffix.lower()[1:]} table: {error}") from error


def _csv_columns(path: Path) -> list[str]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        header: list[str] = next(_csv_reader(path, file), [])
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    mark = next((mark for mark in (";", "\t") if mark in "".join(header)), None)
    if len(header) == 1 and path.suffix.lower() == ".csv" and mark is not None:
        raise SourceError(
            f"{path} has values separated by {mark!r}, not by commas: '{header[0]}'",
            hint="save it with commas, or with tabs as .tsv",
        )
    return header


def _csv_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = _csv_reader(path, file)
        header: list[str] = next(reader, [])
        wanted = [header.index(name) for name in names]
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} values, the header has {len(header)}"
                )
            yield tuple(row[i] for i in wanted)


def _csv_reader(path: Path, file: Iterator[str]) -> Any:
    return csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)


def _json_objects(path: Path) -> Iterator[dict[str, object]]:
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if not isinstance(row, dict):
                raise TypeError(f"line {number} is not an object")
            yield row


def _json_columns(path: Path) -> list[str]:
    return list(dict.fromkeys(name for row in _json_objects(path) for name in row))


def _json_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    for row in _json_objects(path):
        yield tuple(row.get(name) for name in names)


def _parquet_columns(path: Path) -> list[str]:
    parquet = need("pyarrow.parquet")

    return list(parquet.read_schema(path).names)


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    parquet = need("pyarrow.parquet")

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024, columns=list(dict.fromkeys(names))):
            columns = {name: batch.column(name).to_pylist() for name in names}
            yield from zip(*(columns[name] for name in names), strict=True)


# Of each kind of table, by suffix: what reads the names of its columns, and what reads its rows.
_CSV, _JSON = (_csv_columns, _csv_rows), (_json_columns, _json_rows)
_PARQUET = (_parquet_columns, _parquet_rows)
_KINDS = {".csv": _CSV, ".tsv": _CSV, ".jsonl": _JSON, ".ndjson": _JSON, ".parquet": _PARQUET}
