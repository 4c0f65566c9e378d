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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from feedrate.errors import FeedrateError
from feedrate.pack import listing
from feedrate.pack.begun import Listed, all_rejected
from feedrate.pack.files import atomic_write, remove_temporaries
from feedrate.pack.listing import ListingWriter
from feedrate.pack.mapping import Function, find_map
from feedrate.pack.meanwhile import load_meanwhile
from feedrate.pack.options import PackOptions
from feedrate.pack.plan import describe_settings, digest_plan
from feedrate.pack.unfinished import (
    begin,
    finish,
    go_on_by,
    own_folder,
    refuse_finished,
    refuse_foreign,
    refuse_nesting,
    take_back,
)
from feedrate.results.progress import Rejection, Tick
from feedrate.source.opening import open_reader
from feedrate.source.record import ImageFiles, Reader

if TYPE_CHECKING:
    from feedrate.results.pack import PackResult

# What making shards takes, and their index: a third of all that packing loads.
_NEEDED_NEXT = ("feedrate.pack.making", "pyarrow")
_TELL_EVERY = 1000


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
    load_meanwhile(_NEEDED_NEXT)
    options = go_on_by(folder, options)
    listed = _list(reader, folder, options, watch)
    if options.map is not None:
        listed = _try_map(listed, folder, options)
    from feedrate.pack.making import make_shards

    return make_shards(listed, folder, options, watch)


def _list(reader: Reader, folder: Path, options: PackOptions, watch: Callable[[Tick], None]) -> Listed:
    path = folder / listing.NAME
    rejected: list[Rejection] = []
    with atomic_write(path, is_durable=False) as out:
        writer = ListingWriter(out)
        number = told = 0
        for block in reader.blocks():
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
            raise all_rejected(tuple(rejected))
        fields = options.recode.mark(reader.fields())
        writer.finish(fields)
        settings = describe_settings(reader, options)
        # The listing gets its name after this: it is no sign of a pack that was begun.
        begin(folder, settings, writer.fingerprint())
    plan = digest_plan(writer.digest(), fields, settings)
    return Listed(reader, path, settings, plan, tuple(rejected))


def _try_map(source: Listed, folder: Path, options: PackOptions) -> Listed:
    """Learn from the first samples what a map makes of them, before anything is packed."""
    from feedrate.pack.trial import try_map

    try:
        made, scale = try_map(source.listing, source.reader.root, options)
    except FeedrateError:
        if not any(folder.glob("shard-*")):
            take_back(folder)
        raise
    plan = digest_plan(f"{source.plan} {scale}", made, source.settings)
    return source._replace(made=made, scale=scale, plan=plan)
