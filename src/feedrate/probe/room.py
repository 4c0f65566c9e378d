# SPDX-License-Identifier: Apache-2.0
"""How much can still be written to a folder?"""

from __future__ import annotations

import ctypes
import os
import tempfile
from dataclasses import dataclass

_KEEP_SIZE = 1


@dataclass(frozen=True, slots=True)
class Room:
    """What the file system of a folder has left for this user; `free_files`: None: it has no such limit."""

    free_bytes: int
    free_files: int | None


def measure_room(folder: str | os.PathLike[str]) -> Room:
    """Ask the file system.

    Raises:
        OSError: the folder is not there, or may not be looked at.
    """
    stats = os.statvfs(folder)
    return Room(stats.f_bavail * stats.f_frsize, stats.f_favail if stats.f_files else None)


def try_to_reserve(folder: str | os.PathLike[str], size_bytes: int) -> OSError | None:
    """Reserve room for a moment, and return why that fails; None: it does not, or cannot be tried.

    What is free is not always this user's: quotas, of users, groups and projects alike, show only so. The
    file has no name, so that nothing is left behind however this ends. Not for file systems in memory.
    """
    try:
        reserve = ctypes.CDLL(None, use_errno=True).fallocate64
    except (AttributeError, OSError, TypeError):
        return None
    reserve.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        # Never by way of posix_fallocate, which writes zeros where a file system cannot reserve.
        if reserve(file.fileno(), _KEEP_SIZE, 0, max(size_bytes, 1)) == 0:
            return None
        number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
