# SPDX-License-Identifier: Apache-2.0
"""A file beside the pack where values wait that can be read only once.

Samples are packed in another order than they stand in a compressed stream or a row group; to read each of
them there would cost the whole of it.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from typing import BinaryIO

from feedrate.errors import StorageError, UsageError
from feedrate.progress import Rejection
from feedrate.remote.addresses import explained
from feedrate.source.record import ContainerValue, Reader, Record

SPOOL_NAME = "packing.spool"
_SMALL_BYTES = 256


class Spool:
    """Appends values, inside of `with`; the file is made for the first. `folder`: None where none may be."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None
        self._end = 0

    def __enter__(self) -> Spool:
        """Begin anew: what an earlier iteration left is forgotten."""
        self._end = 0
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                raise self._explain(error) from error

    def add(self, path: bytes, data: bytes, mtime_ns: int = 0) -> ContainerValue:
        """Keep a value and return where it is; `mtime_ns` is that of the file it comes from."""
        self.write(data)
        return ContainerValue(path, len(data), b"", "spool", (self._end - len(data),), mtime_ns)

    def keep(self, path: bytes, data: bytes, mtime_ns: int = 0) -> ContainerValue | bytes:
        """Return a small value itself, to stand in the listing, and the place of a larger one."""
        return data if len(data) <= _SMALL_BYTES else self.add(path, data, mtime_ns)

    def write(self, data: bytes) -> int:
        """Append a piece of a value; return where it begins."""
        try:
            if self._file is None:
                self._file = self._open()
            self._file.write(data)
        except OSError as error:
            raise self._explain(error) from error
        self._end += len(data)
        return self._end - len(data)

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                raise self._explain(error) from error

    def _open(self) -> BinaryIO:
        if self.folder is None:
            raise UsageError(
                "this source is compressed in one piece, so its samples cannot be read one by one",
                hint="pack it: feedrate pack SOURCE PACK",
            )
        return open(os.path.join(self.folder, SPOOL_NAME), "wb", buffering=2**20)

    def _explain(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {SPOOL_NAME} in {self.folder}: {error.strerror}",
            hint="samples of this source are kept there while it is packed: it needs room for them twice",
        )


class SpooledReader(Reader):
    """A reader with a spool; what its place raises becomes a sentence."""

    _spool: Spool

    def __iter__(self) -> Iterator[Record | Rejection]:
        with explained(self.root), self._spool:
            yield from self._read()

    @abstractmethod
    def _read(self) -> Iterator[Record | Rejection]: ...
