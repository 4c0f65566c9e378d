# SPDX-License-Identifier: Apache-2.0
"""Bring files near: one queue of blocks in the order of the files, several of them in flight.

Blocks are asked for ahead by threads and appended in order, so a file that is on its way is always a
beginning of the whole: an interrupted one goes on where it ends, and its beginning can be read meanwhile.
Memory: one and a half blocks per stream. When the last block of a file is there, its checksum is compared and
the file is handed over; what gave another checksum is brought once more from the start, then given up.
Small files are brought whole, many by one thread: handing each over would cost more than reading it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from feedrate import kernel
from feedrate.errors import StorageError
from feedrate.store.fetching import STREAMS, Fetcher, Incoming, RateLimit, Stopped
from feedrate.store.part import Part, write_all
from feedrate.store.place import explain
from feedrate.store.versions import Changed
from feedrate.units import typed

# Small enough that the end, when fewer and fewer are in flight, is short.
BLOCK_BYTES = 4 << 20
_SMALLEST_BLOCK_BYTES = 64 << 10
SMALL_BYTES = 1 << 20
# So many of them are brought by one task; behind an address each is one: their answers take long.
_GROUP_FILES, _GROUP_BYTES = 64, 4 << 20

OpenPart = Callable[[Incoming], int]
Arrived = Callable[[Incoming, int, int], None]


@dataclass(slots=True)
class Transfer:
    """How files are brought; `carry` does it.

    Attributes:
        say: told when the source errs and it is tried again, in a sentence.
        count: told of bytes that have arrived.
        stop: when set, `carry` raises `Stopped` soon.
        wait: how to wait between tries; returns True when it should stop.
    """

    streams: int = STREAMS
    limit: RateLimit | None = None
    say: Callable[[str], None] = lambda _: None
    count: Callable[[int], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    wait: Callable[[float], bool] | None = None
    block_bytes: int = BLOCK_BYTES

    def carry(self, files: Iterable[Incoming], open_part: OpenPart, arrived: Arrived) -> None:
        """Bring files one behind the other.

        Args:
            open_part: returns a descriptor of what is there of a file, to be appended to.
            arrived: called in threads with the file, the descriptor, which it closes, and the checksum.

        Raises:
            NotFound, StorageError: the source errs, also when tried again; or a checksum is not right.
            Stopped: it was asked to.
        """
        spoilt = _Carrying(self, open_part, arrived).run(files)
        for file in _Carrying(self, open_part, arrived).run(spoilt):
            raise StorageError(
                f"{file.address} does not have the checksum that its pack.json says",
                hint=f"it was read twice; is the pack damaged? feedrate verify {typed(file.place.root)}",
            )

    @property
    def block_size(self) -> int:
        if self.limit is None:
            return self.block_bytes
        # A slow line is asked for little at a time, so that it flows evenly.
        return int(max(_SMALLEST_BLOCK_BYTES, min(self.block_bytes, self.limit.bytes_per_s / 8)))

    def is_small(self, size_bytes: int) -> bool:
        """Return whether a file of this size is brought whole: of a part of it, nothing is kept."""
        return size_bytes <= min(SMALL_BYTES, self.block_size)


class _Carrying:
    """Files are brought once, those of a wrong checksum too."""

    def __init__(self, how: Transfer, open_part: OpenPart, arrived: Arrived) -> None:
        self._how, self._open_part, self._arrived = how, open_part, arrived
        self._fetcher = Fetcher(how.limit, how.say, how.stop, how.wait)
        self._pool = ThreadPoolExecutor(how.streams, "feedrate-fetch")
        self._landers = ThreadPoolExecutor(max(2, how.streams // 2), "feedrate-land")
        self._waiting: deque[_Block | _Group] = deque()
        self._handed: deque[Future[None]] = deque()
        self._spoilt: list[Incoming] = []

    def run(self, files: Iterable[Incoming]) -> list[Incoming]:
        """Return the files whose checksum was not right; of them nothing is left."""
        in_flight = 0
        try:
            for block in self._ask(files):
                self._waiting.append(block)
                in_flight += block.future is not None
                # Half as many again as there are threads: one slow answer should not stop the others.
                while in_flight > self._how.streams + self._how.streams // 2:
                    in_flight -= self._waiting[0].future is not None
                    self._receive(self._waiting.popleft())
            while self._waiting:
                self._receive(self._waiting.popleft())
            while self._handed:
                self._handed.popleft().result()
        except BaseException:
            self._how.stop.set()
            raise
        finally:
            # Also when it fails: no thread goes on, and no descriptor stays open.
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._landers.shutdown(wait=True)
            self._fetcher.close()
            for block in self._waiting:
                if isinstance(block, _Block):
                    block.part.close()
        return self._spoilt

    def _ask(self, files: Iterable[Incoming]) -> Iterator[_Block | _Group]:
        """Open parts and ask for what they lack; each file ends with an empty block. Small ones in groups."""
        size = self._how.block_size
        for group in self._gather(files):
            file = group[0]
            if self._how.is_small(file.size_bytes):
                yield _Group(self._pool.submit(self._bring_small, group))
                continue
            part = Part(file.name, self._open_part(file), file.size_bytes)
            for offset in range(part.size_bytes, file.size_bytes, size):
                length = min(size, file.size_bytes - offset)
                yield _Block(file, part, self._pool.submit(self._fetcher.fetch, file, offset, length))
            yield _Block(file, part, None)

    def _gather(self, files: Iterable[Incoming]) -> Iterator[list[Incoming]]:
        """Yield the files in order: small ones that follow each other together, the others one by one."""
        group: list[Incoming] = []
        size_bytes = 0
        for file in files:
            is_full = size_bytes + file.size_bytes > _GROUP_BYTES or len(group) >= _GROUP_FILES
            is_loner = file.place.is_remote or not self._how.is_small(file.size_bytes)
            if group and (is_full or is_loner):
                yield group
                group, size_bytes = [], 0
            if is_loner:
                yield [file]
            else:
                group.append(file)
                size_bytes += file.size_bytes
        if group:
            yield group

    def _bring_small(self, files: Iterable[Incoming]) -> list[Incoming]:
        """Bring files whole, but for those that are there whole; return those with another checksum."""
        spoilt: list[Incoming] = []
        size_bytes = 0
        for file in files:
            if self._how.stop.is_set():
                raise Stopped
            fd = self._open_part(file)
            try:
                there_bytes = os.fstat(fd).st_size
                is_there = there_bytes == file.size_bytes
                if is_there:
                    data = kernel.read_at(fd, there_bytes, 0)
                else:
                    data = self._fetcher.fetch(file, 0, file.size_bytes)
                crc32c = kernel.crc32c(data)
                is_right = file.crc32c in (None, crc32c)
                if there_bytes and not (is_there and is_right):
                    os.ftruncate(fd, 0)
                if is_right:
                    if not is_there:
                        write_all(fd, data, 0)
                    self._check_unchanged(file, fd, crc32c)
            except BaseException:
                os.close(fd)
                raise
            if is_right:
                size_bytes += 0 if is_there else len(data)
                self._arrived(file, fd, crc32c)
            else:
                size_bytes -= len(data) if is_there else 0
                spoilt.append(file)
                os.close(fd)
        self._how.count(size_bytes)
        return spoilt

    def _receive(self, block: _Block | _Group) -> None:
        if isinstance(block, _Group):
            self._spoilt += block.future.result()
            return
        file, part = block.file, block.part
        try:
            if block.future is not None:
                data = block.future.result()
                part.append(data)
                self._how.count(len(data))
                return
            if file.crc32c not in (None, part.crc32c):
                part.clear()
                self._spoilt.append(file)
                self._how.count(-file.size_bytes)
                return
        except Changed:
            part.clear()  # it must not be gone on with
            raise
        except BaseException:
            part.close()
            raise
        self._handed.append(self._landers.submit(self._hand_over, file, part.release(), part.crc32c))
        while len(self._handed) > 4 * self._how.streams or (self._handed and self._handed[0].done()):
            self._handed.popleft().result()

    def _hand_over(self, file: Incoming, fd: int, crc32c: int) -> None:
        try:
            self._check_unchanged(file, fd, crc32c)
        except BaseException:
            os.close(fd)
            raise
        self._arrived(file, fd, crc32c)

    def _check_unchanged(self, file: Incoming, fd: int, crc32c: int) -> None:
        """A file without a checksum may have been written to while it was read; then nothing of it stays."""
        try:
            if file.version is not None:
                read = partial(self._fetcher.fetch, file)
                file.version.confirm(range(file.size_bytes), crc32c, read)
            elif file.crc32c is None and not file.place.is_remote and file.mtime_ns:
                _check_local(file)
        except Changed:
            os.ftruncate(fd, 0)
            raise


def _check_local(file: Incoming) -> None:
    try:
        found = os.stat(os.path.join(os.fsencode(file.place.root), file.source))
    except OSError as error:
        raise explain(error, file.address) from error
    if (found.st_size, found.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise Changed(
            f"{file.address} was changed while it was copied",
            hint="wait until it is finished, then run the same command again",
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """A stretch of a file that was asked for; `future` None: nothing comes any more, the file is whole."""

    file: Incoming
    part: Part
    future: Future[bytes] | None


@dataclass(frozen=True, slots=True)
class _Group:
    """Small files that a thread brings; the future ends with those whose checksum was not right."""

    future: Future[list[Incoming]]
