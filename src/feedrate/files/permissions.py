# SPDX-License-Identifier: Apache-2.0
"""Who may read the files of a source? A copy is never more readable than that."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from feedrate.errors import StorageError
from feedrate.units import printable


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Readers:
    """Collects what was looked at. Public: everybody may read all files, and enter all folders above them.

    Groups are left out of account: copies are shared with root only, so a group gains nothing.
    """

    def __init__(self) -> None:
        self.is_public = True
        self._folders: dict[bytes, bool] = {}

    def close(self) -> None:
        """Take it that nobody else may read it: behind an address, rights are not known."""
        self.is_public = False

    def add(self, path: str | bytes, info: os.stat_result | None = None) -> None:
        """Add a file, wherever links lead."""
        if not self.is_public:
            return
        real = os.path.realpath(os.fsencode(path))
        mode = (os.stat(real) if info is None else info).st_mode
        self.is_public = bool(mode & stat.S_IROTH) and self._is_open(os.path.dirname(real))

    def add_in(self, folder: bytes, info: os.stat_result) -> None:
        """Add a file that is no link; `folder`: without links."""
        if self.is_public:
            self.is_public = bool(info.st_mode & stat.S_IROTH) and self._is_open(folder)

    def _is_open(self, folder: bytes) -> bool:
        known = self._folders.get(folder)
        if known is None:
            above = os.path.dirname(folder)
            known = bool(os.stat(folder).st_mode & stat.S_IXOTH) and (above == folder or self._is_open(above))
            self._folders[folder] = known
        return known


def walk_local(root: str, audience: Readers) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Yield the files below a folder in sorted order, links followed; None: it is hidden, and left out.

    Raises:
        StorageError: a folder cannot be listed, or a link leads nowhere.
    """
    yield from _walk(os.fsencode(root), b"", audience, ())


def _walk(
    top: bytes, below: bytes, audience: Readers, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[bytes, os.stat_result | None]]:
    folder = os.path.join(top, below) if below else top
    real = os.path.realpath(folder)
    folders = []
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.name.startswith(b"."):
                yield path, None
            elif entry.is_dir():
                folders.append((path, entry.stat()))
            elif entry.is_file():
                info = entry.stat()
                if entry.is_symlink():
                    audience.add(entry.path, info)
                else:
                    audience.add_in(real, info)
                yield path, info
            elif entry.is_symlink():
                raise StorageError(f"{printable(entry.path)} is a link that leads nowhere")
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot list {printable(folder)}: {error.strerror}") from error
    for path, info in folders:
        identity = (info.st_dev, info.st_ino)
        if identity in above:
            raise StorageError(f"{printable(os.path.join(top, path))} is a link to a folder that it lies in")
        yield from _walk(top, path, audience, (*above, identity))
