# SPDX-License-Identifier: Apache-2.0
"""A file on its way: it grows from its beginning, so that it can be read, and gone on with, where it ends."""

from __future__ import annotations

import os
from collections.abc import Callable

from feedrate import kernel

_CHUNK_BYTES = 4 << 20


class Part:
    """What is there of a file, and its checksum so far. Others may read `size_bytes` while it grows.

    Args:
        fd: open for reading and writing; it is this object's from now on.
        whole_bytes: how long the file will be; what is longer is none of it.
        is_stopped: asked while what is there is read.
    """

    def __init__(
        self, name: str, fd: int, whole_bytes: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.name, self.whole_bytes = name, whole_bytes
        self.size_bytes = self.crc32c = 0
        self._fd: int | None = fd
        try:
            there_bytes = os.fstat(fd).st_size
            if there_bytes > whole_bytes:
                os.ftruncate(fd, 0)
            while self.size_bytes < there_bytes and not is_stopped():
                data = os.pread(fd, _CHUNK_BYTES, self.size_bytes)
                if not data:
                    break
                self._count(data)
        except BaseException:
            self.close()
            raise

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.whole_bytes

    @property
    def fd(self) -> int:
        assert self._fd is not None
        return self._fd

    def append(self, data: bytes) -> None:
        write_all(self.fd, data, self.size_bytes)
        self._count(data)

    def clear(self) -> None:
        """Forget what is there: it is not what it should be."""
        os.ftruncate(self.fd, 0)
        self.close()

    def release(self) -> int:
        """Give the descriptor away."""
        fd, self._fd = self.fd, None
        return fd

    def close(self) -> None:
        """What is there stays, to be gone on with. May be called twice."""
        if self._fd is not None:
            os.close(self.release())

    def _count(self, data: bytes) -> None:
        self.crc32c = kernel.crc32c(data, self.crc32c)
        self.size_bytes += len(data)


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
