# SPDX-License-Identifier: Apache-2.0
"""Samples of a source as they come to a pack that is there already: known files refused or passed over, keys
that stay unique, classes by the pack's numbers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import key_of_stem, make_stem
from feedrate.format.pack import Pack
from feedrate.pack.members import path_column
from feedrate.results.progress import Rejection
from feedrate.source.names import hash_name
from feedrate.source.record import Held, Reader, Record, Stored, Value
from feedrate.units import printable


class Arrivals(Reader):
    """A reader of what is new. Holds 16 bytes per sample of the pack.

    Attributes:
        skipped: files that were passed over since the pack has them.
    """

    def __init__(self, reader: Reader, pack: Pack, *, skip: bool) -> None:
        self.root, self.table = reader.root, reader.table
        self.skipped = 0
        self._reader, self._pack, self._skip = reader, pack, skip
        column = path_column(pack)
        self._path_field = column.removesuffix(".path") if column else None
        self._paths = _Known(pack.all_texts(column) if column else ())
        self._keys = _Known(pack.all_texts("key"))
        self._classes: dict[str, tuple[str, ...]] = {}

    @property
    def ignored(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._reader.ignored

    @property
    def unlisted(self) -> int:  # type: ignore[override]
        return self._reader.unlisted

    def __iter__(self) -> Iterator[Record | Rejection]:
        self.skipped = 0
        for record in self._reader:
            if isinstance(record, Rejection):
                yield record
                continue
            path = self._path(record)
            if path and path in self._paths:
                if not self._skip:
                    raise SourceError(
                        f"'{printable(path)}' is in {self._pack.path} already",
                        hint="pass over files that the pack has: --skip-existing",
                    )
                self.skipped += 1
                continue
            values = {name: self._translate(name, value) for name, value in record.values.items()}
            yield Record(self._free_name(record.name), values)

    def fields(self) -> tuple[Field, ...]:
        """Return the pack's fields, with the classes that the source brings at the end of each list.

        Raises:
            SourceError: the source's fields are others; names the field and the difference.
        """
        given = {field.name: field for field in self._reader.fields()}
        stored = self._pack.manifest.fields
        if "map" in self._pack.manifest.settings:
            # What the map makes of the source's fields is known when it has run.
            known = {field.name: field for field in stored if field.classes is not None}
            return tuple(self._fit(known.get(name, field), field) for name, field in given.items())
        missing = next((field for field in stored if field.name not in given), None)
        if missing is not None:
            raise SourceError(
                f"{self._pack.path} has a field '{missing.name}' ({missing.kind}), and {self.root} has not",
                hint="samples of a pack have the same fields; --labels and --field name columns of a table",
            )
        extra = next((name for name in given if name not in {field.name for field in stored}), None)
        if extra is not None:
            raise SourceError(
                f"{self.root} has a field '{extra}' ({given[extra].kind}), and {self._pack.path} has not"
            )
        return tuple(self._fit(field, given[field.name]) for field in stored)

    def _fit(self, field: Field, given: Field) -> Field:
        there, here = f"in {self._pack.path}", f"in {self.root}"
        if field.kind != given.kind:
            raise SourceError(f"field '{field.name}' is {field.kind} {there}, and {given.kind} {here}")
        if field.kind is not Kind.NUMBER:
            return given
        if (field.classes is None) != (given.classes is None):
            words = ("a class", "a plain number")
            first, second = words if field.classes is not None else words[::-1]
            raise SourceError(f"field '{field.name}' is {first} {there}, and {second} {here}")
        if field.dtype == "int64" and given.dtype == "float64":
            raise SourceError(f"field '{field.name}' is made of whole numbers {there}, and not {here}")
        if field.classes is None:
            return dataclasses.replace(given, dtype=field.dtype)
        known = set(field.classes)
        new = [name for name in given.classes or () if name not in known]
        return dataclasses.replace(given, classes=(*field.classes, *new))

    def _path(self, record: Record) -> bytes:
        value = record.values.get(self._path_field) if self._path_field else None
        return value.path if isinstance(value, (Stored, Held)) else b""

    def _translate(self, name: str, value: Value) -> Value:
        """Give a class by its name, since its number is the source's; what was listed last knows numbers."""
        field = self._pack.manifest.field(name)
        if field is None or isinstance(value, (str, bytes, Stored, Held)):
            return value
        if field.classes is None:
            return float(value) if field.dtype == "float64" else value
        number = int(value)
        if number >= len(self._classes.get(name, ())):
            self._classes |= {f.name: f.classes for f in self._reader.fields() if f.classes is not None}
        names = self._classes.get(name, ())
        return names[number] if number < len(names) else value

    def _free_name(self, name: bytes) -> bytes:
        stem, suffix = os.path.splitext(name)
        free, number = name, 1
        while key_of_stem(make_stem(free)).encode() in self._keys:
            number += 1
            free = b"%b~%d%b" % (stem, number, suffix)
        return free


class _Known:
    """Many names, of which only hashes are held: 8 bytes each."""

    def __init__(self, names: Iterator[bytes] | tuple[()]) -> None:
        self._hashes = np.sort(np.fromiter((hash_name(name) for name in names), np.uint64))

    def __contains__(self, name: bytes) -> bool:
        wanted = np.uint64(hash_name(name))
        at = int(np.searchsorted(self._hashes, wanted))
        return at < len(self._hashes) and bool(self._hashes[at] == wanted)
