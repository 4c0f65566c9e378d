# SPDX-License-Identifier: Apache-2.0
"""Who may read a file, and who can have written it: what is found there will be trained on."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.files.lock import Gone
from feedrate.files.tree import FOLDER

ROOT = 0  # whose copies everybody may use


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Readers:
    """Who may read the files of a source, as they are added: a copy is never more readable than these.

    Public: everybody may read all files, and enter all folders above them.

    Groups are left out of account: copies are shared with root only, so a group gains nothing.
    """

    def __init__(self) -> None:
        self.is_public = True
        self._folders: dict[bytes, bool] = {}
        self._real: dict[bytes, bytes] = {}  # folders without links

    def close(self) -> None:
        """Take it that no other user may read it: behind an address, rights are not known."""
        self.is_public = False

    def add(self, path: str | bytes, info: os.stat_result | None = None, *, is_link: bool = True) -> None:
        """Add a file, wherever links lead. `is_link`: False: only folders above it may be links."""
        if not self.is_public:
            return
        path = os.fsencode(path)
        folder = os.path.dirname(os.path.realpath(path) if is_link else path)
        if not is_link:
            folder = self._real.get(folder) or self._real.setdefault(folder, os.path.realpath(folder))
        mode = (os.stat(path) if info is None else info).st_mode
        self.is_public = bool(mode & stat.S_IROTH) and self._is_open(folder)

    def _is_open(self, folder: bytes) -> bool:
        known = self._folders.get(folder)
        if known is None:
            above = os.path.dirname(folder)
            known = bool(os.stat(folder).st_mode & stat.S_IXOTH) and (above == folder or self._is_open(above))
            self._folders[folder] = known
        return known


def open_trusted(folder: Path, dir_fd: int | None = None) -> int:
    """Return a descriptor of a folder that nobody but this user or root can have filled.

    `dir_fd`: of the folder above it, whose path is then not looked at.

    Raises:
        Gone: it is not there.
        StorageError: it is a link, belongs to another user, or others may write to it.
    """
    name = folder if dir_fd is None else folder.name
    try:
        fd = os.open(name, FOLDER, dir_fd=dir_fd)
    except FileNotFoundError:
        raise Gone from None
    except OSError as error:
        reason = f"cannot be looked at: {error.strerror}"
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            reason = "is a link" if stat.S_ISLNK(info.st_mode) else "is not a folder"
        raise _distrust(folder, reason) from error
    if why := find_distrust(os.fstat(fd), ROOT):
        os.close(fd)
        raise _distrust(folder, why)
    return fd


def find_distrust(info: os.stat_result, *owners: int, forbidden: int = 0o022) -> str:
    """Return why a folder or file may be another user's work, a clause; "": it cannot be.

    Args:
        owners: who else than this user may own it.
        forbidden: rights that no other user may have.
    """
    if info.st_uid not in (os.getuid(), *owners):
        return f"belongs to {user_name(info.st_uid)}"
    return "can be written to by other users" if info.st_mode & forbidden else ""


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
        if why := find_distrust(info, ROOT, _find_nobody(), forbidden=0):
            return f"{folder} {why}"
        # A group that may write to one's own folder is one's own choice, often a group of one.
        writers = 0o002 if info.st_uid == os.getuid() else 0o022
        if info.st_mode & writers and not info.st_mode & stat.S_ISVTX:
            return f"others may write to {folder}, which is not sticky"
    return ""


def _find_nobody() -> int:
    """Return what root of the machine looks like inside of a container."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return ROOT
