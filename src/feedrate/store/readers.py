# SPDX-License-Identifier: Apache-2.0
"""How one thread reads byte ranges of a place: each kind of storage in the way that is fast there.

A reader is not shared by threads: paramiko's connections must not be, since they take each other's answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from feedrate import kernel
from feedrate.store.place import Place

# OpenSSH lets in 10 connections at a time that have not said who they are.
SFTP_CONNECTIONS = 6
KEPT_OPEN = 16
STALL_S = 30.0  # a request that brings nothing for so long has failed


class Reader(Protocol):
    """What one thread reads with."""

    def read(self, file: bytes, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


def open_reader(place: Place) -> Reader:
    """Return the reader that suits a place."""
    if not place.is_remote:
        return LocalReader(place)
    if is_sftp(place.root):
        return SftpReader(place.root, STALL_S)
    is_chain = "::" in place.root
    if is_chain or getattr(place.connect()[0], "async_impl", False):
        return PlaceReader(place)  # its requests go by one loop, whoever asks
    return PlaceReader(Place(place.root, {"skip_instance_cache": True}))


def is_sftp(root: str) -> bool:
    return root.lower().startswith(("sftp:", "ssh:")) and "::" not in root


class Renewed:
    """A reader that is made when it is needed, and anew after a failure."""

    def __init__(self, make_reader: Callable[[], Reader]) -> None:
        self._make_reader = make_reader
        self._reader: Reader | None = None

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        try:
            if self._reader is None:
                self._reader = self._make_reader()
            return self._reader.read(file, offset, length)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class LocalReader:
    """Files of this machine's file systems; the last few stay open."""

    def __init__(self, place: Place) -> None:
        self._root = os.fsencode(place.root)
        self._open: dict[bytes, int] = {}

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        fd = self._open.pop(file, -1)
        if fd < 0:
            if len(self._open) >= KEPT_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            fd = os.open(os.path.join(self._root, file), os.O_RDONLY | os.O_CLOEXEC)
        self._open[file] = fd  # the latest comes last
        return kernel.read_at(fd, length, offset)

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class PlaceReader:
    """Any other storage of fsspec."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        fs, path = self._place.connect(file)
        return bytes(fs.cat_file(path, start=offset, end=offset + length)) if length else b""

    def close(self) -> None:
        pass


class SftpReader:
    """SFTP: the parts of a range are asked for at once, since one at a time reaches a few MB/s."""

    def __init__(self, root: str, stall_s: float) -> None:
        limits = {"timeout": stall_s, "banner_timeout": stall_s, "auth_timeout": stall_s}
        self._place = Place(root, {**limits, "skip_instance_cache": True})
        self._fs, _ = self._place.connect()
        self._fs.ftp.get_channel().settimeout(stall_s)
        self._open: dict[bytes, tuple[Any, int]] = {}  # a handle, and the file's size

    def read(self, file: bytes, offset: int, length: int) -> bytes:
        if not length:
            return b""
        opened = self._open.pop(file, None)
        if opened is None:
            if len(self._open) >= KEPT_OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            handle = self._fs.ftp.open(self._place.connect(file)[1], "rb")
            size_bytes = handle.stat().st_size
            opened = handle, sys.maxsize if size_bytes is None else int(size_bytes)
        self._open[file] = opened
        handle, size_bytes = opened
        # Parts are planned for the whole length: a stranger's index may claim any.
        length = min(length, size_bytes - offset)
        return b"".join(handle.readv([(offset, length)])) if length > 0 else b""

    def close(self) -> None:
        # Not the handles one by one: a server that is gone would be waited for.
        self._open.clear()
        self._fs.client.close()
