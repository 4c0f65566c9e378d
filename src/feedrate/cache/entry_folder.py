# SPDX-License-Identifier: Apache-2.0
"""Where the entry points that `feedrate run` finds are kept from run to run, and how they are deleted.

    FOLDER/feedrate-entries-UID/
        entries                  what was found so far (entry_file.py draws it); replaced as a whole
        journal-NODE-PID-DIGITS  what a process has added since, locked while that process goes on
        lock                     held by who puts journals into `entries`; its time says when they were last
                                 used, and its text that this is one of ours

Only the user may look in there. FOLDER is named by `--cache`, else $XDG_CACHE_HOME/feedrate, else
~/.cache/feedrate.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from feedrate.cache.entry_file import read_count
from feedrate.cache.persistent import find_user
from feedrate.files.atomic import is_temporary
from feedrate.files.lock import LOOK, is_locked, locked_if_free
from feedrate.files.permissions import find_distrust
from feedrate.files.tree import opened_folder

ENTRIES, LOCK = "entries", "lock"
_JOURNAL = "journal-"
MARK = b'{"format": "feedrate-entries", "version": 1}\n'


def find_cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of this user's caches, which need not be there; None: there is no home."""
    cache = environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(cache):  # the standard has relative ones ignored
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "feedrate") if os.path.isabs(cache) else None


def home_of(folder: Path) -> Path:
    return folder / f"feedrate-entries-{os.getuid()}"


def find_home(folder: Path) -> Path | None:
    """Return what `run` made in a folder; None: it is not there, or others could have filled it."""
    place = home_of(folder)
    with contextlib.suppress(OSError), opened_home(place):
        return place
    return None


def is_home(place: Path) -> bool:
    return place.name == home_of(place.parent).name


def make_journal_name() -> str:
    return f"{_JOURNAL}{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"


def is_journal(name: str) -> bool:
    return name.startswith(_JOURNAL)


@contextlib.contextmanager
def opened_home(place: Path) -> Iterator[int]:
    """Yield a descriptor of a folder of entry points.

    Raises:
        OSError: it is not there, or others could have filled it.
    """
    with opened_folder(str(place)) as fd:
        if why := find_distrust(os.fstat(fd)):
            raise PermissionError(errno.EACCES, f"it {why}, so what lies there is not used")
        yield fd


def open_plain(name: str, folder_fd: int) -> int:
    """Return a descriptor of a plain file that only this user can have written.

    Raises:
        OSError: it is not there, or is anything else.
    """
    fd = os.open(name, LOOK, dir_fd=folder_fd)
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and not find_distrust(info):
        return fd
    os.close(fd)
    raise PermissionError(errno.EACCES, f"{name} is not a file that only you can write to, so it is not used")


def measure_bytes(folder: int | Path) -> int:
    """Return what the files of a folder take, by its path or descriptor."""
    total = 0
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if isinstance(folder, int):
                total += os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            else:
                total += os.lstat(folder / name).st_size
    return total


def count_images(place: Path) -> int:
    """Return of how many images entry points are kept; 0 where that cannot be known."""
    with contextlib.suppress(OSError, ValueError), opened_home(place) as folder:
        fd = open_plain(ENTRIES, folder)
        try:
            return read_count(fd)
        finally:
            os.close(fd)
    return 0


def is_being_filled(place: Path) -> bool:
    return any(is_locked(place / name) for name in os.listdir(place) if is_journal(name))


def delete_entries(place: Path, *, is_trial: bool = False) -> str:
    """Delete a folder of entry points; return why it stays, "": it does not. `is_trial`: look only."""
    try:
        if why := _find_objection(place):
            return why
        with locked_if_free(place / LOCK) as is_free:
            if not is_free or is_being_filled(place):
                return "it is in use: a run adds entry points to it"
            user = find_user(place)
            if user is not None or is_trial:
                return "" if user is None else f"it is in use: process {user} has files of it open"
            # The lock, by which it is known as ours, is the last.
            for name in sorted(os.listdir(place), key=lambda name: name == LOCK):
                (place / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another run has begun a new one meanwhile
                place.rmdir()
            return ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be deleted: {error.strerror}"


def _find_objection(place: Path) -> str:
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        return "it is no folder of feedrate"
    for name in sorted(os.listdir(place)):
        is_ours = name in (ENTRIES, LOCK) or is_journal(name) or is_temporary(name)
        if not is_ours or not stat.S_ISREG(os.lstat(place / name).st_mode):
            return f"it holds {name}, which feedrate did not put there"
    is_marked = (place / LOCK).exists() and (place / LOCK).read_bytes().startswith(MARK[:-1])
    return "" if is_marked or not os.listdir(place) else "it carries no marker of feedrate"
