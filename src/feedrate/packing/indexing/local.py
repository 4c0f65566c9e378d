# SPDX-License-Identifier: Apache-2.0
"""`feedrate index`: files that are there -> an index of them, a pack without shards of its own.

As in build/pack.py, packing.json marks what is unfinished, the listing is on disk, and the tasks are small,
independent and harmless to run twice. Samples keep the order of the source: neighbours are indexed together.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, StorageError, UsageError
from feedrate.files.atomic import atomic_write, remove_temporaries, write_file
from feedrate.format.containers import FILES, RANGES, Content
from feedrate.format.fields import Coding, Field, Kind, dump_entries, parse_entries
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, index_beside
from feedrate.format.raw import dump_bare_table
from feedrate.packing.build import listing, shard, unfinished
from feedrate.packing.build.loading import Loaded, SampleLoader
from feedrate.packing.build.plan import digest_plan
from feedrate.packing.check.quality_report import REJECTED_NAME
from feedrate.packing.recode import Recode
from feedrate.packing.results import IndexResult
from feedrate.packing.workers import advance, finish_tasks
from feedrate.progress import Rejection, Tick
from feedrate.remote.addresses import is_url
from feedrate.remote.trust import note_addresses
from feedrate.source.bytes import Bytes
from feedrate.source.in_place import InPlace, home_of
from feedrate.source.names import find_train
from feedrate.source.opening import is_pattern, open_reader
from feedrate.source.options import SourceOptions
from feedrate.source.record import FileRange, Reader, Record, SpooledReader, UnusableValue
from feedrate.units import shell_quote

# What one task takes: its part of the index fits into memory, and an interruption costs little.
_MOST_SAMPLES, _MOST_BYTES = 8192, 10**9
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
        target: where the index goes; None: to NAME.index beside a file or a folder of images; of a folder of
            shards, into it.
        entries: how far apart the entry points of JPEGs are: `auto`, `gpu`, or a number of bytes. Those of an
            index or a pack that is there: `set_entries`.

    Raises:
        NotFound: the source is not there.
        SourceError: samples are not there as they are: compressed, chunked, or nothing that is known.
        AlreadyExists: there is an index already, or something else.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    begin_s = time.monotonic()
    options, bytes_per_entry = options or SourceOptions(), parse_entries(entries)
    source = os.fspath(source)
    for scheme in ("file://", "local://"):
        source = source.removeprefix(scheme)
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    folder = Path(target) if target is not None else _default_target(source, options)
    if is_url(source):
        from feedrate.packing.indexing.remote import index_remote

        result = index_remote(source, folder, options, workers, watch, bytes_per_entry=bytes_per_entry)
    else:
        result = _index_local(source, folder, options, workers, watch, bytes_per_entry)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


def _default_target(source: str, options: SourceOptions) -> Path:
    hint = "name a folder: feedrate index PATH FOLDER"
    if is_url(source):
        raise UsageError(f"where should the index go? {source} is not on this machine", hint=hint)
    if is_pattern(source):
        raise UsageError(f"where should the index of {source} go?", hint=hint)
    is_begun = any(
        os.path.exists(os.path.join(source, name)) for name in (FILE_NAME, unfinished.PROGRESS_NAME)
    )
    is_inside = os.path.isdir(source) and (is_begun or _holds_shards(open_reader(source, options)))
    folder = Path(source) if is_inside else index_beside(source)
    there = folder if folder.exists() else folder.parent
    if os.path.exists(source) and not os.access(there, os.W_OK):
        raise StorageError(
            f"cannot write the index of {source} to {there}",
            hint=f"name a folder for it: feedrate index {shell_quote(source)} TARGET",
        )
    return folder


def _holds_shards(reader: Reader) -> bool:
    """Return whether samples are in shards: whoever lists these takes no file beside them for a class."""
    return isinstance(reader, SpooledReader)


def _index_local(
    source: str, folder: Path, options: SourceOptions, workers: int | None, watch: Watch, bytes_per_entry: int
) -> IndexResult:
    is_beside = os.path.realpath(folder) == os.path.realpath(source)
    if not is_beside:
        unfinished.check_foreign(folder)
    check_indexed(folder, source)
    # Before there is a folder of ours: what is not there must not be found in it.
    records = InPlace(open_reader(source, options, scratch=os.fspath(folder)))
    is_begun = (folder / unfinished.PROGRESS_NAME).exists()
    if os.path.isdir(source) and not is_begun and not _holds_shards(records.reader):
        unfinished.check_nesting(source, folder)
    with unfinished.own_folder(folder):
        check_indexed(folder, source)  # by another process, meanwhile
        remove_temporaries(folder)
        settings = make_settings(bytes_per_entry)
        listed = list_in_place(records, folder, settings, watch)
        plan = digest_plan(listed.digest, listed.fields, settings)
        tasks = list(_make_tasks(records.reader.root, listed, folder, plan, bytes_per_entry))
        missing, done = finish_tasks(
            "indexing", index_section, tasks, _find_indexed, workers=workers, watch=watch
        )
        if len(done) < len(tasks):
            raise StorageError(
                f"{folder}, or a file that was indexed, changed meanwhile", hint="run the same command again"
            )
        result = conclude(folder, listed.fields, done, listed.rejected, {**settings, "plan": plan})
        unfinished.finish(folder)
    return dataclasses.replace(
        result,
        resumed_parts=len(tasks) - len(missing),
        left_out=records.left_out,
        # Beside the files, our own are among what the reader passed over.
        ignored={} if is_beside else records.reader.ignored,
    )


def check_indexed(folder: Path, source: str) -> None:
    """Refuse a folder that is a finished pack or index."""
    if (folder / FILE_NAME).exists() and not (folder / unfinished.PROGRESS_NAME).exists():
        hint = f"use it, or name another folder: feedrate index {shell_quote(source)} TARGET"
        if os.path.realpath(folder) == os.path.realpath(source):
            hint = f"use it; or to index anew, delete this first: rm {shell_quote(folder / FILE_NAME)}"
        elif any(folder.glob("index-*.arrow")):  # not of a pack, whose samples would go with it
            hint = f"use it; or to index anew, delete it first: rm -r {shell_quote(folder)}"
        raise AlreadyExists(f"{folder} is a pack or an index already", hint=hint)


def make_settings(bytes_per_entry: int) -> dict[str, object]:
    """Return the settings of an index, but for what is known at its end."""
    return {"indexed": True, **dump_entries(bytes_per_entry)}


class Section(NamedTuple):
    """Neighbours in the listing that one task indexes; `home` as `home_of` says."""

    first: int
    last: int
    home: bytes | None
    source_bytes: int


class Listed(NamedTuple):
    """A source whose listing is on disk. `records`: how many numbers its samples take, rejected ones too."""

    records: int
    fields: tuple[Field, ...]
    sections: list[Section]
    rejected: tuple[Rejection, ...]
    digest: str


def list_in_place(
    records: InPlace, folder: Path, settings: Mapping[str, object] | None, watch: Watch = lambda _: None
) -> Listed:
    """Write the listing of a source.

    Args:
        settings: of the index that begins with it; None: it is a part of one, and may be empty.

    Raises:
        SourceError: there is nothing to index.
    """
    sections: list[Section] = []

    def divided() -> Iterator[Record | Rejection]:
        """Cut the stream of records where the file changes, and where a section is long enough."""
        for record in records:
            if not isinstance(record, Rejection):
                home, size_bytes = home_of(record), sum(map(listing.value_bytes, record.values.values()))
                at = sections[-1] if sections else Section(0, 0, home, 0)
                is_full = at.last - at.first >= _MOST_SAMPLES or at.source_bytes >= _MOST_BYTES
                if not sections or home != at.home or is_full:
                    at = Section(at.last, at.last, home, 0)
                    sections.append(at)
                sections[-1] = Section(at.first, at.last + 1, home, at.source_bytes + size_bytes)
            yield record

    with atomic_write(folder / listing.NAME, is_durable=False) as out:
        writer = listing.ListingWriter(out)
        rejected = writer.add_all(divided(), watch)
        if settings is not None and not writer.count:
            raise nothing_to_index(records.reader.root, rejected)
        fields = records.fields()
        writer.finish(fields)
        # The listing gets its name after this: it is no sign of an index that was begun.
        if settings is not None:
            unfinished.begin(folder, settings, writer.fingerprint())
    return Listed(writer.numbers, fields, sections, rejected, writer.digest())


def nothing_to_index(root: str, rejected: Sequence[Rejection]) -> SourceError:
    first = f": '{rejected[0].path}': {rejected[0].reason}" if rejected else ""
    return SourceError(f"there is nothing to index in {root}{first}")


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Everything needed to index a section of the listing: small, picklable, harmless to run twice.

    Attributes:
        size_bytes, mtime_ns: of the file that holds the samples; 0 where they are files of a folder.
    """

    root: str
    target: str
    number: int
    section: Section
    plan: str
    size_bytes: int
    mtime_ns: int
    bytes_per_entry: int

    @property
    def path(self) -> str:
        """Return the file that holds the samples, or the folder whose files they are."""
        home = self.section.home
        return self.root if home is None else os.path.join(self.root, os.fsdecode(home))

    @property
    def container(self) -> str:
        return FILES if self.section.home is None else RANGES

    @property
    def samples(self) -> int:
        return self.section.last - self.section.first

    @property
    def source_bytes(self) -> int:
        return self.section.source_bytes


def _make_tasks(
    root: str, listed: Listed, folder: Path, plan: str, bytes_per_entry: int
) -> Iterator[IndexTask]:
    root, target = os.path.realpath(root), os.path.realpath(folder)
    sizes: dict[bytes | None, tuple[int, int]] = {None: (0, 0)}
    for number, section in enumerate(listed.sections):
        if section.home not in sizes:
            facts = os.stat(os.path.join(os.fsencode(root), section.home or b""))
            sizes[section.home] = facts.st_size, facts.st_mtime_ns
        yield IndexTask(root, target, number, section, plan, *sizes[section.home], bytes_per_entry)


def index_name(number: int) -> str:
    return f"index-{number:05d}.arrow"


def index_section(task: IndexTask) -> None:
    """Write a part of the index; it appears under its name only when whole.

    Raises:
        StorageError: a disk failed, or the file changed meanwhile. Single bad samples are noted and left out.
    """
    writer = inspect_section(task.section, task.root, task.target, task.bytes_per_entry, advance)
    if task.container != FILES:
        facts = os.stat(task.path)
        if (facts.st_size, facts.st_mtime_ns) != (task.size_bytes, task.mtime_ns):
            raise StorageError(f"{task.path} changed while it was indexed", hint="run the same command again")
    metadata = {
        "plan": task.plan, "shard": os.path.basename(task.path), "bytes": task.size_bytes,
        **dump_entries(task.bytes_per_entry),
    }  # fmt: skip
    writer.write_index(Path(task.target) / index_name(task.number), metadata)


def _find_indexed(task: IndexTask) -> shard.ShardDone | None:
    """Return what `index_section` made of a task; None: it has to be done, or done again."""
    part = index_name(task.number)
    done = shard.read_done(Path(task.target), part, task.path, task.plan, task.container)
    if done is None:
        return None
    folder, name = os.path.split(task.path)
    folder = os.path.relpath(folder, task.target)
    found = dataclasses.replace(
        done.shard, name=name, folder="" if folder == "." else folder, mtime_ns=task.mtime_ns
    )
    return done._replace(shard=found)


def inspect_section(
    section: Section, root: str, scratch: str, bytes_per_entry: int, told: Callable[[int, int], None]
) -> shard.SampleWriter:
    """Read samples where they are, and return what can be written about them.

    Args:
        root, scratch: as `Bytes` has them; the listing is in `scratch`.
        bytes_per_entry: how far apart the entry points of images are.
        told: called for each sample that is done, with 1 and its bytes.
    """
    opened = listing.Listing(os.path.join(scratch, listing.NAME))
    source, places = Bytes(root, scratch), _Places()
    fields = opened.fields
    loader = _BareLoader(source, fields, fields, Recode(), bytes_per_entry=bytes_per_entry)
    writer = shard.SampleWriter(loader, places)
    for sample in opened.samples(np.arange(section.first, section.last, dtype=np.int64)):
        places.expect(sample)
        writer.add(sample)
        told(1, sample.source_bytes)
    opened.close()
    source.close()
    return writer


class _Places:
    """Stands where a container's writer would: nothing is written, and values begin where they are."""

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def expect(self, sample: listing.Sample) -> None:
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
        return part


def conclude(
    folder: Path,
    fields: tuple[Field, ...],
    done: list[shard.ShardDone],
    rejected: tuple[Rejection, ...],
    settings: Mapping[str, object],
) -> IndexResult:
    """Write pack.json of all parts; return the result, but for how it came about.

    Args:
        rejected: before there were parts; those of the parts are added.

    Raises:
        SourceError: not one sample is left; then the parts go too.
    """
    rejected += shard.list_rejections(done, "rejected")
    if not any(one.shard.samples for one in done):
        remove_all(folder, len(done))
        raise SourceError(
            f"not one sample can be indexed, all {len(rejected):,} were rejected: "
            f"'{rejected[0].path}': {rejected[0].reason}"
        )
    # In the order that they always had.
    told = {"indexed": True, "rejected": len(rejected), **settings}
    manifest = Manifest(shard.share_shapes(fields, done), tuple(one.shard for one in done), told)
    if rejected:
        write_file(folder / REJECTED_NAME, shard.dump_rejections(rejected))
    to_allow = note_addresses(manifest)
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    files = {(part.folder, part.name) for part in manifest.shards}
    is_ranges = {part.container for part in manifest.shards} == {RANGES}
    return IndexResult(
        **shard.sum_up_shards(manifest, done),
        source="",
        target=str(folder),
        files=len(files) if is_ranges else None,
        parts=len(done),
        resumed_parts=0,
        index_bytes=manifest.index_bytes,
        seconds=0.0,
        rejected=rejected,
        left_out={},
        ignored={},
        to_allow=to_allow,
        split=_find_split(fields),
    )


def _find_split(fields: Sequence[Field]) -> str:
    parts = next((f.classes for f in fields if f.name == "split" and f.classes is not None), ())
    return find_train(parts) or "all" if len(parts) > 1 else ""


def remove_all(folder: Path, parts: int) -> None:
    """Remove what was begun, up to so many parts of the index."""
    for name in [*map(index_name, range(parts)), listing.NAME, unfinished.PROGRESS_NAME]:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / unfinished.SURVEYS_NAME, ignore_errors=True)
