# SPDX-License-Identifier: Apache-2.0
"""Blocks of files that are to be brought: read in any thread, tried again, no faster than allowed.

A file on its way: it grows from its beginning, so that it can be read, and gone on with, where it ends.

Bring files near: one queue of blocks in the order of the files, several of them in flight.

Blocks are asked for ahead by threads and appended in order, so a file that is on its way is always a
beginning of the whole: an interrupted one goes on where it ends, and its beginning can be read meanwhile.
Memory: one and a half blocks per stream. When the last block of a file is there, its checksum is compared and
the file is handed over; what gave another checksum is brought once more from the start, then given up.
Small files are brought whole, many by one thread: handing each over would cost more than reading it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from feedrate import kernel
from feedrate.errors import SourceError, StorageError
from feedrate.remote.addresses import Changed, FileVersion, Place, WholeFile, explain, is_url
from feedrate.remote.connections import SFTP_CONNECTIONS, Received, Renewed, is_sftp, open_reader
from feedrate.remote.retry import Outage, Retry, RetryPolicy
from feedrate.units import format_seconds, shell_quote

STREAMS, REMOTE_STREAMS = 8, 16
# A command that fails can be typed again, and goes on then: not for as long as a loop that trains.
PATIENCE = RetryPolicy(give_up_s=math.inf, first_wait_s=0.5, longest_wait_s=30.0, tries=6, spread=0.0)


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
        version: which one comes, of a file without a checksum behind an address.
    """

    name: str
    place: Place
    source: bytes
    size_bytes: int
    crc32c: int | None = None
    known: bytes | None = None
    mtime_ns: int = 0
    version: FileVersion | None = None

    @property
    def address(self) -> str:
        return self.place.address(self.source)


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


class Fetcher:
    """Reads blocks for any number of threads, each with a reader of its own per place.

    Args:
        say: told when the source errs and it is tried again, in a sentence.
        stop: when set, `fetch` raises `Stopped` soon.
        wait: how to wait between tries; returns True when it should stop.
    """

    def __init__(
        self,
        limit: RateLimit | None,
        say: Callable[[str], None],
        stop: threading.Event,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._limit, self._stop, self._wait = limit, stop, wait or stop.wait
        self._trouble = Told(say)
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._readers: list[Renewed] = []

    def fetch(self, file: Incoming, offset: int, length: int) -> bytes:
        """Read a block; an error of the source is tried again, later and later.

        Raises:
            FeedrateError, OSError: it cannot be read, or is not what it should be.
            Stopped: it was asked to.
        """
        if file.known is not None:
            return file.known[offset : offset + length]
        if self._stop.is_set():
            raise Stopped

        received = Received(length, file.version)

        def read() -> bytes:
            if self._limit is not None:
                self._limit.take(length - received.size_bytes)
            return self._read(file, offset, received)

        attempts = Retry(self._trouble, file.address)
        return attempts.run(read, self._pause, lambda: received.size_bytes) if length else b""

    def _pause(self, seconds: float) -> None:
        if self._wait(seconds):
            raise Stopped

    def _read(self, file: Incoming, offset: int, received: Received) -> bytes:
        """Ask for a block once."""
        self._reader(file.place).read(file.source, offset, received)
        if received.size_bytes > received.length:
            raise WholeFile(file.address)
        if received.size_bytes < received.length:
            self._reader(file.place).close()
            # Of a disk that is the truth; a connection may have been cut.
            kind = StorageError if file.place.is_remote else SourceError
            stop = offset + received.size_bytes
            received.clear()
            raise kind(
                f"{file.address} ends at byte {stop:,}, and should have {file.size_bytes:,} bytes",
                hint="was it changed meanwhile? Run the same command again",
            )
        return received.join()

    def _reader(self, place: Place) -> Renewed:
        found: dict[Place, Renewed] = vars(self._of_thread).setdefault("readers", {})
        if place not in found:
            reader = found[place] = Renewed(lambda: open_reader(place))
            with self._lock:
                self._readers.append(reader)
        return found[place]

    def close(self) -> None:
        """Close what is open. Only when no thread fetches any more."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()


class Told(Outage):
    """Trouble of which the user of a command is told."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__("", PATIENCE)
        self._say = say
        self._said: set[tuple[type[BaseException], str, float]] = set()

    def note(self, error: BaseException, address: str, wait_s: float, give_up_s: float) -> None:  # noqa: ARG002
        # Not once per stream: they all meet the same trouble. Nor by the words: a line that breaks again and
        # again says each time how many bytes came.
        trouble = type(error), address, wait_s
        if trouble not in self._said:
            self._said.add(trouble)
            self._say(f"{self.explain(error, address, 1)}; trying again in {format_seconds(wait_s)}")

    def explain(self, error: BaseException, address: str, failures: int) -> Exception:  # noqa: ARG002
        assert isinstance(error, Exception)
        return explain(error, address)


def choose_streams(root: str, wish: int | None) -> int:
    """Return how many reads of a source to have in flight: answers from afar take longer."""
    streams = wish or (REMOTE_STREAMS if is_url(root) else STREAMS)
    return min(streams, SFTP_CONNECTIONS) if is_sftp(root) else streams


_CHUNK_BYTES = 4 << 20


class Part:
    """What is there of a file, and its checksum so far. Others may read `size_bytes` while it grows.

    Args:
        fd: open for reading and writing; it is this object's from now on.
        whole_bytes: how long the file will be; what is longer is none of it.
        is_stopped: asked while what is there is read.
    """

    def __init__(
        self, name: str, fd: int, whole_bytes: int, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.name, self.whole_bytes = name, whole_bytes
        self.size_bytes = self.crc32c = 0
        self._fd: int | None = fd
        try:
            there_bytes = os.fstat(fd).st_size
            if there_bytes > whole_bytes:
                os.ftruncate(fd, 0)
            while self.size_bytes < there_bytes and not is_stopped():
                data = os.pread(fd, _CHUNK_BYTES, self.size_bytes)
                if not data:
                    break
                self._count(data)
        except BaseException:
            self.close()
            raise

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.whole_bytes

    @property
    def fd(self) -> int:
        assert self._fd is not None
        return self._fd

    def append(self, data: bytes) -> None:
        write_all(self.fd, data, self.size_bytes)
        self._count(data)

    def clear(self) -> None:
        """Forget what is there: it is not what it should be."""
        os.ftruncate(self.fd, 0)
        self.close()

    def release(self) -> int:
        """Give the descriptor away."""
        fd, self._fd = self.fd, None
        return fd

    def close(self) -> None:
        """What is there stays, to be gone on with. May be called twice."""
        if self._fd is not None:
            os.close(self.release())

    def _count(self, data: bytes) -> None:
        self.crc32c = kernel.crc32c(data, self.crc32c)
        self.size_bytes += len(data)


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


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
                hint="it was read twice; is the pack damaged? feedrate verify "
                + shell_quote(file.place.root),
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
