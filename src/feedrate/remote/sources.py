# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a pack whose files are in several places: its own, and the addresses that it names."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.file_checks import check_change
from feedrate.format.manifest import Shard
from feedrate.remote.addresses import FileVersion, Place, is_address, split_source
from feedrate.remote.fetch import IN_FLIGHT, Piece, RangeReader, find_patiently
from feedrate.remote.index_files import origin
from feedrate.remote.retry import OPENING, RetryPolicy

# So many of the files that were indexed elsewhere are asked for their sizes when a pack is opened.
_LOOKED_AT = 16


class MultiSourceReader(RangeReader):
    """Reads pieces of a place's files, and of files that are called by an address of their own."""

    def __init__(
        self, place: Place, *, in_flight: int = IN_FLIGHT, patience: RetryPolicy | None = None
    ) -> None:
        super().__init__(place, in_flight=in_flight, patience=patience)
        self._each_in_flight = in_flight
        self._others: dict[str, RangeReader] = {}
        self._known: dict[bytes, tuple[RangeReader, bytes]] = {}
        self._making = threading.Lock()

    def read(self, piece: Piece, version: FileVersion | None = None) -> Future[bytes]:
        if not is_address(os.fsdecode(piece.file)):
            return super().read(piece, version)
        reader, name = self._find(piece.file)
        return reader.read(Piece(name, piece.offset, piece.length), version)

    def find(self, file: bytes) -> tuple[Place, bytes]:
        """Return the place that a file is in, and its name there."""
        if not is_address(os.fsdecode(file)):
            return self.place, file
        reader, name = self._find(file)
        return reader.place, name

    def measure(self, file: bytes) -> int:
        """Ask for a file's size; -1: it is a folder.

        Raises:
            NotFound, StorageError: it is not there, or nobody answers.
        """
        reader, name = self._find(file) if is_address(os.fsdecode(file)) else (self, file)
        found = find_patiently(reader.place, name, OPENING, reader.trouble)
        return -1 if found is None else found.size_bytes

    def readers(self) -> list[RangeReader]:
        """Return this and those of other places, each with its own counts."""
        with self._making:
            return [self, *self._others.values()]

    def _find(self, file: bytes) -> tuple[RangeReader, bytes]:
        known = self._known.get(file)
        if known is None:
            root, name = split_source(os.fsdecode(file))
            with self._making:
                reader = self._others.get(root)
                if reader is None:
                    reader = RangeReader(Place(root), in_flight=self._each_in_flight, patience=self.patience)
                    self._others[root] = reader
                    if self._closed:
                        reader.close()
            known = self._known[file] = (reader, name)
        return known

    def close(self) -> None:
        super().close()
        for reader in self.readers()[1:]:
            reader.close()


def check_sizes(reader: MultiSourceReader, shards: Sequence[Shard]) -> None:
    """Ask some of the shards that are elsewhere for their sizes: all would take long.

    Raises:
        PackError: one has changed since it was indexed.
        NotFound, StorageError: one is not there, or nobody answers.
    """
    named = {origin(shard): shard for shard in shards if is_address(shard.folder)}
    if not named:
        return
    some = list(named)[:: -(-len(named) // _LOOKED_AT)]
    # A connection by SSH mixes up the answers of threads that share it.
    at_once = 1 if any(file.startswith((b"sftp:", b"ssh:")) for file in some) else len(some)
    with ThreadPoolExecutor(at_once) as threads:
        for file, size_bytes in zip(some, threads.map(reader.measure, some), strict=True):
            check_change(named[file], os.fsdecode(file), size_bytes)


def describe_change(reader: MultiSourceReader, shard: Shard, offset: int, length: int, crc32c: int) -> str:
    """Return what to add about a shard that is no longer what it was; "": it is, as far as these bytes go."""
    file = origin(shard)
    place, name = reader.find(file)
    try:
        is_same = reader.measure(file) == shard.size_bytes
        if is_same and length:
            is_same = kernel.crc32c(reader.read(Piece(file, offset, length)).result()) == crc32c
    except FeedrateError:
        return f"; {place.address(name)} cannot be found where it was indexed"
    if is_same:
        return ""
    address = place.address(name)
    return f"; {address} has changed since it was indexed: index it again with 'feedrate index'"
