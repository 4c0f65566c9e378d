# SPDX-License-Identifier: Apache-2.0
"""Fetched bytes as a file that the kernel reads, and their way there.

A delivery asks for the pieces that some batches need, joined into requests; what arrives is laid into the
parcel; a batch waits for its own pieces alone. Nobody closes a parcel: it ends with the last who knows it.
"""

from __future__ import annotations

import bisect
import os
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Protocol

from feedrate.errors import StorageError
from feedrate.store.patience import EndsEarly
from feedrate.store.ranges import Piece


class Supply(Protocol):
    """Where bytes come from."""

    def requests(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return what to ask for; together these cover the (sorted) pieces."""
        ...

    def read(self, request: Piece) -> Future[bytes]: ...


class Parcel:
    """Pieces one behind the other in memory that has a path. Not where the system lacks it: then on disk."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.places: dict[Piece, int] = {}
        self.size_bytes = 0
        for piece in pieces:
            if piece not in self.places:
                self.places[piece] = self.size_bytes
                self.size_bytes += piece.length
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("feedrate")
            self.path = f"/proc/self/fd/{self._fd}"
            weakref.finalize(self, os.close, self._fd)
        else:
            self._fd, self.path = tempfile.mkstemp(prefix="feedrate-bytes-")
            weakref.finalize(self, _remove, self._fd, self.path)
        os.ftruncate(self._fd, self.size_bytes)

    def lay(self, piece: Piece, request: Piece, data: bytes) -> None:
        """Write what a request brought of a piece."""
        start, stop = max(piece.offset, request.offset), min(piece.stop, request.stop)
        view = memoryview(data)[start - request.offset : stop - request.offset]
        at = self.places[piece] + start - piece.offset
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written


def _remove(fd: int, path: str) -> None:
    os.close(fd)
    os.unlink(path)


def or_nothing(future: Future[bytes]) -> Future[bytes]:
    """Return the same, but nothing where the file is gone or short: its place in the parcel stays zeros.

    For files of one sample each: the checksum then tells that the sample is damaged.
    """
    outcome: Future[bytes] = Future()

    def settle(done: Future[bytes]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            outcome.set_result(done.result())
        elif any(isinstance(one, (FileNotFoundError, EndsEarly)) for one in (error, error.__cause__)):
            outcome.set_result(b"")
        else:
            outcome.set_exception(error)

    future.add_done_callback(settle)
    return outcome


class Delivery:
    """The pieces that several batches need (one list each), on their way."""

    def __init__(self, supply: Supply, wants: Sequence[Sequence[Piece]]) -> None:
        first: dict[Piece, int] = {}
        for batch, pieces in enumerate(wants):
            for piece in pieces:
                first.setdefault(piece, batch)
        self._pieces = sorted(first)
        self._longest = max((piece.length for piece in self._pieces), default=0)
        self.parcel = Parcel(self._pieces)
        self._changed = threading.Condition()
        self._errors: dict[int, BaseException] = {}
        self._stopped = False
        requests = supply.requests([piece for piece in self._pieces if piece.length])
        users: dict[Piece, set[int]] = {}
        for batch, pieces in enumerate(wants):
            for piece in pieces:
                users.setdefault(piece, set()).add(batch)
        inside = [self._pieces_in(request) for request in requests]
        batches = [set().union(*(users[p] for p in pieces)) for pieces in inside]
        self._left = [0] * len(wants)  # requests that each batch still waits for
        for one in batches:
            for batch in one:
                self._left[batch] += 1
        # What the first batch needs is asked for first.
        for i in sorted(range(len(requests)), key=lambda i: min(batches[i], default=0)):
            self._ask(supply, requests[i], inside[i], batches[i])

    def _pieces_in(self, request: Piece) -> list[Piece]:
        found = []
        at = bisect.bisect_left(self._pieces, Piece(request.file, request.stop, 0)) - 1
        while at >= 0:
            piece = self._pieces[at]
            # Pieces may overlap: an earlier one may reach further.
            if piece.file != request.file or piece.offset + self._longest <= request.offset:
                break
            if piece.stop > request.offset:
                found.append(piece)
            at -= 1
        return found

    def _ask(self, supply: Supply, request: Piece, inside: list[Piece], batches: set[int]) -> None:
        def arrived(future: Future[bytes]) -> None:
            error: BaseException | None = None
            try:
                data = future.result()
                for piece in inside:
                    self.parcel.lay(piece, request, data)
            except CancelledError:
                error = StorageError("reading was stopped")
            except BaseException as failure:
                error = failure
            with self._changed:
                for batch in batches:
                    self._left[batch] -= 1
                    if error is not None:
                        self._errors.setdefault(batch, error)
                self._changed.notify_all()

        supply.read(request).add_done_callback(arrived)

    def wait(self, batch: int = 0) -> None:
        """Wait for the pieces of a batch; raises why one of them does not come."""
        with self._changed:
            while self._left[batch] and batch not in self._errors and not self._stopped:
                self._changed.wait()
            error = self._errors.get(batch)
            if error is None and self._left[batch]:
                error = StorageError("reading was stopped")
        if error is not None:
            raise error

    def stop(self) -> None:
        """Let those who wait go."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
