# SPDX-License-Identifier: Apache-2.0
"""A disk tier that is there again for the next job.

    FOLDER/feedrate-cached-UID/NAME/
        data    the samples' bytes, one behind the other
        rows    a row of the cache's table per sample, added when its bytes are in `data`
        lock    held by the job that adds samples; its time says when the cache was last used, and its text
                that it is one of ours

Only the user may look in there. Nothing is believed: rows and bytes carry checksums, and what a killed job or
a crashed machine left half written fails them. Another job that comes while one adds samples reads what is
there by then. The tier's size is meant for all caches of the user in that folder together: when it is used
up, those that nobody uses go, the one unused longest first. A cache has no source that must be seen before it
goes: it can be made anew. Nobody takes half of it into use: who opens files looks whether they still have
these names, and who has them open keeps them, whatever becomes of their names.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.cache.table import ROW, Rows
from feedrate.errors import StorageError
from feedrate.files.atomic import say_reason
from feedrate.files.lock import is_same_file, lock_fd, locked_if_free
from feedrate.files.permissions import find_distrust
from feedrate.files.tree import opened_folder
from feedrate.machine.process import find_openers

_DATA, _ROWS, _LOCK = "data", "rows", "lock"
NAMES = (_ROWS, _DATA, _LOCK)
_MARK = b'{"format": "feedrate-cache", "version": 1}\n'
_TRIES = 100


def home_of(folder: str) -> Path:
    return Path(folder) / f"feedrate-cached-{os.getuid()}"


def open_kept(folder: str, name: str) -> tuple[dict[str, int], bool]:
    """Return descriptors of a cache's files, made if need be, and whether this job may add to them.

    Raises:
        StorageError: it cannot be made, or belongs to another user.
    """
    place = home_of(folder) / name
    for tries_left in reversed(range(_TRIES)):
        try:
            opened, is_mine = _open_place(place)
        except FileNotFoundError as error:
            if not tries_left:
                raise StorageError(f"cannot keep samples in {place}: {error.strerror}") from error
            continue  # it was deleted in between
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot keep samples in {place}: {say_reason(error, Path(folder))}"
            ) from error
        if not tries_left or all(is_same_file(opened[name], place / name) for name in NAMES):
            break
        for descriptor in opened.values():
            os.close(descriptor)
    with contextlib.suppress(OSError):
        if is_mine and not os.fstat(opened[_LOCK]).st_size:
            os.pwrite(opened[_LOCK], _MARK, 0)
        os.utime(opened[_LOCK])
    return opened, is_mine


def _open_place(place: Path) -> tuple[dict[str, int], bool]:
    # By descriptor: what was looked at is what is used, whoever can rename folders above it.
    with contextlib.ExitStack() as stack:
        above = None
        for one in (place.parent, place):
            name = one if above is None else one.name
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above)
            _check_trust(os.stat(name, dir_fd=above, follow_symlinks=False), one)
            above = stack.enter_context(opened_folder(str(name), above))
            _check_trust(os.fstat(above), one)
        assert above is not None
        opened = _open_files(above)
    is_mine = False
    with contextlib.suppress(OSError):  # a file system without locks: nothing is added there
        is_mine = lock_fd(opened[_LOCK], wait=False)
    return opened, is_mine


def _check_trust(info: os.stat_result, folder: Path) -> None:
    if not stat.S_ISDIR(info.st_mode) or find_distrust(info):
        raise StorageError(
            f"{folder} is not a folder that only you can write to, so what lies there is not used",
            hint="delete it, or name another folder: disk=",
        )


def _open_files(place_fd: int) -> dict[str, int]:
    opened: dict[str, int] = {}
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        for name in NAMES:
            opened[name] = os.open(name, flags, 0o600, dir_fd=place_fd)
    except OSError:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    return opened


def load_rows(opened: dict[str, int], samples: int, tier: int) -> Rows:
    """Return the rows of a cache that are good, for the tier with this number; of a sample, the last one."""
    size, data_bytes = os.fstat(opened[_ROWS]).st_size, os.fstat(opened[_DATA]).st_size
    stored = kernel.read_at(opened[_ROWS], size // ROW.itemsize * ROW.itemsize, 0)
    rows = np.frombuffer(stored, ROW, len(stored) // ROW.itemsize).copy()
    is_good = (rows["check"] == kernel.crc32c_rows(rows)) & (rows["is_there"] == 1)
    is_good &= (rows["number"] >= 0) & (rows["number"] < samples)
    is_good &= (rows["offset"] >= 0) & (rows["length"] >= 0) & (rows["offset"] <= data_bytes - rows["length"])
    rows = rows[is_good][::-1]
    last: Rows = rows[np.unique(rows["number"], return_index=True)[1]]
    last["tier"] = tier
    last["check"] = kernel.crc32c_rows(last)
    return last


def add_row(descriptor: int, row: Rows) -> None:
    """Note a sample whose bytes are there. A note that does not fit on the disk is a sample less."""
    with contextlib.suppress(OSError):
        # At a multiple of a row: what a killed process wrote in part must not shift the rows behind it.
        end = os.lseek(descriptor, 0, os.SEEK_END) // ROW.itemsize * ROW.itemsize
        os.pwrite(descriptor, row.tobytes(), end)


def measure_others(folder: str, name: str) -> int:
    """Return the bytes that the user's other caches in this folder take."""
    return sum(measure(place) for place in _list_others(folder, name))


def drop_oldest(folder: str, name: str) -> bool:
    """Delete the cache that was unused longest, if nobody uses it; False: there is none."""
    return any(
        not delete_cache(place)
        for place in sorted(_list_others(folder, name), key=last_used)
        if place.exists()
    )


def delete_cache(place: Path, *, is_trial: bool = False) -> str:
    """Delete a cache; return why it stays, "": it does not. `is_trial`: look only.

    Only what is ours goes: a folder with our mark in which nothing else is, and that nobody has open.
    """
    try:
        if why := _find_objection(place):
            return why
        os.close(os.open(place / _LOCK, os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with locked_if_free(place / _LOCK) as is_free:
            if not is_free:
                return "it is in use: a job adds samples to it"
            user = find_user(place)
            if user is not None or is_trial:
                return "" if user is None else f"it is in use: process {user} has files of it open"
            for name in NAMES:  # the lock, by which it is known as ours, is the last
                (place / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another job has begun a new one meanwhile
                place.rmdir()
            return ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be deleted: {error.strerror}"


def _find_objection(place: Path) -> str:
    """Return why this is nothing to be deleted, whoever uses it; "": nothing speaks against it."""
    if not stat.S_ISDIR(os.lstat(place).st_mode):
        return "it is no folder of feedrate"
    size_bytes = 0
    for name in sorted(os.listdir(place)):
        info = os.lstat(place / name)
        if name not in NAMES or not stat.S_ISREG(info.st_mode):
            return f"it holds {name}, which feedrate did not put there"
        size_bytes += info.st_size
    is_marked = (place / _LOCK).exists() and (place / _LOCK).read_bytes().startswith(_MARK[:-1])
    # Nothing is in there that somebody could miss.
    return "" if is_marked or not size_bytes else "it carries no marker of feedrate"


def find_user(place: Path) -> int | None:
    """Return a process that has files of a cache open; None: there is no other than this one."""
    openers = find_openers(os.path.realpath(place))
    return next((process for process in openers if process != os.getpid()), None)


def _list_others(folder: str, name: str) -> list[Path]:
    return [place for place in list_places(folder) if place.name != name]


def list_places(folder: str) -> list[Path]:
    """Return the folders of the user's caches; none where they are not to be believed."""
    home = home_of(folder)
    try:
        _check_trust(os.lstat(home), home)
        return [place for place in sorted(home.iterdir()) if not place.is_symlink()]
    except OSError:
        return []


def measure(place: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(place / _DATA).st_blocks * 512
    return 0


def last_used(place: Path) -> float:
    with contextlib.suppress(OSError):
        return os.stat(place / _LOCK).st_mtime
    return 0.0
