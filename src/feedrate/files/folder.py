# SPDX-License-Identifier: Apache-2.0
"""What a pack in the making leaves in its folder, and the lock that keeps two packs out of one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from feedrate.errors import AlreadyExists, FeedrateError, StorageError
from feedrate.files.atomic import atomic_write, explain_write_error, free_bytes, sync_folder, temporary_name

__all__ = [
    "LOCK_NAME",
    "atomic_write",
    "explain_write_error",
    "explained",
    "folder_lock",
    "free_bytes",
    "is_temporary",
    "remove_folder",
    "remove_temporaries",
    "sync_folder",
]

LOCK_NAME = ".packing.lock"  # hidden: it may lie in a folder that is just being indexed
_TEMPORARY = re.compile(r"\..+\.[0-9]+-[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Make sentences of errors that the disk of a folder raises in the block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise explain_write_error(error, folder / "pack.json") from error


def remove_temporaries(folder: Path) -> None:
    """Remove what killed runs left. Only for the holder of the lock."""
    for path in folder.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours; when this is killed, the rest is a temporary that the next run removes."""
    doomed = folder.parent / temporary_name(folder.name)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def is_temporary(name: str) -> bool:
    return bool(_TEMPORARY.fullmatch(name))


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the lock dies with the process, however that ends.

    Raises:
        AlreadyExists: another process holds it.
        StorageError: the lock cannot be made.
    """
    import fcntl

    path = folder / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise explain_write_error(error, path) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExists(
                f"another 'feedrate pack' is writing {folder} right now",
                hint="wait for it, or choose another folder",
            ) from None
        except OSError as error:
            raise StorageError(
                f"{folder} lies on a file system without locks ({error.strerror})",
                hint="pack to a local disk, then copy the pack there",
            ) from error
        if not _is_same_file(fd, path):
            raise AlreadyExists(f"another 'feedrate pack' has just finished with {folder}")
        try:
            yield
        finally:
            # Still locked: whoever opens the name from now on gets a new file, or finds this one gone.
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
