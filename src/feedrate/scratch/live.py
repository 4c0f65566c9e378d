# SPDX-License-Identifier: Apache-2.0
"""Train while staging: a pack flows to scratch in the order of the first epoch, and is read on its way.

One thread stages, by the reader's connections; all processes of a node share a copy: one writes, the others
see its files grow, and one of them takes over when it is gone. Files grow from their beginning, those of a
group side by side, since the first epoch reads from several shards at once. A file on its way is read as far
as it has come: samples have checksums of their own. For what comes soon another thread waits; it turns to the
source when nothing comes any more.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.draws import GROUP, order_shards
from feedrate.errors import FeedrateError
from feedrate.format.manifest import Manifest, PackFile
from feedrate.remote.copier import Incoming
from feedrate.remote.fetch import Piece, RangeReader, origin
from feedrate.remote.retry import OPENING, Retry, log
from feedrate.remote.transfer import Stopped, Transfer
from feedrate.scratch.marker import BadMarker
from feedrate.scratch.staging import Staging, StagingOptions, open_staging

# 48 MB on their way: enough for 1 GB/s at 50 ms; a slow line still lets something land every few seconds.
CHUNK_BYTES = 4 << 20
STREAMS = 12
POLL_S, LOOK_S = 0.02, 0.5
# What is so little behind the end of a file on its way is waited for; else it is read from the source.
SOON_BYTES = 64 << 20
# Groups of shards that are waited for: the one that flows, and what comes so soon behind it.
FLOW_BYTES = 512 << 20
# Who copies may do so in another order: when nothing comes for so long, it is not waited for, for a while.
IDLE_S, IMPATIENT_S = 30.0, 600.0
# A loader that is not iterated over lets its pack flow after so long.
HOLD_BACK_S = 3.0


@dataclass(slots=True)
class _Waiting:
    """Somebody waits for a range of a file that is on its way."""

    name: str
    request: Piece
    future: Future[bytes] = field(default_factory=Future)
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
        order = order_shards(len(manifest.shards)).tolist()
        self._groups = [order[i : i + GROUP] for i in range(0, len(order), GROUP)]
        self._flowing: frozenset[str] = frozenset()  # shards that flow now or soon, as last looked
        self._looked = 0.0
        self._may_flow = threading.Event()
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._is_over = False
        self._progress = (0, 0.0)  # what had flowed when it was seen to grow, and when that was
        self._measured_at = 0.0
        self._impatient_until = 0.0  # nothing came that was waited for: read from the source for a while
        self._thread = threading.Thread(target=self._run, name="feedrate-stage", daemon=True)
        self._server = threading.Thread(target=self._serve, name="feedrate-wait", daemon=True)

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
            attempts = Retry(reader.outage, source, OPENING)
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
        live._server.start()
        return live

    def close(self) -> None:
        """Stop copying, and give the copy free. May be called twice."""
        self._staging.stop()
        self._may_flow.set()
        for thread in (self._thread, self._server):
            if threading.current_thread() is not thread and thread.ident is not None:
                thread.join()
        self._staging.close()

    def locate(self, file: PackFile) -> Path | None:
        name = self._names.get(os.fsdecode(origin(file)))
        return None if name is None else self.copy.data / name

    def find_small(self, file: PackFile) -> Path | None:
        name = self._names.get(os.fsdecode(origin(file)))
        return self.copy.data / name if name is not None and self.copy.has_landed(name) else None

    def landed(self) -> npt.NDArray[np.bool_]:
        """Return which shards are whole on scratch; a little late."""
        now = time.monotonic()
        if now - self._looked > LOOK_S and not self._landed.all():
            self._looked = now
            missing = [name for name, there in zip(self._shard_names, self._landed, strict=True) if not there]
            seen = {name: self.copy.has_landed(name) for name in dict.fromkeys(missing)}
            for i, name in enumerate(self._shard_names):
                self._landed[i] |= seen.get(name, False)
            self._flowing = self._find_flowing()
        return self._landed

    def _find_flowing(self) -> frozenset[str]:
        """Return the shards that flow now or soon: from the first group of which some have not landed."""
        found: set[str] = set()
        for group in self._groups:
            if not self._landed[group].all():
                found |= {self._shard_names[i] for i in group}
                if sum(self.copy.files[name].size_bytes for name in found) > FLOW_BYTES:
                    break
        return frozenset(found)

    @property
    def landed_bytes(self) -> int:
        self._looked = 0.0
        landed = {name for name, there in zip(self._shard_names, self.landed(), strict=True) if there}
        return sum(self.copy.files[name].size_bytes for name in landed)

    def let_flow(self) -> None:
        """Begin to copy; before, the line is left to the first batch."""
        self._may_flow.set()

    def read(self, request: Piece, *, may_wait: bool) -> Future[bytes] | None:
        """Return bytes that have come, or come soon; None: they are to be read from the source."""
        name = self._names.get(os.fsdecode(request.file))
        if name is None:
            return None
        there_bytes = self.copy.find_available(name)[1]
        if request.stop <= there_bytes and (data := self._read_there(name, request)) is not None:
            there: Future[bytes] = Future()
            there.set_result(data)
            return there
        is_soon = name in self._flowing and request.stop - there_bytes <= SOON_BYTES
        with self._changed:
            if not (may_wait and is_soon) or self._is_over or time.monotonic() < self._impatient_until:
                return None
            waiting = _Waiting(name, request)
            self._waiting.append(waiting)
            self._changed.notify_all()
        return waiting.future

    def _read_there(self, name: str, request: Piece) -> bytes | None:
        """Read from a file on its way, or from one that has landed meanwhile; None: it is not there."""
        for path in (self.copy.part(name), self.copy.data / name):
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                data = kernel.read_at(file.fileno(), request.length, request.offset)
                if len(data) == request.length:
                    return data
        return None

    def _serve(self) -> None:
        while not self._serve_once():
            pass

    def _serve_once(self) -> bool:
        """Give those who wait what has come; from the source when nothing comes any more; True: for good."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            is_over = self._is_over
            waiting, self._waiting = self._waiting, []
        now = time.monotonic()
        if now - self._measured_at > LOOK_S:
            self._measured_at = now
            self.landed()
            flowed_bytes = sum(self.copy.find_available(name)[1] for name in self._flowing)
            if flowed_bytes != self._progress[0]:
                self._progress = flowed_bytes, now
        still = []
        for one in waiting:
            is_idle = now - max(one.since, self._progress[1]) > IDLE_S
            if is_idle:
                self._impatient_until = now + IMPATIENT_S
            if not self._answer(one, is_over or is_idle):
                still.append(one)
        with self._changed:
            self._waiting += still
            if still:
                self._changed.wait_for(lambda: self._is_over, POLL_S)
        return is_over

    def _answer(self, one: _Waiting, is_last: bool) -> bool:
        is_there = self.copy.find_available(one.name)[1] >= one.request.stop
        if is_there and (data := self._read_there(one.name, one.request)) is not None:
            one.future.set_result(data)
        elif is_there or is_last:
            _forward(self._reader.read(one.request), one.future)
        else:
            return False
        return True

    def _run(self) -> None:
        self._may_flow.wait(HOLD_BACK_S)
        try:
            self._stage()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _stage(self) -> None:
        groups = {
            names[i]: n
            for n, group in enumerate(self._groups)
            for names in (self._index_names, self._shard_names)
            for i in group
        }
        names = dict.fromkeys([*self._staging.contents.known, *groups, *self.copy.files])
        how = Transfer(
            STREAMS, block_bytes=CHUNK_BYTES, read=self._read, refuse=self._refuse,
            group_of=lambda file: groups.get(file.name, file.name),
        )  # fmt: skip
        try:
            self._staging.bring(names, how)
        except (Stopped, CancelledError):
            pass
        except FeedrateError as error:
            # Its words alone: who keeps what was logged must not keep the copy's disk busy.
            why = str(error)
            log.warning(
                "copying to %s stops, and the rest is read from the source: %s", self.copy.folder, why
            )

    def _read(self, file: Incoming, offset: int, length: int) -> Future[bytes]:
        source = os.fsencode(self.copy.files[file.name].source_name)
        return self._reader.read(Piece(source, offset, length), file.version)

    def _refuse(self, _: Incoming, error: Exception) -> None:
        log.warning("%s: %s; it is not kept on scratch", self.copy.marker.source, error)


def _forward(source: Future[bytes], target: Future[bytes]) -> None:
    def pass_on(done: Future[bytes]) -> None:
        if done.cancelled():
            target.cancel()
        elif (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(done.result())

    source.add_done_callback(pass_on)
