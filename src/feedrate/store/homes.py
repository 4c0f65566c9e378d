# SPDX-License-Identifier: Apache-2.0
"""The folder of a user's copies on scratch, and whom to trust there: what lies there will be trained on.

It is SCRATCH/feedrate-UID, directly in scratch: in a folder between the two, its owner could put something
else in the place of others' copies. It is opened once and looked at by its descriptor, and what is below it
is reached by that descriptor: whoever can rename folders above it changes nothing of what is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.store.files import explain_write_error
from feedrate.store.leases import CopyGone
from feedrate.store.marker import user_name

ROOT = 0  # whose copies everybody may use
# Where copies lay before, in SCRATCH/feedrate/UID: they are listed and deleted there, and not looked for.
OLD_STORE = "feedrate"
_NAME = re.compile(r"feedrate-([0-9]+)")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def user_folder(uid: int | None = None) -> str:
    """Return the name that the folder of a user's copies has on any scratch; None: this user's."""
    return f"feedrate-{os.getuid() if uid is None else uid}"


def owner_of(folder: Path) -> int | None:
    """Return whose copies a folder is for, by its name, now or before; None: it is for no copies."""
    match = _NAME.fullmatch(folder.name)
    if match is None and folder.parent.name == OLD_STORE:
        match = re.fullmatch("([0-9]+)", folder.name)
    return None if match is None else int(match[1])


def list_user_folders(scratch: Path) -> Iterator[Path]:
    """Yield the folders on scratch that hold copies, of all users, also where copies lay before."""
    for folder in [*list_folders(scratch), *list_folders(scratch / OLD_STORE)]:
        if owner_of(folder) is not None:
            yield folder


def make_user_folder(scratch: Path, *, is_public: bool) -> int:
    """Return a descriptor of this user's folder, made if need be; private, until a copy in it is public.

    Raises:
        StorageError: it cannot be made, or the name is taken by somebody else.
    """
    folder = scratch / user_folder()
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise explain_write_error(error, folder) from error
    try:
        fd = open_trusted(folder)
    except CopyGone:
        raise StorageError(f"{folder} was deleted just when it was made", hint="try again") from None
    try:
        if is_public and stat.S_IMODE(os.fstat(fd).st_mode) & 0o055 != 0o055:
            os.fchmod(fd, 0o755)
    except OSError as error:
        os.close(fd)
        raise explain_write_error(error, folder) from error
    return fd


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


def list_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted; none where it cannot be listed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names if (folder / name).is_dir())
