# SPDX-License-Identifier: Apache-2.0
"""`feedrate pack`: a source -> pack.

    (nothing) --packing.json--> unfinished --all shards--> unfinished --pack.json--> finished
                                  ^    |
                                  +----+  killed, full disk, Ctrl-C: the same command goes on

packing.json says what is being packed. It is written first and removed last, so a folder that has it is
unfinished, whatever else lies there. All else is decided by the source's listing and the settings: shards
that are complete stay as they are. The listing lies beside them until the pack is finished.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.errors import FeedrateError, SourceError, StorageError
from feedrate.format.containers import find_container
from feedrate.format.fields import Field
from feedrate.format.index import load_meanwhile
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, read_manifest
from feedrate.pack import listing
from feedrate.pack.engine import run_shards
from feedrate.pack.files import appear, free_bytes, remove_temporaries
from feedrate.pack.joining import join_parts, read_joined, remove_parts
from feedrate.pack.listing import Listing, ListingWriter
from feedrate.pack.mapping import Function, find_map
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask, describe_settings, digest_plan, split_into_shards
from feedrate.pack.quality_report import REJECTED_NAME as REJECTED_NAME
from feedrate.pack.quality_report import write_quality
from feedrate.pack.recode import sum_up
from feedrate.pack.shard import INDEX_SUFFIX, ShardDone, dump_rejections, find_done, share_shapes
from feedrate.pack.unfinished import (
    PROGRESS_NAME,
    begin,
    finish,
    own_folder,
    refuse_finished,
    refuse_foreign,
    refuse_nesting,
    write_file,
)
from feedrate.results.pack import Mapped, PackResult, Rejection, Tick
from feedrate.source.opening import open_reader
from feedrate.source.record import ImageFiles, Reader
from feedrate.source.spool import SPOOL_NAME
from feedrate.store.place import is_url
from feedrate.units import format_bytes

# What the index adds: entry points (0.8 % of photographs of 106 KB, measured), and a row per sample.
_INDEX_SHARE, _INDEX_ROW_BYTES = 0.01, 200
_TELL_EVERY = 1000


class NothingToPack(SourceError):
    """A source without a single sample that can be packed."""


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    map: str | Function | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
) -> PackResult:
    """Pack a dataset into `target`, or go on with a pack that was interrupted.

    Args:
        source: class folders with images, a folder of images, or any folder with `options.labels`.
        target: a new folder, or that of an unfinished pack of the same source and settings.
        map: a function for what is the same in every epoch, or its name, `module:function`: takes a dict of
            a sample's fields and returns one of those that it adds or changes; None leaves the sample out.
        watch: called now and then with how far it is.

    Raises:
        NotFound: the source, or the table, is not there.
        SourceError: nothing in the source can be packed, or not as it is.
        AlreadyExists: the target holds something else, or is being packed right now.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    options = options or PackOptions()
    if map is not None:
        options = dataclasses.replace(options, map=find_map(map))
    begin_s = time.monotonic()
    source, folder = os.fspath(source), Path(target)
    refuse_nesting(source, folder)
    refuse_foreign(folder)
    with own_folder(folder):
        refuse_finished(folder, options)
        reader = open_reader(source, options.source, scratch=os.fspath(folder))
        result = pack_reader(reader, folder, options, watch)
        finish(folder)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


def pack_reader(
    reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]
) -> PackResult:
    """Pack what a reader gives into a folder that is ours; all that is left is to call it finished."""
    remove_temporaries(folder)
    listed = _list(reader, folder, options, watch)
    if options.map is not None:
        listed = _try_map(listed, folder, options)
    return _pack_shards(listed, folder, options, watch)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A source whose listing is on disk; `settings` and `plan` say what becomes of it."""

    reader: Reader
    listing: Path
    settings: dict[str, Any]
    plan: str
    rejected: tuple[Rejection, ...]
    made: tuple[Field, ...] = ()  # by a map
    scale: float = 1.0


def _list(reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]) -> _Listed:
    path = folder / listing.NAME
    rejected: list[Rejection] = []
    with appear(path, is_durable=False) as out:
        writer = ListingWriter(out)
        number = told = 0
        for block in reader.blocks():
            if not number:
                load_meanwhile()
            if isinstance(block, ImageFiles):
                writer.add_files(number, block)
            elif isinstance(block, Rejection):
                rejected.append(block)
            else:
                writer.add(number, block)
            number += len(block) if isinstance(block, ImageFiles) else 1
            if writer.count >= told + _TELL_EVERY:
                told = writer.count
                watch(Tick("listing", writer.count, 0))
        if not writer.count:
            raise _all_rejected(tuple(rejected))
        fields = options.recode.mark(reader.fields())
        writer.finish(fields)
        settings = describe_settings(reader, options)
        # The listing gets its name after this: it is no sign of a pack that was begun.
        begin(folder, settings, writer.fingerprint())
    plan = digest_plan(writer.digest(), fields, settings)
    return _Listed(reader, path, settings, plan, tuple(rejected))


def _try_map(source: _Listed, folder: Path, options: PackOptions) -> _Listed:
    """Learn from the first samples what a map makes of them, before anything is packed."""
    from feedrate.pack.trial import try_map

    try:
        made, scale = try_map(source.listing, source.reader.root, options)
    except FeedrateError:
        if not any(folder.glob("shard-*")):
            _remove_all(folder, [], {})
        raise
    plan = digest_plan(f"{source.plan} {scale}", made, source.settings)
    return dataclasses.replace(source, made=made, scale=scale, plan=plan)


def _pack_shards(
    source: _Listed, folder: Path, options: PackOptions, watch: Callable[[Tick], None]
) -> PackResult:
    listed, root = Listing(source.listing), source.reader.root
    tasks = [
        ShardTask(
            source=root if is_url(root) else os.path.abspath(root),
            target=os.path.abspath(folder),
            listing=os.path.abspath(source.listing),
            number=number,
            first=stretch.first,
            last=stretch.last,
            plan=source.plan,
            seed=options.seed,
            recode=options.recode,
            source_bytes=stretch.source_bytes,
            expected_bytes=stretch.expected_bytes,
            scan=options.scan,
            container=options.container,
            map=options.map,
            made=tuple(dataclasses.replace(field, classes=None) for field in source.made),
        )
        for number, stretch in enumerate(split_into_shards(listed, options, scale=source.scale))
    ]
    listed.close()
    joined = read_joined(folder, source.plan) if options.container == "hdf5" else None
    missing = [task for task in tasks if joined is None and find_done(task) is None]
    _check_room(folder, missing)
    if source.reader.table is not None:
        with appear(folder / _table_name(source.settings)) as out:
            out.writelines(source.reader.table.pieces())
    cost = _run(tasks, missing, options, watch)
    complete = joined or [shard for task in tasks if (shard := find_done(task)) is not None]
    if len(complete) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + tuple(r for shard in complete for r in shard.rejected)
    if not any(shard.shard.samples for shard in complete):
        _remove_all(folder, tasks, source.settings)
        raise _all_rejected(rejected)
    fields = tasks[0].stored_fields(listed.fields)
    if options.container == "hdf5" and joined is None:
        fields, complete = join_parts(folder, fields, complete)
    manifest = read_manifest(folder) if joined else _make_manifest(fields, source, complete, len(rejected))
    if rejected:
        write_file(folder / REJECTED_NAME, dump_rejections(rejected))
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    # The pack is whole by now, and unfinished until this is there, too.
    quality = write_quality(folder)
    if options.container == "hdf5":
        remove_parts(folder, len(tasks))
    result = _summarise(
        source.reader, folder, manifest, complete, rejected, resumed=len(tasks) - len(missing)
    )
    mapped = None
    if options.map is not None:
        mapped = Mapped(options.map.name, *cost, packed=manifest.samples, left_out=quality.left_out)
    return dataclasses.replace(result, mapped=mapped, quality=quality)


def _run(
    tasks: list[ShardTask], missing: list[ShardTask], options: PackOptions, watch: Callable[[Tick], None]
) -> tuple[int, float]:
    """Write the missing shards; return over how many samples a map ran, and for how long."""
    total, total_bytes = sum(task.samples for task in tasks), sum(task.source_bytes for task in tasks)
    left, left_bytes = sum(task.samples for task in missing), sum(task.source_bytes for task in missing)

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick("packing", done, total, done_bytes, total_bytes))

    report(0, 0)
    return run_shards(missing, options.engine, workers=options.workers, watch=report)


def _make_manifest(
    fields: tuple[Field, ...], source: _Listed, done: list[ShardDone], rejected: int
) -> Manifest:
    settings = {**source.settings, "rejected": rejected, "plan": source.plan}
    return Manifest(share_shapes(fields, done), tuple(d.shard for d in done), settings)


def _summarise(
    reader: Reader,
    folder: Path,
    manifest: Manifest,
    done: list[ShardDone],
    rejected: tuple[Rejection, ...],
    *,
    resumed: int,
) -> PackResult:
    by_pillow: Counter[str] = Counter()
    for shard in done:
        by_pillow.update(shard.by_pillow)
    label = manifest.field("label")
    return PackResult(
        source=reader.root,
        target=str(folder),
        samples=manifest.samples,
        classes=None if label is None or label.classes is None else len(label.classes),
        fields={field.name: field.kind.value for field in manifest.fields},
        shards=len(done),
        resumed_shards=resumed,
        size_bytes=sum(s.size_bytes + s.index.size_bytes for s in manifest.shards),
        source_bytes=sum(shard.source_bytes for shard in done),
        seconds=0.0,
        rejected=rejected,
        damaged=tuple(d for shard in done for d in shard.damaged),
        by_kernel=sum(shard.by_kernel for shard in done),
        by_pillow=dict(by_pillow.most_common()),
        ignored=reader.ignored,
        unlisted=reader.unlisted,
        recoded=sum_up(manifest.settings, [shard.recoded for shard in done]),
    )


def _check_room(folder: Path, missing: list[ShardTask]) -> None:
    tar_bytes, samples = sum(task.expected_bytes for task in missing), sum(task.samples for task in missing)
    needed = int(tar_bytes * (1 + _INDEX_SHARE)) + samples * _INDEX_ROW_BYTES
    if any(task.container == "hdf5" for task in missing):
        needed *= 2  # parts, and the file that is made of them
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"packing needs about {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="make room, or name a folder on another disk",
        )


def _table_name(settings: Mapping[str, Any]) -> str:
    return str(settings["labels"]["name"])


def _remove_all(folder: Path, tasks: list[ShardTask], settings: Mapping[str, Any]) -> None:
    shards = [find_container(task.container).shard_name(task.number) for task in tasks]
    names = [*shards, *(str(Path(shard).with_suffix(INDEX_SUFFIX)) for shard in shards)]
    names += [_table_name(settings)] if "labels" in settings else []
    for name in [*names, listing.NAME, SPOOL_NAME, PROGRESS_NAME]:
        (folder / name).unlink(missing_ok=True)


def _all_rejected(rejected: tuple[Rejection, ...]) -> NothingToPack:
    if not rejected:
        return NothingToPack("there is nothing to pack")
    first = rejected[0]
    return NothingToPack(
        f"not one sample can be packed, all {len(rejected):,} were rejected: '{first.path}': {first.reason}"
    )
