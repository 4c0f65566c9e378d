# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, and sentences for what disks raise.

What a pack in the making leaves in its folder, and the lock that keeps two packs out of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from feedrate.errors import AlreadyExists, FeedrateError, StorageError
from feedrate.units import format_bytes

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
    "write_file",
]

# One sync of the file system also waits for what others wrote to it, which may take minutes; a few files' own
# take some milliseconds each.
_FEW_FILES = 16


@contextlib.contextmanager
def atomic_write(path: Path, *, expected_bytes: int = 0, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write; it appears as `path`, whole and fsynced, if the block ends well, and never else.

    What is made again after a crash anyway need not be durable: it is then not fsynced.

    Raises:
        StorageError: the disk is full, read-only or gone; no temporary file is left.
    """
    temporary = path.parent / temporary_name(path.name)
    try:
        try:
            with open(temporary, "x+b", buffering=2**17) as file:
                yield file
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if is_durable:
                sync_folder(path.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise explain_write_error(error, path, expected_bytes) from error


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, as `atomic_write` does."""
    with atomic_write(path, expected_bytes=len(data)) as file:
        file.write(data)


def temporary_name(name: str) -> str:
    return f".{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable, not only the contents behind them."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot fsync a folder; there the rename is as durable as it gets.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def sync_files(paths: Sequence[Path]) -> None:
    """Make files of one file system durable: a few one by one, many at the price of one."""
    if len(paths) > _FEW_FILES:
        sync_file_system(paths[0].parent)
        return
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file_system(folder: Path) -> None:
    """Make durable all that was written to a folder's file system, by whomever."""
    try:
        sync = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):
        os.sync()
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if sync(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)


def shown(path: Path) -> Path:
    """Return what a user calls a path that leads through a descriptor."""
    return Path(os.path.realpath(path)) if str(path).startswith("/proc/self/fd/") else path


def explain_write_error(error: OSError, path: Path, expected_bytes: int = 0) -> StorageError:
    path = shown(path.parent) / path.name
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        needed = f"{path.name} needs about {format_bytes(expected_bytes)}, " if expected_bytes else ""
        return StorageError(
            f"{what} at {path.parent}: {needed}{format_bytes(free_bytes(path.parent))} free",
            hint="make room, then run the same command again: it goes on where it stopped",
        )
    return StorageError(f"cannot write {path}: {error.strerror or error}")


def free_bytes(folder: Path) -> int:
    try:
        stats = os.statvfs(folder)
    except OSError:
        return 0
    return stats.f_bavail * stats.f_frsize


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
