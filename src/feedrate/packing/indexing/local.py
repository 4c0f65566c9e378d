# SPDX-License-Identifier: Apache-2.0
"""Index some neighbouring samples: read them where they lie, check them, and write where they begin.

`feedrate index`: files that are there -> an index of them, a pack without shards of its own.

As in packing.py, packing.json marks what is unfinished, the listing is on disk, and the tasks are small,
independent and harmless to run twice. Samples keep the order of the source: what lies together is indexed
together.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, StorageError, UsageError
from feedrate.files.atomic import atomic_write, remove_temporaries
from feedrate.format.containers import FILES, RANGES, Content
from feedrate.format.entries import AUTO, dump_entries, parse_entries
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest
from feedrate.format.raw import dump_bare_table
from feedrate.packing.build import listing
from feedrate.packing.build.listing import Listing, ListingWriter, Sample, value_bytes
from feedrate.packing.build.loading import Loaded, SampleLoader
from feedrate.packing.build.plan import digest_plan
from feedrate.packing.build.shard import SampleWriter, ShardDone, dump_rejections, read_done, share_shapes
from feedrate.packing.build.unfinished import (
    PROGRESS_NAME,
    SURVEYS_NAME,
    begin,
    check_foreign,
    finish,
    own_folder,
    write_file,
)
from feedrate.packing.recode import Recode
from feedrate.packing.results import IndexResult
from feedrate.packing.workers import advance, run_tasks
from feedrate.progress import Rejection, Tick
from feedrate.remote.addresses import is_url
from feedrate.source.bytes import Bytes
from feedrate.source.in_place import InPlace, home_of
from feedrate.source.opening import is_pattern, open_reader
from feedrate.source.options import SourceOptions
from feedrate.source.record import FileRange, Record
from feedrate.source.values import UnusableValue
from feedrate.units import shell_quote


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
        self._offsets = [value.offset if isinstance(value, FileRange) else 0 for value in sample.values]

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


REJECTED_NAME = "rejected.jsonl"
INDEX_SUFFIX = ".index"
_TELL_EVERY = 1000
Watch = Callable[[Tick], None]


def index(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    options: SourceOptions | None = None,
    entries: str | int = "auto",
    workers: int | None = None,
    watch: Watch = lambda _: None,
) -> IndexResult:
    """Make files that are there random-access and fast, without rewriting a byte of them.

    Args:
        source: tar or WebDataset shards, TFRecord files, a contiguous HDF5 file, or a folder of images; the
            address of WebDataset shards or TFRecord files (s3://bucket/train-*.tar), which needs a `target`.
        target: where the index goes; None: into the folder itself, or for a file to NAME.index beside it.
        entries: how far apart the entry points of JPEGs are: `auto`, `gpu`, or a number of bytes. Those of an
            index or a pack that is there: `set_entries`.

    Raises:
        NotFound: the source is not there.
        SourceError: samples do not lie there as they are: compressed, chunked, or nothing that is known.
        AlreadyExists: there is an index already, or something else.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    begin_s = time.monotonic()
    bytes_per_entry = parse_entries(entries)
    source = os.fspath(source)
    for scheme in ("file://", "local://"):
        source = source.removeprefix(scheme)
    folder = Path(target) if target is not None else _default_target(source)
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    if is_url(source):
        from feedrate.packing.indexing.remote import index_remote

        result = index_remote(
            source, folder, options or SourceOptions(), workers, watch, bytes_per_entry=bytes_per_entry
        )
        return dataclasses.replace(result, seconds=time.monotonic() - begin_s)
    is_beside = os.path.realpath(folder) == os.path.realpath(source)
    if not is_beside:
        check_foreign(folder)
    check_indexed(folder)
    # Before there is a folder of ours: what is not there must not be found in it.
    records = InPlace(open_reader(source, options or SourceOptions(), scratch=os.fspath(folder)))
    with own_folder(folder):
        check_indexed(folder)  # by another process, meanwhile
        remove_temporaries(folder)
        listed = _list(records, folder, make_settings(bytes_per_entry), watch)
        result = _index(records, listed, folder, workers, watch, bytes_per_entry)
        finish(folder)
    if is_beside:  # our own files are among what the reader passed over
        result = dataclasses.replace(result, ignored={})
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


def check_indexed(folder: Path) -> None:
    if (folder / FILE_NAME).exists() and not (folder / PROGRESS_NAME).exists():
        raise AlreadyExists(
            f"{folder} is a pack or an index already",
            hint=f"use it; or to index anew, delete {shell_quote(folder / FILE_NAME)} first",
        )


def _default_target(source: str) -> Path:
    if is_url(source):
        raise UsageError(
            f"where should the index go? {source} is not on this machine", hint="name a folder: --to FOLDER"
        )
    if os.path.isdir(source):
        return Path(source)
    if is_pattern(source):
        raise UsageError(f"where should the index of {source} go?", hint="name a folder: --to FOLDER")
    return Path(source.rstrip("/") + INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class _Listed:
    path: Path
    fields: tuple[Field, ...]
    stretches: list[Stretch]
    plan: str
    rejected: tuple[Rejection, ...]


def make_settings(bytes_per_entry: int) -> dict[str, object]:
    """Return the settings of an index, but for what is known at its end."""
    return {"indexed": True, **dump_entries(bytes_per_entry)}


def _list(records: InPlace, folder: Path, settings: Mapping[str, object], watch: Watch) -> _Listed:
    path = folder / listing.NAME
    rejected: list[Rejection] = []
    stretches = Stretches()
    with atomic_write(path, is_durable=False) as out:
        writer = ListingWriter(out)
        for number, record in enumerate(records):
            if isinstance(record, Rejection):
                rejected.append(record)
                continue
            writer.add(number, record)
            stretches.add(record)
            if writer.count % _TELL_EVERY == 0:
                watch(Tick("listing", writer.count, 0))
        if not writer.count:
            first = f": '{rejected[0].path}': {rejected[0].reason}" if rejected else ""
            raise SourceError(f"there is nothing to index in {records.reader.root}{first}")
        fields = records.fields()
        writer.finish(fields)
        # The listing gets its name after this: it is no sign of an index that was begun.
        begin(folder, settings, writer.fingerprint())
    plan = digest_plan(writer.digest(), fields, settings)
    return _Listed(path, fields, stretches.finish(), plan, tuple(rejected))


def _index(
    records: InPlace,
    listed: _Listed,
    folder: Path,
    workers: int | None,
    watch: Watch,
    bytes_per_entry: int,
) -> IndexResult:
    tasks = list(_make_tasks(records.reader.root, listed, folder, bytes_per_entry))
    missing = [task for task in tasks if find_indexed(task) is None]
    total, left = (sum(task.last - task.first for task in some) for some in (tasks, missing))
    total_bytes, left_bytes = (sum(task.source_bytes for task in some) for some in (tasks, missing))

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick("indexing", done, total, done_bytes, total_bytes))

    report(0, 0)
    for _ in run_tasks(index_stretch, missing, workers=workers, size_bytes=left_bytes, watch=report):
        pass
    done = [shard for task in tasks if (shard := find_indexed(task)) is not None]
    if len(done) < len(tasks):
        raise StorageError(
            f"{folder}, or a file that was indexed, changed meanwhile", hint="run the same command again"
        )
    rejected = listed.rejected + tuple(r for one in done for r in one.rejected)
    settings = {**make_settings(bytes_per_entry), "plan": listed.plan}
    manifest = write_manifest(folder, listed.fields, done, rejected, settings)
    result = summarise(records.reader.root, folder, manifest, done, rejected)
    resumed = len(tasks) - len(missing)
    return dataclasses.replace(
        result, resumed_parts=resumed, left_out=records.left_out, ignored=records.reader.ignored
    )


def write_manifest(
    folder: Path,
    fields: tuple[Field, ...],
    done: list[ShardDone],
    rejected: tuple[Rejection, ...],
    settings: Mapping[str, object],
) -> Manifest:
    """Write pack.json of all parts.

    Raises:
        SourceError: not one sample is left; then the parts go too.
    """
    if not any(one.shard.samples for one in done):
        remove_all(folder, len(done))
        raise SourceError(
            f"not one sample can be indexed, all {len(rejected):,} were rejected: "
            f"'{rejected[0].path}': {rejected[0].reason}"
        )
    # In the order that they always had.
    told = {"indexed": True, "rejected": len(rejected), **settings}
    manifest = Manifest(share_shapes(fields, done), tuple(one.shard for one in done), told)
    if rejected:
        write_file(folder / REJECTED_NAME, dump_rejections(rejected))
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    return manifest


def _make_tasks(root: str, listed: _Listed, folder: Path, bytes_per_entry: int) -> Iterator[IndexTask]:
    root, target = os.path.realpath(root), os.path.realpath(folder)
    sizes: dict[bytes, tuple[int, int]] = {}
    for number, stretch in enumerate(listed.stretches):
        path, size_bytes, mtime_ns = root, 0, 0
        if stretch.home is not None:
            path = os.fsdecode(os.path.join(os.fsencode(root), stretch.home))
            if stretch.home not in sizes:
                facts = os.stat(path)
                sizes[stretch.home] = facts.st_size, facts.st_mtime_ns
            size_bytes, mtime_ns = sizes[stretch.home]
        yield IndexTask(
            root=root, target=target, listing=os.path.realpath(listed.path), number=number,
            first=stretch.first, last=stretch.last, plan=listed.plan, path=path,
            container=FILES if stretch.home is None else RANGES, size_bytes=size_bytes, mtime_ns=mtime_ns,
            source_bytes=stretch.source_bytes, bytes_per_entry=bytes_per_entry,
        )  # fmt: skip


def remove_all(folder: Path, parts: int) -> None:
    names = [index_name(number) for number in range(parts)]
    for name in [*names, listing.NAME, PROGRESS_NAME]:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / SURVEYS_NAME, ignore_errors=True)


def summarise(
    source: str, folder: Path, manifest: Manifest, done: list[ShardDone], rejected: tuple[Rejection, ...]
) -> IndexResult:
    """Return the result, but for how it came about."""
    by_pillow: Counter[str] = Counter()
    for one in done:
        by_pillow.update(one.by_pillow)
    label = manifest.field("label")
    containers = {shard.container for shard in manifest.shards}
    files = {(shard.folder, shard.name) for shard in manifest.shards}
    return IndexResult(
        source=source,
        target=str(folder),
        samples=manifest.samples,
        classes=None if label is None or label.classes is None else len(label.classes),
        fields={field.name: field.kind.value for field in manifest.fields},
        files=len(files) if containers == {RANGES} else None,
        parts=len(done),
        resumed_parts=0,
        index_bytes=manifest.index_bytes,
        source_bytes=sum(one.source_bytes for one in done),
        seconds=0.0,
        rejected=rejected,
        damaged=tuple(d for one in done for d in one.damaged),
        by_kernel=sum(one.by_kernel for one in done),
        by_pillow=dict(by_pillow.most_common()),
        left_out={},
        ignored={},
    )
