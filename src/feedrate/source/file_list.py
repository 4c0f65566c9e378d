# SPDX-License-Identifier: Apache-2.0
"""A text file of paths, one per line, each with a label behind it or none."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator

from feedrate.errors import FeedrateError, SourceError
from feedrate.format.fields import Field, has_image_suffix
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.columns import NumberColumn
from feedrate.source.names import Repeats
from feedrate.source.record import FileRange, Reader, Record, UnusableValue, Value, image_fields, reject
from feedrate.units import printable

_LONGEST_LINE = 10_000


class FileList(Reader):
    """A sample per line: `PATH`, or `PATH LABEL` with a tab, a comma or spaces between them.

    Paths are relative to the list's own folder, or absolute. Empty lines and those that begin with '#' are
    left out.

    Raises, when iterated:
        SourceError: it is not a list of paths, or names a file twice.
    """

    def __init__(self, place: Place, file: PlacedFile) -> None:
        self.root = place.root
        self.ignored: dict[str, int] = {}
        self._place, self._file = place, file
        self._has_labels = False
        self._label = NumberColumn("label")

    def __iter__(self) -> Iterator[Record | Rejection]:
        self._label = NumberColumn("label")
        repeats = Repeats()
        address = self._place.address(self._file.path)
        lines = self._lines()
        first = next(lines, None)
        if first is None:
            raise SourceError(f"{address} names no files: it is empty")
        path, label = self._cut(first)
        self._has_labels = label is not None
        if not has_image_suffix(path):
            raise SourceError(
                f"{address} does not begin with the path of an image: '{printable(first[:100])}'",
                hint="a list has a path on each line, and a label behind it or none",
            )
        is_any_there = False
        for line in self._lines():
            repeats.add(self._cut(line)[0])
            sample = self._read_line(line)
            is_any_there |= isinstance(sample, Record)
            yield sample
        if not is_any_there:
            raise SourceError(
                f"none of the files that {address} names is there; the first is '{printable(first[:200])}'",
                hint="paths are relative to the folder that the list lies in",
            )
        twice = repeats.find(self._cut(line)[0] for line in self._lines())
        if twice is not None:
            raise SourceError(
                f"{address} names '{printable(twice)}' twice", hint="sort -u makes lines unique"
            )

    def fields(self) -> tuple[Field, ...]:
        return (*image_fields(), self._label.field()) if self._has_labels else image_fields()

    def _lines(self) -> Iterator[bytes]:
        with self._place.open(self._file.path) as stream:
            while line := stream.readline(_LONGEST_LINE):
                text = line.strip(b"\r\n \t")
                if len(line) >= _LONGEST_LINE or b"\0" in line:
                    raise SourceError(f"{self._place.address(self._file.path)} is not a list of paths")
                if text and not text.startswith(b"#"):
                    yield text

    def _cut(self, line: bytes) -> tuple[bytes, bytes | None]:
        """Return path and label. A path may have spaces in it, so the image's suffix says where it ends."""
        if has_image_suffix(line):
            return line, None
        for separator in (b"\t", b",", b" "):
            path, found, label = line.rpartition(separator)
            path = path.rstrip(b"\t, ")
            if found and has_image_suffix(path):
                return path, label.strip()
        return line, None

    def _read_line(self, line: bytes) -> Record | Rejection:
        path, label = self._cut(line)
        field = "image"
        try:
            values: dict[str, Value] = {"image": self._find(path)}
            field = "label"
            if self._has_labels:
                values["label"] = self._label.add(_parse_label(label))
        except (UnusableValue, ValueError) as error:
            return reject(path, field, error)
        return Record(_below(path), values)

    def _find(self, path: bytes) -> FileRange:
        file = posixpath.normpath(path)
        if self._place.is_remote and (file.startswith((b"../", b"/"))):
            raise UnusableValue("lies outside of the list's folder", "outside")
        if file.startswith(b"../"):
            file = os.path.normpath(os.path.join(os.fsencode(os.path.abspath(self.root)), file))
        try:
            found = self._place.find(file, suggest=False)
        except FeedrateError:
            raise UnusableValue("no such file", "missing") from None
        if found is None:
            raise UnusableValue("is a folder", "unreadable")
        return FileRange(_below(path), found.size_bytes, file, 0, found.mtime_ns)


def _parse_label(label: bytes | None) -> int | float | str:
    if not label:
        raise UnusableValue("the line has no label, and the first one had", "incomplete")
    text = label.decode("utf-8")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _below(path: bytes) -> bytes:
    """Return a path as it will be below the folder that a pack is unpacked to."""
    return b"/".join(part for part in posixpath.normpath(path).split(b"/") if part not in (b"", b".", b".."))
