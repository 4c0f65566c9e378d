# SPDX-License-Identifier: Apache-2.0
"""What lies in a folder: every file with its size and time, in the order of torchvision's ImageFolder.

One folder's names are held at a time (and the names of the folders inside one class), never all files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from feedrate.errors import NotFound, StorageError
from feedrate.probe.paths import suggest_path


@dataclass(slots=True)
class Found:
    """A file, also behind a symbolic link; `odd` says why it cannot be read, if it cannot."""

    path: bytes  # relative to the top
    size_bytes: int = 0
    mtime_ns: int = 0
    odd: str | None = None


@dataclass(slots=True)
class Inside:
    files: list[tuple[bytes, os.stat_result | Found | str]]  # name, and what it is or why nobody knows
    folders: list[tuple[bytes, frozenset[tuple[int, int]]]]  # path, with those above it


class Walk:
    """Iterate over a folder's files: by class (the first part of the path), then by folder, then by name.

    Hidden files and folders are left out. Symbolic links are followed, except where they lead back to a
    folder above them. `unlisted` names, after the iteration, the folders that could not be listed, and why.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        try:
            top = os.stat(root)
        except OSError as error:
            raise NotFound(f"no dataset at {root} ({error.strerror})", hint=suggest_path(root)) from None
        if not stat.S_ISDIR(top.st_mode):
            raise NotFound(
                f"{root} is a file; a dataset is a folder",
                hint="is it a table? feedrate pack FOLDER PACK --labels TABLE",
            )
        self._above = frozenset({(top.st_dev, top.st_ino)})

    def __iter__(self) -> Iterator[Found]:
        self.unlisted = {}
        top = self._look(b"", self._above)
        yield from _found(b"", top)
        for folder, above in sorted(top.folders, key=lambda one: one[0]):
            yield from self._one_class(folder, above)

    def _one_class(self, folder: bytes, above: frozenset[tuple[int, int]]) -> Iterator[Found]:
        first = self._look(folder, above)
        yield from _found(folder, first)
        # torchvision sorts folders by their whole path, so 'a-b' comes before 'a/b': all are needed first.
        waiting, deeper = first.folders, []
        while waiting:
            at = waiting.pop()
            deeper.append(at)
            waiting += self._look(*at).folders
        for at in sorted(deeper, key=lambda one: one[0]):
            yield from _found(at[0], self._look(*at))

    def _look(self, folder: bytes, above: frozenset[tuple[int, int]]) -> Inside:
        inside = Inside([], [])
        try:
            with os.scandir(os.path.join(os.fsencode(self.root), folder)) as scan:
                entries = [entry for entry in scan if not entry.name.startswith(b".")]
        except OSError as error:
            if not folder:
                raise StorageError(f"cannot list {self.root}: {error.strerror}") from error
            self.unlisted[folder] = f"folder cannot be listed: {error.strerror}"
            return inside
        for entry in entries:
            try:
                info = entry.stat()
            except OSError as error:
                reason = "is a link to nothing" if entry.is_symlink() else f"cannot be read: {error.strerror}"
                inside.files.append((entry.name, reason))
                continue
            if not stat.S_ISDIR(info.st_mode):
                inside.files.append((entry.name, info))
            elif (info.st_dev, info.st_ino) not in above:
                path = os.path.join(folder, entry.name)
                inside.folders.append((path, above | {(info.st_dev, info.st_ino)}))
        inside.files.sort(key=lambda file: file[0])
        return inside


def _found(folder: bytes, inside: Inside) -> Iterator[Found]:
    start = folder + b"/" if folder else b""
    for name, info in inside.files:
        if isinstance(info, str):
            yield Found(start + name, odd=info)
        elif isinstance(info, Found):
            yield info
        elif stat.S_ISREG(info.st_mode):
            yield Found(start + name, info.st_size, info.st_mtime_ns)
        else:
            yield Found(start + name, odd="is not a regular file")
