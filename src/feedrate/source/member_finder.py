# SPDX-License-Identifier: Apache-2.0
"""Finds the members of archives that a table names. Where they lie is kept on disk: there may be millions."""

from __future__ import annotations

import json
import posixpath
import sqlite3
from collections.abc import Iterator
from typing import Any

from feedrate.errors import StorageError
from feedrate.format.keys import has_image_suffix
from feedrate.source.archives import Archive
from feedrate.source.names import Digests, is_hidden
from feedrate.source.record import ContainerValue, FileRange
from feedrate.source.spool import Spool
from feedrate.source.values import UnusableValue


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
        # A database without a name lies on disk where it grows, and is gone when it is closed.
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
            raise UnusableValue("lies outside the archive")
        for wanted in (path, self._top + path):
            row = self._look_up(wanted)
            if row is not None:
                self._asked.add(wanted)
                return _load(json.loads(row))
        raise UnusableValue("no such file in the archive")

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
                found.execute("INSERT INTO members VALUES (?, ?)", (name, json.dumps(_dump(member.value))))
        found.execute("COMMIT")
        self._top = tops.pop() if len(tops) == 1 else b""

    def _look_up(self, name: bytes) -> str | None:
        assert self._found is not None
        row = self._found.execute("SELECT value FROM members WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _names(self, limit: int = -1) -> Iterator[bytes]:
        assert self._found is not None
        return (
            row[0] for row in self._found.execute("SELECT name FROM members ORDER BY name LIMIT ?", (limit,))
        )


def _dump(value: FileRange | ContainerValue) -> list[Any]:
    where = value.offset if isinstance(value, FileRange) else [value.container, list(value.place)]
    return [
        value.path.decode("latin-1"),
        value.size_bytes,
        value.file.decode("latin-1"),
        where,
        value.mtime_ns,
    ]


def _load(row: list[Any]) -> FileRange | ContainerValue:
    path, size_bytes, file, where, mtime_ns = row
    if isinstance(where, int):
        return FileRange(path.encode("latin-1"), size_bytes, file.encode("latin-1"), where, mtime_ns)
    container, place = where
    return ContainerValue(
        path.encode("latin-1"), size_bytes, file.encode("latin-1"), container, tuple(place), mtime_ns
    )
