# SPDX-License-Identifier: Apache-2.0
"""The bytes of a source's values, given out in any process that has the source's address."""

from __future__ import annotations

import errno
import os

from feedrate import kernel
from feedrate.errors import NotFound, StorageError
from feedrate.remote.addresses import Place
from feedrate.source.container_values import Containers
from feedrate.source.record import ContainerValue, FileRange
from feedrate.source.values import UnusableValue
from feedrate.units import printable

# One bad file is rejected and packing goes on. These say that the whole source is out of reach, or we are.
_SOURCE_IS_GONE = frozenset(
    (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV,
     errno.ENXIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)  # fmt: skip
_MOST_OPEN = 16


class Bytes:
    """Reads values of one source: `root` is its reader's, `scratch` the folder of its spool."""

    def __init__(self, root: str, scratch: str | None = None) -> None:
        self.root = root
        self._root = os.fsencode(root)
        self._place = Place(root)
        self._open: dict[bytes, int] = {}
        self._containers = Containers(self._place, scratch)

    def read(self, value: FileRange | ContainerValue) -> bytes:
        """Return a value's bytes; never more than it promised.

        Raises:
            UnusableValue: this one cannot be read, or has changed since it was listed.
            StorageError: the whole source is out of reach.
        """
        if isinstance(value, ContainerValue):
            return self._containers.read(value)
        if self._place.is_remote:
            return self._read_remote(value)
        path = os.path.join(self._root, value.file)
        try:
            if value.file == value.path:
                with open(path, "rb", buffering=0) as stream:
                    data = kernel.read_at(stream.fileno(), value.size_bytes + 1, 0)
            else:
                data = kernel.read_at(self._keep_open(path), value.size_bytes, value.offset)
        except OSError as error:
            if error.errno in _SOURCE_IS_GONE or not os.path.isdir(self.root):
                raise StorageError(
                    f"cannot read {printable(path)}: {error.strerror}",
                    hint="when the source is back, run the same command again: it goes on where it stopped",
                ) from error
            raise UnusableValue(f"cannot be read: {error.strerror}") from error
        if len(data) != value.size_bytes:
            raise UnusableValue(f"changed while it was packed: {value.size_bytes} bytes when listed")
        return data

    def _read_remote(self, value: FileRange) -> bytes:
        try:
            data = self._place.read(value.file, value.offset, value.size_bytes)
        except NotFound:
            raise UnusableValue("cannot be read: it is no longer there") from None
        if len(data) != value.size_bytes:
            raise UnusableValue(f"changed while it was packed: {value.size_bytes} bytes when listed")
        return data

    def _keep_open(self, path: bytes) -> int:
        """Return a descriptor; a file that holds one value holds others."""
        if path not in self._open:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._open[path]

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        self._containers.close()
