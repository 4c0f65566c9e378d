# SPDX-License-Identifier: Apache-2.0
"""`feedrate scratch`: what lies on the scratch folders of this node and elsewhere, and away with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from feedrate.cache.sharing import sweep
from feedrate.errors import FeedrateError, NotFound, UsageError
from feedrate.files.atomic import free_bytes
from feedrate.probe.paths import suggest_path
from feedrate.results.scratch import ClearResult, CopyInfo, Everywhere, ScratchFolder, ScratchListing
from feedrate.scratch.clearing import Clearing, find_limit, is_mine, list_leftovers
from feedrate.scratch.folder import Scratch, find_scratch
from feedrate.scratch.listing import forget, list_caches, list_copies, recall
from feedrate.scratch.marker import find_node
from feedrate.scratch.user_dir import list_user_folders
from feedrate.units import format_bytes, format_count


def list_scratch(wish: str | None = None) -> ScratchListing:
    """Return what lies on one scratch folder, or on those of this node that are known.

    Raises:
        NotFound: there is no folder of that name.
    """
    now = time.time()
    folders = [
        ScratchFolder(
            scratch=str(scratch.path),
            why=scratch.why,
            copies=tuple(list_copies(scratch.path)),
            leftovers=tuple(list_leftovers(scratch.path, now)),
            free_bytes=free_bytes(scratch.path),
            caches=tuple(list_caches(scratch.path)),
        )
        for scratch in find_scratches(wish)
    ]
    return ScratchListing(find_node(), tuple(folders), now)


def list_everywhere() -> Everywhere:
    """Return what this user has staged on all nodes; what is gone from this one is forgotten."""
    node, copies = find_node(), []
    for copy in recall():
        if copy.node == node and not os.path.lexists(copy.folder):
            forget(node, copy.folder)
        else:
            copies.append(copy)
    return Everywhere(node, tuple(copies), time.time())


def remove_copies(
    names: Sequence[str],
    wish: str | None = None,
    *,
    even_if_the_source_is_gone: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> ClearResult:
    """Delete copies by name, path or source, and caches by name or path.

    Raises:
        NotFound: there is no such copy.
        UsageError: a name fits several, or somebody else's copy.
    """
    clearings = [Clearing(scratch.path, say=say) for scratch in find_scratches(wish)]
    copies = [copy for clearing in clearings for copy in clearing.everybodys]
    caches = {cache.path: cache for clearing in clearings for cache in clearing.caches}
    chosen, chosen_caches = set(), set()
    for name in names:
        fitting = [
            path for path in caches if name == os.path.basename(path) or os.path.realpath(name) == path
        ]
        if fitting:
            chosen_caches.update(fitting)
        else:
            chosen.add(_choose(name, copies).folder)
    for clearing in clearings:
        clearing.remove_caches(cache for cache in clearing.caches if cache.path in chosen_caches)
        mine = [copy for copy in clearing.copies if copy.folder in chosen]
        if even_if_the_source_is_gone:
            for copy in mine:
                files = format_count(copy.landed_files, "file")
                say(
                    f"deleting {copy.folder} without looking for its source {copy.source or '(unknown)'}:"
                    f" if that is gone, {format_bytes(copy.landed_bytes)} in {files} are lost for good"
                )
        clearing.remove(mine, even_if_the_source_is_gone=even_if_the_source_is_gone)
    return _sum_up(clearings)


def collect_garbage(
    wish: str | None = None,
    *,
    limit_bytes: int | None = None,
    is_trial: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> ClearResult:
    """Delete this user's copies that expired, were never finished, or are over the limit, caches that no job
    has used for long, and leftovers.

    Raises:
        NotFound: there is no folder of that name.
    """
    limit_bytes = find_limit() if limit_bytes is None else limit_bytes
    clearings = [Clearing(scratch.path, is_trial=is_trial, say=say) for scratch in find_scratches(wish)]
    for clearing in clearings:
        clearing.remove_idle()
        if limit_bytes is not None:
            clearing.remove_oldest(limit_bytes)
    if not is_trial:
        sweep()  # names that killed jobs left of their caches; the caches themselves go with their processes
    return _sum_up(clearings, limit_bytes=limit_bytes, is_trial=is_trial)


def find_scratches(wish: str | None = None) -> list[Scratch]:
    """Return the folder that was named; else what `stage` would choose, and where this user staged before."""
    if wish is not None:
        if not os.path.isdir(wish):
            raise NotFound(f"no scratch folder at {wish}", hint=suggest_path(wish))
        return [Scratch(Path(os.path.realpath(wish)), "you named it")]
    found: dict[Path, Scratch] = {}
    try:
        chosen = find_scratch()
        found[chosen.path] = chosen
    except FeedrateError:
        pass  # none that could be staged to; one may be there from before
    for copy in recall():
        path = Path(os.path.realpath(copy.scratch))
        if copy.node == find_node() and any(list_user_folders(path)):
            found.setdefault(path, Scratch(path, "you staged there before"))
    return list(found.values())


def _choose(name: str, copies: Iterable[CopyInfo]) -> CopyInfo:
    real = os.path.realpath(name)
    fitting = [
        copy
        for copy in copies
        if name in (os.path.basename(copy.folder), copy.source)
        or real in (copy.folder, copy.path, copy.source)
        or os.path.dirname(copy.path) == real
    ]
    mine = [copy for copy in fitting if is_mine(copy)]
    if len(mine) == 1:
        return mine[0]
    if mine:
        names = ", ".join(os.path.basename(copy.folder) for copy in mine)
        raise UsageError(f"{len(mine)} copies fit '{name}': {names}", hint="name one of them")
    if fitting:
        raise UsageError(
            f"{fitting[0].folder} belongs to {fitting[0].owner}", hint="only its owner can delete a copy"
        )
    raise NotFound(f"no copy '{name}' on this node", hint="see what is there: feedrate scratch ls")


def _sum_up(
    clearings: Sequence[Clearing], *, limit_bytes: int | None = None, is_trial: bool = False
) -> ClearResult:
    results = [clearing.result for clearing in clearings]
    return ClearResult(
        scratches=tuple(str(clearing.scratch) for clearing in clearings),
        removed=tuple(one for result in results for one in result.removed),
        kept=tuple(one for result in results for one in result.kept),
        restored=tuple(one for result in results for one in result.restored),
        used_bytes=sum(result.used_bytes for result in results),
        limit_bytes=limit_bytes,
        is_trial=is_trial,
    )
