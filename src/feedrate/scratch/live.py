# SPDX-License-Identifier: Apache-2.0
"""Train while staging: a pack flows to scratch while it is read.

Shards that have landed are read from scratch, all others from the source. One thread stages, by the reader's
connections; all processes of a node share a copy: one writes, and another takes over when it is gone. The
first epoch reads groups of shards in a known order, and begins with the first one: that one lands last.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedrate.draws import GROUP, order_shards
from feedrate.errors import FeedrateError
from feedrate.format.manifest import ColumnPart, IndexPart, Manifest, Shard
from feedrate.remote.copier import Incoming
from feedrate.remote.fetch import Piece, RangeReader, origin
from feedrate.remote.retry import OPENING, Retry, log
from feedrate.remote.transfer import Stopped, Transfer
from feedrate.scratch.marker import BadMarker
from feedrate.scratch.staging import Staging, StagingOptions, open_staging

# 48 MB on their way: enough for 1 GB/s at 50 ms; a slow line still lets something land every few seconds.
CHUNK_BYTES = 4 << 20
STREAMS = 12
LOOK_S = 0.5
# A loader that is not iterated over lets its pack flow after so long.
HOLD_BACK_S = 3.0


class LiveCopy:
    """The copy of a pack on scratch, as one process sees it."""

    def __init__(self, staging: Staging, manifest: Manifest, reader: RangeReader) -> None:
        self._staging, self._reader = staging, reader
        self.copy = copy = staging.copy
        self._names = {file.source_name: name for name, file in copy.files.items() if file.source_name}
        self._shard_names = [self._names[os.fsdecode(origin(shard))] for shard in manifest.shards]
        self._landed = np.zeros(len(manifest.shards), np.bool_)
        self._looked = 0.0
        self._may_flow = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedrate-stage", daemon=True)

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
        return live

    def close(self) -> None:
        """Stop copying, and give the copy free. May be called twice."""
        self._staging.stop()
        self._may_flow.set()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()
        self._staging.close()

    def locate(self, file: Shard | IndexPart | ColumnPart) -> Path | None:
        name = self._names.get(os.fsdecode(origin(file)))
        return None if name is None else self.copy.data / name

    def find_small(self, file: IndexPart | ColumnPart) -> Path | None:
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
        return self._landed

    @property
    def landed_bytes(self) -> int:
        self._looked = 0.0
        landed = {name for name, there in zip(self._shard_names, self.landed(), strict=True) if there}
        return sum(self.copy.files[name].size_bytes for name in landed)

    def let_flow(self) -> None:
        """Begin to copy; before, the line is left to the first batch."""
        self._may_flow.set()

    def _run(self) -> None:
        self._may_flow.wait(HOLD_BACK_S)
        order = order_shards(len(self._shard_names))
        names = [self._shard_names[i] for i in [*order[GROUP:].tolist(), *order[:GROUP].tolist()]]
        how = Transfer(STREAMS, block_bytes=CHUNK_BYTES, read=self._read, refuse=self._refuse)
        try:
            self._staging.run(names, how)
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
