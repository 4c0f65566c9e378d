# SPDX-License-Identifier: Apache-2.0
"""Plain image files, with a label or without, go into a tar many at a time: the kernel reads them, looks at
them and lays them out, on all threads. What is out of the ordinary comes back, and goes the long way.

Both ways make the same bytes; this one spares a Python object per file, which would cost more than the file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.format.byte_strings import ByteStrings
from feedrate.format.containers import Output
from feedrate.format.containers.tar import BLOCK_BYTES, Tar, member_header
from feedrate.format.fields import Coding, Field, Kind, row_dtype
from feedrate.kernel import I64, U8, U32, Members
from feedrate.one_ahead import one_ahead
from feedrate.packing.build.listing import FILE, LABELLED, NUMBER_BYTES, Listing, Rows, Sample
from feedrate.packing.build.plan import BLOCK, ShardTask
from feedrate.packing.check.quality import QualityTally
from feedrate.packing.values import find_orientation
from feedrate.remote.addresses import is_url

# What is in flight at a time; two of them are. A shard of tiny files is four batches: between two of them the
# kernel waits for Python.
_BATCH_BYTES, _BATCH_FILES = 2**23, 4096
# So many samples are tried to know whether nearly all of a shard go this way.
_TRIED = 64
_HEADER = member_header("", 0)
NOT_JPEG = "not a JPEG (PNG)"  # the kernel's words


def is_plain(task: ShardTask, fields: tuple[Field, ...]) -> bool:
    """Say whether a shard's samples may be of the kind that goes this way."""
    names = tuple(field.name for field in fields)
    return (
        names in (("image",), ("image", "label"))
        and fields[0].kind is Kind.IMAGE
        and fields[0].coding is Coding.FILE
        and (len(fields) == 1 or fields[1].dtype == "int64")
        and task.map is None
        and not task.recode.settings()
        and task.container == Tar.name
        and not is_url(task.source)
    )


def goes_in_bulk(task: ShardTask) -> bool:
    """Say whether next to all samples of a shard go this way; tries some, which its order has mixed."""
    listing = Listing(task.listing)
    fields = task.stored_fields(listing.fields)
    is_bulk = is_plain(task, fields)
    if is_bulk:
        last = min(task.first + _TRIED, task.last)
        rows = listing.rows_in_order(task.first, last, task.seed)
        trial = Bulk(task._replace(scan=False), listing, fields, Output(io.BytesIO()), threads=1)
        batch = trial.make(rows, None, np.empty(0, np.uint8))
        is_bulk = len(batch.chosen) - int(batch.members.facts["left"].sum()) >= len(rows) - 1
    listing.close()
    return is_bulk


class Batch(NamedTuple):
    """Some samples in the order of the shard. `members` are of those that `chosen` names, in that order."""

    rows: Rows
    texts: ByteStrings
    chosen: I64
    members: Members
    keys: ByteStrings
    entries: ByteStrings


class Written(NamedTuple):
    """Samples that were written: their rows of the index, and its columns of varying length."""

    rows: Rows
    keys: ByteStrings
    paths: ByteStrings
    entries: ByteStrings
    shape: tuple[int, int] | None  # height and width; None: they differ
    source_bytes: int
    listed_bytes: int  # with what numbers count as
    by_kernel: int


class Bulk:
    """Gives a shard's samples: written many at a time, or one by one to be written by the caller."""

    def __init__(
        self, task: ShardTask, listing: Listing, fields: tuple[Field, ...], output: Output, threads: int
    ) -> None:
        self._task, self._listing, self._output = task, listing, output
        self._kind = LABELLED if len(fields) > 1 else FILE
        self._dtype = row_dtype(fields)
        self._threads = threads

    def run(self, quality: QualityTally) -> Iterator[Written | Sample]:
        """Write the samples in their order; one that is yielded as it is must be written before going on."""
        for batch in self._batches():
            facts = batch.members.facts
            where = np.full(len(batch.rows), -1)
            where[batch.chosen] = np.where(facts["left"], -1, np.arange(len(batch.chosen)))
            # Runs of samples that are done lie between those that are left.
            left = np.flatnonzero(where < 0).tolist()
            first = 0
            for stop in [*left, len(where)]:
                if stop > first:
                    yield self._write(batch, slice(first, stop), where[first:stop], quality)
                if stop < len(where):
                    yield self._listing.sample(batch.rows[stop], batch.texts[stop])
                first = stop + 1

    def _batches(self) -> Iterator[Batch]:
        """Yield batches; while one is used, the kernel makes the next."""
        pool = kernel.Pool(self._threads) if self._threads > 1 else None
        # Two take turns: when the third batch is begun, the first is written.
        memories: list[U8] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

        def calls() -> Iterator[Callable[[], Batch]]:
            for rows in self._pieces():
                memories.reverse()
                memories[0] = _grow(memories[0], int(rows["tar_bytes"].sum()))
                yield partial(self.make, rows, pool, memories[0])

        yield from one_ahead(calls())
        if pool is not None:
            pool.close()

    def _pieces(self) -> Iterator[Rows]:
        task, listing = self._task, self._listing
        for first in range(task.first, task.last, BLOCK):
            rows = listing.rows_in_order(first, min(first + BLOCK, task.last), task.seed)
            ends, at = np.cumsum(rows["tar_bytes"]), 0
            while at < len(rows):
                before = int(ends[at - 1]) if at else 0
                stop = int(np.searchsorted(ends, before + _BATCH_BYTES, side="right"))
                stop = min(max(stop, at + 1), at + _BATCH_FILES)
                yield rows[at:stop]
                at = stop

    def make(self, rows: Rows, pool: kernel.Pool | None, memory: U8) -> Batch:
        """Read and lay out samples: in `memory`, if that is large enough."""
        texts = self._listing.texts(rows)
        # A key that another sample has, too, is made the long way.
        chosen = np.flatnonzero((rows["kind"] == self._kind) & (rows["again"] == 0))
        has_label = self._kind == LABELLED
        paths = texts if len(chosen) == len(rows) else texts.take(chosen)
        members = kernel.make_members(
            self._task.source.encode("utf-8", "surrogateescape"),
            *paths.pack(),
            rows["source_bytes"][chosen] - (NUMBER_BYTES if has_label else 0),
            rows["label"][chosen] if has_label else None,
            header=_HEADER,
            scan=self._task.scan,
            bytes_per_entry=self._task.bytes_per_entry,
            pool=pool,
            memory=memory,
        )
        keys = ByteStrings.by_lengths(members.keys, members.facts["key_bytes"])
        entries = ByteStrings.by_lengths(members.entries, members.facts["entries_bytes"])
        return Batch(rows, texts, chosen, members, keys, entries)

    def _write(self, batch: Batch, span: slice, which: I64, quality: QualityTally) -> Written:
        members, facts = batch.members, batch.members.facts
        listed = batch.rows[span]
        first, last = int(which[0]), int(which[-1]) + 1
        begin = self._output.size_bytes
        self._output.put(members.buffer[members.starts[first] : members.starts[last]].data)
        rows: Any = np.zeros(len(which), self._dtype)
        rows["number"] = listed["number"]
        rows["image.offset"] = begin + members.starts[first:last] - members.starts[first] + BLOCK_BYTES
        rows["image.length"] = listed["source_bytes"] - (NUMBER_BYTES if self._kind == LABELLED else 0)
        for name in ("crc32c", "width", "height"):
            rows[f"image.{name}"] = facts[name][first:last]
        if self._kind == LABELLED:
            rows["label"] = listed["label"]
        paths = batch.texts[span]
        kinds = facts["kind"][first:last]
        quality.add_plain(paths, rows["image.length"], rows["image.width"], rows["image.height"], kinds)
        for i in np.flatnonzero(facts["has_exif"][first:last]).tolist():
            at = int(members.starts[first + i]) + BLOCK_BYTES
            data = members.buffer[at : at + int(rows["image.length"][i])].tobytes()
            quality.add_orientation(paths[i], find_orientation(data))
        return Written(
            rows,
            batch.keys[first:last],
            paths,
            batch.entries[first:last],
            _shared_shape(rows["image.height"], rows["image.width"]),
            int(rows["image.length"].sum()),
            int(listed["source_bytes"].sum()),
            int((kinds <= kernel.ImageKind.GRAY_JPEG).sum()),
        )


def _grow(memory: U8, size_bytes: int) -> U8:
    return memory if len(memory) >= size_bytes else np.empty(max(size_bytes, _BATCH_BYTES), np.uint8)


def _shared_shape(heights: U32, widths: U32) -> tuple[int, int] | None:
    is_shared = (heights == heights[0]).all() and (widths == widths[0]).all()
    return (int(heights[0]), int(widths[0])) if is_shared else None
