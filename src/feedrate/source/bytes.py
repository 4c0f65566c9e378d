# SPDX-License-Identifier: Apache-2.0
"""The bytes of a source's values, given out in any process that has the source's address.

Most are in a file as they are. Some only their container can give out: deflated members of a zip, rows of an
HDF5 dataset, and what waits in a spool.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from feedrate import kernel
from feedrate.errors import NotFound, StorageError
from feedrate.remote.addresses import Place
from feedrate.source.record import SPOOL_NAME, ContainerValue, FileRange, UnusableValue
from feedrate.units import printable

# One bad file is rejected and packing goes on. These say that the whole source is out of reach, or we are.
_SOURCE_IS_GONE = frozenset(
    (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV,
     errno.ENXIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)  # fmt: skip
_MOST_OPEN, _MOST_HDF5_OPEN = 16, 8


class Bytes:
    """Reads values of one source: `root` is its reader's, `scratch` the folder of its spool."""

    def __init__(self, root: str, scratch: str | None = None) -> None:
        self.root = root
        self._root = os.fsencode(root)
        self._place = Place(root)
        self._scratch = scratch
        self._open: dict[bytes, Any] = {}

    def read(self, value: FileRange | ContainerValue) -> bytes:
        """Return a value's bytes; never more than it promised.

        Raises:
            UnusableValue: this one cannot be read, or has changed since it was listed.
            StorageError: the whole source is out of reach.
        """
        if isinstance(value, ContainerValue):
            return self._read_contained(value)
        data = self._read_remote(value) if self._place.is_remote else self._read_local(value)
        if len(data) != value.size_bytes:
            words = f"changed while it was packed: {value.size_bytes} bytes when listed"
            raise UnusableValue(words, "unreadable")
        return data

    def _read_local(self, value: FileRange) -> bytes:
        path = os.path.join(self._root, value.file)
        try:
            if value.file == value.path:
                with open(path, "rb", buffering=0) as stream:
                    return kernel.read_at(stream.fileno(), value.size_bytes + 1, 0)
            return kernel.read_at(self._keep_open(path, _open), value.size_bytes, value.offset)
        except OSError as error:
            if error.errno in _SOURCE_IS_GONE or not os.path.isdir(self.root):
                raise StorageError(
                    f"cannot read {printable(path)}: {error.strerror}",
                    hint="when the source is back, run the same command again: it goes on where it stopped",
                ) from error
            raise UnusableValue(f"cannot be read: {error.strerror}", "unreadable") from error

    def _read_remote(self, value: FileRange) -> bytes:
        try:
            return self._place.read(value.file, value.offset, value.size_bytes)
        except NotFound:
            raise UnusableValue("cannot be read: it is no longer there", "unreadable") from None

    def _keep_open(self, name: bytes, make: Callable[[bytes], Any], most: int = _MOST_OPEN) -> Any:
        """Return an open file, or its descriptor; a file that holds one value holds others."""
        if name not in self._open:
            if len(self._open) >= most:
                _close(self._open.pop(next(iter(self._open))))
            self._open[name] = make(name)
        return self._open[name]

    def close(self) -> None:
        while self._open:
            _close(self._open.popitem()[1])

    def _read_contained(self, value: ContainerValue) -> bytes:
        if value.container == "spool":
            return self._read_spool(value)
        if value.container == "zip":
            data = self._read_zip(value)
        elif value.container == "hdf5":
            data = self._read_hdf5(value)
        else:
            raise UnusableValue(f"lies in a {value.container} file, which this feedrate cannot read")
        if len(data) > value.size_bytes:
            raise UnusableValue(f"is {len(data):,} bytes long and should have at most {value.size_bytes:,}")
        return data

    def _read_spool(self, value: ContainerValue) -> bytes:
        path = os.path.join(self._scratch or "", SPOOL_NAME)
        try:
            spool = self._keep_open(os.fsencode(path), _open)
        except OSError as error:
            raise StorageError(
                f"cannot read {path}: {error.strerror}", hint="run the same 'feedrate pack' command again"
            ) from error
        data = kernel.read_at(spool, value.size_bytes, int(value.place[0]))
        if len(data) != value.size_bytes:
            raise StorageError(
                f"{SPOOL_NAME} is shorter than it was", hint="run the same 'feedrate pack' command again"
            )
        return data

    def _read_zip(self, value: ContainerValue) -> bytes:
        from feedrate.source import zip as zips

        header, method, packed_bytes, crc32 = (int(part) for part in value.place)
        place = (header, method, packed_bytes, crc32)
        wanted = zips.header_bytes(len(value.path)) + packed_bytes
        data = self._place.read(value.file, header, wanted)
        missing = zips.data_start(data) + packed_bytes - len(data)
        if missing > 0:
            data += self._place.read(value.file, header + len(data), missing)
        return zips.read_member(data, place, value.size_bytes)

    def _read_hdf5(self, value: ContainerValue) -> bytes:
        from feedrate.source.hdf5 import dump_cell, open_hdf5

        dataset, row, form = value.place
        opened = self._keep_open(value.file, partial(open_hdf5, self._place), _MOST_HDF5_OPEN)
        try:
            return dump_cell(str(form), opened[str(dataset)][int(row)])
        except (OSError, RuntimeError, ValueError, KeyError, IndexError) as error:
            raise UnusableValue(f"row {row} of '{dataset}' cannot be read: {error}", "unreadable") from error


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _close(opened: Any) -> None:
    if isinstance(opened, int):
        os.close(opened)
    else:
        opened.close()
