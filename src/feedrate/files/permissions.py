# SPDX-License-Identifier: Apache-2.0
"""Who may read the files of a source? A copy is never more readable than that.

Folders that only this user or root can have filled: what is there will be trained on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.files.lock import CopyGone
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


ROOT = 0  # whose copies everybody may use


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_trusted(folder: Path, dir_fd: int | None = None) -> int:
    """Return a descriptor of a folder that nobody but this user or root can have filled.

    `dir_fd`: of the folder above it, whose path is then not looked at.

    Raises:
        CopyGone: it is not there.
        StorageError: it is a link, belongs to somebody else, or others may write to it.
    """
    name = folder if dir_fd is None else folder.name
    try:
        fd = os.open(name, _FOLDER, dir_fd=dir_fd)
    except FileNotFoundError:
        raise CopyGone from None
    except OSError as error:
        reason = f"cannot be looked at: {error.strerror}"
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            reason = "is a link" if stat.S_ISLNK(info.st_mode) else "is not a folder"
        raise _distrust(folder, reason) from error
    info = os.fstat(fd)
    if info.st_uid in (os.getuid(), ROOT) and not info.st_mode & 0o022:
        return fd
    os.close(fd)
    if info.st_uid not in (os.getuid(), ROOT):
        raise _distrust(folder, f"belongs to {user_name(info.st_uid)}")
    raise _distrust(folder, "can be written to by other users")


def _distrust(folder: Path, reason: str) -> StorageError:
    return StorageError(
        f"{folder} {reason}, so what lies there is not trusted",
        hint="have it removed, or name another scratch folder, one of your own: --scratch DIR",
    )


def anchor(fd: int, folder: Path) -> Path:
    """Return a path of what a descriptor holds, wherever that is moved to; where there is none, `folder`."""
    path = Path(f"/proc/self/fd/{fd}")
    return path if path.is_dir() else folder


def find_replaceable(scratch: Path) -> str:
    """Return why others could put something else in the place of a path on scratch; "": they cannot.

    What feedrate reads there goes by descriptor; a path that is handed to another program does not.
    """
    real = Path(os.path.realpath(scratch))
    for folder in (real, *real.parents):
        try:
            info = folder.stat()
        except OSError:
            continue
        if info.st_uid not in (os.getuid(), ROOT) and not _is_nobody(info.st_uid):
            return f"{folder} belongs to {user_name(info.st_uid)}"
        # A group that may write to one's own folder is one's own choice, often a group of one.
        writers = 0o002 if info.st_uid == os.getuid() else 0o022
        if info.st_mode & writers and not info.st_mode & stat.S_ISVTX:
            return f"others may write to {folder}, which is not sticky"
    return ""


def _is_nobody(uid: int) -> bool:
    """Return whether this is what root of the machine looks like inside of a container."""
    try:
        return uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False
