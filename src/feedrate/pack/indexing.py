# SPDX-License-Identifier: Apache-2.0
"""`feedrate index`: files that are there -> an index of them, a pack without shards of its own.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import AlreadyExists, SourceError, StorageError, UsageError
from feedrate.format.containers import FILES, RANGES
from feedrate.format.entries import dump_entries, parse_entries
from feedrate.format.fields import Field
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest
from feedrate.pack import listing
from feedrate.pack.files import atomic_write, remove_temporaries
from feedrate.pack.indexing_task import (
    IndexTask,
    Stretch,
    Stretches,
    find_indexed,
    index_name,
    index_stretch,
)
from feedrate.pack.listing import ListingWriter
from feedrate.pack.plan import digest_plan
from feedrate.pack.shard import ShardDone, dump_rejections, share_shapes
from feedrate.pack.unfinished import (
    PROGRESS_NAME,
    SURVEYS_NAME,
    begin,
    finish,
    own_folder,
    refuse_foreign,
    write_file,
)
from feedrate.pack.workers import run_tasks
from feedrate.remote.addresses import is_url
from feedrate.results.index import IndexResult
from feedrate.results.progress import Rejection, Tick
from feedrate.source.in_place import InPlace
from feedrate.source.opening import open_reader
from feedrate.source.options import SourceOptions
from feedrate.source.patterns import is_pattern
from feedrate.units import typed

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
        from feedrate.pack.indexing_elsewhere import index_elsewhere

        result = index_elsewhere(
            source, folder, options or SourceOptions(), workers, watch, bytes_per_entry=bytes_per_entry
        )
        return dataclasses.replace(result, seconds=time.monotonic() - begin_s)
    is_beside = os.path.realpath(folder) == os.path.realpath(source)
    if not is_beside:
        refuse_foreign(folder)
    refuse_indexed(folder)
    # Before there is a folder of ours: what is not there must not be found in it.
    records = InPlace(open_reader(source, options or SourceOptions(), scratch=os.fspath(folder)))
    with own_folder(folder):
        refuse_indexed(folder)  # by another process, meanwhile
        remove_temporaries(folder)
        listed = _list(records, folder, make_settings(bytes_per_entry), watch)
        result = _index(records, listed, folder, workers, watch, bytes_per_entry)
        finish(folder)
    if is_beside:  # our own files are among what the reader passed over
        result = dataclasses.replace(result, ignored={})
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


def refuse_indexed(folder: Path) -> None:
    if (folder / FILE_NAME).exists() and not (folder / PROGRESS_NAME).exists():
        raise AlreadyExists(
            f"{folder} is a pack or an index already",
            hint=f"use it; or to index anew, delete {typed(folder / FILE_NAME)} first",
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
