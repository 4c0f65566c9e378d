# SPDX-License-Identifier: Apache-2.0
"""A disk tier that is there again for the next job.

    FOLDER/feedrate-cached-UID/NAME/
        data    the samples' bytes, one behind the other
        rows    a row of the shelf's table per sample, added when its bytes are in `data`
        lock    held by the job that adds samples; its time says when the cache was last used

Only the user may look in there. Nothing is believed: rows and bytes carry checksums, and what a killed job or
a crashed machine left half written fails them. Another job that comes while one adds samples reads what is
there by then. The tier's size is meant for all caches of the user in that folder together: when it is used
up, those that nobody uses go, the one unused longest first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.errors import StorageError
from feedrate.store.shelf_table import ROW, Rows

_DATA, _ROWS, _LOCK = "data", "rows", "lock"
NAMES = (_DATA, _ROWS, _LOCK)


def home_of(folder: str) -> Path:
    return Path(folder) / f"feedrate-cached-{os.getuid()}"


def open_kept(folder: str, name: str) -> tuple[dict[str, int], bool]:
    """Return descriptors of a cache's files, made if need be, and whether this job may add to them.

    Raises:
        StorageError: it cannot be made, or belongs to somebody else.
    """
    place = home_of(folder) / name
    try:
        for one in (place.parent, place):
            with contextlib.suppress(FileExistsError):
                one.mkdir(0o700)
            _check_trust(one)
        opened = _open_files(place)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot keep samples in {place}: {error.strerror}") from error
    is_mine = _try_lock(opened[_LOCK])
    with contextlib.suppress(OSError):
        os.utime(opened[_LOCK])
    return opened, is_mine


def _check_trust(folder: Path) -> None:
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise StorageError(
            f"{folder} is not a folder that only you can write to, so what lies there is not used",
            hint="delete it, or name another folder: disk=",
        )


def _open_files(place: Path) -> dict[str, int]:
    opened: dict[str, int] = {}
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        for name in NAMES:
            opened[name] = os.open(place / name, flags, 0o600)
    except OSError:
        for descriptor in opened.values():
            os.close(descriptor)
        raise
    return opened


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def load_rows(opened: dict[str, int], samples: int, tier: int) -> Rows:
    """Return the rows of a cache that are good, for the tier with this number; of a sample, the last one."""
    size, data_bytes = os.fstat(opened[_ROWS]).st_size, os.fstat(opened[_DATA]).st_size
    stored = os.pread(opened[_ROWS], size // ROW.itemsize * ROW.itemsize, 0)
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
    return sum(_measure(place) for place in _list_others(folder, name))


def drop_oldest(folder: str, name: str) -> bool:
    """Delete the cache that was unused longest, if nobody uses it; False: there is none."""
    for place in sorted(_list_others(folder, name), key=_last_used):
        try:
            descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _try_lock(descriptor):
                # Only what is ours; a folder with other files in it stays.
                for file in NAMES:
                    (place / file).unlink(missing_ok=True)
                place.rmdir()
                return True
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return False


def _list_others(folder: str, name: str) -> list[Path]:
    home = home_of(folder)
    try:
        _check_trust(home)
        return [place for place in home.iterdir() if place.name != name and not place.is_symlink()]
    except OSError:
        return []


def _measure(place: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(place / _DATA).st_blocks * 512
    return 0


def _last_used(place: Path) -> float:
    with contextlib.suppress(OSError):
        return os.stat(place / _LOCK).st_mtime
    return 0.0
