# SPDX-License-Identifier: Apache-2.0
"""Fill a copy on scratch, several files side by side; each grows from its beginning and lands when whole."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from feedrate import kernel
from feedrate.store.patience import log
from feedrate.store.ranges import Piece, RangeReader
from feedrate.store.staging import Staging

# 48 MB on their way: enough for 1 GB/s at 50 ms; a slow line still lets something land every few seconds.
CHUNK_BYTES = 4 << 20
STREAMS = 12


@dataclass(slots=True)
class Growing:
    """A file that is being written."""

    name: str
    fd: int
    size_bytes: int
    crc32c: int


class Writer:
    """Brings what a copy lacks. Only for who holds the writer's lock.

    Args:
        told: called when something has come.
        closing: when set, `copy_all` ends with a CancelledError soon.
    """

    def __init__(
        self, staging: Staging, reader: RangeReader, told: Callable[[], None], closing: threading.Event
    ) -> None:
        self.copy, self._contents, self._reader = staging.copy, staging.contents, reader
        self._told, self._closing = told, closing
        self.growing: dict[str, Growing] = {}
        self.written_bytes = 0

    def close(self) -> None:
        """Close the parts; what is there stays, to be gone on with."""
        for growing in self.growing.values():
            os.close(growing.fd)
        self.growing.clear()

    def copy_all(self, groups: Sequence[Sequence[str]]) -> None:
        """Bring all files that have not landed; those of a group side by side."""
        for name, data in self._contents.known.items():
            if not self.copy.has_landed(name):
                with self.copy.landing(name) as part:
                    part.write_bytes(data)
        asked: deque[tuple[Growing, int, Future[bytes]]] = deque()
        for growing, offset, length in self._chunks(groups):
            source = os.fsencode(self.copy.files[growing.name].source_name)
            piece = Piece(source, offset, length)
            asked.append((growing, offset, self._reader.read(piece)))
            while len(asked) >= STREAMS:
                self._append(*asked.popleft())
        while asked:
            self._append(*asked.popleft())

    def _chunks(self, groups: Sequence[Sequence[str]]) -> Iterator[tuple[Growing, int, int]]:
        """Yield what to fetch, in order."""
        done = set(self._contents.known)
        for names in [*groups, list(self.copy.files)]:
            fresh = [name for name in dict.fromkeys(names) if name not in done]
            done.update(fresh)
            yield from self._side_by_side(fresh)

    def _side_by_side(self, names: Sequence[str]) -> Iterator[tuple[Growing, int, int]]:
        files = [self._begin(name) for name in names if not self.copy.has_landed(name)]
        offsets = {growing.name: growing.size_bytes for growing in files}
        while files:
            for growing in list(files):
                size_bytes, offset = self.copy.files[growing.name].size_bytes, offsets[growing.name]
                length = min(CHUNK_BYTES, size_bytes - offset)
                if length > 0:
                    offsets[growing.name] = offset + length
                    yield growing, offset, length
                else:
                    files.remove(growing)
                    if growing.size_bytes == size_bytes and growing.name in self.growing:
                        self._finish(growing)  # it was whole already, or is empty

    def _begin(self, name: str) -> Growing:
        """Open a part; what is there of it counts."""
        fd = self.copy.open_part(name)
        growing = self.growing[name] = Growing(name, fd, 0, 0)
        size_bytes = os.fstat(fd).st_size
        if size_bytes > self.copy.files[name].size_bytes:
            os.ftruncate(fd, 0)
        while growing.size_bytes < size_bytes and not self._closing.is_set():
            data = os.pread(fd, CHUNK_BYTES, growing.size_bytes)
            if not data:
                break
            growing.crc32c = kernel.crc32c(data, growing.crc32c)
            growing.size_bytes += len(data)
        return growing

    def _append(self, growing: Growing, offset: int, future: Future[bytes]) -> None:
        data = future.result()
        if growing.name not in self.growing or offset != growing.size_bytes:
            return  # begun again since, after damage
        view = memoryview(data)
        while view:
            view = view[os.pwrite(growing.fd, view, offset + len(data) - len(view)) :]
        growing.crc32c = kernel.crc32c(data, growing.crc32c)
        growing.size_bytes += len(data)
        self.written_bytes += len(data)
        if growing.size_bytes == self.copy.files[growing.name].size_bytes:
            self._finish(growing)
        self._told()
        if self._closing.is_set():
            raise CancelledError

    def _finish(self, growing: Growing) -> None:
        file = self.copy.files[growing.name]
        if file.crc32c is not None and growing.crc32c != file.crc32c:
            os.ftruncate(growing.fd, 0)
            log.warning(
                "%s: %s came damaged (checksum); it is not kept on scratch",
                self.copy.marker.source, growing.name,
            )  # fmt: skip
        else:
            self.copy.land(growing.name, growing.fd)
        del self.growing[growing.name]
        os.close(growing.fd)
