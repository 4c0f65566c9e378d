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

from feedrate.errors import SourceError, StorageError
from feedrate.format.fields import Field
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, index_name, shard_name
from feedrate.pack import listing
from feedrate.pack.engine import run_shards
from feedrate.pack.files import appear, free_bytes, remove_temporaries
from feedrate.pack.listing import Listing, ListingWriter
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask, describe_settings, digest_plan, split_into_shards
from feedrate.pack.recode import sum_up
from feedrate.pack.shard import ShardDone, dump_rejections, read_done
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
from feedrate.results import PackResult, Rejection, Tick
from feedrate.source.opening import open_reader
from feedrate.source.place import is_url
from feedrate.source.record import Reader
from feedrate.source.spool import SPOOL_NAME
from feedrate.units import format_bytes

REJECTED_NAME = "rejected.jsonl"
# What the index adds: entry points (0.8 % of photographs of 106 KB, measured), and a row per sample.
_INDEX_SHARE, _INDEX_ROW_BYTES = 0.01, 200
_TELL_EVERY = 1000


def pack(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    watch: Callable[[Tick], None] = lambda _: None,
) -> PackResult:
    """Pack a dataset into `target`, or go on with a pack that was interrupted.

    Args:
        source: class folders with images, a folder of images, or any folder with `options.labels`.
        target: a new folder, or that of an unfinished pack of the same source and settings.
        watch: called now and then with how far it is.

    Raises:
        NotFound: the source, or the table, is not there.
        SourceError: nothing in the source can be packed, or not as it is.
        AlreadyExists: the target holds something else, or is being packed right now.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    options = options or PackOptions()
    begin_s = time.monotonic()
    source, folder = os.fspath(source), Path(target)
    refuse_nesting(source, folder)
    refuse_foreign(folder)
    with own_folder(folder):
        refuse_finished(folder, options)
        reader = open_reader(source, options.source, scratch=os.fspath(folder))
        remove_temporaries(folder)
        listed = _list(reader, folder, options, watch)
        result = _pack_shards(listed, folder, options, watch)
        finish(folder)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A source whose listing is on disk; `settings` and `plan` say what becomes of it."""

    reader: Reader
    listing: Path
    settings: dict[str, Any]
    plan: str
    rejected: tuple[Rejection, ...]


def _list(reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]) -> _Listed:
    path = folder / listing.NAME
    rejected: list[Rejection] = []
    with appear(path, is_durable=False) as out:
        writer = ListingWriter(out)
        for number, record in enumerate(reader):
            if isinstance(record, Rejection):
                rejected.append(record)
                continue
            writer.add(number, record)
            if writer.count % _TELL_EVERY == 0:
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
        )
        for number, stretch in enumerate(split_into_shards(listed, options))
    ]
    listed.close()
    missing = [task for task in tasks if read_done(folder, task.number, source.plan) is None]
    _check_room(folder, missing)
    if source.reader.table is not None:
        with appear(folder / _table_name(source.settings)) as out:
            out.writelines(source.reader.table.pieces())
    _run(tasks, missing, options, watch)
    done = [read_done(folder, task.number, source.plan) for task in tasks]
    complete = [shard for shard in done if shard is not None]
    if len(complete) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + tuple(r for shard in complete for r in shard.rejected)
    if not any(shard.shard.samples for shard in complete):
        _remove_all(folder, len(tasks), source.settings)
        raise _all_rejected(rejected)
    manifest = _make_manifest(listed.fields, source, complete, len(rejected))
    if rejected:
        write_file(folder / REJECTED_NAME, dump_rejections(rejected))
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    return _summarise(source.reader, folder, manifest, complete, rejected, resumed=len(tasks) - len(missing))


def _run(
    tasks: list[ShardTask], missing: list[ShardTask], options: PackOptions, watch: Callable[[Tick], None]
) -> None:
    total, total_bytes = sum(task.samples for task in tasks), sum(task.source_bytes for task in tasks)
    left, left_bytes = sum(task.samples for task in missing), sum(task.source_bytes for task in missing)

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick("packing", done, total, done_bytes, total_bytes))

    report(0, 0)
    run_shards(missing, options.engine, workers=options.workers, watch=report)


def _make_manifest(
    fields: tuple[Field, ...], source: _Listed, done: list[ShardDone], rejected: int
) -> Manifest:
    uniform: dict[str, Any] = {}
    for shard in done:
        for name, value in shard.uniform.items():
            if uniform.setdefault(name, value) != value:
                uniform[name] = None
    settings = {**source.settings, "rejected": rejected, "plan": source.plan}
    fields = tuple(_with_uniform(field, uniform) for field in fields)
    return Manifest(fields, tuple(d.shard for d in done), settings)


def _with_uniform(field: Field, uniform: Mapping[str, Any]) -> Field:
    shape, dtype = uniform.get(f"{field.name}.shape"), uniform.get(f"{field.name}.dtype")
    return dataclasses.replace(
        field, shape=None if shape is None else tuple(shape), dtype=field.dtype if dtype is None else dtype
    )


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
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"packing needs about {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="make room, or name a folder on another disk",
        )


def _table_name(settings: Mapping[str, Any]) -> str:
    return str(settings["labels"]["name"])


def _remove_all(folder: Path, shards: int, settings: Mapping[str, Any]) -> None:
    names = [name(number) for number in range(shards) for name in (index_name, shard_name)]
    names += [_table_name(settings)] if "labels" in settings else []
    for name in [*names, listing.NAME, SPOOL_NAME, PROGRESS_NAME]:
        (folder / name).unlink(missing_ok=True)


def _all_rejected(rejected: tuple[Rejection, ...]) -> SourceError:
    if not rejected:
        return SourceError("there is nothing to pack")
    first = rejected[0]
    return SourceError(
        f"not one sample can be packed, all {len(rejected):,} were rejected: '{first.path}': {first.reason}"
    )
