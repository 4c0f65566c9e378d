# SPDX-License-Identifier: Apache-2.0
"""Finds the files that a table names, below a folder and nowhere else.

Finds the members of archives that a table names. Where they lie is kept on disk: there may be millions.
"""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import stat
from collections.abc import Iterator
from typing import Any

from feedrate.errors import StorageError
from feedrate.format.keys import has_image_suffix
from feedrate.remote.addresses import is_url
from feedrate.source.archives import Archive
from feedrate.source.names import Digests, is_hidden
from feedrate.source.record import ContainerValue, FileRange
from feedrate.source.spool import Spool
from feedrate.source.values import UnusableValue
from feedrate.source.walk import walk


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
            raise UnusableValue("lies outside the source folder")
        self._asked.add(path)
        if self._listed is not None:
            if path not in self._listed:
                raise UnusableValue("no such file in the source folder")
            return self._listed[path]
        full = os.path.join(self._root, path)
        try:
            info = os.stat(full)
        except FileNotFoundError:
            is_link = os.path.islink(full)
            raise UnusableValue(
                "is a link to nothing" if is_link else "no such file in the source folder"
            ) from None
        except (OSError, ValueError) as error:
            raise UnusableValue(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not stat.S_ISREG(info.st_mode):
            raise UnusableValue("is not a regular file")
        return FileRange(path, info.st_size, path, 0, info.st_mtime_ns)

    def relative(self, name: object) -> bytes | None:
        """Return a path below the folder; None: it lies outside."""
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
