# SPDX-License-Identifier: Apache-2.0
"""Tables of labels: CSV, TSV, JSON lines and Parquet, read row by row, as often as needed."""

from __future__ import annotations

import csv
import difflib
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate import kernel
from feedrate.errors import FeedrateError, NotFound, SourceError, need, suggest_path

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_PIECE_BYTES = 2**20
_NO_NUMBER = frozenset(("nan", "na", "n/a", "null", "none"))
Row = tuple[object, ...]


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
        try:
            yield from _ROWS[self.path.suffix.lower()](self.path, names)
        except (ValueError, TypeError, OSError, csv.Error, RecursionError) as error:
            if isinstance(error, FeedrateError):
                raise
            raise _not_a_table(self.path, error) from error

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
    if suffix not in SUFFIXES:
        raise SourceError(f"cannot tell what kind of table {path} is", hint=f"known: {', '.join(SUFFIXES)}")
    try:
        path.open("rb").close()
    except OSError as error:
        hint = suggest_path(path) if isinstance(error, FileNotFoundError) else None
        raise NotFound(f"cannot read the table {path}: {error.strerror}", hint=hint) from None
    try:
        table = Table(path, tuple(_COLUMNS[suffix](path)))
    except (ValueError, TypeError, OSError, csv.Error, RecursionError) as error:
        if isinstance(error, FeedrateError):
            raise
        raise _not_a_table(path, error) from error
    if next(table.rows(table.columns[:1]), None) is None:
        raise SourceError(f"the table {path} has no rows")
    return table


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


def _not_a_table(path: Path, error: Exception) -> SourceError:
    if isinstance(error, UnicodeDecodeError):
        return SourceError(
            f"{path} is not written in UTF-8: it holds the byte 0x{error.object[error.start]:02x}",
            hint=f"convert it: iconv -f LATIN1 -t UTF-8 {shlex.quote(str(path))} > utf8{path.suffix.lower()}",
        )
    return SourceError(f"{path} is not a {path.suffix.lower()[1:]} table: {error}")


def _csv_columns(path: Path) -> list[str]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        header: list[str] = next(_csv_reader(path, file), [])
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    if len(header) == 1 and path.suffix.lower() == ".csv" and (mark := _other_separator(header[0])):
        raise SourceError(
            f"{path} has values separated by {mark!r}, not by commas: '{header[0]}'",
            hint="save it with commas, or with tabs as .tsv",
        )
    return header


def _other_separator(line: str) -> str | None:
    return next((mark for mark in (";", "\t") if mark in line), None)


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


_COLUMNS = {
    ".csv": _csv_columns, ".tsv": _csv_columns, ".jsonl": _json_columns, ".ndjson": _json_columns,
    ".parquet": _parquet_columns,
}  # fmt: skip
_ROWS = {
    ".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows,
    ".parquet": _parquet_rows,
}  # fmt: skip
