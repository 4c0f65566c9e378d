# SPDX-License-Identifier: Apache-2.0
"""Write files below one folder and nowhere else, whatever their paths say and whatever lies there already.

Every folder on the way is opened by name relative to the one above it, and never through a symbolic link, so
that a link which somebody plants between a check and a write leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from feedrate.errors import AlreadyExists, FeedrateError, PackError
from feedrate.pack.files import explain_write_error
from feedrate.units import printable

_MOST_FOLDERS = 200
_LONGEST_PATH = 4096  # as Linux has it; no real file has a longer one


def check_path(path: bytes) -> None:
    """Refuse a path that is not plainly below the folder it will be written to.

    Raises:
        PackError: it is absolute, goes up, or is no path at all.
    """
    if len(path) > _LONGEST_PATH:
        raise PackError(f"the pack holds a path of {len(path)} bytes: refused")
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise PackError(
            f"the pack holds the path '{printable(path)}', which leads out of the folder: refused"
        )


class Tree:
    """The folder that is written to. Keeps the folders it has opened until it is closed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[bytes, int] = {}

    def __enter__(self) -> Tree:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._folders[b""] = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise explain_write_error(error, self.root) from error
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()

    def write(self, path: bytes, data: bytes) -> bool:
        """Write a file; it gets its name when it is whole. Returns False when it was there before.

        Raises:
            PackError: the path leads out of the folder, or a symbolic link stands in the way.
            AlreadyExists: a file with other bytes, or a folder, has that name.
            StorageError: the disk said no.
        """
        check_path(path)
        folder, _, name = path.rpartition(b"/")
        try:
            fd = self._open_folder(folder)
            if self._is_there(fd, name, path, data):
                return False
            return self._create(fd, name, path, data)
        except OSError as error:
            if isinstance(error, FeedrateError):
                raise
            raise explain_write_error(error, self.root / os.fsdecode(path), len(data)) from error

    def _open_folder(self, folder: bytes) -> int:
        if folder in self._folders:
            return self._folders[folder]
        above, _, name = folder.rpartition(b"/")
        parent = self._open_folder(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise PackError(
                    f"'{printable(folder)}' in {self.root} is a link or a file, not a folder: refused"
                ) from error
            raise
        if len(self._folders) >= _MOST_FOLDERS:
            self._forget_folders(but=above)
        self._folders[folder] = fd
        return fd

    def _forget_folders(self, *, but: bytes) -> None:
        for folder in [f for f in self._folders if f and f != but]:
            os.close(self._folders.pop(folder))

    def _is_there(self, folder_fd: int, name: bytes, path: bytes, data: bytes) -> bool:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PackError(f"'{printable(path)}' in {self.root} is a symbolic link: refused") from error
            raise
        try:
            info = os.fstat(fd)
            same = stat.S_ISREG(info.st_mode) and info.st_size == len(data) and _holds(fd, data)
        finally:
            os.close(fd)
        if not same:
            raise AlreadyExists(
                f"'{printable(path)}' is already in {self.root}, with other bytes",
                hint="unpack into a new folder",
            )
        return True

    def _create(self, folder_fd: int, name: bytes, path: bytes, data: bytes) -> bool:
        temporary = f".feedrate-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o666, dir_fd=folder_fd), "wb") as file:
                file.write(data)
            try:
                # A link, not a rename: it fails when somebody made a file of this name in the meantime.
                os.link(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
            except FileExistsError:
                return not self._is_there(folder_fd, name, path, data)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                    raise
                os.rename(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder_fd)
        return True


def _holds(fd: int, data: bytes) -> bool:
    with open(fd, "rb", closefd=False) as file:
        return file.read(len(data) + 1) == data
