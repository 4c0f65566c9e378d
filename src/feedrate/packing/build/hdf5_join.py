# SPDX-License-Identifier: Apache-2.0
"""The last step of `pack --format hdf5`: parts, written by anybody in any order, become one file.

    parts --data.h5--> parts and file --index parts, pack.json--> finished, and parts --> finished

Each file appears whole or not at all, and parts go last: killed anywhere, the same command does the step
again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError, PackError, StorageError
from feedrate.files.atomic import atomic_write, explained, write_all
from feedrate.format.containers.hdf5 import FILE_NAME, Hdf5, find_bare, make_columns, make_layout
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.index import Part, parse_part
from feedrate.format.manifest import IndexPart, index_name, read_manifest
from feedrate.format.raw import bare_table
from feedrate.kernel import I64
from feedrate.packing.build.plan import INDEX_SUFFIX
from feedrate.packing.build.shard import ShardDone, describe_part, read_done, write_part
from feedrate.packing.check.verify import measure_file

_BLOCK_BYTES = 2**24


def join_parts(
    folder: Path, fields: Sequence[Field], done: Sequence[ShardDone]
) -> tuple[tuple[Field, ...], list[ShardDone]]:
    """Make data.h5 and its index of parts that are complete; return the fields as they are stored now.

    Raises:
        StorageError: the disk is full or failed; the parts are still there.
        MissingExtra: h5py is not installed.
    """
    notes = [one.found["notes"]["hdf5"] for one in done]
    bare = {f.name: found for f in fields if (found := find_bare(f, notes)) is not None}
    samples = sum(one.shard.samples for one in done)
    columns = make_columns(fields, samples, notes)
    expected = sum(column.size_bytes for column in columns)
    with atomic_write(folder / FILE_NAME, expected_bytes=expected) as out:
        places = make_layout(out.name, columns)
        size_bytes = os.fstat(out.fileno()).st_size
        join = _Join(out.fileno(), {c.name: (places[c.name], c.dtype) for c in columns}, bare)
        moved = [
            _move_part(folder, fields, one, join, index_name(number), size_bytes)
            for number, one in enumerate(done)
        ]
        seen, crc32c = measure_file(Path(out.name))
        if seen != size_bytes:
            raise PackError(f"{FILE_NAME} was cut short while it was written")
    whole = partial(dataclasses.replace, name=FILE_NAME, size_bytes=size_bytes, crc32c=crc32c)
    shards = [
        one._replace(shard=whole(one.shard, index=index)) for one, index in zip(done, moved, strict=True)
    ]
    return tuple(_as_stored(field, bare.get(field.name)) for field in fields), shards


def read_joined(folder: Path, plan: str) -> list[ShardDone] | None:
    """Return the shards of a pack that only has parts left to be removed; None: it has to be made."""
    try:
        manifest = read_manifest(folder)
    except FeedrateError:
        return None
    if manifest.settings.get("plan") != plan:
        return None
    whole = [
        one._replace(shard=shard)
        for shard in manifest.shards
        if (one := read_done(folder, shard.index.name, shard.name, plan, shard.container)) is not None
    ]
    return whole if len(whole) == len(manifest.shards) else None


def remove_parts(folder: Path, shards: int) -> None:
    """Remove the parts that a finished pack was made of."""
    for number in range(shards):
        part = folder / Hdf5().shard_name(number)
        with explained(folder):
            for path in (part, part.with_suffix(INDEX_SUFFIX)):
                path.unlink(missing_ok=True)


class _Join:
    """Where in the file the next samples go."""

    def __init__(
        self, fd: int, places: Mapping[str, tuple[int, str]], bare: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> None:
        self.fd, self.places = fd, places
        self.row_bytes = {
            name: int(np.dtype(dtype).itemsize * np.prod(shape, dtype=object))
            for name, (dtype, shape) in bare.items()
        }
        self.samples = 0
        self.used: dict[str, int] = {}

    def put(self, name: str, values: Any) -> None:
        """Write one value per sample of the part that is being moved."""
        begin, dtype = self.places[name]
        data = np.ascontiguousarray(np.asarray(values, dtype))
        write_all(self.fd, data.tobytes(), begin + self.samples * data.itemsize)

    def move(self, field: Field, source: int, rows: Any) -> None:
        """Copy the bytes of a field, and fill in where they are now."""
        name = field.name
        offsets, lengths = rows[f"{name}.offset"].copy(), rows[f"{name}.length"].copy()
        if name in self.row_bytes:
            each = self.row_bytes[name]
            target = self.places[name][0] + each * self.samples
            rows[f"{name}.offset"] = target + each * np.arange(len(rows))
            rows[f"{name}.length"] = each
            rows[f"{name}.crc32c"] = _copy(
                source, offsets + lengths - each, lengths * 0 + each, self.fd, target
            )
            return
        used = self.used.get(name, 0)
        starts = used + np.cumsum(lengths) - lengths
        self.put(f"{name}/offset", starts)
        self.put(f"{name}/length", lengths)
        begin = self.places[f"{name}/data"][0]
        rows[f"{name}.offset"] = begin + starts
        _copy(source, offsets, lengths, self.fd, begin + used)
        self.used[name] = used + int(lengths.sum())


def _move_part(
    folder: Path, fields: Sequence[Field], one: ShardDone, join: _Join, name: str, size_bytes: int
) -> IndexPart:
    old = one.shard.index.name
    part = parse_part((folder / old).read_bytes(), fields, name=old)
    rows, variable = part.rows, dict(part.variable)
    join.put("key", list(variable["key"]))
    join.put("number", rows["number"])
    with open(folder / one.shard.name, "rb") as source:
        for field in fields:
            if field.kind is Kind.NUMBER:
                join.put(field.name, rows[field.name])
                continue
            join.move(field, source.fileno(), rows)
            if field.kind is Kind.IMAGE and field.name in join.row_bytes:
                tables = variable[f"{field.name}.entries"]
                variable[f"{field.name}.entries"] = [bare_table(table) for table in tables]
    join.samples += len(rows)
    # The checksum of the whole file is not known yet: pack.json has it.
    metadata = {k: v for k, v in part.metadata.items() if k != "crc32c"}
    metadata |= {"shard": FILE_NAME, "bytes": size_bytes}
    data = write_part(folder / name, fields, Part(rows, variable, metadata))
    return describe_part(name, data, one.shard.index.entries)


def _copy(source: int, offsets: I64, lengths: I64, target: int, at: int) -> list[int]:
    """Copy ranges to one place, one behind the other; return the checksum of each."""
    crcs: list[int] = []
    for first, last in _blocks(offsets, lengths):
        begin, stop = int(offsets[first]), int(offsets[last - 1] + lengths[last - 1])
        block = memoryview(kernel.read_at(source, stop - begin, begin))
        if len(block) != stop - begin:
            raise StorageError("a part of the pack was cut short", hint="run the same command again")
        starts = (offsets[first:last] - begin).tolist()
        pieces = [block[a : a + n] for a, n in zip(starts, lengths[first:last].tolist(), strict=True)]
        size_bytes = int(lengths[first:last].sum())
        write_all(target, block if size_bytes == len(block) else b"".join(pieces), at)
        crcs += map(kernel.crc32c, pieces)
        at += size_bytes
    return crcs


def _blocks(offsets: I64, lengths: I64) -> Iterator[tuple[int, int]]:
    """Yield runs of ranges that are within a few megabytes of each other; a larger range alone."""
    first = 0
    stops = offsets + lengths
    while first < len(offsets):
        last = int(np.searchsorted(stops, offsets[first] + _BLOCK_BYTES, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def _as_stored(field: Field, bare: tuple[str, tuple[int, ...]] | None) -> Field:
    if field.kind is not Kind.ARRAY or bare is None:
        return field
    dtype, shape = np.dtype(bare[0]), bare[1]
    name = dtype.name if dtype.isnative else dtype.str
    return dataclasses.replace(field, coding=Coding.RAW, dtype=name, shape=shape)
