# SPDX-License-Identifier: Apache-2.0
"""Which sample goes into which shard: a pure function of the source's listing and the settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes

import numpy as np

from feedrate.arrays import I64
from feedrate.format.containers import find_container
from feedrate.format.containers.tar import END_OF_ARCHIVE, member_bytes
from feedrate.format.fields import AUTO, Coding, Field, Kind
from feedrate.format.manifest import dump_field
from feedrate.packing.build.listing import NAME, Listing, Rows, value_bytes
from feedrate.packing.mapping import Map
from feedrate.packing.options import PackOptions
from feedrate.packing.recode import Recode
from feedrate.source.record import Reader

# A shard's part of the index is made in memory: of tiny samples, a shard takes no more than these.
MOST_SAMPLES = 16_384
INDEX_SUFFIX = ".arrow"  # of a shard's part of the index
# How many samples are looked at together.
BLOCK = 16384


class ShardTask(NamedTuple):
    """Everything needed to write one shard: small, picklable, and harmless to run twice.

    Attributes:
        source: what the samples' files are relative to, wherever the task runs.
        first, last: the shard's places in the pack's order; `last` is not one of them.
        source_bytes, expected_bytes: of its samples in the source, and of the shard.
    """

    source: str
    target: str
    number: int
    first: int
    last: int
    plan: str
    seed: int
    recode: Recode
    source_bytes: int
    expected_bytes: int
    scan: bool = True
    container: str = "tar"
    map: Map | None = None
    made: tuple[Field, ...] = ()  # what the map makes, without the names of classes
    bytes_per_entry: int = AUTO

    @property
    def samples(self) -> int:
        return self.last - self.first

    @property
    def listing(self) -> str:
        return os.path.join(self.target, NAME)

    @property
    def shard_name(self) -> str:
        return find_container(self.container).shard_name(self.number)

    @property
    def index_name(self) -> str:
        return os.path.splitext(self.shard_name)[0] + INDEX_SUFFIX

    def stored_fields(self, listed: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields of the pack, given those of the source."""
        if self.map is None:
            return tuple(listed)
        classes = {field.name: field.classes for field in listed if field.kind is Kind.NUMBER}
        return tuple(
            replace(f, classes=classes.get(f.name)) if f.dtype == "int64" and f.kind is Kind.NUMBER else f
            for f in self.made
        )


class ShardRange(NamedTuple):
    """The places of one shard in the pack's order, and what its samples take."""

    first: int
    last: int
    source_bytes: int
    expected_bytes: int


def split_into_shards(listing: Listing, options: PackOptions, *, scale: float = 1.0) -> Iterator[ShardRange]:
    """Fill shards one after the other, in permuted order; a sample above the shard size has one to itself.

    `scale`: how much larger a sample becomes by a map.
    """
    limit = options.shard_bytes - len(END_OF_ARCHIVE)
    first = filled = source_bytes = 0
    for start in range(0, len(listing), BLOCK):
        stop = min(start + BLOCK, len(listing))
        rows = listing.rows_in_order(start, stop, options.seed)
        sums = np.cumsum((_estimate(listing, rows, options.recode) * scale).astype(np.int64))
        source_sums = np.cumsum(rows["source_bytes"])
        done = done_source = at = 0
        while True:
            room = limit - filled
            # How many more fit; a shard that is still empty takes one whatever its size.
            end = max(at, int(np.searchsorted(sums, done + room, side="right")))
            end = min(end, first + MOST_SAMPLES - start)
            if first == start + end < stop:
                end += 1
            if end > at:
                filled += int(sums[end - 1]) - done
                source_bytes += int(source_sums[end - 1]) - done_source
                done, done_source, at = int(sums[end - 1]), int(source_sums[end - 1]), end
            if start + at == stop:
                break
            yield ShardRange(first, start + at, source_bytes, filled + len(END_OF_ARCHIVE))
            first, filled, source_bytes = start + at, 0, 0
    if first < len(listing):
        yield ShardRange(first, len(listing), source_bytes, filled + len(END_OF_ARCHIVE))


def _estimate(listing: Listing, rows: Rows, recode: Recode) -> I64:
    """Return what samples will take in a tar: exactly, unless their pixels are to be changed."""
    if not recode.settings():
        sizes: I64 = rows["tar_bytes"]
        return sizes
    totals = np.zeros(len(rows), np.int64)
    for i, sample in enumerate(listing.samples_of(rows)):
        for field, value in zip(listing.fields, sample.values, strict=True):
            size_bytes = value_bytes(value)
            is_changed = field.kind is Kind.IMAGE and field.coding is not Coding.FILE
            totals[i] += member_bytes(recode.estimate_bytes(size_bytes) if is_changed else size_bytes)
    return totals


def describe_settings(reader: Reader, options: PackOptions) -> dict[str, Any]:
    """Return the settings that shape a pack, as they stand in pack.json."""
    settings = options.settings()
    if reader.table is not None:
        size_bytes, crc32c = reader.table.measure()
        root, table = os.path.realpath(reader.root), os.path.realpath(reader.table.path)
        # A table from elsewhere comes back at the top of the tree.
        is_inside = os.path.commonpath([root, table]) == root
        path = os.path.relpath(table, root) if is_inside else os.path.basename(table)
        settings["labels"] = {
            "name": f"labels-source{reader.table.path.suffix.lower()}",
            "path": quote_from_bytes(os.fsencode(path)),
            "bytes": size_bytes,
            "crc32c": f"{crc32c:08x}",
        }
        settings["path_column"] = options.path_column
        settings["label_column"] = options.label_column
        if options.label_separator is not None:
            settings["label_separator"] = options.label_separator
        if options.empty_label is not None:
            settings["empty_label"] = options.empty_label
        settings["fields"] = [str(spec) for spec in options.fields]
    return settings


def digest_plan(samples_digest: str, fields: Sequence[Field], settings: Mapping[str, object]) -> str:
    """Return a digest of all that decides a pack's bytes, contents of files aside; times do not."""
    known = [settings, {field.name: dump_field(field) for field in fields}, samples_digest]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
