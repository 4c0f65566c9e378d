# SPDX-License-Identifier: Apache-2.0
"""Blocks of files that are to be brought: read in any thread, tried again, no faster than allowed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from feedrate.errors import SourceError, StorageError
from feedrate.store.patience import Attempts, Patience, Trouble
from feedrate.store.place import Place, WholeFile, explain, is_url
from feedrate.store.readers import (
    SFTP_CONNECTIONS,
    Received,
    Renewed,
    is_sftp,
    open_reader,
)
from feedrate.store.versions import FileVersion
from feedrate.units import format_seconds

STREAMS, REMOTE_STREAMS = 8, 16
# A command that fails can be typed again, and goes on then: not for as long as a loop that trains.
PATIENCE = Patience(give_up_s=math.inf, first_wait_s=0.5, longest_wait_s=30.0, tries=6, spread=0.0)


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

        attempts = Attempts(self._trouble, file.address)
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


class Told(Trouble):
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
