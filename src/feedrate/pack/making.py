# SPDX-License-Identifier: Apache-2.0
"""A listed source -> shards, pack.json and the rest of a pack. Loaded while the source is still listed."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from feedrate.errors import StorageError
from feedrate.format.containers import find_container
from feedrate.format.fields import Field
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, read_manifest
from feedrate.pack.begun import Listed, all_rejected
from feedrate.pack.engine import run_shards
from feedrate.pack.files import appear, free_bytes
from feedrate.pack.joining import join_parts, read_joined, remove_parts
from feedrate.pack.listing import Listing
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask, split_into_shards
from feedrate.pack.quality_report import REJECTED_NAME, write_quality
from feedrate.pack.recode import sum_up
from feedrate.pack.shard import INDEX_SUFFIX, ShardDone, dump_rejections, find_done, share_shapes
from feedrate.pack.unfinished import take_back, write_file
from feedrate.results.pack import Mapped, PackResult
from feedrate.results.progress import Rejection, Tick
from feedrate.source.record import Reader
from feedrate.store.place import is_url
from feedrate.units import format_bytes

# What the index adds: entry points (0.8 % of photographs of 106 KB, measured), and a row per sample.
_INDEX_SHARE, _INDEX_ROW_BYTES = 0.01, 200


def make_shards(
    source: Listed, folder: Path, options: PackOptions, watch: Callable[[Tick], None]
) -> PackResult:
    with closing(Listing(source.listing)) as listed:
        tasks = _plan_tasks(source, listed, folder, options)
        joined = read_joined(folder, source.plan) if options.container == "hdf5" else None
        missing = [task for task in tasks if joined is None and find_done(task) is None]
        _check_room(folder, missing)
        if source.reader.table is not None:
            with appear(folder / _table_name(source.settings)) as out:
                out.writelines(source.reader.table.pieces())
        cost = _run(listed, tasks, missing, options, watch)
    complete = joined or [shard for task in tasks if (shard := find_done(task)) is not None]
    if len(complete) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + tuple(r for shard in complete for r in shard.rejected)
    if not any(shard.shard.samples for shard in complete):
        take_back(folder, _names(tasks, source.settings))
        raise all_rejected(rejected)
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


def _plan_tasks(source: Listed, listed: Listing, folder: Path, options: PackOptions) -> list[ShardTask]:
    root = source.reader.root
    return [
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


def _run(
    listing: Listing,
    tasks: list[ShardTask],
    missing: list[ShardTask],
    options: PackOptions,
    watch: Callable[[Tick], None],
) -> tuple[int, float]:
    """Write the missing shards; return over how many samples a map ran, and for how long."""
    total, total_bytes = sum(task.samples for task in tasks), sum(task.source_bytes for task in tasks)
    left, left_bytes = sum(task.samples for task in missing), sum(task.source_bytes for task in missing)

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick("packing", done, total, done_bytes, total_bytes))

    report(0, 0)
    return run_shards(missing, options.engine, workers=options.workers, watch=report, listing=listing)


def _make_manifest(
    fields: tuple[Field, ...], source: Listed, done: list[ShardDone], rejected: int
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


def _names(tasks: list[ShardTask], settings: Mapping[str, Any]) -> list[str]:
    """Return what all shards are called, and what lies beside them."""
    shards = [find_container(task.container).shard_name(task.number) for task in tasks]
    parts = [str(Path(shard).with_suffix(INDEX_SUFFIX)) for shard in shards]
    return [*shards, *parts, *([_table_name(settings)] if "labels" in settings else [])]
