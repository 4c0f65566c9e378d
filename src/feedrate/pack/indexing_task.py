# SPDX-License-Identifier: Apache-2.0
"""Index some neighbouring samples: read them where they lie, check them, and write where they begin."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedrate.errors import StorageError
from feedrate.format.containers import FILES, Content
from feedrate.format.entries import AUTO, dump_entries
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.raw import dump_bare_table
from feedrate.pack.listing import Listing, Sample, value_bytes
from feedrate.pack.loading import Loaded, SampleLoader
from feedrate.pack.recode import Recode
from feedrate.pack.shard import SampleWriter, ShardDone, read_done
from feedrate.pack.workers import advance
from feedrate.source.bytes import Bytes
from feedrate.source.in_place import home_of
from feedrate.source.record import Record, Stored
from feedrate.source.values import UnusableValue


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Everything needed to index a stretch of the listing: small, picklable, harmless to run twice.

    Attributes:
        path: the file that holds the samples, or the folder whose files they are.
        size_bytes, mtime_ns: of that file; of a folder 0.
    """

    root: str
    target: str
    listing: str
    number: int
    first: int
    last: int
    plan: str
    path: str
    container: str
    size_bytes: int
    mtime_ns: int
    source_bytes: int
    bytes_per_entry: int = AUTO


# What one task takes: its part of the index fits into memory, and an interruption costs little.
_MOST_SAMPLES, _MOST_BYTES = 8192, 10**9


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours in the listing that one task indexes; `home` as `home_of` says."""

    first: int
    last: int
    home: bytes | None
    source_bytes: int


class Stretches:
    """Cuts the stream of records where the file changes, and where a stretch is long enough."""

    def __init__(self) -> None:
        self.done: list[Stretch] = []
        self._at = Stretch(0, 0, None, 0)

    def add(self, record: Record) -> None:
        home, at = home_of(record), self._at
        size_bytes = sum(map(value_bytes, record.values.values()))
        count = at.last - at.first
        if count and (home != at.home or count >= _MOST_SAMPLES or at.source_bytes >= _MOST_BYTES):
            self.done.append(at)
            at = Stretch(at.last, at.last, home, 0)
        self._at = Stretch(at.first, at.last + 1, home, at.source_bytes + size_bytes)

    def finish(self) -> list[Stretch]:
        return [*self.done, self._at] if self._at.last else []


def index_name(number: int) -> str:
    return f"index-{number:05d}.arrow"


def index_stretch(task: IndexTask) -> None:
    """Write a part of the index; it appears under its name only when whole.

    Raises:
        StorageError: a disk failed, or the file changed meanwhile. Single bad samples are noted and left out.
    """
    span = range(task.first, task.last)
    writer = look_at_samples(task.root, task.target, task.listing, span, bytes_per_entry=task.bytes_per_entry)
    if task.container != FILES:
        facts = os.stat(task.path)
        if (facts.st_size, facts.st_mtime_ns) != (task.size_bytes, task.mtime_ns):
            raise StorageError(f"{task.path} changed while it was indexed", hint="run the same command again")
    metadata = {
        "plan": task.plan, "shard": os.path.basename(task.path), "bytes": task.size_bytes,
        **dump_entries(task.bytes_per_entry),
    }  # fmt: skip
    writer.write_index(Path(task.target) / index_name(task.number), metadata)


def look_at_samples(
    root: str,
    scratch: str,
    listed: str | os.PathLike[str],
    span: range,
    told: Callable[[int, int], None] = advance,
    *,
    bytes_per_entry: int = AUTO,
) -> SampleWriter:
    """Read some samples of a listing where they lie, and return what can be written about them.

    Args:
        root, scratch: as `Bytes` has them.
        told: of each sample, that it is done, and how many bytes it has.
        bytes_per_entry: how far apart the entry points of images are.
    """
    listing, source = Listing(listed), Bytes(root, scratch)
    places = _Places()
    fields = listing.fields
    loader = _BareLoader(source, fields, fields, Recode(), bytes_per_entry=bytes_per_entry)
    writer = SampleWriter(loader, places)
    for sample in listing.samples(np.arange(span.start, span.stop, dtype=np.int64)):
        places.expect(sample)
        writer.add(sample)
        told(1, sample.source_bytes)
    listing.close()
    source.close()
    return writer


def find_indexed(task: IndexTask) -> ShardDone | None:
    """Return what `index_stretch` made of a task; None: it has to be done, or done again."""
    done = read_done(Path(task.target), index_name(task.number), task.path, task.plan, task.container)
    if done is None:
        return None
    folder, name = os.path.split(task.path)
    shard = dataclasses.replace(
        done.shard, name=name, folder=_relative(folder, task.target), mtime_ns=task.mtime_ns
    )
    return done._replace(shard=shard)


def _relative(folder: str, target: str) -> str:
    path = os.path.relpath(folder, target)
    return "" if path == "." else path


class _Places:
    """Stands where a container's writer would: nothing is written, and values begin where they are."""

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def expect(self, sample: Sample) -> None:
        self._offsets = [value.offset if isinstance(value, Stored) else 0 for value in sample.values]

    def add(self, key: str, contents: Sequence[Content]) -> list[int]:
        del key, contents
        return self._offsets

    def end(self) -> Mapping[str, object]:
        return {}


class _BareLoader(SampleLoader):
    """Also loads values that have no header: rows of a dataset, whose type and shape the field says."""

    def _load(self, field: Field, path: bytes, plain: int | float | bytes, loaded: list[Loaded]) -> Loaded:
        if field.coding is not Coding.RAW or not isinstance(plain, bytes):
            return super()._load(field, path, plain, loaded)
        part = Loaded(plain, path, len(plain))
        assert field.shape is not None
        if field.kind is Kind.ARRAY:
            part.uniform = {"shape": list(field.shape), "dtype": field.dtype}
            return part
        height, width = field.shape
        if len(plain) not in (height * width, 3 * height * width):
            raise UnusableValue(f"has {len(plain)} bytes, {height} x {width} pixels need others")
        pixels = np.frombuffer(plain, np.uint8).reshape(height, width, -1)
        part.entries = dump_bare_table(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        part.columns, part.uniform = (width, height), {"shape": [height, width]}
        part.sizes = ((width, height), (width, height))
        return part
