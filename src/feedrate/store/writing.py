# SPDX-License-Identifier: Apache-2.0
"""Fill a copy on scratch, several files side by side; each grows from its beginning and lands when whole."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future

from feedrate.store.part import Part
from feedrate.store.patience import log
from feedrate.store.ranges import Piece, RangeReader
from feedrate.store.staging import Staging
from feedrate.store.versions import Changed, FileVersion

# 48 MB on their way: enough for 1 GB/s at 50 ms; a slow line still lets something land every few seconds.
CHUNK_BYTES = 4 << 20
STREAMS = 12


class Writer:
    """Brings what a copy lacks. Only for who holds the writer's lock.

    Args:
        told: called when something has come.
        closing: when set, `copy_all` ends with a CancelledError soon.
    """

    def __init__(
        self, staging: Staging, reader: RangeReader, told: Callable[[], None], closing: threading.Event
    ) -> None:
        self.copy, self._staging, self._reader = staging.copy, staging, reader
        self._told, self._closing = told, closing
        self.growing: dict[str, Part] = {}
        self._versions: dict[str, FileVersion | None] = {}
        self.written_bytes = 0

    def close(self) -> None:
        """Close the parts; what is there stays, to be gone on with."""
        for growing in self.growing.values():
            growing.close()
        self.growing.clear()

    def copy_all(self, groups: Sequence[Sequence[str]]) -> None:
        """Bring all files that have not landed; those of a group side by side."""
        for name, data in self._staging.contents.known.items():
            if not self.copy.has_landed(name):
                with self.copy.landing(name) as part:
                    part.write_bytes(data)
        asked: deque[tuple[Part, int, Future[bytes]]] = deque()
        for growing, offset, length in self._chunks(groups):
            asked.append((growing, offset, self._read(growing.name, offset, length)))
            while len(asked) >= STREAMS:
                self._append(*asked.popleft())
        while asked:
            self._append(*asked.popleft())

    def _chunks(self, groups: Sequence[Sequence[str]]) -> Iterator[tuple[Part, int, int]]:
        """Yield what to fetch, in order."""
        done = set(self._staging.contents.known)
        for names in [*groups, list(self.copy.files)]:
            fresh = [name for name in dict.fromkeys(names) if name not in done]
            done.update(fresh)
            yield from self._side_by_side(fresh)

    def _side_by_side(self, names: Sequence[str]) -> Iterator[tuple[Part, int, int]]:
        files = [self._begin(name) for name in names if not self.copy.has_landed(name)]
        offsets = {growing.name: growing.size_bytes for growing in files}
        while files:
            for growing in list(files):
                offset = offsets[growing.name]
                length = min(CHUNK_BYTES, growing.whole_bytes - offset)
                if length > 0:
                    offsets[growing.name] = offset + length
                    yield growing, offset, length
                else:
                    files.remove(growing)
                    if growing.is_whole and growing.name in self.growing:
                        self._finish(growing)  # it was whole already, or is empty

    def _begin(self, name: str) -> Part:
        """Open a part; what is there of it counts."""
        fd, whole_bytes = self._staging.open_part(name), self.copy.files[name].size_bytes
        growing = self.growing[name] = Part(name, fd, whole_bytes, self._closing.is_set)
        self._versions[name] = self._staging.watch_version(name)
        return growing

    def _read(self, name: str, offset: int, length: int) -> Future[bytes]:
        source = os.fsencode(self.copy.files[name].source_name)
        return self._reader.read(Piece(source, offset, length), self._versions[name])

    def _append(self, growing: Part, offset: int, future: Future[bytes]) -> None:
        if growing.name not in self.growing or offset != growing.size_bytes:
            return  # given up since, after damage
        try:
            data = future.result()
        except Changed as error:
            self._give_up(growing, str(error))
            return
        growing.append(data)
        self.written_bytes += len(data)
        if growing.is_whole:
            self._finish(growing)
        self._told()
        if self._closing.is_set():
            raise CancelledError

    def _finish(self, growing: Part) -> None:
        file, version = self.copy.files[growing.name], self._versions[growing.name]
        if file.crc32c is not None and growing.crc32c != file.crc32c:
            self._give_up(growing, f"{growing.name} came damaged (checksum)")
            return
        try:
            if version is not None:
                span = range(file.size_bytes)
                version.confirm(span, growing.crc32c, lambda *at: self._read(growing.name, *at).result())
        except Changed as error:
            self._give_up(growing, str(error))
            return
        self.copy.land(growing.name, growing.fd)
        del self.growing[growing.name]
        growing.close()

    def _give_up(self, growing: Part, why: str) -> None:
        """Forget a file: the loader reads it from the source."""
        growing.clear()
        del self.growing[growing.name]
        log.warning("%s: %s; it is not kept on scratch", self.copy.marker.source, why)
