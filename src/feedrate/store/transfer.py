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
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from feedrate import kernel
from feedrate.errors import FeedrateError, MissingExtra, NotFound, SourceError, StorageError
from feedrate.store.place import Place, explained, is_url
from feedrate.units import format_seconds

# Small enough that the end, when fewer and fewer are in flight, is short.
BLOCK_BYTES = 4 << 20
STREAMS, REMOTE_STREAMS = 8, 16
_SMALLEST_BLOCK_BYTES = 64 << 10
SMALL_BYTES = 1 << 20
# So many of them are brought by one task; behind an address each is one: their answers take long.
_GROUP_FILES, _GROUP_BYTES = 64, 4 << 20
_TRIES = 6
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
# OpenSSH lets in 10 connections at a time that have not said who they are.
SFTP_STREAMS = 6
_of_thread = threading.local()


class Stopped(Exception):
    """It was asked to stop; what is on its way stays, to be gone on with."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file that is to be brought.

    Attributes:
        name: what it is called in messages, and to who gets it.
        place, source: where it is read.
        crc32c: what it must be; None: not known.
        known: its bytes, where they are known already.
        mtime_ns: when it changed last, as it was listed; 0: unknown. Another time now: it is not that file.
    """

    name: str
    place: Place
    source: bytes
    size_bytes: int
    crc32c: int | None = None
    known: bytes | None = None
    mtime_ns: int = 0


class RateLimit:
    """Bytes per second, shared by all who take from it."""

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock, self._wait = clock, wait
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, size_bytes: int) -> None:
        """Wait until this many bytes may pass."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + size_bytes / self.bytes_per_s
        if begin > now:
            self._wait(begin - now)


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
    _said: set[str] = field(default_factory=set)

    def carry(
        self,
        files: Iterable[Incoming],
        open_part: Callable[[Incoming], int],
        arrived: Callable[[Incoming, int, int], None],
    ) -> None:
        """Bring files one behind the other.

        Args:
            open_part: returns a descriptor of what is there of a file, to be appended to.
            arrived: called in threads with the file, the descriptor, which it closes, and the checksum.

        Raises:
            NotFound, StorageError: the source errs, also when tried again; or a checksum is not right.
            Stopped: it was asked to.
        """
        spoilt = self._carry(files, open_part, arrived)
        for file in self._carry(spoilt, open_part, arrived):
            raise StorageError(
                f"{file.place.address(file.source)} does not have the checksum that its pack.json says",
                hint=f"it was read twice; is the pack damaged? feedrate verify {file.place.root}",
            )

    def _carry(
        self,
        files: Iterable[Incoming],
        open_part: Callable[[Incoming], int],
        arrived: Callable[[Incoming, int, int], None],
    ) -> list[Incoming]:
        """Return the files whose checksum was not right; of them nothing is left."""
        spoilt: list[Incoming] = []
        waiting: deque[_Block | _Group] = deque()
        handed: deque[Future[None]] = deque()
        pool = ThreadPoolExecutor(self.streams, "feedrate-fetch")
        landers = ThreadPoolExecutor(max(2, self.streams // 2), "feedrate-land")
        in_flight = 0
        try:
            for block in self._ask(files, open_part, arrived, pool):
                waiting.append(block)
                in_flight += block.future is not None
                # Half as many again as there are threads: one slow answer should not stop the others.
                while in_flight > self.streams + self.streams // 2:
                    in_flight -= waiting[0].future is not None
                    self._append(waiting.popleft(), arrived, landers, handed, spoilt)
            while waiting:
                self._append(waiting.popleft(), arrived, landers, handed, spoilt)
            while handed:
                handed.popleft().result()
        except BaseException:
            self.stop.set()
            raise
        finally:
            # Also when it fails: no thread goes on, and no descriptor stays open.
            pool.shutdown(wait=True, cancel_futures=True)
            landers.shutdown(wait=True)
            for block in waiting:
                if isinstance(block, _Block):
                    block.part.close()
        return spoilt

    def _ask(
        self,
        files: Iterable[Incoming],
        open_part: Callable[[Incoming], int],
        arrived: Callable[[Incoming, int, int], None],
        pool: ThreadPoolExecutor,
    ) -> Iterator[_Block | _Group]:
        """Open parts and ask for what they lack; each file ends with an empty block. Small ones in groups."""
        for group in self._gather(files):
            if self.is_small(group[0].size_bytes):
                yield _Group(pool.submit(self._bring_small, group, open_part, arrived))
                continue
            file = group[0]
            part = _Part(file, open_part(file))
            size = self._block_size()
            for offset in range(part.there_bytes, file.size_bytes, size):
                length = min(size, file.size_bytes - offset)
                yield _Block(part, offset, length, pool.submit(self._fetch, part.source, offset, length))
            yield _Block(part, file.size_bytes, 0, None)

    def _gather(self, files: Iterable[Incoming]) -> Iterator[list[Incoming]]:
        """Yield the files in order: small ones that follow each other together, the others one by one."""
        group: list[Incoming] = []
        size_bytes = 0
        for file in files:
            is_full = size_bytes + file.size_bytes > _GROUP_BYTES or len(group) >= _GROUP_FILES
            is_loner = file.place.is_remote or not self.is_small(file.size_bytes)
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

    def is_small(self, size_bytes: int) -> bool:
        """Return whether a file of this size is brought whole: of a part of it, nothing is kept."""
        return size_bytes <= min(SMALL_BYTES, self._block_size())

    def _bring_small(
        self,
        files: Iterable[Incoming],
        open_part: Callable[[Incoming], int],
        arrived: Callable[[Incoming, int, int], None],
    ) -> list[Incoming]:
        """Bring files whole, but for those that are there whole; return those with another checksum."""
        spoilt: list[Incoming] = []
        size_bytes = 0
        for file in files:
            if self.stop.is_set():
                raise Stopped
            fd = open_part(file)
            try:
                there_bytes = os.fstat(fd).st_size
                is_there = there_bytes == file.size_bytes
                data = os.pread(fd, there_bytes, 0) if is_there else self._fetch_whole(file)
                crc32c = kernel.crc32c(data)
                is_right = file.crc32c in (None, crc32c)
                if there_bytes and not (is_there and is_right):
                    os.ftruncate(fd, 0)
                if is_right:
                    if not is_there:
                        write_all(fd, data)
                    _check_unchanged(file)
            except BaseException:
                os.close(fd)
                raise
            if is_right:
                size_bytes += 0 if is_there else len(data)
                arrived(file, fd, crc32c)
            else:
                size_bytes -= len(data) if is_there else 0
                spoilt.append(file)
                os.close(fd)
        self.count(size_bytes)
        return spoilt

    def _fetch_whole(self, file: Incoming) -> bytes:
        source = Source(file)
        try:
            return self._fetch(source, 0, file.size_bytes)
        finally:
            source.close()

    def _block_size(self) -> int:
        if self.limit is None:
            return self.block_bytes
        # A slow line is asked for little at a time, so that it flows evenly.
        return int(max(_SMALLEST_BLOCK_BYTES, min(self.block_bytes, self.limit.bytes_per_s / 8)))

    def _append(
        self,
        block: _Block | _Group,
        arrived: Callable[[Incoming, int, int], None],
        landers: ThreadPoolExecutor,
        handed: deque[Future[None]],
        spoilt: list[Incoming],
    ) -> None:
        if isinstance(block, _Group):
            spoilt += block.future.result()
            return
        part = block.part
        try:
            if block.future is not None:
                part.append(block.future.result(), block.length)
                self.count(block.length)
                return
            if part.file.crc32c not in (None, part.crc32c):
                part.clear()
                spoilt.append(part.file)
                self.count(-part.file.size_bytes)
                return
            _check_unchanged(part.file)
        except BaseException:
            part.close()
            raise
        handed.append(landers.submit(arrived, part.file, part.release(), part.crc32c))
        while len(handed) > 4 * self.streams or (handed and handed[0].done()):
            handed.popleft().result()

    def _fetch(self, source: Source, offset: int, length: int) -> bytes:
        """Read a block; an error of the source is tried again, later and later."""
        wait = self.wait or self.stop.wait
        pause_s = _FIRST_WAIT_S
        for tries_left in reversed(range(_TRIES)):
            if self.stop.is_set():
                raise Stopped
            if self.limit is not None and source.file.known is None:
                self.limit.take(length)
            try:
                return source.read(offset, length)
            except (FeedrateError, OSError) as error:
                if not tries_left or _is_final(error):
                    raise
                self._say_once(f"{error}; trying again in {format_seconds(pause_s)}")
            if wait(pause_s):
                raise Stopped
            pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
        raise AssertionError

    def _say_once(self, sentence: str) -> None:
        """Not once per stream: they all meet the same trouble."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)


class Source:
    """The file that is read. On a file system it is opened once: opening has its price on a server's."""

    def __init__(self, file: Incoming) -> None:
        self.file = file
        self._fd: int | None = None
        self._given_up: list[int] = []
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        """Read a block of it.

        Raises:
            FeedrateError, OSError: it cannot be read, or is not what it should be.
        """
        file = self.file
        if file.known is not None:
            return file.known[offset : offset + length]
        address = file.place.address(file.source)
        with explained(address):
            if file.place.is_remote:
                data = read_range(file.place, file.source, offset, length)
            else:
                data = self._read_here(offset, length)
        if len(data) < length:
            # Of a disk that is the truth; a connection may have been cut.
            kind = StorageError if file.place.is_remote else SourceError
            raise kind(
                f"{address} ends at byte {offset + len(data):,}, and should have {file.size_bytes:,} bytes",
                hint="was it changed meanwhile? Run the same command again",
            )
        if len(data) > length:
            raise SourceError(
                f"{address}: the server sends all of it when asked for a part",
                hint="serve it with byte ranges, as nginx and Apache do",
            )
        return data

    def _read_here(self, offset: int, length: int) -> bytes:
        with self._lock:
            if self._fd is None:
                path = os.path.join(os.fsencode(self.file.place.root), self.file.source)
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fd = self._fd
        pieces = []
        try:
            while length and (piece := os.pread(fd, length, offset)):
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        except OSError:
            with self._lock:  # the next try opens it anew; other threads may still read by this one
                if self._fd == fd:
                    self._fd = None
                    self._given_up.append(fd)
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        with self._lock:
            for fd in [*self._given_up, *([] if self._fd is None else [self._fd])]:
                os.close(fd)
            self._fd = None
            self._given_up.clear()


def _is_final(error: Exception) -> bool:
    """Return whether trying again is of no use."""
    causes = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    return isinstance(error, (NotFound, MissingExtra, SourceError)) or isinstance(error.__cause__, causes)


def read_range(place: Place, file: bytes, offset: int, length: int) -> bytes:
    """Read a range as fast as its storage gives it."""
    if not is_sftp(place.root) or not length:
        return place.read(file, offset, length)
    # fsspec's own way reads 32 KB at a time and waits for each: 4.5 MB/s where this gives 150. And paramiko's
    # connections must not be shared by threads: they take each other's answers.
    own = vars(_of_thread).setdefault(place.root, Place(place.root, {"skip_instance_cache": True}))
    with explained(place.address(file)):
        try:
            stream: Any = own.open(file)
            with stream:
                return b"".join(stream.readv([(offset, length)]))
        except Exception:
            vars(_of_thread).pop(place.root, None)  # the next try connects anew
            raise


def choose_streams(root: str, wish: int | None) -> int:
    """Return how many reads of a source to have in flight: answers from afar take longer."""
    streams = wish or (REMOTE_STREAMS if is_url(root) else STREAMS)
    return min(streams, SFTP_STREAMS) if is_sftp(root) else streams


def is_sftp(root: str) -> bool:
    return root.startswith(("sftp://", "ssh://")) and "::" not in root


def _check_unchanged(file: Incoming) -> None:
    """A file without a checksum may have been written to while it was read."""
    if file.crc32c is not None or file.place.is_remote or not file.mtime_ns:
        return
    with explained(file.place.address(file.source)):
        found = os.stat(os.path.join(os.fsencode(file.place.root), file.source))
    if (found.st_size, found.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise StorageError(
            f"{file.place.address(file.source)} was changed while it was copied",
            hint="wait until it is finished, then run the same command again",
        )


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class _Part:
    """What is there of a file, and its checksum so far."""

    def __init__(self, file: Incoming, fd: int) -> None:
        self.file = file
        self.source = Source(file)
        self.crc32c = 0
        self._fd: int | None = fd
        try:
            self.there_bytes = os.fstat(fd).st_size
            if self.there_bytes > file.size_bytes:
                os.ftruncate(fd, 0)
                self.there_bytes = 0
            os.lseek(fd, 0, os.SEEK_SET)
            left = self.there_bytes
            while left:
                data = os.read(fd, min(left, BLOCK_BYTES))
                if not data:
                    break
                self.crc32c = kernel.crc32c(data, self.crc32c)
                left -= len(data)
            self.there_bytes -= left
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes, length: int) -> None:
        assert self._fd is not None
        assert len(data) == length
        self.crc32c = kernel.crc32c(data, self.crc32c)
        write_all(self._fd, data)

    def clear(self) -> None:
        assert self._fd is not None
        os.ftruncate(self._fd, 0)
        self.close()

    def release(self) -> int:
        """Give the descriptor away: the file is whole."""
        self.source.close()
        fd, self._fd = self._fd, None
        assert fd is not None
        return fd

    def close(self) -> None:
        self.source.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class _Block:
    """A stretch of a file that was asked for; `future` None: nothing comes any more, the file is whole."""

    part: _Part
    offset: int
    length: int
    future: Future[bytes] | None


@dataclass(frozen=True, slots=True)
class _Group:
    """Small files that a thread brings; the future ends with those whose checksum was not right."""

    future: Future[list[Incoming]]
