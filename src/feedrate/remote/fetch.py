# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of a place, and what was fetched as a file that the kernel reads.

Neighbours are one request, many requests are in flight, each is tried again; how a storage is asked is the
business of connections. A fetch asks for the pieces that some batches need; a batch waits for its own pieces
alone. Nobody closes fetched bytes: they end with the last object that knows them.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, NamedTuple

from feedrate import kernel
from feedrate.errors import FeedrateError, PackError, StorageError
from feedrate.files.atomic import write_all
from feedrate.format.file_checks import check_change
from feedrate.format.manifest import FILE_NAME, Manifest, PackFile, Shard, parse_manifest
from feedrate.remote.addresses import FileVersion, Place, PlacedFile, is_address, split_source
from feedrate.remote.retry import OPENING, EndsEarly, Outage, Retry, RetryPolicy

if TYPE_CHECKING:
    from feedrate.remote.connections import AsyncConnection, ThreadConnection

# A request costs about a millisecond of processor time, in which a link of 1 Gbit/s brings 128 KB.
GAP_BYTES = 128 << 10
REQUEST_BYTES = 8 << 20
# Enough for 10,000 samples/s at a latency of 25 ms; well below the usual limit of 1024 descriptors.
IN_FLIGHT = 256


class Piece(NamedTuple):
    """A range of a file; `file` is relative to its place."""

    file: bytes
    offset: int
    length: int

    @property
    def stop(self) -> int:
        return self.offset + self.length


def coalesce(
    pieces: Iterable[Piece], gap_bytes: int = GAP_BYTES, request_bytes: int = REQUEST_BYTES
) -> list[tuple[Piece, list[Piece]]]:
    """Return requests, each with the pieces it covers: those that are close together in a file become one.

    A request is longer than `request_bytes` only for a piece that is, and at least half of it is wanted.
    """
    requests: list[tuple[Piece, list[Piece]]] = []
    wanted_bytes = 0  # of the last request
    for piece in sorted(set(pieces)):
        last, inside = requests[-1] if requests else (None, [])
        if last is not None and last.file == piece.file and piece.offset - last.stop <= gap_bytes:
            stop = max(last.stop, piece.stop)
            wanted = wanted_bytes + max(0, stop - max(last.stop, piece.offset))
            length = stop - last.offset
            if stop == last.stop or (length <= request_bytes and length <= 2 * wanted):
                inside.append(piece)
                requests[-1], wanted_bytes = (Piece(last.file, last.offset, length), inside), wanted
                continue
        requests.append((piece, [piece]))
        wanted_bytes = piece.length
    return requests


def origin(file: PackFile) -> bytes:
    """Return where a file of a pack is, relative to the pack."""
    return os.fsencode(f"{file.folder}/{file.name}" if file.folder else file.name)


class RangeReader:
    """Reads pieces of a place's files. Connects when first used; safe for any number of threads."""

    def __init__(
        self, place: Place, *, in_flight: int = IN_FLIGHT, policy: RetryPolicy | None = None
    ) -> None:
        self.place, self.policy = place, policy or RetryPolicy()
        self.outage = Outage(place.root, self.policy)
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._line: AsyncConnection | ThreadConnection | None = None
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

                self._line = open_connection(self.place, self._in_flight, self.outage)
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
        if line is not None:  # first: what begins from now on ends at once
            line.close()
        for future in waiting:
            future.cancel()


def find_with_retries(
    place: Place, file: bytes, policy: RetryPolicy | None = None, outage: Outage | None = None
) -> PlacedFile | None:
    """Return a file's facts, None: it is a folder; a source that errs is asked again.

    Args:
        outage: of the source, if others ask it too: they share the time until it is given up.

    Raises:
        NotFound: there is nothing of that name.
        StorageError: the source fails for too long.
    """
    outage = outage or Outage(place.root, policy or RetryPolicy())

    def find() -> PlacedFile | None:
        place.forget_listings()  # storages of fsspec remember what they have listed
        return place.find(file, suggest=False)

    def wait(seconds: float) -> None:
        nonlocal place
        time.sleep(seconds)
        # fsspec keeps connections, also those that were cut.
        place = Place(place.root, {"skip_instance_cache": True})

    return Retry(outage, place.address(file), policy).run(find, wait)


def fetch_manifest(place: Place) -> tuple[bytes, Manifest]:
    """Read a pack's pack.json, once; behind an address, once more what the way there may have damaged.

    Raises:
        NotFound, StorageError: it is not there, or nobody answers.
        PackError: it is damaged.
    """
    name = FILE_NAME.encode()
    text = place.read_whole(name)
    try:
        try:
            return text, parse_manifest(text)
        except PackError:
            if not place.is_remote:
                raise
            text = place.read_whole(name)
            return text, parse_manifest(text)
    except PackError as error:
        raise PackError(f"{place.address(name)}: {error}", hint=error.hint) from None


# So many of the files that were indexed elsewhere are asked for their sizes when a pack is opened.
_LOOKED_AT = 16


class MultiSourceReader(RangeReader):
    """Reads pieces of a place's files, and of files that are called by an address of their own."""

    def __init__(
        self, place: Place, *, in_flight: int = IN_FLIGHT, policy: RetryPolicy | None = None
    ) -> None:
        super().__init__(place, in_flight=in_flight, policy=policy)
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
        found = find_with_retries(reader.place, name, OPENING, reader.outage)
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
                    reader = RangeReader(Place(root), in_flight=self._each_in_flight, policy=self.policy)
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
    from concurrent.futures import ThreadPoolExecutor

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


class FetchedPlace(Place):
    """A folder with files that were brought from elsewhere; messages call them by their address there."""

    def __init__(self, root: str, source: Place) -> None:
        super().__init__(root)
        self._source = source

    def address(self, file: bytes) -> str:
        return self._source.address(file)


class FetchedBytes:
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
        """Write a piece, of what a request brought."""
        view = memoryview(data)[piece.offset - request.offset : piece.stop - request.offset]
        write_all(self._fd, view, self.places[piece])


def _remove(fd: int, path: str) -> None:
    os.close(fd)
    os.unlink(path)


def or_nothing(future: Future[bytes]) -> Future[bytes]:
    """Return the same, but nothing where the file is gone or short: its place stays zeros.

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


class PendingFetch:
    """The pieces that several batches need (one list each), on their way.

    `read`: asks for a range of a file.
    """

    def __init__(self, read: Callable[[Piece], Future[bytes]], wants: Sequence[Sequence[Piece]]) -> None:
        users: dict[Piece, set[int]] = {}
        for batch, pieces in enumerate(wants):
            for piece in pieces:
                users.setdefault(piece, set()).add(batch)
        self.fetched = FetchedBytes(sorted(users))
        self._changed = threading.Condition()
        self._errors: dict[int, BaseException] = {}
        self._stopped = False
        asked = []
        self._left = [0] * len(wants)  # requests that each batch still waits for
        for request, inside in coalesce(piece for piece in users if piece.length):
            batches = set().union(*(users[piece] for piece in inside))
            asked.append((request, inside, batches))
            for batch in batches:
                self._left[batch] += 1
        # Requests of the first batch come first.
        for request, inside, batches in sorted(asked, key=lambda one: min(one[2])):
            self._ask(read, request, inside, batches)

    def _ask(
        self,
        read: Callable[[Piece], Future[bytes]],
        request: Piece,
        inside: list[Piece],
        batches: set[int],
    ) -> None:
        def arrived(future: Future[bytes]) -> None:
            error: BaseException | None = None
            try:
                data = future.result()
                for piece in inside:
                    self.fetched.lay(piece, request, data)
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

        read(request).add_done_callback(arrived)

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
