# SPDX-License-Identifier: Apache-2.0
"""Look at and delete folders by file descriptors: never through a link, never on another file system, and only
names that are known. What a path names can change between two calls; what a descriptor holds cannot."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened_folder(name: str, dir_fd: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a folder that is no link.

    Raises:
        OSError: it is a link, a file, or not there.
    """
    fd = os.open(name, _FOLDER, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_small(name: str, dir_fd: int, largest_bytes: int = 64 * 2**20) -> bytes:
    """Return the content of a plain file that is no link.

    Raises:
        OSError: it is anything else, or not there.
    """
    # Without O_NONBLOCK a pipe of that name would hold us up.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is not a plain file")
        return file.read(largest_bytes)


def walk(fd: int, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield all below a folder but folders: path and facts. A folder that cannot be looked into is yielded."""
    device = os.fstat(fd).st_dev
    for name in sorted(os.listdir(fd)):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(info.st_mode) or info.st_dev != device:
            yield prefix + name, info
            continue
        try:
            with opened_folder(name, fd) as inner:
                yield from walk(inner, f"{prefix}{name}/")
        except OSError:
            yield prefix + name, info


def remove_known(fd: int, is_ours: Callable[[str], bool], prefix: str = "") -> list[str]:
    """Delete the plain files below a folder that `is_ours` claims by their path, and folders that are empty
    then; return what is left."""
    device = os.fstat(fd).st_dev
    left = []
    for name in sorted(os.listdir(fd)):
        path = prefix + name
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                left += _remove_folder(fd, name, device, is_ours, path)
            elif stat.S_ISREG(info.st_mode) and info.st_dev == device and is_ours(path):
                os.unlink(name, dir_fd=fd)
            else:
                left.append(path)
        except FileNotFoundError:
            continue  # somebody else deletes it too
        except OSError:
            left.append(path)
    return left


def _remove_folder(fd: int, name: str, device: int, is_ours: Callable[[str], bool], path: str) -> list[str]:
    with opened_folder(name, fd) as inner:
        if os.fstat(inner).st_dev != device:
            return [path]
        left = remove_known(inner, is_ours, path + "/")
    if not left:
        os.rmdir(name, dir_fd=fd)
    return left
