# SPDX-License-Identifier: Apache-2.0
"""Which table that a script read names the image files of its samples: `feedrate pack --labels` takes it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import FeedrateError
from feedrate.source.labelled import LABEL_COLUMNS, PATH_COLUMNS
from feedrate.source.table import Table, read_table

_LOOKED_FOR = 64  # images that a column must name
_MOST_ROWS = 500_000  # of a table: a larger one is not read
_UNKNOWN_COLUMN = "COLUMN"


@dataclass(frozen=True)
class FileTable:
    """A table with a row for each sample.

    Attributes:
        root: the folder that the column's names begin at.
        label: the column of labels; None: `feedrate pack` finds it by its name.
    """

    path: str
    column: str
    root: str
    rows: int
    label: str | None

    @property
    def words(self) -> str:
        """Return the options of `feedrate pack` that name it."""
        label = "" if self.label is None else f" --label-column {shlex.quote(self.label)}"
        return f"--labels {shlex.quote(self.path)} --path-column {shlex.quote(self.column)}{label}"


def find_table(tables: Sequence[str], images: Sequence[str], wanted: int | None) -> FileTable | None:
    """Return the table that names these images, one with as many rows as there are samples first; None: none.

    Args:
        tables: the paths of tables that the script read.
        wanted: the dataset's number of samples.
    """
    asked = images[:: max(len(images) // _LOOKED_FOR, 1)][:_LOOKED_FOR]
    found = [table for path in tables if asked and (table := _read(path, asked)) is not None]
    return min(found, key=lambda table: (table.rows != wanted, table.rows), default=None)


def _read(path: str, images: Sequence[str]) -> FileTable | None:
    try:
        table = read_table(Path(path))
        rows = list(_some(table))
    except (FeedrateError, OSError):
        return None
    if len(rows) >= _MOST_ROWS:
        return None
    usual = table.pick(None, PATH_COLUMNS, "files")
    for at in sorted(range(len(table.columns)), key=lambda at: table.columns[at] != usual):
        names = dict.fromkeys(str(row[at]) for row in rows)
        if (root := _find_root(names, images)) is not None:
            column = table.columns[at]
            return FileTable(path, column, root, len(names), _label_column(table, column))
    return None


def _some(table: Table) -> Iterator[Sequence[object]]:
    for number, row in enumerate(table.rows(table.columns)):
        if number >= _MOST_ROWS:
            return
        yield row


def _find_root(names: Mapping[str, None], images: Sequence[str]) -> str | None:
    """Return the one folder below which all images have their names in the column."""
    if all(image in names for image in images):
        return os.path.commonpath([os.path.dirname(image) for image in images])
    parts = images[0].split("/")
    for length in range(1, len(parts)):
        root = "/".join(parts[:-length])
        if all(image.startswith(root + "/") and image[len(root) + 1 :] in names for image in images):
            return root
    return None


def _label_column(table: Table, column: str) -> str | None:
    """Return the column that `feedrate pack` must be told; COLUMN: which one it is, the user knows."""
    others = [name for name in table.columns if name and name != column]
    if table.pick(None, LABEL_COLUMNS, "labels") in others:
        return None
    return others[0] if len(others) == 1 else _UNKNOWN_COLUMN
