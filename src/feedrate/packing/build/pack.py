# SPDX-License-Identifier: Apache-2.0
"""`feedrate pack`: list the source, plan, make the shards, write the manifest.

    (nothing) --packing.json--> unfinished --all shards--> unfinished --pack.json--> finished
                                  ^    |
                                  +----+  killed, full disk, Ctrl-C: the same command goes on

packing.json says what is being packed. It is written first and removed last, so a folder that has it is
unfinished, whatever else is there. All else is decided by the source's listing and the settings: shards
that are complete stay as they are. The listing stands beside them until the pack is finished.

Reading folders must not wait for Python's imports: what makes shards is loaded while the source is listed,
and what ends a pack while shards are made. Functions import these modules when they need them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from feedrate.errors import FeedrateError, SourceError, StorageError
from feedrate.files.atomic import atomic_write, free_bytes, remove_temporaries, write_file
from feedrate.format.fields import AUTO, ROW_BYTES, Field, estimate_share
from feedrate.format.manifest import FILE_NAME, Manifest, dump_manifest, read_manifest
from feedrate.packing.build import listing, unfinished
from feedrate.packing.build.plan import ShardTask, describe_settings, digest_plan, split_into_shards
from feedrate.packing.mapping import Function, find_map
from feedrate.packing.options import PackOptions
from feedrate.progress import Rejection, Tick
from feedrate.remote.addresses import is_url
from feedrate.source.opening import open_reader
from feedrate.source.record import Reader
from feedrate.units import format_bytes

if TYPE_CHECKING:
    from feedrate.packing.build.shard import MapCost, ShardDone
    from feedrate.packing.results import PackResult


class NothingToPack(SourceError):
    """A source without a single sample that can be packed."""

    rejected: tuple[Rejection, ...] = ()


class Listed(NamedTuple):
    """A source whose listing is on disk; `settings` and `plan` say what becomes of it."""

    reader: Reader
    settings: dict[str, Any]
    plan: str
    rejected: tuple[Rejection, ...]
    made: tuple[Field, ...] = ()  # by a map
    scale: float = 1.0


class Shards(NamedTuple):
    """What was made: `tasks` are all shards, `made` of them by this run.

    Attributes:
        fields: that are stored.
        joined: the shards, where all of them are already in one HDF5 file.
        map_cost: what a map took.
    """

    tasks: list[ShardTask]
    fields: tuple[Field, ...]
    joined: list[ShardDone] | None
    made: int
    map_cost: MapCost


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
    unfinished.check_nesting(source, folder)
    unfinished.check_foreign(folder)
    with unfinished.own_folder(folder):
        unfinished.check_finished(folder, options)
        reader = open_reader(source, options, scratch=os.fspath(folder))
        result = pack_reader(reader, folder, options, watch)
        unfinished.finish(folder)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin_s)


def pack_reader(
    reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]
) -> PackResult:
    """Pack what a reader gives into a folder that is ours; all that is left is to call it finished."""
    remove_temporaries(folder)
    options = unfinished.go_on_by(folder, options)
    listed = list_source(reader, folder, options, watch)
    if options.map is not None:
        listed = _try_map(listed, folder, options)
    shards = make_shards(listed, folder, options, watch)
    return write_manifest(listed, folder, options, shards)


def list_source(reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]) -> Listed:
    """Write the listing of a source, and packing.json if nothing was begun in the folder.

    Raises:
        NothingToPack: the source has no sample, or all were rejected.
        AlreadyExists: what was begun in the folder is something else.
    """
    with atomic_write(folder / listing.NAME, is_durable=False) as out:
        writer = listing.ListingWriter(out)
        rejected = writer.add_all(reader.blocks(), watch)
        if not writer.count:
            raise _nothing_to_pack(rejected)
        fields = options.recode.mark(reader.fields())
        writer.finish(fields)
        settings = describe_settings(reader, options)
        # The listing gets its name after this: it is no sign of a pack that was begun.
        unfinished.begin(folder, settings, writer.fingerprint())
    plan = digest_plan(writer.digest(), fields, settings)
    return Listed(reader, settings, plan, rejected)


def _nothing_to_pack(rejected: tuple[Rejection, ...]) -> NothingToPack:
    if not rejected:
        return NothingToPack("there is nothing to pack")
    first = rejected[0]
    error = NothingToPack(
        f"not one sample can be packed, all {len(rejected):,} were rejected: '{first.path}': {first.reason}"
    )
    error.rejected = rejected
    return error


def _try_map(source: Listed, folder: Path, options: PackOptions) -> Listed:
    """Learn from the first samples what a map makes of them, before anything is packed."""
    from feedrate.packing.build.loading import try_map

    try:
        made, scale = try_map(folder / listing.NAME, source.reader.root, options)
    except FeedrateError:
        if not any(folder.glob("shard-*")):
            unfinished.undo(folder)
        raise
    plan = digest_plan(f"{source.plan} {scale}", made, source.settings)
    return source._replace(made=made, scale=scale, plan=plan)


def make_shards(source: Listed, folder: Path, options: PackOptions, watch: Callable[[Tick], None]) -> Shards:
    """Make the shards that are not there yet, each with its part of the index; copy the table of labels."""
    from feedrate.packing.build.engine import run_shards
    from feedrate.packing.build.shard import find_done
    from feedrate.packing.workers import report_tasks

    joined = None
    if options.container == "hdf5":
        from feedrate.packing.build.hdf5_join import read_joined

        joined = read_joined(folder, source.plan)
    with contextlib.closing(listing.Listing(folder / listing.NAME)) as listed:
        tasks = _plan_tasks(source, listed, folder, options)
        missing = [task for task in tasks if joined is None and find_done(task) is None]
        _check_room(folder, missing)
        if source.reader.table is not None:
            with atomic_write(folder / source.settings["labels"]["name"]) as out:
                out.writelines(source.reader.table.pieces())
        report = report_tasks("packing", tasks, missing, watch)
        map_cost = run_shards(missing, options.engine, workers=options.workers, watch=report, listing=listed)
        fields = tasks[0].stored_fields(listed.fields)
    return Shards(tasks, fields, joined, len(missing), map_cost)


def _plan_tasks(
    source: Listed, listed: listing.Listing, folder: Path, options: PackOptions
) -> list[ShardTask]:
    root = source.reader.root
    return [
        ShardTask(
            source=root if is_url(root) else os.path.abspath(root),
            target=os.path.abspath(folder),
            number=number,
            **one._asdict(),
            plan=source.plan,
            seed=options.seed,
            recode=options.recode,
            scan=options.scan,
            bytes_per_entry=options.bytes_per_entry,
            container=options.container,
            map=options.map,
            made=tuple(dataclasses.replace(field, classes=None) for field in source.made),
        )
        for number, one in enumerate(split_into_shards(listed, options, scale=source.scale))
    ]


def _check_room(folder: Path, missing: list[ShardTask]) -> None:
    tar_bytes, samples = sum(task.expected_bytes for task in missing), sum(task.samples for task in missing)
    share = estimate_share(min((task.bytes_per_entry for task in missing), default=AUTO))
    needed = int(tar_bytes * (1 + share)) + samples * ROW_BYTES
    if any(task.container == "hdf5" for task in missing):
        needed *= 2  # parts, and the file that is made of them
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"packing needs about {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="make room, or name a folder on another disk",
        )


def write_manifest(source: Listed, folder: Path, options: PackOptions, shards: Shards) -> PackResult:
    """Write what makes a pack of the shards in a folder; all that is left is to call it finished."""
    from feedrate.packing.build.shard import (
        dump_rejections,
        find_done,
        list_rejections,
        share_shapes,
        sum_up_shards,
    )
    from feedrate.packing.check.quality_report import REJECTED_NAME, write_quality
    from feedrate.packing.recode import sum_up
    from feedrate.packing.results import Mapped, PackResult

    tasks, joined, fields = shards.tasks, shards.joined, shards.fields
    done = joined or [shard for task in tasks if (shard := find_done(task)) is not None]
    if len(done) < len(tasks):
        raise StorageError(
            f"a shard vanished from {folder} while it was packed", hint="run the same command again"
        )
    rejected = source.rejected + list_rejections(done, "rejected")
    if not any(shard.shard.samples for shard in done):
        names = [name for task in tasks for name in (task.shard_name, task.index_name)]
        names += [source.settings["labels"]["name"]] if "labels" in source.settings else []
        unfinished.undo(folder, names)
        raise _nothing_to_pack(rejected)
    if options.container == "hdf5" and joined is None:
        from feedrate.packing.build.hdf5_join import join_parts

        fields, done = join_parts(folder, fields, done)
    if joined:
        manifest = read_manifest(folder)
    else:
        settings = {**source.settings, "rejected": len(rejected), "plan": source.plan}
        manifest = Manifest(share_shapes(fields, done), tuple(d.shard for d in done), settings)
    if rejected:
        write_file(folder / REJECTED_NAME, dump_rejections(rejected))
    write_file(folder / FILE_NAME, dump_manifest(manifest))
    # The pack is whole by now, and unfinished until this is there, too.
    quality = write_quality(folder)
    if options.container == "hdf5":
        from feedrate.packing.build.hdf5_join import remove_parts

        remove_parts(folder, len(tasks))
    mapped = None
    if options.map is not None:
        mapped = Mapped(
            options.map.name, *shards.map_cost, packed=manifest.samples, left_out=quality.left_out
        )
    return PackResult(
        **sum_up_shards(manifest, done),
        source=source.reader.root,
        target=str(folder),
        shards=len(done),
        resumed_shards=len(tasks) - shards.made,
        size_bytes=manifest.shard_bytes + manifest.index_bytes,
        seconds=0.0,
        rejected=rejected,
        ignored=source.reader.ignored,
        label_columns=source.reader.label_columns,
        unlisted=source.reader.unlisted,
        recoded=sum_up(manifest.settings, [shard.found.get("recoded", {}) for shard in done]),
        mapped=mapped,
        quality=quality,
    )
