# SPDX-License-Identifier: Apache-2.0
"""The copier of `feedrate stage`: threads read blocks, tried again, no faster than allowed.

What came with another checksum is brought once more from the start, then given up. Small files are brought
whole, many by one thread: handing each over would cost more than reading it. It takes the memory of one and
a half blocks per stream.
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
from itertools import groupby

from feedrate import kernel
from feedrate.errors import SourceError, StorageError
from feedrate.files.atomic import write_all
from feedrate.remote import connections
from feedrate.remote.addresses import Changed, Place, WholeFile, explain, is_url
from feedrate.remote.copier import BLOCK_BYTES, Asked, Copier, Incoming, Part, Read
from feedrate.remote.retry import Outage, Retry, RetryPolicy
from feedrate.units import format_seconds, shell_quote

STREAMS, REMOTE_STREAMS = 8, 16
_SMALLEST_BLOCK_BYTES = 64 << 10
SMALL_BYTES = 1 << 20
# So many of them are brought by one task; behind an address each is one: their answers take long.
_GROUP_FILES, _GROUP_BYTES = 64, 4 << 20
# A command that fails can be typed again, and goes on then: not for as long as a loop that trains.
POLICY = RetryPolicy(give_up_s=math.inf, first_wait_s=0.5, longest_wait_s=30.0, tries=6, spread=0.0)


class Stopped(Exception):
    """It was asked to stop; what is on its way stays, to be gone on with."""


OpenPart = Callable[[Incoming], int]
Arrived = Callable[[Incoming, int, int], None]


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
    """Reads blocks for any number of threads, each with a reader of its own per place."""

    def __init__(self, how: Transfer) -> None:
        self._how, self._outage = how, Told(how.say)
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._readers: list[connections.Renewed] = []

    def fetch(self, file: Incoming, offset: int, length: int) -> bytes:
        """Read a block; an error of the source is tried again, later and later.

        Raises:
            FeedrateError, OSError: it cannot be read, or is not what it should be.
            Stopped: it was asked to.
        """
        if file.known is not None:
            return file.known[offset : offset + length]
        if self._how.stop.is_set():
            raise Stopped

        received = connections.Received(length, file.version)

        def read() -> bytes:
            if self._how.limit is not None:
                self._how.limit.take(length - received.size_bytes)
            return self._read(file, offset, received)

        attempts = Retry(self._outage, file.address)
        return attempts.run(read, self._pause, lambda: received.size_bytes) if length else b""

    def _pause(self, seconds: float) -> None:
        if (self._how.wait or self._how.stop.wait)(seconds):
            raise Stopped

    def _read(self, file: Incoming, offset: int, received: connections.Received) -> bytes:
        """Ask for a block once."""
        reader = self._find_reader(file.place)
        reader.read(file.source, offset, received)
        if received.size_bytes > received.length:
            raise WholeFile(file.address)
        if received.size_bytes < received.length:
            reader.close()
            # Of a disk that is the truth; a connection may have been cut.
            kind = StorageError if file.place.is_remote else SourceError
            stop = offset + received.size_bytes
            received.clear()
            raise kind(
                f"{file.address} ends at byte {stop:,}, and should have {file.size_bytes:,} bytes",
                hint="was it changed meanwhile? Run the same command again",
            )
        return received.join()

    def _find_reader(self, place: Place) -> connections.Renewed:
        found: dict[Place, connections.Renewed] = vars(self._of_thread).setdefault("readers", {})
        if place not in found:
            reader = found[place] = connections.Renewed(lambda: connections.open_reader(place))
            with self._lock:
                self._readers.append(reader)
        return found[place]

    def close(self) -> None:
        """Close what is open. Only when no thread fetches any more."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()


class Told(Outage):
    """An outage of which the user of a command is told."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__("", POLICY)
        self._say = say
        self._said: set[tuple[type[BaseException], str, float]] = set()

    def note(self, error: BaseException, address: str, wait_s: float, give_up_s: float) -> None:  # noqa: ARG002
        # Not once per stream: they all meet the same outage. Nor by the words: a line that breaks again and
        # again says each time how many bytes came.
        failure = type(error), address, wait_s
        if failure not in self._said:
            self._said.add(failure)
            self._say(f"{self.explain(error, address, 1)}; trying again in {format_seconds(wait_s)}")

    def explain(self, error: BaseException, address: str, failures: int) -> Exception:  # noqa: ARG002
        assert isinstance(error, Exception)
        return explain(error, address)


def choose_streams(root: str, wish: int | None) -> int:
    """Return how many reads of a source to have in flight: answers from afar take longer."""
    streams = wish or (REMOTE_STREAMS if is_url(root) else STREAMS)
    return min(streams, connections.SFTP_CONNECTIONS) if connections.is_sftp(root) else streams


@dataclass(slots=True)
class Transfer:
    """How files are brought; `carry` does it.

    Attributes:
        say: told when the source errs and it is tried again, in a sentence.
        count: told of bytes that have arrived.
        stop: when set, `carry` raises `Stopped` soon.
        wait: how to wait between tries; returns True when it should stop.
        group_files: small files that one thread brings, one behind the other.
        read: asks for a range of a file that is not known; None: threads do, `streams` at a time.
        group_of: files that follow each other with the same answer are brought side by side.
        refuse: told of a file that changed, or has another checksum, and why; None: that is raised.
    """

    streams: int = STREAMS
    limit: RateLimit | None = None
    say: Callable[[str], None] = lambda _: None
    count: Callable[[int], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)
    wait: Callable[[float], bool] | None = None
    block_bytes: int = BLOCK_BYTES
    group_files: int = _GROUP_FILES
    read: Read | None = None
    group_of: Callable[[Incoming], object] | None = None
    refuse: Callable[[Incoming, Exception], None] | None = None

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
            command = f"feedrate verify {shell_quote(file.place.root)}"
            self.give_up(
                file,
                StorageError(
                    f"{file.address} does not have the checksum that its pack.json says",
                    hint=f"it was read twice; is the pack damaged? {command}",
                ),
            )

    def give_up(self, file: Incoming, error: Exception) -> None:
        if self.refuse is None:
            raise error
        self.refuse(file, error)

    @property
    def block_size(self) -> int:
        if self.limit is None:
            return self.block_bytes
        # A slow line is asked for little at a time, so that it flows evenly.
        return int(max(_SMALLEST_BLOCK_BYTES, min(self.block_bytes, self.limit.bytes_per_s / 8)))

    def is_small(self, size_bytes: int) -> bool:
        """Return whether a file of this size is brought whole: of a part of it, nothing is kept."""
        return self.read is None and size_bytes <= min(SMALL_BYTES, self.block_size)


class _Carrying:
    """Files are brought once, those of a wrong checksum too."""

    def __init__(self, how: Transfer, open_part: OpenPart, arrived: Arrived) -> None:
        self._how, self._open_part, self._arrived = how, open_part, arrived
        self._fetcher = Fetcher(how)
        self._pool = ThreadPoolExecutor(how.streams, "feedrate-fetch")
        self._finishers = ThreadPoolExecutor(max(2, how.streams // 2), "feedrate-land")
        self._handed: deque[Future[None]] = deque()
        self._spoilt: list[Incoming] = []
        # Half as many again as there are threads: one slow answer should not stop the others.
        self._copier = Copier(
            self._read, how.streams + how.streams // 2 + 1,
            finish=self._hand_over, refuse=self._refuse, count=how.count, block_bytes=how.block_size,
        )  # fmt: skip

    def _read(self, file: Incoming, offset: int, length: int) -> Future[bytes]:
        if self._how.read is None or file.known is not None:
            return self._pool.submit(self._fetcher.fetch, file, offset, length)
        return self._how.read(file, offset, length)

    def run(self, files: Iterable[Incoming]) -> list[Incoming]:
        """Return the files whose checksum was not right; of them nothing is left."""
        try:
            self._copier.run(self._ask(files))
            while self._handed:
                self._handed.popleft().result()
        except BaseException:
            self._how.stop.set()
            raise
        finally:
            # Also when it fails: no thread goes on, and no descriptor stays open.
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._finishers.shutdown(wait=True)
            self._fetcher.close()
        return self._spoilt

    def _ask(self, files: Iterable[Incoming]) -> Iterator[Asked]:
        """Ask for files in order: small ones that follow each other together, the others one by one."""
        if self._how.group_of is not None:
            for _, some in groupby(files, self._how.group_of):
                parts = (Part(file, self._open_part(file), self._how.stop.is_set) for file in some)
                yield from self._copier.ask(parts)
            return
        group: list[Incoming] = []
        size_bytes = 0
        for file in files:
            is_full = size_bytes + file.size_bytes > _GROUP_BYTES or len(group) >= self._how.group_files
            is_small = self._how.is_small(file.size_bytes)
            is_loner = file.place.is_remote or not is_small
            if group and (is_full or is_loner):
                yield Asked(None, self._pool.submit(self._bring_small, group))
                group, size_bytes = [], 0
            if not is_small:
                yield from self._copier.ask([Part(file, self._open_part(file))])
            elif is_loner:
                yield Asked(None, self._pool.submit(self._bring_small, [file]))
            else:
                group.append(file)
                size_bytes += file.size_bytes
        if group:
            yield Asked(None, self._pool.submit(self._bring_small, group))

    def _refuse(self, file: Incoming, error: Changed | None) -> None:
        if error is not None:
            self._how.give_up(file, error)
        else:
            self._spoilt.append(file)

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

    def _hand_over(self, part: Part) -> None:
        if self._how.read is not None:  # who reads for us need not be waited for when the process ends
            self._finish(part.file, part.release(), part.crc32c)
            return
        self._handed.append(self._finishers.submit(self._finish, part.file, part.release(), part.crc32c))
        while len(self._handed) > 4 * self._how.streams or (self._handed and self._handed[0].done()):
            self._handed.popleft().result()

    def _finish(self, file: Incoming, fd: int, crc32c: int) -> None:
        try:
            self._check_unchanged(file, fd, crc32c)
        except BaseException:
            os.close(fd)
            raise
        self._arrived(file, fd, crc32c)

    def _check_unchanged(self, file: Incoming, fd: int, crc32c: int) -> None:
        try:
            # Not by a task: small files are looked at in one, and it could wait for itself.
            fetch, read = self._fetcher.fetch, self._how.read
            file.check_unchanged(
                crc32c, lambda *at: fetch(file, *at) if read is None else read(file, *at).result()
            )
        except Changed:
            os.ftruncate(fd, 0)
            raise
