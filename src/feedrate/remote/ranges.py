# SPDX-License-Identifier: Apache-2.0
"""Byte ranges from a place: neighbours in one request, many requests in flight, each tried again.

How a storage is asked is lines.py's business.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from feedrate.remote.addresses import FileVersion, Place
from feedrate.remote.retry import Outage, RetryPolicy

if TYPE_CHECKING:
    from feedrate.remote.connections import Connection

# A request costs about a millisecond of processor time, in which a link of 1 Gbit/s brings 128 KB.
GAP_BYTES = 128 << 10
REQUEST_BYTES = 8 << 20
# Enough for 10,000 samples/s at a latency of 25 ms; well below the usual limit of 1024 descriptors.
IN_FLIGHT = 256


class Piece(NamedTuple):
    """A stretch of a file; `file` is relative to its place."""

    file: bytes
    offset: int
    length: int

    @property
    def stop(self) -> int:
        return self.offset + self.length


def coalesce(
    pieces: Iterable[Piece], gap_bytes: int = GAP_BYTES, request_bytes: int = REQUEST_BYTES
) -> list[Piece]:
    """Return requests that cover the pieces: those that lie close together in a file become one.

    A request is longer than `request_bytes` only for a piece that is, and at least half of it is wanted.
    """
    requests: list[Piece] = []
    wanted_bytes = 0  # of the last request
    for piece in sorted(set(pieces)):
        last = requests[-1] if requests else None
        if last is not None and last.file == piece.file and piece.offset - last.stop <= gap_bytes:
            stop = max(last.stop, piece.stop)
            wanted = wanted_bytes + max(0, stop - max(last.stop, piece.offset))
            length = stop - last.offset
            if stop == last.stop or (length <= request_bytes and length <= 2 * wanted):
                requests[-1], wanted_bytes = Piece(last.file, last.offset, length), wanted
                continue
        requests.append(piece)
        wanted_bytes = piece.length
    return requests


class RangeReader:
    """Reads pieces of a place's files. Connects when first used; safe for any number of threads."""

    def __init__(
        self, place: Place, *, in_flight: int = IN_FLIGHT, patience: RetryPolicy | None = None
    ) -> None:
        self.place, self.patience = place, patience or RetryPolicy()
        self.trouble = Outage(place.root, self.patience)
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._line: Connection | None = None
        self._open: set[Future[bytes]] = set()
        self._closed, self._process = False, os.getpid()
        self.requests = 0
        self.bytes_read = 0
        self.most_in_flight = 0

    def read(self, piece: Piece, version: FileVersion | None = None) -> Future[bytes]:
        """Ask for a piece; the future ends with its bytes, all of them, or with a StorageError.

        Args:
            version: what all requests for this file share; None: bytes are known by their checksum.
        """
        with self._lock:
            if self._closed:
                future: Future[bytes] = Future()
                future.cancel()
                return future
            if self._line is None:
                from feedrate.remote.connections import open_connection  # asyncio takes a while to import

                self._line = open_connection(self.place, self._in_flight, self.trouble)
                # Before fsspec closes its sessions at exit: requests would find these closed, and say so.
                atexit.register(self._close_at_exit)
            line = self._line
            self.requests += 1
        future = line.ask(piece.file, piece.offset, piece.length, version)
        with self._lock:
            self._open.add(future)
            self.most_in_flight = max(self.most_in_flight, min(len(self._open), line.in_flight))
        future.add_done_callback(self._count)
        return future

    def _count(self, future: Future[bytes]) -> None:
        with self._lock:
            self._open.discard(future)
            if not future.cancelled() and future.exception() is None:
                self.bytes_read += len(future.result())

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process:
            self.close()

    def close(self) -> None:
        """Give up what is on its way, and the connections. May be called twice."""
        atexit.unregister(self._close_at_exit)
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
            waiting = list(self._open)
        for future in waiting:
            future.cancel()
        if line is not None:
            line.close()
