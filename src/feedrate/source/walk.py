# SPDX-License-Identifier: Apache-2.0
"""What lies in a folder: every file with its size and time, in the order of torchvision's ImageFolder.

The names of two folders are held at a time, one of them read ahead (and the names of the folders inside one
class), never all files.

Folders that fsspec reaches, walked as those of this machine are.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from feedrate.errors import NotFound, StorageError, suggest_path
from feedrate.format.byte_strings import ByteStrings
from feedrate.format.keys import has_image_suffix
from feedrate.kernel import I64, U8, Entry, FolderList, list_folder
from feedrate.one_ahead import one_ahead
from feedrate.prelist import IMAGE_SUFFIXES
from feedrate.remote.addresses import Place, is_url

Above = frozenset[tuple[int, int]]  # the folders that one lies in, by device and inode
Folder = tuple[bytes, Above]  # its path


class Found(NamedTuple):
    """A file, also behind a symbolic link; `odd` says why it cannot be read, if it cannot."""

    path: bytes  # relative to the top
    size_bytes: int = 0
    mtime_ns: int = 0
    odd: str | None = None


class Inside(NamedTuple):
    """What a folder holds, by name. `kinds` are of `kernel.Entry`; folders are not among the files."""

    names: ByteStrings
    sizes: I64
    times_ns: I64
    kinds: U8
    folders: list[Folder]


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
        for folder, inside in self.folders():
            start = folder + b"/" if folder else b""
            facts = zip(
                inside.names,
                inside.sizes.tolist(),
                inside.times_ns.tolist(),
                inside.kinds.tolist(),
                strict=True,
            )
            for name, size_bytes, time_ns, kind in facts:
                odd = self.explain(start + name, kind, size_bytes)
                yield Found(start + name, 0, 0, odd) if odd else Found(start + name, size_bytes, time_ns)

    def folders(self) -> Iterator[tuple[bytes, Inside]]:
        """Iterate folder by folder; paths are relative to the top."""
        self.unlisted = {}
        top = self._look(b"", self._above)
        yield b"", top
        for folder, inside in self._look_ahead(top.folders):
            yield folder, inside
            yield from self._below(inside)

    def explain(self, path: bytes, kind: int, size_bytes: int) -> str | None:
        """Return why a file cannot be read; None: it can."""
        if kind == Entry.ODD:
            return "is not a regular file"
        if kind != Entry.UNKNOWN:
            return None
        if size_bytes == errno.ENOENT and os.path.islink(os.path.join(os.fsencode(self.root), path)):
            return "is a link to nothing"
        return f"cannot be read: {os.strerror(size_bytes)}"

    def _below(self, inside: Inside) -> Iterator[tuple[bytes, Inside]]:
        # torchvision sorts folders by their whole path, so 'a-b' comes before 'a/b': all are needed first.
        waiting, deeper = inside.folders, []
        while waiting:
            at = waiting.pop()
            deeper.append(at)
            waiting += self._look(*at).folders
        yield from self._look_ahead(sorted(deeper, key=lambda one: one[0]))

    def _look_ahead(self, folders: Sequence[Folder]) -> Iterator[tuple[bytes, Inside]]:
        """Look into folders one after the other; into the next one while somebody uses what was found."""
        found = one_ahead(partial(self._look, *folder) for folder in folders)
        for (path, _), inside in zip(folders, found, strict=True):
            yield path, inside

    def _look(self, folder: bytes, above: Above) -> Inside:
        try:
            found = list_folder(os.path.join(os.fsencode(self.root), folder), sorted(IMAGE_SUFFIXES))
        except OSError as error:
            if not folder:
                raise StorageError(f"cannot list {self.root}: {error.strerror}") from error
            self.unlisted[folder] = f"folder cannot be listed: {error.strerror}"
            return Inside(ByteStrings.of([]), *_NOTHING, [])
        return self._divide(folder, found, above)

    def _divide(self, folder: bytes, found: FolderList, above: Above) -> Inside:
        names = ByteStrings(found.names, found.starts)
        is_folder = found.kinds == Entry.FOLDER
        if not is_folder.any():
            return Inside(names, found.sizes, found.times_ns, found.kinds, [])
        folders = []
        for index in np.flatnonzero(is_folder).tolist():
            path = os.path.join(folder, names[index])
            try:
                info = os.stat(os.path.join(os.fsencode(self.root), path))
            except OSError as error:
                self.unlisted[path] = f"folder cannot be listed: {error.strerror}"
                continue
            if (info.st_dev, info.st_ino) not in above:
                folders.append((path, above | {(info.st_dev, info.st_ino)}))
        files = ~is_folder
        return Inside(
            names.take(files), found.sizes[files], found.times_ns[files], found.kinds[files], folders
        )


_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8))


def make_inside(files: list[Found], folders: list[Folder], start: bytes) -> Inside:
    """Return what a folder holds, where somebody else has listed it; `start` is where paths begin."""
    files = sorted(files, key=lambda file: file.path)
    kinds = [Entry.WANTED if has_image_suffix(file.path) else Entry.OTHER for file in files]
    names = [file.path[len(start) :] for file in files]
    return Inside(
        ByteStrings.of(names),
        np.array([file.size_bytes for file in files], np.int64),
        np.array([file.mtime_ns for file in files], np.int64),
        np.array(kinds, np.uint8),
        sorted(folders, key=lambda one: one[0]),
    )


class RemoteWalk(Walk):
    """The same files in the same order as `Walk`, behind a URL."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        self._above = frozenset()
        self._place = Place(root)

    def _look(self, folder: bytes, above: frozenset[tuple[int, int]]) -> Inside:
        start = folder + b"/" if folder else b""
        files, folders = [], []
        for name, file in self._place.list(folder):
            if name.startswith(b"."):
                continue
            if file is None:
                folders.append((start + name, above))
            else:
                files.append(Found(start + name, file.size_bytes, file.mtime_ns))
        return make_inside(files, folders, start)


def walk(root: str) -> Walk:
    return RemoteWalk(root) if is_url(root) else Walk(root)
