# SPDX-License-Identifier: Apache-2.0
"""`feedrate add-column`: values from a table become a field of a pack, without touching its shards."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feedrate.errors import SourceError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.index import Values
from feedrate.packing.change import update
from feedrate.packing.results import ColumnResult
from feedrate.source.labelled import PATH_COLUMNS
from feedrate.source.table import Table, is_missing, read_numbers, read_table
from feedrate.units import format_count

ColumnKind = Literal["number", "class", "text", "json"]
KINDS: tuple[ColumnKind, ...] = ("number", "class", "text", "json")
KEY_COLUMNS = ("key", "__key__")


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Settings of `add_column`.

    Attributes:
        column: of the table; None: the only one that does not name the samples.
        name: of the field; None: that of the column.
        kind: None: numbers stay numbers, words that repeat become classes.
        path_column, key_column: the table's column that says which sample a row is about; None: guessed.
        default: the value of samples that the table does not know; None: there must be none.
        replace: a field or column of this name may be there.
    """

    column: str | None = None
    name: str | None = None
    kind: ColumnKind | None = None
    path_column: str | None = None
    key_column: str | None = None
    default: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if self.kind not in (None, *KINDS):
            raise UsageError(f"a column cannot be of kind {self.kind!r}", hint=f"kinds: {', '.join(KINDS)}")
        if self.path_column is not None and self.key_column is not None:
            raise UsageError("rows are about a path or about a key: give --path-column or --key-column")


def add_column(
    pack: str | os.PathLike[str], table: str | os.PathLike[str], options: ColumnOptions | None = None
) -> ColumnResult:
    """Give the samples of a pack one more field: a column of a table, joined by original path or by key.

    Raises:
        NotFound: there is no pack, or no table.
        SourceError: the table does not fit: samples without a value, two values for one, not numbers.
        AlreadyExists: the pack has such a field, or another process is changing the pack.
    """
    options = options or ColumnOptions()
    with update.changing(pack) as opened:
        read = read_table(Path(table))
        names, by_key = _row_names(read, options)
        column = _pick_column(read, options, names)
        name = options.name or column
        update.check_taken(opened, name, replace=options.replace)
        replaced = opened.manifest.field(name) is not None
        cells = _by_sample(read, names, column)
        named = len(cells)
        chosen, missing = [], []
        for sample in update.read_names(opened, by_key=by_key):
            value = cells.pop(sample, None)
            if is_missing(value):
                missing.append(sample)
            chosen.append(options.default if is_missing(value) else value)
        if options.default is None:
            hint = f"check the names in {read.path}, or give a value for the others: --default VALUE"
            update.check_missing(missing, len(opened), f"value of '{column}' in {read.path.name}", hint)
        if len(cells) == named:
            strangers = update.some(list(cells))
            raise SourceError(
                f"no row of {read.path} is about a sample of {opened.path}: it names {strangers}",
                hint="rows are found by the original path, or with --key-column by the key",
            )
        field, values = _make_values(name, chosen, options.kind, read)
        made = {"table": read.path.name, "column": column, "crc32c": f"{read.measure()[1]:08x}"}
        part = update.store_column(opened, field, values, made)
        return ColumnResult(
            pack=str(pack),
            table=str(table),
            name=name,
            kind="class" if field.classes is not None else field.kind.value,
            dtype=field.dtype,
            samples=len(opened),
            defaults=len(missing),
            unused=len(cells),
            class_counts=count_classes(field, values[name]) if field.classes is not None else {},
            size_bytes=part.size_bytes,
            replaced=replaced,
        )


def count_classes(field: Field, values: Any) -> dict[str, int]:
    counts = Counter(np.asarray(values).tolist())
    return {name: counts[number] for number, name in enumerate(field.classes or ())}


def _row_names(table: Table, options: ColumnOptions) -> tuple[str, bool]:
    """Return the column that names samples, and whether it does by key."""
    if options.key_column is not None:
        table.pick(options.key_column, (), "keys")
        return options.key_column, True
    by_path = table.pick(options.path_column, PATH_COLUMNS, "files")
    if by_path is not None:
        return by_path, False
    by_key = table.pick(None, KEY_COLUMNS, "keys")
    if by_key is None:
        raise SourceError(
            f"{table.path} has no column that says which sample a row is about",
            hint=f"name it: --path-column C or --key-column C; there are: {', '.join(table.columns)}",
        )
    return by_key, True


def _pick_column(table: Table, options: ColumnOptions, names: str) -> str:
    if options.column is not None:
        return table.pick(options.column, (), "values") or options.column
    others = [name for name in table.columns if name != names]
    if len(others) != 1:
        raise UsageError(
            f"{table.path} has {len(others)} columns that could be meant",
            hint=f"name one: --column COLUMN; there are: {', '.join(others)}",
        )
    return others[0]


def _by_sample(table: Table, names: str, column: str) -> dict[bytes, object]:
    cells: dict[bytes, object] = {}
    for row, (name, value) in enumerate(table.rows((names, column)), 1):
        if not isinstance(name, str) or not name:
            raise SourceError(f"row {row} of {table.path} does not say which sample it is about: {name!r}")
        known = update.as_path(name)
        if known in cells and cells[known] != value:
            raise SourceError(
                f"{table.path} has two values for '{name}': {cells[known]!r}, and in row {row} {value!r}",
                hint="keep one of the rows",
            )
        cells[known] = value
    return cells


def _make_values(
    name: str, cells: Sequence[object], kind: ColumnKind | None, table: Table
) -> tuple[Field, Values]:
    numbers = read_numbers(cells) if kind in (None, "number") else None
    if numbers is not None:
        dtype, found = numbers
        gaps = [cell for cell, number in zip(cells, found, strict=True) if number is None]
        if gaps:
            raise SourceError(
                f"'{name}' in {table.path} is no number for {format_count(len(gaps), 'sample')}: {gaps[0]!r}",
                hint="give them one in the table, or leave the cells empty and use --default VALUE",
            )
        return Field(name, Kind.NUMBER, dtype=dtype), {name: np.array(found, dtype)}
    if kind == "number":
        strange = next(cell for cell in cells if read_numbers([cell]) is None)
        raise SourceError(
            f"'{name}' in {table.path} is not made of numbers: {strange!r}",
            hint="words become classes with --kind class, and stay words with --kind text",
        )
    if kind in ("text", "json"):
        return Field(name, Kind(kind)), {name: [_as_bytes(name, cell, kind) for cell in cells]}
    words = [str(cell) for cell in cells]
    classes = tuple(sorted(set(words), key=_class_order))
    if kind is None and 2 * len(classes) > len(words):
        raise UsageError(
            f"'{name}' has {len(classes):,} different values for {len(words):,} samples: classes, or text?",
            hint="say which: --kind class or --kind text",
        )
    number_of = {word: number for number, word in enumerate(classes)}
    field = Field(name, Kind.NUMBER, dtype="int64", classes=classes)
    return field, {name: np.array([number_of[word] for word in words], np.int64)}


def _class_order(word: str) -> tuple[bool, int, str]:
    # "10" after "9": classes that are numbers are sorted as numbers.
    return (False, int(word), word) if word.isascii() and word.isdigit() else (True, 0, word)


def _as_bytes(name: str, cell: object, kind: str) -> bytes:
    if kind == "text":
        return str(cell).encode("utf-8", "surrogateescape")
    try:
        document = json.loads(cell) if isinstance(cell, str) else cell
        return json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"a value of '{name}' is not JSON: {cell!r} ({error})") from None
