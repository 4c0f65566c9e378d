# SPDX-License-Identifier: Apache-2.0
"""Values that only their container can give out: deflated members of a zip, rows of an HDF5 dataset."""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO

from feedrate.source import zip as zips
from feedrate.source.hdf5 import dump_cell, open_hdf5
from feedrate.source.place import Place
from feedrate.source.record import Held
from feedrate.source.values import UnusableValue

_MOST_OPEN = 8


class Containers:
    """Keeps the containers it reads from open. For one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open: dict[tuple[str, bytes], tuple[contextlib.ExitStack, Any]] = {}

    def read(self, value: Held) -> bytes:
        """Return a value's bytes: at most `size_bytes`.

        Raises:
            UnusableValue: the container does not give it, or gives something else than it declared.
        """
        if value.container == "zip":
            data = self._read_zip(value)
        elif value.container == "hdf5":
            data = self._read_hdf5(value)
        else:
            raise UnusableValue(f"lies in a {value.container} file, which this feedrate cannot read")
        if len(data) > value.size_bytes:
            raise UnusableValue(f"is {len(data):,} bytes long and should have at most {value.size_bytes:,}")
        return data

    def close(self) -> None:
        for stack, _ in self._open.values():
            stack.close()
        self._open.clear()

    def _read_zip(self, value: Held) -> bytes:
        header, method, packed_bytes, crc32 = (int(part) for part in value.place)
        place = (header, method, packed_bytes, crc32)
        wanted = zips.header_bytes(len(value.path)) + packed_bytes
        data = self._place.read(value.file, header, wanted)
        missing = zips.data_start(data) + packed_bytes - len(data)
        if missing > 0:
            data += self._place.read(value.file, header + len(data), missing)
        return zips.read_member(data, place, value.size_bytes)

    def _read_hdf5(self, value: Held) -> bytes:
        dataset, row, form = value.place
        opened = self._keep_open(value, lambda stream: open_hdf5(stream, self._place.address(value.file)))
        try:
            return dump_cell(str(form), opened[str(dataset)][int(row)])
        except (OSError, RuntimeError, ValueError, KeyError, IndexError) as error:
            raise UnusableValue(f"row {row} of '{dataset}' cannot be read: {error}") from error

    def _keep_open(self, value: Held, open_container: Any) -> Any:
        key = value.container, value.file
        if key not in self._open:
            if len(self._open) >= _MOST_OPEN:
                oldest = next(iter(self._open))
                self._open.pop(oldest)[0].close()
            with contextlib.ExitStack() as stack:
                stream: BinaryIO = stack.enter_context(self._place.open(value.file))
                container = stack.enter_context(open_container(stream))
                self._open[key] = stack.pop_all(), container
        return self._open[key][1]
