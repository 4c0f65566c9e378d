# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a pack whose files lie in several places: its own, and the addresses that it names."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from feedrate.store.patience import Patience
from feedrate.store.place import Place, is_address, split_source
from feedrate.store.ranges import IN_FLIGHT, Piece, RangeReader


class Reach(RangeReader):
    """Reads pieces of a place's files, and of files that are called by an address of their own."""

    def __init__(self, place: Place, *, in_flight: int = IN_FLIGHT, patience: Patience | None = None) -> None:
        super().__init__(place, in_flight=in_flight, patience=patience)
        self._each_in_flight = in_flight
        self._elsewhere: dict[str, RangeReader] = {}
        self._known: dict[bytes, tuple[RangeReader, bytes]] = {}
        self._making = threading.Lock()

    def read(self, piece: Piece) -> Future[bytes]:
        if not is_address(os.fsdecode(piece.file)):
            return super().read(piece)
        reader, name = self._find(piece.file)
        return reader.read(Piece(name, piece.offset, piece.length))

    def find(self, file: bytes) -> tuple[Place, bytes]:
        """Return the place that a file lies in, and its name there."""
        if not is_address(os.fsdecode(file)):
            return self.place, file
        reader, name = self._find(file)
        return reader.place, name

    def readers(self) -> list[RangeReader]:
        """Return this and those of other places, each with its own counts."""
        with self._making:
            return [self, *self._elsewhere.values()]

    def _find(self, file: bytes) -> tuple[RangeReader, bytes]:
        known = self._known.get(file)
        if known is None:
            root, name = split_source(os.fsdecode(file))
            with self._making:
                reader = self._elsewhere.get(root)
                if reader is None:
                    reader = RangeReader(Place(root), in_flight=self._each_in_flight, patience=self.patience)
                    self._elsewhere[root] = reader
                    if self._closed:
                        reader.close()
            known = self._known[file] = (reader, name)
        return known

    def close(self) -> None:
        super().close()
        for reader in self.readers()[1:]:
            reader.close()
