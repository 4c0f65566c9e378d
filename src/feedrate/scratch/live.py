# SPDX-License-Identifier: Apache-2.0
"""Train while staging: a pack flows to scratch in the order of the first epoch, and is read on its way.

    JOINED --no process copies, and the copy is not complete--> WRITING --all has landed--> DONE
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.draws import GROUP, order_shards
from feedrate.errors import FeedrateError
from feedrate.files.atomic import explain_write_error
from feedrate.files.lock import Gone
from feedrate.format.manifest import ColumnPart, IndexPart, Manifest, Shard
from feedrate.remote.addresses import Changed
from feedrate.remote.copier import Asked, Copier, Incoming, Part
from feedrate.remote.fetch import Piece, RangeReader, coalesce
from feedrate.remote.index_files import origin
from feedrate.remote.retry import OPENING, Retry, log
from feedrate.scratch.marker import BadMarker
from feedrate.scratch.staging import Staging, StagingOptions, open_staging

# What is so little behind the end of a file on its way is waited for; else it is read from the source.
SOON_BYTES = 64 << 20


class ScratchSupply:
    """Bytes from the copy as far as it has come, else from the source. For one fetch."""

    def __init__(
        self, live: LiveCopy, on_their_way: frozenset[str], spoilt: frozenset[Piece], landed: set[bytes]
    ) -> None:
        self._live, self._on_their_way = live, on_their_way
        self._spoilt, self._landed = spoilt, landed
        self._near: dict[Piece, str] = {}
        self._coming: dict[Piece, str] = {}

    def is_needed(self, piece: Piece) -> bool:
        """Return whether a piece must be fetched: files that have landed are read where they are."""
        return piece in self._spoilt or piece.file not in self._landed

    def requests(self, pieces: Sequence[Piece]) -> list[Piece]:
        files = {piece.file for piece in pieces}
        there = {file: self._live.available_bytes(file) for file in files}
        near, coming, far = [], [], []
        for piece in pieces:
            name, there_bytes = there[piece.file]
            if name is None or piece in self._spoilt:
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
            return self._live.wait_for(self._coming[request], request)
        if request in self._near:
            data = self._live.read_near(self._near[request], request)
            if data is not None:
                future: Future[bytes] = Future()
                future.set_result(data)
                return future
        return self._live.read_source(request)


# 48 MB on their way: enough for 1 GB/s at 50 ms; a slow line still lets something land every few seconds.
CHUNK_BYTES = 4 << 20
STREAMS = 12


class Writer:
    """Brings what a copy lacks. Only for who holds the writer's lock.

    Args:
        told: called when something has come.
        closing: when set, `copy_all` ends with a CancelledError soon.
    """

    def __init__(
        self, staging: Staging, reader: RangeReader, told: Callable[[], None], closing: threading.Event
    ) -> None:
        self.copy, self._staging, self._reader = staging.copy, staging, reader
        self._told, self._closing = told, closing
        self.growing: dict[str, Part] = {}
        self.written_bytes = 0
        self._copier = Copier(
            self._read, STREAMS, finish=self._finish, refuse=self._refuse, count=self._count,
            block_bytes=CHUNK_BYTES,
        )  # fmt: skip

    def close(self) -> None:
        """Close the parts; what is there stays, to be gone on with."""
        for part in self.growing.values():
            part.close()
        self.growing.clear()

    def copy_all(self, groups: Sequence[Sequence[str]]) -> None:
        """Bring all files that have not landed; those of a group side by side."""
        for name, data in self._staging.contents.known.items():
            if not self.copy.has_landed(name):
                with self.copy.filling(name) as part:
                    part.write_bytes(data)
        self._copier.run(self._ask(groups))

    def _ask(self, groups: Sequence[Sequence[str]]) -> Iterator[Asked]:
        done = set(self._staging.contents.known)
        for names in [*groups, list(self.copy.files)]:
            fresh = [name for name in dict.fromkeys(names) if name not in done]
            done.update(fresh)
            yield from self._copier.ask([self._begin(n) for n in fresh if not self.copy.has_landed(n)])

    def _begin(self, name: str) -> Part:
        """Open a part; what is there of it counts."""
        file = self._staging.describe(name)
        part = self.growing[name] = Part(file, self._staging.open_part(file), self._closing.is_set)
        return part

    def _read(self, file: Incoming, offset: int, length: int) -> Future[bytes]:
        source = os.fsencode(self.copy.files[file.name].source_name)
        return self._reader.read(Piece(source, offset, length), file.version)

    def _count(self, size_bytes: int) -> None:
        self.written_bytes += max(size_bytes, 0)
        self._told()
        if self._closing.is_set():
            raise CancelledError

    def _finish(self, part: Part) -> None:
        file = part.file
        file.check_unchanged(part.crc32c, lambda *at: self._read(file, *at).result())
        self.copy.land(file.name, part.fd)
        del self.growing[file.name]
        part.close()
        self._told()

    def _refuse(self, file: Incoming, error: Changed | None) -> None:
        """Forget a file: the loader reads it from the source."""
        del self.growing[file.name]
        why = f"{file.name} came damaged (checksum)" if error is None else error
        log.warning("%s: %s; it is not kept on scratch", self.copy.marker.source, why)


# Groups of shards that are waited for: the one that flows, and what comes so soon behind it.
FLOW_BYTES = 512 << 20
POLL_S, LOOK_S, TAKE_OVER_S = 0.02, 0.5, 1.0
# Who copies may do so in another order: when nothing comes for so long, it is not waited for, for a while.
IDLE_S, IMPATIENT_S = 30.0, 600.0
# A loader that is not iterated over lets its pack flow after so long.
HOLD_BACK_S = 3.0


@dataclass(slots=True)
class _Waiting:
    """Somebody waits for a stretch of a file that is on its way."""

    request: Piece
    name: str
    future: Future[bytes]
    since: float = field(default_factory=time.monotonic)


class LiveCopy:
    """The copy of a pack on scratch, as one process sees it."""

    def __init__(self, staging: Staging, manifest: Manifest, reader: RangeReader) -> None:
        self._staging, self._reader = staging, reader
        self.copy = copy = staging.copy
        self._names = {file.source_name: name for name, file in copy.files.items() if file.source_name}
        self._shard_names = [self._names[os.fsdecode(origin(shard))] for shard in manifest.shards]
        self._index_names = [self._names[os.fsdecode(origin(shard.index))] for shard in manifest.shards]
        self._landed = np.zeros(len(manifest.shards), np.bool_)
        self._looked = 0.0
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._writer: Writer | None = None
        self._closing = threading.Event()
        self._stirred = threading.Event()
        self._is_over = False
        self._progress = (0, 0.0)  # what had flowed when it was seen to grow, and when that was
        self._may_flow = threading.Event()
        self._impatient_until = 0.0  # nothing came that was waited for: read from the source for a while
        order = order_shards(len(manifest.shards)).tolist()
        self._groups = [order[i : i + GROUP] for i in range(0, len(order), GROUP)]
        self._thread = threading.Thread(target=self._run, name="feedrate-landing", daemon=True)

    @classmethod
    def begin(
        cls,
        source: str,
        scratch: str,
        manifest: Manifest,
        reader: RangeReader,
        allow_addresses: tuple[str, ...] = (),
    ) -> LiveCopy | None:
        """Begin to copy a pack, or join who does; None: no scratch was named and none was found.

        Raises:
            StorageError, UsageError: the folder that was named cannot take it.
        """
        try:
            attempts = Retry(reader.trouble, source, OPENING)
            options = StagingOptions(allow_addresses=allow_addresses)
            staging = open_staging(source, scratch, options=options, attempts=attempts)
            live = cls(staging, manifest, reader)
        except FeedrateError as error:
            # A copy that cannot be used is no reason not to train: the source is there.
            if scratch != "auto" and not isinstance(error, BadMarker):
                raise
            log.warning("%s is read without a copy on scratch: %s", source, error)
            return None
        live._thread.start()
        return live

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

    def _landed_files(self) -> set[bytes]:
        return {self._origin(name) for name in set(self._shard_names) - self._missing()}

    def _missing(self) -> set[str]:
        return {name for name, there in zip(self._shard_names, self._landed, strict=True) if not there}

    @property
    def landed_bytes(self) -> int:
        self._looked = 0.0
        self.landed()
        names = set(self._shard_names) - self._missing()
        return sum(self.copy.files[name].size_bytes for name in names)

    def supply(self, *, may_wait: bool, spoilt: frozenset[Piece]) -> ScratchSupply:
        self.landed()
        may_wait = may_wait and not self._is_over and time.monotonic() >= self._impatient_until
        on_their_way = self._on_their_way() if may_wait else frozenset()
        return ScratchSupply(self, on_their_way, spoilt, self._landed_files())

    def _on_their_way(self) -> frozenset[str]:
        """Return the shards that flow now or soon: from the first group of which some have not landed."""
        self.landed()
        missing = self._missing()
        found: set[str] = set()
        size_bytes = 0
        for group in self._groups:
            names = {self._shard_names[i] for i in group}
            if names & missing:
                found |= names
                size_bytes += sum(self.copy.files[name].size_bytes for name in names)
                if size_bytes > FLOW_BYTES:
                    break
        return frozenset(found)

    def _measure_progress(self) -> int:
        """Return how many bytes have flowed, by this process or another; only differences mean something."""
        if self._writer is not None:
            return self._writer.written_bytes
        return sum(self.copy.find_available(name)[1] for name in self._on_their_way())

    def let_flow(self) -> None:
        """Begin to copy; before, the line is left to the first batch."""
        self._may_flow.set()

    def available_bytes(self, file: bytes) -> tuple[str | None, int]:
        """Return a file's name in the copy, and how many bytes from its beginning are there."""
        name = self._names.get(os.fsdecode(file))
        if name is None:
            return None, 0
        growing = None if self._writer is None else self._writer.growing.get(name)
        return name, growing.size_bytes if growing is not None else self.copy.find_available(name)[1]

    def read_near(self, name: str, request: Piece) -> bytes | None:
        """Read from a file on its way, or from one that has landed meanwhile; None: it is not there."""
        for path in (self.copy.part(name), self.copy.data / name):
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as stream:
                data = kernel.read_at(stream.fileno(), request.length, request.offset)
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
        if not waiting:
            return
        still, now, flowed_bytes = [], time.monotonic(), self._measure_progress()
        if flowed_bytes != self._progress[0]:
            self._progress = flowed_bytes, now
        for one in waiting:
            _, there_bytes = self.available_bytes(self._origin(one.name))
            if (
                there_bytes >= one.request.stop
                and (data := self.read_near(one.name, one.request)) is not None
            ):
                one.future.set_result(data)
                continue
            is_idle = now - max(one.since, self._progress[1]) > IDLE_S
            if is_idle:
                self._impatient_until = now + IMPATIENT_S
            if self._is_over or is_idle or there_bytes >= one.request.stop:
                _forward(self._reader.read(one.request), one.future)
            else:
                still.append(one)
        with self._lock:
            self._waiting += still

    def _list_groups(self) -> list[list[str]]:
        """Return the files that flow side by side, group by group: index parts before their shards."""
        found = []
        for group in self._groups:
            found.append([self._index_names[i] for i in group])
            found.append([self._shard_names[i] for i in group])
        return found

    def _origin(self, name: str) -> bytes:
        return os.fsencode(self.copy.files[name].source_name)

    # Copying.

    def _run(self) -> None:
        try:
            self._copy_or_watch()
        except CancelledError:
            pass
        except Gone:
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
            if self._writer is not None:
                self._writer.close()
            with self._lock:
                self._is_over = True
            self._serve()

    def _copy_or_watch(self) -> None:
        self._may_flow.wait(HOLD_BACK_S)
        asked = 0.0
        while not self._closing.is_set():
            if time.monotonic() - asked > TAKE_OVER_S:
                asked = time.monotonic()
                if self.copy.is_complete() and not (self.copy.is_ours and self._staging.find_unknown()):
                    return
                if self.copy.is_ours and (lock := self.copy.take_writer()) is not None:
                    self._writer = Writer(self._staging, self._reader, self._serve, self._closing)
                    with lock:
                        self._writer.copy_all(self._list_groups())
                        self._staging.note_unknown(self._closing)
                    return
            self._serve()
            self._stirred.wait(POLL_S if self._waiting else LOOK_S)
            if not self._waiting:
                self._stirred.clear()


def _forward(source: Future[bytes], target: Future[bytes]) -> None:
    def pass_on(done: Future[bytes]) -> None:
        if done.cancelled():
            target.cancel()
        elif (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(done.result())

    source.add_done_callback(pass_on)
