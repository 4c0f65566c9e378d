# SPDX-License-Identifier: Apache-2.0
"""Folders that only this user or root can have filled: what is there will be trained on."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.files.lock import CopyGone
from feedrate.files.permissions import user_name

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
        hint="have it removed, or name another scratch folder, one of your own: --to FOLDER",
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
