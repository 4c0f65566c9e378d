# SPDX-License-Identifier: Apache-2.0
"""Train while staging: a pack flows to scratch in the order of the first epoch, and is read on its way.

    JOINED --nobody copies, and the copy is not complete--> WRITING --all has landed--> DONE
                     WRITING --no room, copy gone--> DONE (what is missing is read from the source)

One thread does it. All processes of a node share a copy: one writes, the others see its files grow, and take
over when it is gone. Files grow from their beginning, several side by side, since the first epoch reads from
several shards at once. A file on its way is read as far as it has come: samples have checksums of their own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.manifest import ColumnPart, IndexPart, Manifest, Shard
from feedrate.store.copies import CopyGone
from feedrate.store.files import explain_write_error
from feedrate.store.flow import GROUP, order_shards
from feedrate.store.index_folder import origin
from feedrate.store.patience import log
from feedrate.store.ranges import Piece, RangeReader, coalesce
from feedrate.store.staging import Staging, open_staging

CHUNK_BYTES = 8 << 20
STREAMS = 16
# What lies so little behind the end of a file on its way is waited for; else it is read from the source.
SOON_BYTES = 64 << 20
POLL_S, LOOK_S, TAKE_OVER_S, IDLE_S, IMPATIENT_S = 0.02, 0.5, 1.0, 5.0, 60.0
# A loader that is not iterated over lets its pack flow after so long.
HOLD_BACK_S = 3.0


@dataclass(slots=True)
class _Growing:
    """A file that is being written."""

    name: str
    fd: int
    size_bytes: int
    crc32c: int


@dataclass(slots=True)
class _Waiting:
    """Somebody waits for a stretch of a file that is on its way."""

    request: Piece
    name: str
    future: Future[bytes]
    seen_bytes: int = 0
    since: float = field(default_factory=time.monotonic)


class Landing:
    """The copy of a pack on scratch, as one process sees it."""

    def __init__(self, staging: Staging, manifest: Manifest, reader: RangeReader) -> None:
        self._staging, self._contents, self._reader = staging, staging.contents, reader
        self.copy = copy = staging.copy
        self._names = {file.source_name: name for name, file in copy.files.items() if file.source_name}
        self._shard_names = [self._names[os.fsdecode(origin(shard))] for shard in manifest.shards]
        self._index_names = [self._names[os.fsdecode(origin(shard.index))] for shard in manifest.shards]
        self._landed = np.zeros(len(manifest.shards), np.bool_)
        self._looked = 0.0
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._growing: dict[str, _Growing] = {}
        self._closing = threading.Event()
        self._stirred = threading.Event()
        self._is_over = False
        self._may_flow = threading.Event()
        self._impatient_until = 0.0  # nothing came that was waited for: read from the source for a while
        order = order_shards(len(manifest.shards)).tolist()
        self._groups = [order[i : i + GROUP] for i in range(0, len(order), GROUP)]
        self._thread = threading.Thread(target=self._run, name="feedrate-landing", daemon=True)

    @classmethod
    def begin(cls, source: str, scratch: str, manifest: Manifest, reader: RangeReader) -> Landing | None:
        """Begin to copy a pack, or join who does; None: no scratch was named and none was found.

        Raises:
            StorageError, UsageError: the folder that was named cannot take it.
        """
        try:
            landing = cls(open_staging(source, scratch), manifest, reader)
        except FeedrateError as error:
            if scratch != "auto":
                raise
            log.warning("%s is read without a copy on scratch: %s", source, error)
            return None
        landing._thread.start()
        return landing

    def close(self) -> None:
        """Stop copying, and give the copy free. May be called twice."""
        self._closing.set()
        self._stirred.set()
        self._may_flow.set()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()
        self._staging.close()

    # What is there.

    def locate(self, shard: Shard) -> Path | None:
        name = self._names.get(os.fsdecode(origin(shard)))
        return None if name is None else self.copy.data / name

    def find_small(self, file: IndexPart | ColumnPart) -> Path | None:
        name = self._names.get(os.fsdecode(origin(file)))
        return self.copy.data / name if name is not None and self.copy.has_landed(name) else None

    def landed(self) -> npt.NDArray[np.bool_]:
        """Return which shards are whole on scratch; a little late."""
        now = time.monotonic()
        if now - self._looked > LOOK_S and not self._landed.all():
            self._looked = now
            seen = {name: self.copy.has_landed(name) for name in self._missing()}
            for i, name in enumerate(self._shard_names):
                self._landed[i] |= seen.get(name, False)
        return self._landed

    def landed_names(self) -> set[str]:
        return set(self._shard_names) - self._missing()

    def _missing(self) -> set[str]:
        return {name for name, there in zip(self._shard_names, self._landed, strict=True) if not there}

    @property
    def landed_bytes(self) -> int:
        self._looked = 0.0
        self.landed()
        return sum(self.copy.files[name].size_bytes for name in self.landed_names())

    def supply(self, *, may_wait: bool) -> ScratchSupply:
        may_wait = may_wait and not self._is_over and time.monotonic() >= self._impatient_until
        return ScratchSupply(self, self._on_their_way() if may_wait else frozenset())

    def _on_their_way(self) -> frozenset[str]:
        """Return the shards that flow now: the first group of which some have not landed."""
        missing = self._missing()
        for group in self._groups:
            names = frozenset(self._shard_names[i] for i in group)
            if names & missing:
                return names
        return frozenset()

    def let_flow(self) -> None:
        """Begin to copy; before, the line is left to the first batch."""
        self._may_flow.set()

    def available_bytes(self, file: bytes) -> tuple[str | None, int]:
        """Return a file's name in the copy, and how many bytes from its beginning are there."""
        name = self._names.get(os.fsdecode(file))
        if name is None:
            return None, 0
        growing = self._growing.get(name)
        return name, growing.size_bytes if growing is not None else self.copy.find_available(name)[1]

    def read_near(self, name: str, request: Piece) -> bytes | None:
        """Read from a file on its way, or from one that has landed meanwhile; None: it is not there."""
        for path in (self.copy.part(name), self.copy.data / name):
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as stream:
                data = os.pread(stream.fileno(), request.length, request.offset)
                if len(data) == request.length:
                    return data
        return None

    def read_source(self, request: Piece) -> Future[bytes]:
        return self._reader.read(request)

    def wait_for(self, name: str, request: Piece) -> Future[bytes]:
        """Return the bytes once they have come; from the source when nothing comes any more."""
        waiting = _Waiting(request, name, Future())
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._waiting.append(waiting)
        self._stirred.set()
        return self._reader.read(request) if is_over else waiting.future

    def _serve(self) -> None:
        """Give those who wait what has come."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        still = []
        for one in waiting:
            _, there_bytes = self.available_bytes(self._origin(one.name))
            if (
                there_bytes >= one.request.stop
                and (data := self.read_near(one.name, one.request)) is not None
            ):
                one.future.set_result(data)
                continue
            now = time.monotonic()
            if there_bytes > one.seen_bytes:
                one.seen_bytes, one.since = there_bytes, now
            is_idle = now - one.since > IDLE_S
            if is_idle:
                self._impatient_until = now + IMPATIENT_S
            if self._is_over or is_idle or there_bytes >= one.request.stop:
                _forward(self._reader.read(one.request), one.future)
            else:
                still.append(one)
        with self._lock:
            self._waiting += still

    def _origin(self, name: str) -> bytes:
        return os.fsencode(self.copy.files[name].source_name)

    # Copying.

    def _run(self) -> None:
        try:
            self._copy_or_watch()
        except CancelledError:
            pass
        except CopyGone:
            log.warning("%s was deleted; the pack is read from its source", self.copy.folder)
        except FeedrateError as error:
            log.warning(
                "copying to %s stops, and the rest is read from the source: %s", self.copy.folder, error
            )
        except OSError as error:
            words = explain_write_error(error, self.copy.data)
            log.warning(
                "copying to %s stops, and the rest is read from the source: %s", self.copy.folder, words
            )
        finally:
            for growing in self._growing.values():
                os.close(growing.fd)
            self._growing.clear()
            with self._lock:
                self._is_over = True
            self._serve()

    def _copy_or_watch(self) -> None:
        self._may_flow.wait(HOLD_BACK_S)
        asked = 0.0
        while not self._closing.is_set():
            if time.monotonic() - asked > TAKE_OVER_S:
                asked = time.monotonic()
                if self.copy.is_complete():
                    return
                if self.copy.is_ours and (lock := self.copy.take_writer()) is not None:
                    with lock:
                        self._copy()
                    return
            self._serve()
            self._stirred.wait(POLL_S if self._waiting else LOOK_S)
            if not self._waiting:
                self._stirred.clear()

    def _copy(self) -> None:
        for name, data in self._contents.known.items():
            if not self.copy.has_landed(name):
                with self.copy.landing(name) as part:
                    part.write_bytes(data)
        asked: deque[tuple[_Growing, int, Future[bytes]]] = deque()
        for growing, offset, length in self._chunks():
            piece = Piece(self._origin(growing.name), offset, length)
            asked.append((growing, offset, self._reader.read(piece)))
            while len(asked) >= STREAMS:
                self._append(*asked.popleft())
        while asked:
            self._append(*asked.popleft())

    def _chunks(self) -> Iterator[tuple[_Growing, int, int]]:
        """Yield what to fetch: the index parts of a group of shards, then its shards side by side."""
        done = set(self._contents.known)
        rest = [name for name in self.copy.files if name not in {*self._shard_names, *self._index_names}]
        for group in self._groups:
            for names in ([self._index_names[i] for i in group], [self._shard_names[i] for i in group]):
                fresh = [name for name in dict.fromkeys(names) if name not in done]
                done.update(fresh)
                yield from self._side_by_side(fresh)
        yield from self._side_by_side([name for name in rest if name not in done])

    def _side_by_side(self, names: Sequence[str]) -> Iterator[tuple[_Growing, int, int]]:
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
                    if growing.size_bytes == size_bytes and growing.name in self._growing:
                        self._finish(growing)  # it was whole already, or is empty

    def _begin(self, name: str) -> _Growing:
        """Open a part; what is there of it counts."""
        fd = self.copy.open_part(name)
        growing = self._growing[name] = _Growing(name, fd, 0, 0)
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

    def _append(self, growing: _Growing, offset: int, future: Future[bytes]) -> None:
        data = future.result()
        if growing.name not in self._growing or offset != growing.size_bytes:
            return  # begun again since, after damage
        view = memoryview(data)
        while view:
            view = view[os.pwrite(growing.fd, view, offset + len(data) - len(view)) :]
        growing.crc32c = kernel.crc32c(data, growing.crc32c)
        growing.size_bytes += len(data)
        if growing.size_bytes == self.copy.files[growing.name].size_bytes:
            self._finish(growing)
        self._serve()
        if self._closing.is_set():
            raise CancelledError

    def _finish(self, growing: _Growing) -> None:
        file = self.copy.files[growing.name]
        if file.crc32c is not None and growing.crc32c != file.crc32c:
            os.ftruncate(growing.fd, 0)
            log.warning(
                "%s: %s came damaged (checksum); it is not kept on scratch",
                self.copy.marker.source, growing.name,
            )  # fmt: skip
        else:
            self.copy.land(growing.name, growing.fd)
        del self._growing[growing.name]
        os.close(growing.fd)


class ScratchSupply:
    """Bytes from the copy as far as it has come, else from the source. For one delivery."""

    def __init__(self, landing: Landing, on_their_way: frozenset[str]) -> None:
        self._landing, self._on_their_way = landing, on_their_way
        self._near: dict[Piece, str] = {}
        self._coming: dict[Piece, str] = {}

    def requests(self, pieces: Sequence[Piece]) -> list[Piece]:
        # What has landed is read as a file; a piece of it that is asked for here is spoilt there.
        files = {piece.file for piece in pieces}
        there = {file: self._landing.available_bytes(file) for file in files}
        landed = self._landing.landed_names()
        near, coming, far = [], [], []
        for piece in pieces:
            name, there_bytes = there[piece.file]
            if name is None or name in landed:
                far.append(piece)
            elif piece.stop <= there_bytes:
                near.append(piece)
            elif name in self._on_their_way and piece.stop - there_bytes <= SOON_BYTES:
                coming.append(piece)
            else:
                far.append(piece)
        self._near = {request: there[request.file][0] or "" for request in coalesce(near)}
        self._coming = {request: there[request.file][0] or "" for request in coalesce(coming)}
        return [*self._near, *self._coming, *coalesce(far)]

    def read(self, request: Piece) -> Future[bytes]:
        if request in self._coming:
            return self._landing.wait_for(self._coming[request], request)
        if request in self._near:
            data = self._landing.read_near(self._near[request], request)
            if data is not None:
                future: Future[bytes] = Future()
                future.set_result(data)
                return future
        return self._landing.read_source(request)


def _forward(source: Future[bytes], target: Future[bytes]) -> None:
    def pass_on(done: Future[bytes]) -> None:
        if done.cancelled():
            target.cancel()
        elif (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(done.result())

    source.add_done_callback(pass_on)
