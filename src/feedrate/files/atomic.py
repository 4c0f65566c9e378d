# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, temporary ones beside them, and sentences for what disks raise."""

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

from feedrate.errors import FeedrateError, StorageError
from feedrate.units import format_bytes

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
    with writing(path, expected_bytes):
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
            temporary.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file, as `atomic_write` does."""
    with atomic_write(path, expected_bytes=len(data)) as file:
        file.write(data)


def temporary_name(name: str) -> str:
    return f".{name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a file or folder was being made when its maker ended, or is right now."""
    return re.fullmatch(r"\..+\.[0-9]+-[0-9a-f]{8}\.tmp", name) is not None


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it: one call may write less."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


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
    # A descriptor's own path leads there only as a whole.
    path = shown(path) if str(path.parent) == "/proc/self/fd" else shown(path.parent) / path.name
    # The folder may be what could not be made.
    folder = next((one for one in path.parents if os.path.isdir(one)), path.parent)
    if error.errno == errno.ENOSPC and not has_free_files(folder):
        return StorageError(
            f"the disk at {folder} takes no more files (its inodes are used up): {path.name}",
            hint="delete files that are not needed there, then run the same command again:"
            " it goes on where it stopped",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        needed = f"{path.name} needs about {format_bytes(expected_bytes)}, " if expected_bytes else ""
        return StorageError(
            f"{what} at {folder}: {needed}{format_bytes(free_bytes(folder))} free",
            hint="make room, then run the same command again: it goes on where it stopped",
        )
    return StorageError(f"cannot write {path}: {error.strerror or error}")


def say_reason(error: OSError, folder: Path) -> str:
    """Return why a folder's disk refused to write; the system calls used-up inodes a lack of space."""
    if error.errno == errno.ENOSPC and not has_free_files(folder):
        return "its inodes are used up"
    return error.strerror or str(error)


def free_bytes(folder: Path) -> int:
    try:
        stats = os.statvfs(folder)
    except OSError:
        return 0
    return stats.f_bavail * stats.f_frsize


def has_free_files(folder: Path) -> bool:
    """Return whether a disk takes further files; also where it does not count them."""
    try:
        stats = os.statvfs(folder)
    except OSError:
        return True
    return stats.f_files == 0 or stats.f_favail > 0


@contextlib.contextmanager
def writing(path: Path, expected_bytes: int = 0) -> Iterator[None]:
    """Make sentences of errors that a disk raises in the block, in which a file is written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise explain_write_error(error, path, expected_bytes) from error


def explained(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Make sentences of errors that the disk of a pack's folder raises in the block."""
    return writing(folder / "pack.json")


def remove_temporaries(folder: Path) -> None:
    """Remove what killed runs left. Only for the holder of the lock."""
    for path in folder.iterdir():
        if not is_temporary(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours; when this is killed, the rest is a temporary that the next run removes."""
    aside = folder.parent / temporary_name(folder.name)
    os.rename(folder, aside)
    shutil.rmtree(aside)
