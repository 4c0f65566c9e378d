# SPDX-License-Identifier: Apache-2.0
"""Which samples a source folder holds: class folders, one flat folder, or the rows of a table."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import file_suffix, has_image_suffix, make_keys, printable
from feedrate.pack.listing import Listing, SourceFile, list_source
from feedrate.pack.options import FieldSpec, PackOptions
from feedrate.pack.table import Table, is_missing, read_numbers, read_table
from feedrate.pack.values import UnusableValue, dump_value
from feedrate.results import Rejection
from feedrate.units import format_count

FILE_KINDS = frozenset((Kind.IMAGE, Kind.MASK, Kind.ARRAY, Kind.BYTES))
PATH_COLUMNS = ("path", "file", "filename", "file_name", "image")
LABEL_COLUMNS = ("label", "class", "target")
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"))

Value = SourceFile | bytes | int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample to pack; `values` has one per field: a file, the bytes of its tar member, or a number."""

    number: int
    key: str
    values: tuple[Value, ...]

    @property
    def source_bytes(self) -> int:
        return sum(value_bytes(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class Source:
    """Everything to pack, in the source's own order."""

    root: str
    fields: tuple[Field, ...]
    samples: list[Sample]
    rejected: tuple[Rejection, ...]
    ignored: Mapping[str, int]
    unlisted: int = 0
    table: Table | None = None

    def fingerprint(self) -> dict[str, object]:
        """Return what an unfinished pack remembers of its source: enough to see that it has changed."""
        digest, files, size_bytes = hashlib.sha256(), 0, 0
        for sample in self.samples:
            for value in sample.values:
                if isinstance(value, SourceFile):
                    digest.update(b"%b\0%d %d\n" % (value.path, value.size_bytes, value.mtime_ns))
                    files, size_bytes = files + 1, size_bytes + value.size_bytes
        return {"files": files, "bytes": size_bytes, "digest": digest.hexdigest()}


def read_source(root: str, options: PackOptions, count: Callable[[int], None] = lambda _: None) -> Source:
    """List a source folder and say which samples it holds.

    Raises:
        NotFound: there is no such folder or table.
        SourceError: it holds no images, or not in a way that can be packed.
    """
    table = None if options.labels is None else read_table(options.labels)
    listing = list_source(root, count)
    if table is not None:
        return _from_table(listing, table, options)
    images = [file for file in listing.files if has_image_suffix(file.path)]
    if not images and not any(has_image_suffix(path) for path in listing.odd):
        raise SourceError(f"no images in {root}", hint=_what_is_there(listing))
    loose = [file for file in images if b"/" not in file.path]
    if loose and len(loose) < len(images):
        raise SourceError(
            f"{root} has class folders, but {format_count(len(loose), 'image')} beside them, "
            f"without a label: '{printable(loose[0].path)}'",
            hint="move them into class folders, or give all labels in a table: --labels FILE",
        )
    folders = sorted({file.path.partition(b"/")[0] for file in images if b"/" in file.path})
    _refuse_splits(root, folders, images)
    numbers = {folder: number for number, folder in enumerate(folders)}
    keys = make_keys(file.path for file in images)
    fields = [Field("image", Kind.IMAGE)]
    if folders:
        fields.append(
            Field("label", Kind.NUMBER, dtype="int64", classes=tuple(printable(f) for f in folders))
        )
    samples = [
        Sample(n, keys[n], (file, numbers[file.path.partition(b"/")[0]]) if folders else (file,))
        for n, file in enumerate(images)
    ]
    return Source(root, tuple(fields), samples, _odd_images(listing), _count_ignored(listing))


def value_bytes(value: Value) -> int:
    """Return what a value takes in the source; in a tar too, unless its pixels are changed."""
    if isinstance(value, SourceFile):
        return value.size_bytes
    return len(value) if isinstance(value, bytes) else 8


def _refuse_splits(root: str, folders: list[bytes], images: list[SourceFile]) -> None:
    if not folders or not all(printable(folder).lower() in _SPLITS for folder in folders):
        return
    if any(file.path.count(b"/") > 1 for file in images):
        names = [printable(folder) for folder in folders]
        raise SourceError(
            f"{root} holds the parts of a dataset ({', '.join(names)}), not classes",
            hint=f"pack each by itself: feedrate pack {os.path.join(root, names[0])} PACK-{names[0]}",
        )


def _odd_images(listing: Listing) -> tuple[Rejection, ...]:
    return tuple(
        Rejection(printable(path), "image", reason)
        for path, reason in sorted(listing.odd.items())
        if has_image_suffix(path) or reason.startswith("folder")
    )


def _count_ignored(listing: Listing, *, but: bytes | None = None) -> dict[str, int]:
    others = [f.path for f in listing.files if not has_image_suffix(f.path) and f.path != but]
    return dict(sorted(Counter(file_suffix(path) for path in others).items()))


def _what_is_there(listing: Listing) -> str:
    if not listing.files:
        return "it holds no files at all"
    counts = Counter(file_suffix(f.path) or "no suffix" for f in listing.files).most_common(4)
    return "it holds other files: " + ", ".join(f"{count:,} with {suffix}" for suffix, count in counts)


def _from_table(listing: Listing, table: Table, options: PackOptions) -> Source:
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
    columns += [_further_column(table, spec) for spec in options.fields]

    finder = _Finder(listing)
    if not any(finder.find(name) for name in table.columns[path_column]):
        files = sorted(listing.files, key=lambda file: not has_image_suffix(file.path))
        example = f"{listing.root} holds '{printable(files[0].path)}'" if files else "the folder is empty"
        raise SourceError(
            f"none of the files that {table.path} names is in {listing.root}: "
            f"the table says '{table.columns[path_column][0]}', {example}",
            hint="names in the table are relative to the folder: pack the folder that they start from",
        )
    rows, rejected = _read_rows(columns, finder)
    keys = make_keys(row[0].path for _, row in rows if isinstance(row[0], SourceFile))
    samples = [Sample(n, key, row) for (n, row), key in zip(rows, keys, strict=True)]
    table_path = finder.relative(str(table.path.resolve()))
    named = {value.path for _, row in rows for value in row if isinstance(value, SourceFile)}
    unlisted = sum(
        has_image_suffix(f.path) and f.path not in named and f.path not in finder.asked for f in listing.files
    )
    ignored = [
        f.path
        for f in listing.files
        if not has_image_suffix(f.path) and f.path not in named and f.path != table_path
    ]
    return Source(
        listing.root, tuple(column.field for column in columns), samples, tuple(rejected),
        dict(sorted(Counter(file_suffix(path) for path in ignored).items())), unlisted, table,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Column:
    field: Field
    values: Sequence[object]


class _Finder:
    """Finds the file that a cell of a table names."""

    def __init__(self, listing: Listing) -> None:
        self.root = listing.root
        self.asked: set[bytes] = set()
        self._files = {file.path: file for file in listing.files}
        self._odd = listing.odd

    def find(self, name: object) -> SourceFile | None:
        path = self.relative(name)
        return None if path is None else self._files.get(path)

    def read(self, name: object) -> SourceFile:
        path = self.relative(name)
        if path is None:
            raise UnusableValue("lies outside the source folder")
        self.asked.add(path)
        if path not in self._files:
            raise UnusableValue(self._odd.get(path, "no such file in the source folder"))
        return self._files[path]

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


def _read_rows(
    columns: list[_Column], finder: _Finder
) -> tuple[list[tuple[int, tuple[Value, ...]]], list[Rejection]]:
    rows: list[tuple[int, tuple[Value, ...]]] = []
    rejected = []
    first_row: dict[bytes, int] = {}
    for number, cells in enumerate(zip(*(column.values for column in columns), strict=True)):
        name = finder.relative(cells[0]) or str(cells[0]).encode("utf-8", "surrogateescape")
        values: list[Value] = []
        try:
            for column, cell in zip(columns, cells, strict=True):
                values.append(_read_cell(column.field, cell, finder))
            _refuse_repeated(name, number, first_row)
        except UnusableValue as error:
            field = columns[min(len(values), len(columns) - 1)].field.name
            rejected.append(Rejection(printable(name), field, str(error)))
            continue
        first_row[name] = number
        rows.append((number, tuple(values)))
    return rows, rejected


def _refuse_repeated(name: bytes, number: int, first_row: Mapping[bytes, int]) -> None:
    if name in first_row:
        raise UnusableValue(f"row {number + 1} of the table names it again, after row {first_row[name] + 1}")


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
