# SPDX-License-Identifier: Apache-2.0
"""Several files by one name: `train-{0000..0009}.tar`, `{train,extra}-*.parquet`.

A text file of paths, one per line, each with a label behind it or none.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterator

from feedrate.errors import FeedrateError, NotFound, SourceError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.keys import has_image_suffix
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.labels import NumberColumn
from feedrate.source.names import Repeats
from feedrate.source.record import FileRange, Reader, Record, Value
from feedrate.source.values import UnusableValue
from feedrate.units import printable

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000
_AT_ONCE = 16
_SPECIAL = re.compile(r"[*?{\[]")


def is_pattern(source: str) -> bool:
    return _SPECIAL.search(source) is not None and not os.path.exists(source)


def find_files(source: str) -> tuple[Place, list[PlacedFile]]:
    """Return the files that a pattern names, sorted, and the place that they all lie in.

    Raises:
        NotFound: there are none, or one that the braces name is missing.
    """
    from concurrent.futures import ThreadPoolExecutor

    first = _SPECIAL.search(source)
    assert first is not None
    fixed = source[: first.start()].rpartition("/")[0]
    rest = source[len(fixed) :].lstrip("/") if fixed else source.lstrip("/")
    root = fixed or ("/" if source.startswith("/") else ".")
    place = Place(root + ("/" if root.endswith(":") else ""))
    found: dict[bytes, PlacedFile] = {}
    patterns = list(_expand(rest))
    single = [os.fsencode(pattern) for pattern in patterns if not re.search(r"[*?\[]", pattern)]
    with ThreadPoolExecutor(_at_once(place)) as threads:  # a question to a server is mostly waiting
        facts = dict(zip(single, threads.map(place.find, single), strict=True))
    for pattern in patterns:
        if re.search(r"[*?\[]", pattern):
            parts = pattern.split("/")
            matches = [file for file in place.walk() if _matches(os.fsdecode(file.path).split("/"), parts)]
            if not matches:
                raise NotFound(f"no file is called like {place.address(os.fsencode(pattern))}")
            found |= {file.path: file for file in matches}
        else:
            file = facts[os.fsencode(pattern)]
            if file is None:
                raise NotFound(
                    f"{place.address(os.fsencode(pattern))} is a folder; the pattern should name files"
                )
            found[file.path] = file
    return place, [found[path] for path in sorted(found)]


def _at_once(place: Place) -> int:
    # A connection by SSH mixes up the answers of threads that share it.
    return _AT_ONCE if place.is_remote and not place.root.startswith(("sftp:", "ssh:")) else 1


def _matches(path: list[str], pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))


def _expand(text: str) -> Iterator[str]:
    names = [text]
    while any(_BRACES.search(name) for name in names):
        names = [one for name in names for one in _expand_first(name)]
        if len(names) > _MOST_NAMES:
            raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    yield from names


def _expand_first(text: str) -> Iterator[str]:
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    before, after = text[: braces.start()], text[braces.end() :]
    numbers = _RANGE.fullmatch(braces[1])
    if numbers is None:
        yield from (before + choice + after for choice in braces[1].split(","))
        return
    first, last = int(numbers[1]), int(numbers[2])
    if last - first >= _MOST_NAMES:
        raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    width = len(numbers[1])
    yield from (f"{before}{number:0{width}d}{after}" for number in range(first, last + 1))


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
        _, label = self._cut(first)
        self._has_labels = label is not None
        if not has_image_suffix(self._cut(first)[0]):
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
        image = Field("image", Kind.IMAGE)
        return (image, self._label.field()) if self._has_labels else (image,)

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
            return Rejection(printable(path), field, str(error))
        return Record(_below(path), values)

    def _find(self, path: bytes) -> FileRange:
        file = posixpath.normpath(path)
        if self._place.is_remote and (file.startswith((b"../", b"/"))):
            raise UnusableValue("lies outside of the list's folder")
        if file.startswith(b"../"):
            file = os.path.normpath(os.path.join(os.fsencode(os.path.abspath(self.root)), file))
        try:
            found = self._place.find(file, suggest=False)
        except FeedrateError:
            raise UnusableValue("no such file") from None
        if found is None:
            raise UnusableValue("is a folder")
        return FileRange(_below(path), found.size_bytes, file, 0, found.mtime_ns)


def _parse_label(label: bytes | None) -> int | float | str:
    if not label:
        raise UnusableValue("the line has no label, and the first one had")
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
