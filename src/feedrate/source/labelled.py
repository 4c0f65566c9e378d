# SPDX-License-Identifier: Apache-2.0
"""Files in a folder or an archive, and a table whose rows say which belong together, with which labels.

The files that the table names are looked for below the folder and nowhere else. Where the members of archives
are is kept on disk: there may be millions.
"""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.errors import SourceError, StorageError
from feedrate.format.fields import Field, Kind, file_suffix, has_image_suffix
from feedrate.progress import Rejection
from feedrate.remote.addresses import explained, is_url
from feedrate.source.archives import Archive
from feedrate.source.folders import walk
from feedrate.source.names import Digests, Repeats, is_hidden, safe_field
from feedrate.source.options import NO_SEPARATOR, FieldSpec, SourceOptions
from feedrate.source.record import (
    ContainerValue,
    FileRange,
    Reader,
    Record,
    Spool,
    UnusableValue,
    Value,
    dump_value,
    reject,
)
from feedrate.source.table import (
    FlagColumns,
    LabelColumn,
    Row,
    Table,
    is_missing,
    read_table,
)
from feedrate.units import printable, shell_quote

FILE_KINDS = frozenset((Kind.IMAGE, Kind.MASK, Kind.ARRAY, Kind.BYTES))
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "filepath", "file_path")
LABEL_COLUMNS = ("label", "labels", "class", "target")
TEXT_COLUMNS = ("text", "caption")
ALL_COLUMNS = "*"
DEFAULT_SEPARATOR = "|"  # where a column is said to hold several classes
_GAPS = 0.05  # of rows without a label: more are a question, fewer are rejected


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
        except UnusableValue as error:
            return reject(name, field.name, error)
        if name in first_row:
            why = f"row {number + 1} of the table names it again, after row {first_row[name] + 1}"
            return Rejection(printable(name), field.name, why, "named-twice")
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
        hint = "names in the table are relative to the folder: pack the folder that they start from"
        inside = os.path.dirname(printable(example)) if example else ""
        if inside and os.path.exists(os.path.join(self.root, inside, str(first))):
            folder, table = (shell_quote(str(one)) for one in (Path(self.root, inside), self.table.path))
            hint = f"the files are in {inside}: feedrate pack {folder} PACK --labels {table}"
        return SourceError(
            f"none of the files that {self.table.path} names is in {self._shown}: "
            f"the table says '{first}', {holds}",
            hint=hint,
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
        labels = self._label_columns(options, path_column)
        self.label_columns = tuple(name for one in labels for name in one.columns)
        for column in labels:
            self._add(column.settle(), column.columns, column.read)
        for column_name in self._prose:
            self._add_value(safe_field(column_name), Kind.TEXT, column_name)
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
            LabelColumn(
                "label" if is_single else safe_field(name),
                name,
                options.label_separator if options.separates else None,
                are_classes=options.label_separator == NO_SEPARATOR,
                empty=options.empty,
            )
            for name in names
        ]
        self._look(columns)
        if options.label_column == ALL_COLUMNS:
            self._prose = [one.column for one in columns if one.is_prose]
        labels = [one for one in columns if one.column not in self._prose]
        if options.empty_label is None:
            for column in labels:
                column.check_gaps(table.path, gaps_may_be=_GAPS)
        are_flags = len(columns) > 1 and all(column.are_flags for column in columns)
        return [FlagColumns(names)] if are_flags else labels

    def _add_field(self, spec: FieldSpec, separator: str) -> None:
        column = self.table.pick(spec.column, (), f"field '{spec.name}'") or spec.column
        if spec.form:
            several = spec.form == "labels"
            label = LabelColumn(
                spec.name,
                column,
                separator if several else None,
                are_classes=True,
                empty="" if several else None,
            )
            self._look([label])
            self._add(label.settle(), label.columns, label.read)
        elif spec.kind is Kind.NUMBER:
            number = LabelColumn(spec.name, column)
            self._look([number])
            field = number.settle()
            if field.kind is not Kind.NUMBER or field.classes is not None:
                raise SourceError(
                    f"column '{column}' of {self.table.path} is not made of numbers",
                    hint=f"try {spec.name}:text, or {spec.name}:label for classes",
                )
            self._add(field, number.columns, number.read)
        elif spec.kind in FILE_KINDS:
            self._add(Field(spec.name, spec.kind), [column], self._file)
        else:
            self._add_value(spec.name, spec.kind, column)

    def _add_text_or_refuse(self) -> None:
        column = self.table.pick(None, TEXT_COLUMNS, "texts")
        if column is None:
            raise SourceError(
                f"{self.table.path} has no column of labels",
                hint=f"name it: --label-column COLUMN; there are: {', '.join(self.table.columns)}",
            )
        self._add_value("text", Kind.TEXT, column)

    def _add_value(self, name: str, kind: Kind, column: str) -> None:
        def read(cells: Row) -> Value:
            if cells[0] is None or (is_missing(cells[0]) and kind is not Kind.TEXT):
                raise UnusableValue(f"the table has no value for '{name}'", "incomplete")
            return dump_value(kind, cells[0])

        self._add(Field(name, kind), [column], read)

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
            raise UnusableValue("the table names no file", "incomplete")
        return self._finder.read(cells[0])


class Finder:
    """Asks the disk for each file. Behind an address that would be a request each: there it lists them first.

    Attributes:
        root: the folder, or its address.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._walk = walk(root)  # says so if there is no such folder
        self._root = os.fsencode(root)
        self._real_root = os.path.realpath(root)
        self._asked = Digests()
        self._listed: dict[bytes, FileRange] | None = None

    def __enter__(self) -> Finder:
        self._asked = Digests()
        if is_url(self.root):
            files = (
                FileRange(f.path, f.size_bytes, f.path, 0, f.mtime_ns) for f in self._walk if f.odd is None
            )
            self._listed = {file.path: file for file in files}
        return self

    def __exit__(self, *_: object) -> None:
        self._listed = None

    def read(self, name: object) -> FileRange:
        """Return the file that a cell names.

        Raises:
            UnusableValue: there is none, or it cannot be used.
        """
        path = self.relative(name)
        if path is None:
            raise UnusableValue("lies outside the source folder", "outside")
        self._asked.add(path)
        if self._listed is not None:
            if path not in self._listed:
                raise UnusableValue("no such file in the source folder", "missing")
            return self._listed[path]
        full = os.path.join(self._root, path)
        try:
            info = os.stat(full)
        except FileNotFoundError:
            is_link = os.path.islink(full)
            raise UnusableValue(
                "is a link to nothing" if is_link else "no such file in the source folder", "missing"
            ) from None
        except (OSError, ValueError) as error:
            words = f"cannot be read: {getattr(error, 'strerror', None) or error}"
            raise UnusableValue(words, "unreadable") from None
        if not stat.S_ISREG(info.st_mode):
            raise UnusableValue("is not a regular file", "unreadable")
        return FileRange(path, info.st_size, path, 0, info.st_mtime_ns)

    def relative(self, name: object) -> bytes | None:
        """Return a path below the folder; None: it is outside."""
        if not isinstance(name, str):
            return None
        if os.path.isabs(name) and not is_url(self.root):
            # The file itself may be a link to elsewhere; only the folders on the way are resolved.
            folder, base = os.path.split(name)
            name = os.path.relpath(os.path.join(os.path.realpath(folder), base), self._real_root)
        try:
            path = os.fsencode(posixpath.normpath(name))
        except UnicodeEncodeError:
            return None
        return None if path == b".." or path.startswith((b"../", b"/")) or b"\0" in path else path

    def not_asked(self) -> Iterator[bytes]:
        """Yield the files of the folder that were not asked for."""
        return self._asked.others(found.path for found in self._walk if found.odd is None)

    def example(self) -> bytes | None:
        """Return a file of the folder, an image if there is one."""
        first = None
        for found in self._walk:
            first = first or found.path
            if has_image_suffix(found.path):
                return found.path
        return first


class MemberFinder:
    """What `Finder` is for folders. A folder around all members need not be in the table's names."""

    def __init__(self, root: str, archives: list[Archive], spool: Spool) -> None:
        self.root = root
        self._archives, self._spool = archives, spool
        self._asked = Digests()
        self._found: sqlite3.Connection | None = None
        self._top = b""

    def __enter__(self) -> MemberFinder:
        self._asked = Digests()
        # A database without a name is on disk where it grows, and is gone when it is closed.
        self._found = sqlite3.connect("", isolation_level=None)
        try:
            with self._spool:
                self._fill(self._found)
        except sqlite3.Error as error:
            raise StorageError(f"cannot keep the list of members on disk: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._found is not None:
            self._found.close()
            self._found = None

    def read(self, name: object) -> FileRange | ContainerValue:
        """Return the member that a cell names.

        Raises:
            UnusableValue: there is none.
        """
        path = self.relative(name)
        if path is None:
            raise UnusableValue("lies outside the archive", "outside")
        assert self._found is not None
        for wanted in (path, self._top + path):
            row = self._found.execute("SELECT value FROM members WHERE name = ?", (wanted,)).fetchone()
            if row is not None:
                self._asked.add(wanted)
                return _load_value(*json.loads(row[0]))
        raise UnusableValue("no such file in the archive", "missing")

    def relative(self, name: object) -> bytes | None:
        if not isinstance(name, str):
            return None
        path = posixpath.normpath(name).encode("utf-8", "surrogatepass")
        return None if path == b".." or path.startswith((b"../", b"/")) else path

    def not_asked(self) -> Iterator[bytes]:
        return self._asked.others(self._names())

    def example(self) -> bytes | None:
        names = list(self._names(10_000))
        return next(iter([*filter(has_image_suffix, names), *names]), None)

    def _fill(self, found: sqlite3.Connection) -> None:
        found.execute("CREATE TABLE members (name BLOB PRIMARY KEY, value TEXT) WITHOUT ROWID")
        found.execute("BEGIN")
        tops: set[bytes] = set()
        for archive in self._archives:
            for member in archive.members():
                if is_hidden(member.name):
                    continue
                name = archive.top + member.name
                if len(tops) < 2:
                    folder, slash, _ = name.partition(b"/")
                    tops.add(folder + slash if slash else b"")
                found.execute("INSERT INTO members VALUES (?, ?)", (name, _dump_value(member.value)))
        found.execute("COMMIT")
        self._top = tops.pop() if len(tops) == 1 else b""

    def _names(self, limit: int = -1) -> Iterator[bytes]:
        assert self._found is not None
        return (
            row[0] for row in self._found.execute("SELECT name FROM members ORDER BY name LIMIT ?", (limit,))
        )


def _dump_value(value: FileRange | ContainerValue) -> str:
    return json.dumps([x.decode("latin-1") if isinstance(x, bytes) else x for x in value])


def _load_value(path: str, size_bytes: int, file: str, *rest: Any) -> FileRange | ContainerValue:
    names = path.encode("latin-1"), size_bytes, file.encode("latin-1")
    if isinstance(rest[0], int):
        return FileRange(*names, *rest)
    container, place, mtime_ns = rest
    return ContainerValue(*names, container, tuple(place), mtime_ns)
