# SPDX-License-Identifier: Apache-2.0
"""A file beside the pack where values wait that cannot be read again one by one: samples are packed in another
order than they stand in a compressed stream or a row group, and each would cost the whole of it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from feedrate.errors import StorageError
from feedrate.source.record import Stored

_SMALL_BYTES = 256


class Spool:
    """Appends values; `Stored.file` is the absolute path, so that any process finds them."""

    def __init__(self, folder: str, name: str = "values.spool") -> None:
        self._path = os.path.abspath(os.path.join(folder, name))
        self._file: BinaryIO | None = None
        self._end = 0

    def begin(self) -> None:
        """Forget what an earlier iteration left."""
        self.close()
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._file = open(self._path, "wb", buffering=2**20)  # noqa: SIM115
        except OSError as error:
            raise self._explain(error) from error
        self._end = 0

    def add(self, path: bytes, data: bytes) -> Stored:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise self._explain(error) from error
        start, self._end = self._end, self._end + len(data)
        return Stored(path, len(data), os.fsencode(self._path), start)

    def keep(self, path: bytes, data: bytes) -> Stored | bytes:
        """Return a small value itself, to stand in the listing, and the place of a larger one."""
        return data if len(data) <= _SMALL_BYTES else self.add(path, data)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise self._explain(error) from error
            finally:
                self._file = None

    def _explain(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {self._path}: {error.strerror}",
            hint="this source is read once and kept there while it is packed: it needs room for the images twice",
        )
