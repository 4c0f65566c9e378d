# SPDX-License-Identifier: Apache-2.0
"""A remote pack: bytes come from its copy on scratch where they are there and good, else from the source.

The kernel reads files by number. Shards have the numbers that they have in any pack, and are files of the
copy; what was fetched is one more file, whose number comes behind all others. `find_values` says per sample
which it is. Parts of the index come when they are first needed, and again when they are damaged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from feedrate import kernel
from feedrate.errors import NotFound, StorageError
from feedrate.format.containers import FILES, RANGES
from feedrate.format.fields import Kind
from feedrate.format.manifest import (
    FILE_NAME,
    IndexPart,
    Manifest,
    PackFile,
    Shard,
    file_path,
    read_manifest,
)
from feedrate.format.pack import Bools, Pack, Rows
from feedrate.kernel import I32, I64, Ranges, Status
from feedrate.remote import trust
from feedrate.remote.addresses import Place, is_address, is_url
from feedrate.remote.fetch import (
    IN_FLIGHT,
    FetchedBytes,
    MultiSourceReader,
    PendingFetch,
    Piece,
    RangeReader,
    check_sizes,
    describe_change,
    fetch_manifest,
    or_nothing,
    origin,
)
from feedrate.remote.index_files import IndexFolder
from feedrate.remote.results import FetchStats
from feedrate.remote.retry import OPENING, Retry, RetryPolicy, log

# What a copy that was deleted, cut short or overwritten looks like to the kernel.
_LOST = (Status.UNREADABLE, Status.CUT_SHORT)
SPOILT = (*_LOST, Status.CRC_MISMATCH, Status.BAD_ENTRIES)
_LOOKED_FOR = 8  # files of a folder, to tell one that is gone from one that lacks some


class DamagedSamples:
    """Shards that are gone, and samples that are not what the index says. Safe to use from any thread.

    Attributes:
        count: how many samples there was a doubt about.
        lost_shards: of each shard, whether it is gone.
        doubted_shards: of each shard, whether there was a doubt about one of its samples.
    """

    def __init__(self, name: str, shards: int) -> None:
        self.count = 0
        self._name = name
        self._lock = threading.Lock()
        self.lost_shards, self.doubted_shards = np.zeros((2, shards), np.bool_)
        self._distrusted: set[int] = set()

    def add(self, shards: I64, positions: I64, statuses: I32) -> None:
        """Note samples that could not be read; the first time, say so."""
        with self._lock:
            if not self.count:
                log.warning(
                    "%s: the copy on scratch is damaged or gone (%s); those samples are read from the source",
                    self._name, Status(int(statuses[0])).name.lower().replace("_", " "),
                )  # fmt: skip
            self.count += len(positions)
            lost = np.isin(statuses, _LOST)
            self.lost_shards[shards[lost]] = True
            self.doubted_shards[shards] = True
            self._distrusted.update(positions[~lost].tolist())

    def distrusts(self, positions: I64) -> Bools:
        """Return which samples are not what the index says."""
        return np.isin(positions, list(self._distrusted))


# Of a field and positions: which of them a cache keeps, so that their bytes are not needed.
IsKept = Callable[[str, I64], Bools]


class FillingCopy(Protocol):
    """The pack's copy on this machine, which fills while the pack is read: `scratch.live.LiveCopy`."""

    def locate(self, shard: Shard) -> Path | None: ...

    def find_small(self, file: PackFile) -> Path | None: ...

    def landed(self) -> Bools: ...

    @property
    def landed_bytes(self) -> int: ...

    def read(self, request: Piece, *, may_wait: bool) -> Future[bytes] | None: ...

    def let_flow(self) -> None: ...

    def close(self) -> None: ...


OpenCopy = Callable[[Manifest, RangeReader], FillingCopy | None]


@dataclass(frozen=True, slots=True)
class BatchBytes:
    """Which bytes a batch needs from elsewhere, and what the index says of its samples."""

    positions: I64
    rows: Rows
    statuses: I32
    pieces: list[Piece]

    @property
    def size_bytes(self) -> int:
        return sum(piece.length for piece in self.pieces)


class FetchedFiles(kernel.Files):
    """The files of a pack, and behind them what was fetched, which lives as long as they do."""

    def __init__(self, pack: Pack, fetched: FetchedBytes) -> None:
        super().__init__([*pack.files.paths, fetched.path])
        self.fetched = fetched


class RemotePack(Pack):
    """A pack behind an address, or one that is being copied to scratch. Safe to use from any thread.

    Args:
        open_copy: opens the copy that the pack is read from as far as that has come; None: there is none.
    """

    def __init__(
        self,
        source: str,
        open_copy: OpenCopy | None = None,
        policy: RetryPolicy | None = None,
        in_flight: int = IN_FLIGHT,
        allow_addresses: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self._arguments = source, open_copy, policy, in_flight, allow_addresses
        self._lock = threading.Lock()  # of the counts, and of what was brought or asked for twice
        self._counts = {"from_scratch": 0, "from_source": 0}
        self._renewed: set[str] = set()  # parts of the index that were brought twice
        self._renewing = threading.Lock()
        # Thread and sample, of what came from the source a second time.
        self._asked_again: set[tuple[int, int]] = set()
        self._fetched: tuple[BatchBytes, FetchedFiles] | None = None  # see `holding`
        self.reader = MultiSourceReader(Place(source), in_flight=in_flight, policy=policy)
        closing: list[Callable[[], object]] = [self.reader.close]
        self._finalizer = weakref.finalize(self, _close_all, closing, os.getpid())
        try:
            manifest = self._read_manifest()
            trust.check_addresses(source, manifest, allow_addresses)
            self._index = index = IndexFolder(source, self.reader)
            closing.append(index.close)
            self.copy = None if open_copy is None else open_copy(manifest, self.reader)
            if self.copy is not None:
                closing.append(self.copy.close)
                index.find_copy = self.copy.find_small
            elif not is_url(source):
                index.find_copy = lambda file: Path(os.path.abspath(file_path(source, file)))
            self._is_here = np.array([self._lies_here(shard) for shard in manifest.shards], np.bool_)
            self._damaged = DamagedSamples(source, len(manifest.shards))
            super().__init__(source, manifest)
            index.bring(manifest.parts)
        except BaseException:
            self._finalizer()
            raise
        self._origins = [origin(shard) for shard in manifest.shards]
        self._shared = frozenset(self._origins)  # files that hold more than one sample
        # A value that is a file of its own is as long as its file, whatever that is.
        sizes = [2**48 if shard.container == FILES else shard.size_bytes for shard in manifest.shards]
        self._shard_bytes = np.array(sizes, np.int64)

    def _read_manifest(self) -> Manifest:
        if not is_url(self.source) and not os.path.exists(os.path.join(self.source, FILE_NAME)):
            return read_manifest(self.source)  # raises: says what is there instead
        address = f"{self.source.rstrip('/')}/{FILE_NAME}"
        attempts = Retry(self.reader.outage, address, OPENING)
        try:
            return attempts.run(lambda: fetch_manifest(Place(self.source)))[1]
        except NotFound:
            raise NotFound(
                f"no pack at {self.source}: it has no {FILE_NAME}",
                hint="a pack is what 'feedrate pack' makes",
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePack, self._arguments

    def close(self) -> None:
        super().close()
        self._finalizer()

    # What differs from a pack of this machine: where files are.

    def locate_file(self, file: PackFile) -> Path:
        if not isinstance(file, Shard):
            return self._index.locate(file)
        if self.copy is not None and (there := self.copy.locate(file)) is not None:
            return there
        if self._lies_here(file):
            return file_path(self.source, file)
        # Never opened, but it tells shards apart.
        return self._index.path / "elsewhere" / file.folder.replace("..", "up") / file.name

    def _lies_here(self, shard: Shard) -> bool:
        """Return whether a shard is read where it is: a pack of this machine may name others elsewhere."""
        is_here = self.copy is None and not is_url(self.source) and not is_address(shard.folder)
        return is_here and shard.container != FILES

    def _check_in_place(self) -> None:
        """Ask some of the files that were indexed elsewhere for their sizes: all would take long.

        Others, and those of a pack that is there itself, are known by their checksums when they are read.
        """
        if self.copy is not None:
            return
        if not is_url(self.source):
            super()._check_in_place()
        check_sizes(self.reader, self.manifest.shards)

    def _say_change(self, shard: Shard, field: str, at: I64, row: Rows | None) -> str:
        if shard.container != RANGES or self._lies_here(shard) or row is None:
            return super()._say_change(shard, field, at, row)
        is_stored = f"{field}.crc32c" in (self._stored.names or ())
        span = (int(row[f"{field}.offset"]), int(row[f"{field}.length"])) if is_stored else (0, 0)
        crc32c = int(row[f"{field}.crc32c"]) if is_stored else 0
        return describe_change(self.reader, shard, *span, crc32c)

    def _check_referred(self) -> None:
        if self.copy is None and not is_url(self.source):
            super()._check_referred()

    # The index, which comes part by part.

    def rows(self, positions: I64, wanted: Collection[str] | None = None) -> tuple[Rows, I32]:
        if self._fetched is not None and np.array_equal(self._fetched[0].positions, positions):
            return self._fetched[0].rows, self._fetched[0].statuses
        return super().rows(positions, wanted)

    def _read_rows(self, positions: I64, wanted: Collection[str] | None) -> tuple[Rows, I32]:
        self._index.bring(self._index_of(positions))
        rows, statuses = super()._read_rows(positions, wanted)
        if statuses.any():
            self._renew_index(positions[statuses != 0])
            rows, statuses = super()._read_rows(positions, wanted)
        return rows, statuses

    def _read_texts(self, column: str, positions: I64) -> tuple[list[bytes], Bools]:
        self._index.bring(self._index_of(positions))
        texts, is_good = super()._read_texts(column, positions)
        if not is_good.all():
            self._renew_index(positions[~is_good])
            texts, is_good = super()._read_texts(column, positions)
        return texts, is_good

    def _stored_column(self, shard: Shard, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        self._index.bring([shard.index])
        return super()._stored_column(shard, name)

    def column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        self._index.bring(shard.index for shard in self.manifest.shards)
        return super().column(name)

    def all_texts(self, column: str) -> Iterator[bytes]:
        self._index.bring(shard.index for shard in self.manifest.shards)
        return super().all_texts(column)

    def _index_of(self, positions: I64) -> Iterable[IndexPart]:
        shards = np.unique(self.locate(positions)[0])
        return [self.manifest.shards[i].index for i in shards.tolist()]

    def _renew_index(self, positions: I64) -> bool:
        """Bring parts of the index again that are damaged here; False: they were brought again before.

        Maybe just now, by another thread that met the same damage and is waited for: look again.
        """
        with self._renewing:
            parts = [part for part in self._index_of(positions) if part.name not in self._renewed]
            self._renewed.update(part.name for part in parts)
            if parts:
                log.warning(
                    "%s: files of its index are damaged or gone here; they are brought again", self.name
                )
                self._index.bring([*parts, *self.manifest.parts], again=True)
                self.files.close()
        return bool(parts)

    # The bytes.

    def look_up(self, positions: I64, fields: Sequence[str], is_kept: IsKept | None = None) -> BatchBytes:
        """Return what a batch of these samples needs that is not on scratch, nor kept in a cache."""
        rows, statuses = self.rows(positions, fields)
        good = positions[statuses == 0]
        pieces: list[Piece] = []
        for field in fields:
            found = self.manifest.field(field)
            if found is not None and found.kind is not Kind.NUMBER:
                values = self.ranges(field, rows[statuses == 0], good)
                far = self._is_far(values, good) & self._is_possible(values, good)
                if is_kept is not None:
                    far &= ~is_kept(field, good)
                pieces += self._pieces(field, values, good, far)
        return BatchBytes(positions, rows, statuses, pieces)

    def _is_far(self, values: Ranges, positions: I64) -> Bools:
        """Return which values must come from the source."""
        shards, _ = self.locate(positions)
        far = ~self._is_here[shards]
        if self.copy is not None:
            far &= ~(self.copy.landed() & ~self._damaged.lost_shards)[shards]
            far |= self._damaged.distrusts(positions)
        return far & ~self._is_added(values)

    def _is_added(self, values: Ranges) -> Bools:
        """Return which values are of columns that were added: in files of the index, not in shards."""
        is_added: Bools = values.file >= 2 * len(self.manifest.shards)
        return is_added

    def _is_possible(self, values: Ranges, positions: I64) -> Bools:
        """Return which values are inside of their shards: no memory is taken for others."""
        rooms = self._shard_bytes[self.locate(positions)[0]] - values.length
        possible: Bools = (values.length >= 0) & (values.offset >= 0) & (values.offset <= rooms)
        return possible | self._is_added(values)

    def _pieces(self, field: str, values: Ranges, positions: I64, chosen: Bools) -> list[Piece]:
        at = np.flatnonzero(chosen)
        shards, _ = self.locate(positions[at])
        names = [self._origins[shard] for shard in shards.tolist()]
        loose = np.flatnonzero(self._is_loose[shards]).tolist()
        if loose:
            for i, path in zip(loose, self._read_paths(field, positions[at[loose]]), strict=True):
                names[i] += b"/" + path
        offsets, lengths = values.offset[at].tolist(), values.length[at].tolist()
        return [Piece(*one) for one in zip(names, offsets, lengths, strict=True)]

    def fetch(self, wants: Sequence[Sequence[Piece]], *, may_wait: bool = False) -> PendingFetch:
        """Ask for the pieces that batches need, a list each. `may_wait`: for what scratch has soon."""
        copy = self.copy
        if copy is None:
            return PendingFetch(self._read, wants)
        doubted = {self._origins[i] for i in np.flatnonzero(self._damaged.doubted_shards).tolist()}

        def read(request: Piece) -> Future[bytes]:
            there = None if request.file in doubted else copy.read(request, may_wait=may_wait)
            return self._read(request) if there is None else there

        return PendingFetch(read, wants)

    def _read(self, request: Piece) -> Future[bytes]:
        future = self.reader.read(request)
        return future if request.file in self._shared else or_nothing(future)

    @contextlib.contextmanager
    def holding(self, batch: BatchBytes, files: FetchedFiles) -> Iterator[RemotePack]:
        """Yield this pack as who makes one batch should see it: with what was fetched for that batch."""
        view = object.__new__(RemotePack)
        vars(view).update(vars(self), _fetched=(batch, files), _asked_again=set())
        try:
            yield view
        finally:
            view._fetched = None

    def find_values(
        self, field: str, rows: Rows, positions: I64, *, with_entries: bool = False
    ) -> tuple[kernel.Files, Ranges, Ranges | None]:
        values = self.ranges(field, rows, positions)
        entries = self.entries(field, rows, positions) if with_entries else None
        far, is_possible = self._is_far(values, positions), self._is_possible(values, positions)
        if not is_possible.all():  # the kernel says what is wrong with such a place
            values = replace(values, offset=np.where(far & ~is_possible, -1, values.offset))
            far &= is_possible
        with self._lock:
            self._counts["from_scratch"] += 0 if self.copy is None else int((~far).sum())
            self._counts["from_source"] += int(far.sum())
        if not far.any():
            return self.files, values, entries
        pieces = self._pieces(field, values, positions, far)
        files = None if self._fetched is None else self._fetched[1]
        if files is None or not all(piece in files.fetched.places for piece in pieces):
            # Nothing was fetched ahead, or what scratch has was found damaged: it is not asked.
            pending = PendingFetch(self._read, [pieces])
            pending.wait()
            files = FetchedFiles(self, pending.fetched)
        file, offset = values.file.copy(), values.offset.copy()
        file[far] = len(self.files)
        offset[far] = [files.fetched.places[piece] for piece in pieces]
        return files, replace(values, file=file, offset=offset), entries

    def turn_to_source(self, field: str, rows: Rows, positions: I64, statuses: I32) -> bool:
        """After a read: whether to read again, since what failed can come from the source instead.

        Raises:
            StorageError: what failed is the storage of this machine, not a sample.
        """
        is_bad = np.isin(statuses, SPOILT)
        if is_bad.any():
            values = self.ranges(field, rows, positions)
            is_bad &= self._is_possible(values, positions)
        if not is_bad.any():
            self._forget_asked(positions)
            return False
        bad = np.flatnonzero(is_bad)
        if (statuses == Status.BAD_ENTRIES).any():
            self._renew_index(positions[statuses == Status.BAD_ENTRIES])
        added = bad[self._is_added(values)[bad]]
        if added.size and self._renew_index(positions[added]):
            return True
        near = bad[~(self._is_far(values, positions) | self._is_added(values))[bad]]
        if near.size and self.copy is not None:
            self._damaged.add(self.locate(positions[near])[0], positions[near], statuses[near])
            return True
        # A second time from the source: a proxy or a memory may have spoilt the first.
        self._fetched = None
        with self._lock:
            fresh = self._mine(positions[bad]) - self._asked_again
            self._asked_again |= fresh
        if fresh:
            return True
        self._forget_asked(positions)
        if self._is_loose[self.locate(positions[bad])[0]].any():
            self._check_source(field)
        return super().turn_to_source(field, rows[near], positions[near], statuses[near])

    @staticmethod
    def _mine(positions: I64) -> set[tuple[int, int]]:
        return {(threading.get_ident(), position) for position in positions.tolist()}

    def _forget_asked(self, positions: I64) -> None:
        """A read is over: whoever reads these samples next may ask for them twice."""
        if self._asked_again:
            with self._lock:
                self._asked_again -= self._mine(positions)

    def _check_source(self, field: str) -> None:
        """Raise StorageError where the folder of single files is gone, and not only some of them."""
        some = np.unique(np.linspace(0, len(self) - 1, _LOOKED_FOR, dtype=np.int64))
        rows, statuses = self.rows(some)
        is_chosen = (statuses == Status.OK) & self._is_loose[self.locate(some)[0]]
        pieces = self._pieces(field, self.ranges(field, rows, some), some, is_chosen)
        for piece in pieces:
            with contextlib.suppress(NotFound):
                self.reader.measure(piece.file)
                return
        if pieces:
            raise StorageError(
                f"the files of {self.source} are gone: {len(pieces)} were looked for, and none is there",
                hint="when they are back, go on from the last state",
            )

    def fetch_stats(self) -> FetchStats:
        """Return what came from where so far."""
        readers = self.reader.readers()
        return FetchStats(
            requests=sum(reader.requests for reader in readers),
            bytes_fetched=sum(reader.bytes_read for reader in readers),
            retries=sum(reader.outage.retries for reader in readers),
            most_in_flight=max(reader.most_in_flight for reader in readers),
            values_from_scratch=self._counts["from_scratch"],
            values_from_source=self._counts["from_source"],
            spoilt_on_scratch=self._damaged.count,
            landed_bytes=0 if self.copy is None else self.copy.landed_bytes,
        )


def _close_all(closing: Sequence[Callable[[], object]], process: int) -> None:
    """The reader first: others wait for what it brings. In a forked child nothing of this is ours."""
    if os.getpid() == process:
        for close in closing:
            close()
