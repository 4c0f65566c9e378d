# SPDX-License-Identifier: Apache-2.0
"""Finds the files that a table names, below a folder and nowhere else."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator

from feedrate.format.keys import has_image_suffix
from feedrate.remote.addresses import is_url
from feedrate.source.names import Digests
from feedrate.source.record import FileRange
from feedrate.source.remote import walk
from feedrate.source.values import UnusableValue


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
