# SPDX-License-Identifier: Apache-2.0
"""The folder of a user's copies on scratch, and whom to trust there: what lies there will be trained on."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.store.files import explain_write_error
from feedrate.store.leases import CopyGone
from feedrate.store.marker import user_name

HOME = "feedrate"
ROOT = 0  # whose copies everybody may use


def make_home(scratch: Path) -> Path:
    """Return SCRATCH/feedrate/UID, made where it is missing.

    Raises:
        StorageError: it cannot be made, or is not to be trusted.
    """
    store = scratch / HOME
    home = store / str(os.getuid())
    try:
        # Where everybody may write, everybody's copies lie side by side, as in /tmp.
        is_shared = bool(scratch.stat().st_mode & stat.S_IWOTH)
        _make_folder(store, 0o1777 if is_shared else 0o755)
        _make_folder(home, 0o755)
    except OSError as error:
        raise explain_write_error(error, home) from error
    check_trust(store, may_be_shared=True)
    check_trust(home)
    return home


def check_trust(folder: Path, *, may_be_shared: bool = False) -> None:
    """Refuse a folder that somebody else could have filled. `may_be_shared`: as /tmp is.

    Raises:
        CopyGone: it is not there.
        StorageError: it is a link, belongs to somebody else, or others may write to it.
    """
    try:
        info = folder.lstat()
    except FileNotFoundError:
        raise CopyGone from None
    except OSError as error:
        raise StorageError(f"cannot look at {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(info.st_mode):
        reason = "is a link" if stat.S_ISLNK(info.st_mode) else "is not a folder"
    elif may_be_shared and info.st_mode & stat.S_ISVTX:
        return
    elif info.st_uid not in (os.getuid(), ROOT):
        reason = f"belongs to {user_name(info.st_uid)}"
    elif info.st_mode & 0o022:
        reason = "can be written to by other users"
    else:
        return
    raise StorageError(
        f"{folder} {reason}, so what lies there is not trusted",
        hint="name another scratch folder, one of your own: --to FOLDER",
    )


def list_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted; none where it cannot be listed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names if (folder / name).is_dir())


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    folder.chmod(mode)
