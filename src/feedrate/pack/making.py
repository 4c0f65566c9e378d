# SPDX-License-Identifier: Apache-2.0
"""A listed source -> shards, each with its part of the index. Loaded while the source is still listed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from feedrate.errors import StorageError
from feedrate.format.entries import AUTO, ROW_BYTES, estimate_share
from feedrate.pack.begun import Listed, table_name
from feedrate.pack.engine import run_shards
from feedrate.pack.files import atomic_write, free_bytes
from feedrate.pack.listing import Listing
from feedrate.pack.meanwhile import load_meanwhile
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import ShardTask, split_into_shards
from feedrate.pack.shard import MapCost, ShardDone, find_done
from feedrate.remote.addresses import is_url
from feedrate.results.progress import Tick
from feedrate.units import format_bytes

if TYPE_CHECKING:
    from feedrate.results.pack import PackResult

# What is done when all shards are there: loaded while they are made.
_NEEDED_LAST = ("feedrate.pack.concluding",)


def make_shards(
    source: Listed, folder: Path, options: PackOptions, watch: Callable[[Tick], None]
) -> PackResult:
    with closing(Listing(source.listing)) as listed:
        tasks = _plan_tasks(source, listed, folder, options)
        joined = _find_joined(folder, source.plan) if options.container == "hdf5" else None
        missing = [task for task in tasks if joined is None and find_done(task) is None]
        _check_room(folder, missing)
        if source.reader.table is not None:
            with atomic_write(folder / table_name(source.settings)) as out:
                out.writelines(source.reader.table.pieces())
        load_meanwhile(_NEEDED_LAST)
        map_cost = _run(listed, tasks, missing, options, watch)
        fields = tasks[0].stored_fields(listed.fields)
    from feedrate.pack.concluding import Shards, conclude

    return conclude(source, folder, options, Shards(tasks, fields, joined, len(missing), map_cost))


def _find_joined(folder: Path, plan: str) -> list[ShardDone] | None:
    from feedrate.pack.joining import read_joined

    return read_joined(folder, plan)


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
            bytes_per_entry=options.bytes_per_entry,
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
) -> MapCost:
    """Write the missing shards; return over how many samples a map ran, and for how long."""
    total, total_bytes = sum(task.samples for task in tasks), sum(task.source_bytes for task in tasks)
    left, left_bytes = sum(task.samples for task in missing), sum(task.source_bytes for task in missing)

    def report(samples: int, size_bytes: int) -> None:
        done, done_bytes = total - left + samples, total_bytes - left_bytes + size_bytes
        watch(Tick("packing", done, total, done_bytes, total_bytes))

    report(0, 0)
    return run_shards(missing, options.engine, workers=options.workers, watch=report, listing=listing)


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
