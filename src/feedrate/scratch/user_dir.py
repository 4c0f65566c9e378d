# SPDX-License-Identifier: Apache-2.0
"""The folder of a user's copies on scratch, and whom to trust there: what lies there will be trained on.

It is SCRATCH/feedrate-UID, directly in scratch: in a folder between the two, its owner could put something
else in the place of others' copies. It is opened once and looked at by its descriptor, and what is below it
is reached by that descriptor: whoever can rename folders above it changes nothing of what is read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.files.atomic import explain_write_error
from feedrate.files.lock import CopyGone
from feedrate.files.trust import open_trusted

# Where copies lay before, in SCRATCH/feedrate/UID: they are listed and deleted there, and not looked for.
OLD_STORE = "feedrate"
_NAME = re.compile(r"feedrate-([0-9]+)")


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


def list_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted; none where it cannot be listed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names if (folder / name).is_dir())
