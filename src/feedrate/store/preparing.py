# SPDX-License-Identifier: Apache-2.0
"""Before anything is staged: source and scratch are looked at, room is made, and a lease is taken."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from feedrate.errors import StorageError, UsageError
from feedrate.results.progress import Tick
from feedrate.store.clearing import find_limit, make_room
from feedrate.store.contents import Contents, read_contents
from feedrate.store.copies import Copy, CopyGone
from feedrate.store.fetching import Told
from feedrate.store.homes import owner_of
from feedrate.store.inventory import survey
from feedrate.store.patience import Attempts
from feedrate.store.place import is_url
from feedrate.store.registry import remember_copy
from feedrate.store.scratch import Scratch, check_room, find_scratch
from feedrate.store.staging import Staging, StagingOptions
from feedrate.units import format_bytes

_OWN_FILES = 5  # copy.json, gate, writer, used, a lease


def open_staging(
    source: str | os.PathLike[str],
    scratch: str | os.PathLike[str] | Scratch | None = None,
    *,
    options: StagingOptions | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    attempts: Attempts | None = None,
) -> Staging:
    """Look at a source and at scratch, and take a lease on the copy; nothing is brought yet.

    Args:
        scratch: a folder; None or "auto": the best of this node.
        watch: told how far it is. say: told what the user should know, a sentence at a time.
        attempts: how often the source is asked what it holds, and who is told that it errs.

    Raises:
        NotFound: there is no such source, or no scratch.
        SourceError, PackError: the source cannot be copied as it is.
        StorageError: there is no room, or scratch is no place for a copy.
    """
    options = options or StagingOptions()
    attempts = attempts or Attempts(Told(say), os.fspath(source))
    contents = read_contents(source, attempts, options.allow_addresses)
    if not isinstance(scratch, Scratch):
        scratch = find_scratch(scratch, allow_network=options.allow_network)
    _refuse_nesting(contents, scratch)
    marker = dataclasses.replace(contents.marker, keep_s=options.keep_s)
    is_mended = False
    while True:
        found = Copy.find(scratch.path, marker)
        is_mended |= found is not None and found.is_mended
        size_bytes, count = _missing(found, contents)
        if count:
            _make_room(scratch, found, size_bytes, say)
            check_room(scratch, size_bytes, count + _OWN_FILES)
        copy = Copy.create(scratch.path, marker)
        try:
            lease = copy.lease()
        except CopyGone:
            continue  # deleted in between
        if copy.is_ours and _is_longer(options.keep_s, copy.marker.keep_s):
            copy.update(dataclasses.replace(copy.marker, keep_s=options.keep_s))
        if copy.is_ours:
            remember_copy(copy, scratch.path)
        if is_mended or copy.is_mended:
            options = dataclasses.replace(options, check=True)
        return Staging(contents, scratch, copy, lease, options, watch, say)


def _missing(copy: Copy | None, contents: Contents) -> tuple[int, int]:
    """Return how many bytes and files are not there yet."""
    files = contents.marker.files
    size_bytes, count = contents.marker.size_bytes, len(files)
    if copy is not None:
        there = survey(copy)
        size_bytes -= sum(file.size_bytes for file in files if file.name in there.landed)
        size_bytes -= sum(there.partial.values())
        count -= len(there.landed)
    return size_bytes, count


def _make_room(scratch: Scratch, copy: Copy | None, size_bytes: int, say: Callable[[str], None]) -> None:
    """Delete what need not stay where there is no room, or no more is allowed."""
    spare = "" if copy is None else str(copy.folder)
    limit_bytes = find_limit()
    cleared = make_room(scratch.path, size_bytes, limit_bytes=limit_bytes, spare=spare, say=say)
    for gone in cleared.removed:
        say(f"deleted {gone.path}, {format_bytes(gone.size_bytes)}: {gone.why}")
    for kept in cleared.kept:
        if kept.is_only_copy:
            say(f"kept {kept.path}, {format_bytes(kept.size_bytes)}: {kept.why}")
    if limit_bytes is not None and cleared.used_bytes + size_bytes > limit_bytes:
        raise StorageError(
            f"the copy needs {format_bytes(size_bytes)} on {scratch.path}, where your copies take"
            f" {format_bytes(cleared.used_bytes)} and may take {format_bytes(limit_bytes)}",
            hint="raise FEEDRATE_SCRATCH_LIMIT, or see what is in use: feedrate scratch ls",
        )


def _is_longer(keep_s: float | None, than_s: float | None) -> bool:
    return than_s is not None and (keep_s is None or keep_s > than_s)


def _refuse_nesting(contents: Contents, scratch: Scratch) -> None:
    source = contents.marker.source
    if is_url(source):
        return
    inner, outer = os.path.realpath(scratch.path), os.path.realpath(source)
    if not contents.marker.entry and (inner == outer or inner.startswith(outer.rstrip("/") + "/")):
        raise UsageError(
            f"the scratch folder {scratch.path} lies in the source {source}",
            hint="name a folder outside of it: --to FOLDER",
        )
    between = [one for one in Path(outer).parents if one != Path(inner) and one.is_relative_to(inner)]
    if any(owner_of(one) is not None for one in between):
        raise UsageError(f"{source} is a copy on scratch already", hint="use it as it is")
