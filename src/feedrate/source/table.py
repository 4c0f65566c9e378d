# SPDX-License-Identifier: Apache-2.0
"""Tables of labels: CSV, TSV, JSON lines and Parquet become columns of plain Python values."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import NotFound, SourceError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True, slots=True)
class Table:
    """`data` are the file's bytes. All columns have the same length; None stands for a missing value."""

    path: Path
    data: bytes
    columns: dict[str, list[object]]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def pick(self, wanted: str | None, guesses: Sequence[str], what: str) -> str | None:
        """Return the column the user named, or the first of the usual names; None when there is none."""
        if wanted is None:
            lower = {name.lower(): name for name in reversed(list(self.columns))}
            return next((lower[g] for g in guesses if g in lower), None)
        if wanted not in self.columns:
            raise SourceError(
                f"{self.path} has no column '{wanted}' for the {what}",
                hint=f"it has: {', '.join(self.columns)}",
            )
        return wanted


def read_table(path: Path) -> Table:
    """Read a whole table.

    Raises:
        NotFound: there is no such file.
        SourceError: it is not a table, or a row does not fit the header.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise SourceError(f"cannot tell what kind of table {path} is", hint=f"known: {', '.join(SUFFIXES)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"cannot read the table {path}: {error.strerror}") from None
    try:
        if suffix == ".parquet":
            columns = _parse_parquet(data)
        elif suffix in (".jsonl", ".ndjson"):
            columns = _parse_json_lines(data)
        else:
            columns = _parse_csv(data, "\t" if suffix == ".tsv" else ",")
    except (ValueError, TypeError, OSError, csv.Error, RecursionError) as error:
        raise SourceError(f"{path} is not a {suffix[1:]} table: {error}") from error
    table = Table(path, data, columns)
    if not table.rows:
        raise SourceError(f"the table {path} has no rows")
    return table


def read_numbers(values: Sequence[object]) -> tuple[str, list[int | float | None]] | None:
    """Return ("int64" or "float64", numbers) when every value is one, or missing; else None."""
    numbers = [_read_number(value) for value in values]
    if any(n is None and not is_missing(v) for n, v in zip(numbers, values, strict=True)):
        return None
    known = [n for n in numbers if n is not None]
    if all(isinstance(n, int) and -(2**63) <= n < 2**63 for n in known):
        return "int64", list(numbers)
    return "float64", [None if n is None else float(n) for n in numbers]


def is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _read_number(value: object) -> int | float | None:
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


def _parse_csv(data: bytes, delimiter: str) -> dict[str, list[object]]:
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter, strict=True)
    header = next(reader, [])
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    rows = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(f"line {reader.line_num} has {len(row)} values, the header has {len(header)}")
        rows.append(row)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _parse_json_lines(data: bytes) -> dict[str, list[object]]:
    rows = []
    for number, line in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not isinstance(row, dict):
            raise TypeError(f"line {number} is not an object")
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _parse_parquet(data: bytes) -> dict[str, list[object]]:
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, list[object]] = parquet.read_table(pa.BufferReader(data)).to_pydict()
    return columns
