# SPDX-License-Identifier: Apache-2.0
"""Write one shard and its index part. A task by itself: it needs its source, its target, and no other user.

Plain image files, with a label or without, go into a tar many at a time: the kernel reads them, looks at them
and lays them out, on all threads. What is out of the ordinary goes one by one. Both ways make the same bytes;
the first spares a Python object per file, which would cost more than the file.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.calls import one_ahead
from feedrate.errors import PackError
from feedrate.files.atomic import atomic_write, write_file
from feedrate.format.containers import Content, Output, ShardWriter, TooLarge, find_container
from feedrate.format.containers.tar import BLOCK_BYTES, Tar, member_header
from feedrate.format.fields import Coding, Field, Kind, dump_entries, find_entries, row_dtype
from feedrate.format.index import (
    ByteStrings,
    Part,
    TextsBuilder,
    dump_part,
    fill_derived,
    locate_columns,
    read_metadata,
)
from feedrate.format.manifest import IndexPart, Manifest, Shard
from feedrate.kernel import I64, U8, Members
from feedrate.packing.build.listing import FILE, LABELLED, NUMBER_BYTES, Listing, Rows, Sample
from feedrate.packing.build.loading import Loaded, Rejected, SampleLoader
from feedrate.packing.build.mapper import Mapper
from feedrate.packing.build.plan import BLOCK, ShardTask
from feedrate.packing.check.quality import KEPT, REJECTED, QualityTally
from feedrate.packing.recode import Tally
from feedrate.packing.values import find_orientation
from feedrate.packing.workers import advance, count_threads
from feedrate.progress import Rejection
from feedrate.remote.addresses import is_url
from feedrate.source.bytes import Bytes
from feedrate.units import printable

# What is in flight at a time; two of them are. A shard of tiny files is four batches: between two of them the
# kernel waits for Python.
_BATCH_BYTES, _BATCH_FILES = 2**23, 4096
# So many samples are tried to know whether nearly all of a shard go this way.
_TRIED = 64
_HEADER = member_header("", 0)
# What a part of the index says of every shard.
_FOUND = {"source_bytes", "rejected", "damaged", "by_kernel", "by_pillow", "uniform"}
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
            # Runs of samples that are done are between those that are left.
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
            yield from (
                rows[part] for part in kernel.split_by_size(rows["tar_bytes"], _BATCH_BYTES, _BATCH_FILES)
            )

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
            int(listed["source_bytes"].sum()),
            int((kinds <= kernel.ImageKind.GRAY_JPEG).sum()),
        )


def _grow(memory: U8, size_bytes: int) -> U8:
    return memory if len(memory) >= size_bytes else np.empty(max(size_bytes, _BATCH_BYTES), np.uint8)


MapCost = tuple[int, float]  # samples and seconds


class ShardDone(NamedTuple):
    """A finished shard, and what the metadata of its index part say of it and of what packing found."""

    shard: Shard
    found: Mapping[str, Any]


def write_shard(task: ShardTask) -> MapCost:
    """Write a shard and its index part; each appears under its name only when whole.

    Returns what a map took: a time, so it is no part of the pack.

    Raises:
        StorageError: the target's disk or the whole source failed. Single bad inputs are noted and left out.
    """
    with closing(Listing(task.listing)) as listing:
        return begin_shard(task, listing)()


def begin_shard(task: ShardTask, listing: Listing) -> Callable[[], MapCost]:
    """Write a shard but for its last step, and return that, to be called: it mostly waits for the disk."""
    container = find_container(task.container)
    shard_path = Path(task.target) / task.shard_name
    source = Bytes(task.source, task.target)
    mapper = None if task.map is None else Mapper(task.map, listing.fields)
    fields = task.stored_fields(listing.fields)
    loader = SampleLoader(
        source,
        listing.fields,
        fields,
        task.recode,
        mapper,
        scan=task.scan,
        bytes_per_entry=task.bytes_per_entry,
    )
    with ExitStack() as stack:
        output = Output(stack.enter_context(atomic_write(shard_path, expected_bytes=task.expected_bytes)))
        writer = SampleWriter(loader, container.write(output))
        for one in _samples(task, listing, fields, output, loader):
            if isinstance(one, Written):
                writer.add_written(one)
                advance(len(one.rows), one.listed_bytes)
            else:
                writer.add(one)
                advance(1, one.source_bytes)
        notes = writer.shard.end()
        whole = stack.pop_all()
    source.close()
    metadata = {
        "plan": task.plan, "shard": shard_path.name, "bytes": output.size_bytes,
        "crc32c": f"{output.crc32c:08x}",
        **({"recoded": writer.tally.dump()} if task.recode.settings() or mapper else {}),
        **({"notes": notes} if notes else {}), **dump_entries(task.bytes_per_entry),
    }  # fmt: skip

    def finish() -> MapCost:
        whole.close()
        writer.write_index(Path(task.target) / task.index_name, metadata)
        return (0, 0.0) if mapper is None else (mapper.samples, mapper.seconds)

    return finish


def _samples(
    task: ShardTask, listing: Listing, fields: tuple[Field, ...], output: Output, loader: SampleLoader
) -> Iterator[Sample | Written]:
    if is_plain(task, fields):
        yield from Bulk(task, listing, fields, output, count_threads()).run(loader.quality)
        return
    for first in range(task.first, task.last, BLOCK):
        rows = listing.rows_in_order(first, min(first + BLOCK, task.last), task.seed)
        yield from listing.samples_of(rows)


def find_done(task: ShardTask) -> ShardDone | None:
    """Return what `write_shard` made of a task; None: it has to be done, or done again."""
    return read_done(Path(task.target), task.index_name, task.shard_name, task.plan, task.container)


def read_done(target: Path, index: str, shard: str, plan: str, container: str) -> ShardDone | None:
    """Return a shard that is complete on disk and was made for this plan; None when it has to be made."""
    done = read_part_done(target, index, shard, plan, container)
    try:
        # A folder of files that were there before has no size.
        size_bytes = 0 if (target / shard).is_dir() else os.stat(target / shard).st_size
    except OSError:
        return None
    return done if done is not None and done.shard.size_bytes == size_bytes else None


def read_part_done(target: Path, index: str, shard: str, plan: str, container: str) -> ShardDone | None:
    """Return what an index part says of its shard, wherever that is; None: it was made for another plan."""
    index_path = target / index
    if not index_path.exists():
        return None
    try:
        metadata = read_metadata(index_path)
        if metadata.get("plan") != plan or not metadata.keys() >= _FOUND:
            return None
        part = describe_part(index, index_path.read_bytes(), find_entries(metadata))
        crc32c = int(metadata.get("crc32c", "0"), 16)
        whole = Shard(
            name=shard, size_bytes=metadata["bytes"], crc32c=crc32c, samples=metadata["samples"],
            index=part, container=container,
        )  # fmt: skip
    except (PackError, OSError, KeyError, TypeError, ValueError):
        return None
    return ShardDone(whole, metadata)


class SampleWriter:
    """Counts along while a shard is written; holds rows of the index, never images."""

    def __init__(self, loader: SampleLoader, shard: ShardWriter) -> None:
        self.loader, self.shard, self.fields, self.tally = loader, shard, loader.stored, Tally()
        self.source_bytes = self.by_kernel = 0
        self.samples = 0
        self._rows: list[tuple[Any, ...]] = []
        self._pieces: list[Rows] = []
        self.variable = {"key": TextsBuilder()}
        for field in self.fields:
            self.variable |= {name: TextsBuilder() for name in field.variable_columns()}
        self.rejected: list[Rejection] = []
        self.damaged: list[Rejection] = []
        self.by_pillow: Counter[str] = Counter()
        self.uniform: dict[str, Any] = {}

    def add(self, sample: Sample) -> None:
        try:
            loaded = self.loader.load(sample)
        except Rejected as error:
            self._reject(error.rejection)
            return
        if loaded is None:
            return
        contents = [
            Content(field, part.data, part.path, part.columns[0] if field.kind is Kind.NUMBER else None)
            for field, part in zip(self.fields, loaded, strict=True)
        ]
        try:
            offsets = self.shard.add(sample.key, contents)
        except TooLarge as error:
            self._reject(Rejection(printable(loaded[0].path), self.fields[0].name, str(error), "too-large"))
            return
        row: list[Any] = [sample.number]
        self.variable["key"].append(sample.key.encode("ascii"))
        for field, part, offset in zip(self.fields, loaded, offsets, strict=True):
            if field.kind is not Kind.NUMBER:
                row += [offset, len(part.data), kernel.crc32c(part.data)]
                self.variable[f"{field.name}.path"].append(part.path)
            row += part.columns
            if field.kind is Kind.IMAGE:
                self.variable[f"{field.name}.entries"].append(part.entries)
                row.append((0, 0))  # follows from the entries of all rows
            self._count(field, part)
        self._rows.append((*row, 0))
        self.samples += 1

    def _reject(self, one: Rejection) -> None:
        self.rejected.append(one)
        self.loader.quality.add(one.code, one.path, one.reason, REJECTED)

    def add_written(self, written: Written) -> None:
        """Note samples that are in the shard already."""
        self._end_piece()
        self._pieces.append(written.rows)
        self.samples += len(written.rows)
        self.variable["key"].extend(written.keys)
        self.variable["image.path"].extend(written.paths)
        self.variable["image.entries"].extend(written.entries)
        self.source_bytes += int(written.rows["image.length"].sum())
        self.by_kernel += written.by_kernel
        if written.by_kernel < len(written.rows):
            self.by_pillow[NOT_JPEG] += len(written.rows) - written.by_kernel
        sides = written.rows[["image.height", "image.width"]]
        _share(self.uniform, "image.shape", list(sides[0].item()) if (sides == sides[0]).all() else None)

    def rows(self) -> Rows:
        self._end_piece()
        return np.concatenate(self._pieces) if self._pieces else np.zeros(0, row_dtype(self.fields))

    def _end_piece(self) -> None:
        if self._rows:
            self._pieces.append(np.array(self._rows, row_dtype(self.fields)))
            self._rows = []

    def write_index(self, path: Path, metadata: Mapping[str, object]) -> None:
        """Write the shard's part of the index, with what was found and what `metadata` adds."""
        found = {
            "samples": self.samples, "source_bytes": self.source_bytes,
            "rejected": list(map(astuple, self.rejected)), "damaged": list(map(astuple, self.damaged)),
            "by_kernel": self.by_kernel, "by_pillow": self.by_pillow,
            "uniform": self.uniform, "quality": self.loader.quality.dump(), **metadata,
        }  # fmt: skip
        variable = {name: texts.finish() for name, texts in self.variable.items()}
        write_part(path, self.fields, Part(self.rows(), variable, found))

    def _count(self, field: Field, part: Loaded) -> None:
        self.source_bytes += part.source_bytes
        for name, value in (part.uniform or {}).items():
            _share(self.uniform, f"{field.name}.{name}", value)
        is_resized = part.sizes is not None and sorted(part.sizes[0]) != sorted(part.sizes[1])
        if field.kind is not Kind.IMAGE:
            self.tally.masks += is_resized
            return
        source, stored = part.facts or (None, None)
        self.tally.add(
            part.source_bytes, part.image, source.kind if source is not None else "",
            is_resized=is_resized, is_raw=field.coding is Coding.RAW,
        )  # fmt: skip
        if source is not None and source.damage is not None:
            words = source.pillow_reason or ""
            self.damaged.append(Rejection(printable(part.path), field.name, words, source.damage))
        if stored is None or stored.pillow_reason is None:
            self.by_kernel += 1
        else:
            self.by_pillow[stored.pillow_reason] += 1


def _share(uniform: dict[str, Any], name: str, value: object) -> None:
    """Note a value; None: it is not the same for all."""
    if uniform.setdefault(name, value) != value:
        uniform[name] = None


def write_part(path: Path, fields: Sequence[Field], part: Part) -> bytes:
    """Write a part of the index, whose derived columns are filled in here; return its bytes."""
    fill_derived(part.rows, part.variable)
    data = dump_part(fields, part)
    write_file(path, data)
    return data


def describe_part(name: str, data: bytes, entries: int) -> IndexPart:
    """Return what pack.json says of a part of the index."""
    return IndexPart(
        name=name, size_bytes=len(data), crc32c=kernel.crc32c(data), columns=locate_columns(data),
        entries=entries,
    )  # fmt: skip


def sum_up_shards(manifest: Manifest, done: Sequence[ShardDone]) -> dict[str, Any]:
    """Return what `PackResult` and `IndexResult` say alike of a pack and its shards."""
    by_pillow = sum((Counter(shard.found["by_pillow"]) for shard in done), Counter[str]())
    odd = [shard.found.get("quality", {}).get("odd", {}) for shard in done]
    label = manifest.field("label")
    return {
        "samples": manifest.samples,
        "classes": None if label is None or label.classes is None else len(label.classes),
        "fields": {field.name: field.kind.value for field in manifest.fields},
        "source_bytes": sum(shard.found["source_bytes"] for shard in done),
        "damaged": list_rejections(done, "damaged"),
        "by_kernel": sum(shard.found["by_kernel"] for shard in done),
        "by_pillow": dict(by_pillow.most_common()),
        "deep_images": sum(kinds.get("deep", {}).get("done", {}).get(KEPT, 0) for kinds in odd),
    }


def list_rejections(done: Iterable[ShardDone], name: str) -> tuple[Rejection, ...]:
    """Return what shards list as "rejected" or "damaged"."""
    return tuple(Rejection(*one) for shard in done for one in shard.found[name])


def share_shapes(fields: Sequence[Field], done: Iterable[ShardDone]) -> tuple[Field, ...]:
    """Return the fields with the shapes and types that all samples of all shards share."""
    uniform: dict[str, Any] = {}
    for shard in done:
        for name, value in shard.found["uniform"].items():
            _share(uniform, name, value)
    shared = []
    for field in fields:
        shape, dtype = (uniform.get(f"{field.name}.{name}") for name in ("shape", "dtype"))
        shared.append(replace(field, shape=shape and tuple(shape), dtype=dtype or field.dtype))
    return tuple(shared)


def dump_rejections(rejected: tuple[Rejection, ...]) -> bytes:
    """Return rejected.jsonl."""
    return "".join(json.dumps(asdict(one)) + "\n" for one in rejected).encode()
