# SPDX-License-Identifier: Apache-2.0
"""Shards that are all there -> pack.json, the quality report, and what `pack` returns.

Loaded while the shards are made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feedrate.errors import StorageError
from feedrate.format.containers import find_container
from feedrate.format.fields import Field
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, read_manifest
from feedrate.pack.begun import Listed, all_rejected, table_name
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask
from feedrate.pack.quality_report import REJECTED_NAME, write_quality
from feedrate.pack.recode import sum_up
from feedrate.pack.shard import INDEX_SUFFIX, MapCost, ShardDone, dump_rejections, find_done, share_shapes
from feedrate.pack.unfinished import take_back, write_file
from feedrate.results.pack import Mapped, PackResult
from feedrate.results.progress import Rejection
from feedrate.source.record import Reader


class Shards(NamedTuple):
    """What was made: `tasks` are all shards, `made` of them by this run.

    Attributes:
        fields: that are stored.
        joined: the shards, where all of them already lie in one HDF5 file.
        map_cost: what a map took.
    """

    tasks: list[ShardTask]
    fields: tuple[Field, ...]
    joined: list[ShardDone] | None
    made: int
    map_cost: MapCost


def conclude(source: Listed, folder: Path, options: PackOptions, shards: Shards) -> PackResult:
    """Write what makes a pack of the shards in a folder; all that is left is to call it finished."""
    tasks, joined, fields = shards.tasks, shards.joined, shards.fields
    complete = joined or [shard for task in tasks if (shard := find_done(task)) is not None]
    if len(complete) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + tuple(r for shard in complete for r in shard.rejected)
    if not any(shard.shard.samples for shard in complete):
        take_back(folder, _names(tasks, source.settings))
        raise all_rejected(rejected)
    if options.container == "hdf5" and joined is None:
        from feedrate.pack.joining import join_parts

        fields, complete = join_parts(folder, fields, complete)
    manifest = read_manifest(folder) if joined else _make_manifest(fields, source, complete, len(rejected))
    if rejected:
        write_file(folder / REJECTED_NAME, dump_rejections(rejected))
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    # The pack is whole by now, and unfinished until this is there, too.
    quality = write_quality(folder)
    if options.container == "hdf5":
        from feedrate.pack.joining import remove_parts

        remove_parts(folder, len(tasks))
    resumed = len(tasks) - shards.made
    result = _summarise(source.reader, folder, manifest, complete, rejected, resumed=resumed)
    mapped = None
    if options.map is not None:
        mapped = Mapped(
            options.map.name, *shards.map_cost, packed=manifest.samples, left_out=quality.left_out
        )
    return dataclasses.replace(result, mapped=mapped, quality=quality)


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
        size_bytes=manifest.shard_bytes + manifest.index_bytes,
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


def _names(tasks: list[ShardTask], settings: Mapping[str, Any]) -> list[str]:
    """Return what all shards are called, and what lies beside them."""
    shards = [find_container(task.container).shard_name(task.number) for task in tasks]
    parts = [str(Path(shard).with_suffix(INDEX_SUFFIX)) for shard in shards]
    return [*shards, *parts, *([table_name(settings)] if "labels" in settings else [])]
