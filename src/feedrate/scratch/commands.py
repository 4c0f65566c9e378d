# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage`, and `feedrate scratch`: what is there, what may go."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from feedrate.cache.entry_folder import find_cache_folder, find_home
from feedrate.errors import FeedrateError, NotFound, UsageError, suggest_path
from feedrate.files.atomic import free_bytes
from feedrate.files.permissions import find_replaceable
from feedrate.format.manifest import find_index
from feedrate.machine.describe import find_node
from feedrate.machine.disk import describe_storage
from feedrate.progress import Tick
from feedrate.remote.addresses import is_url
from feedrate.remote.trust import read_addresses
from feedrate.scratch.clearing import Clearing, find_limit, is_mine, list_leftovers
from feedrate.scratch.folder import Scratch, find_scratch, list_user_folders
from feedrate.scratch.listing import forget, list_caches, list_copies, recall
from feedrate.scratch.marker import Lease
from feedrate.scratch.results import (
    ClearResult,
    CopyInfo,
    Everywhere,
    ScratchFolder,
    ScratchListing,
    StageResult,
)
from feedrate.scratch.staging import Staging, StagingOptions, open_staging
from feedrate.units import format_bytes, format_count, parse_keep, parse_rate


def list_scratch(wish: str | None = None) -> ScratchListing:
    """Return what is on one scratch folder, or on those of this node that are known.

    Raises:
        NotFound: there is no folder of that name.
    """
    now = time.time()
    folders = [
        ScratchFolder(
            scratch=str(scratch.path),
            why=scratch.why,
            copies=tuple(list_copies(scratch.path)),
            leftovers=tuple(list_leftovers(scratch.path)),
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
        UsageError: a name fits several, or another user's copy.
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
    return _sum_up(clearings, limit_bytes=limit_bytes, is_trial=is_trial)


def find_scratches(wish: str | None = None) -> list[Scratch]:
    """Return the folder that was named; else what `stage` would choose, and where this user has something."""
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
    caches = find_cache_folder()
    if caches is not None and find_home(caches) is not None:
        found.setdefault(caches, Scratch(caches, "feedrate run keeps entry points there"))
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


def stage(
    source: str | os.PathLike[str],
    scratch: str | os.PathLike[str] | None = None,
    *,
    keep: str | float | None = "7d",
    rate_limit: str | float | None = None,
    streams: int | None = None,
    allow_network: bool = False,
    check: bool = False,
    allow_addresses: str | Sequence[str] = (),
    watch: Callable[[Tick], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> StageResult:
    """Bring a pack, a folder or a file to node-local scratch, once per node; return where it is.

    The result can be given as a path: `Loader(feedrate.stage("/nfs/set.pack"))`. When another process of this
    node brings the same, this one waits for it. The copy is not deleted while this process lives.

    Args:
        source: a path, or an address that fsspec reaches (s3://..., https://..., sftp://...).
        scratch: a folder on a local disk; None or "auto": found by itself.
        keep: how long the copy stays when nobody uses it: "7d", "12h", seconds; None: until it is deleted.
        rate_limit: at most so many bytes per second: "100MB", or a number.
        streams: reads in flight; None: 8, and 16 behind an address.
        allow_network: let scratch be a file system that other machines serve.
        check: read what is there already, and bring anew what is not as it was copied.
        allow_addresses: where files may be that a pack names and that this user did not index:
            ["s3://bucket"].
        watch: told how far it is. say: told what the user should know, a sentence at a time.

    Raises:
        NotFound: there is no such source, or no scratch.
        SourceError, PackError: the source cannot be copied as it is.
        StorageError: there is no room, scratch is no place for a copy, or the source cannot be read.
    """
    begin = time.monotonic()
    options = StagingOptions(
        streams=streams,
        rate_limit=parse_rate(rate_limit) if isinstance(rate_limit, str) else rate_limit,
        keep_s=parse_keep(keep) if isinstance(keep, str) else keep,
        allow_network=allow_network,
        check=check,
        allow_addresses=read_addresses(allow_addresses),
    )
    with open_staging(source, scratch, options=options, watch=watch, say=say) as staging:
        for sentence in _remarks(staging):
            say(sentence)
        staging.run()
        _hold(staging)
    return _summarise(staging, time.monotonic() - begin)


# Whoever deletes copies must see that this process uses them, also after `stage` has returned.
_held: dict[str, Lease] = {}


def _hold(staging: Staging) -> None:
    before = _held.pop(str(staging.copy.folder), None)
    _held[str(staging.copy.folder)] = staging.detach()
    if before is not None:
        before.release()


@atexit.register
def release_all() -> None:
    """Give back what this process has staged."""
    while _held:
        _held.popitem()[1].release()


def _remarks(staging: Staging) -> list[str]:
    scratch, contents = staging.scratch, staging.contents
    said = [f"scratch: {scratch.path} ({scratch.why}{f'; {scratch.kind}' if scratch.kind else ''})"]
    if scratch.is_memory:
        said.append(
            "that is memory: the copy counts against this job's limit, and is gone when the node starts anew"
        )
    if why := find_replaceable(scratch.path):
        said.append(
            f"{why}: somebody else could put other data in the copy's place; a Loader would refuse that,"
            " other programs would read it"
        )
    source = contents.marker.source
    if not is_url(source):
        there = describe_storage(source)
        if not there.is_network and there.mount_point == describe_storage(scratch.path).mount_point:
            said.append(f"{contents.marker.address} already lies on that disk: the copy will be no faster")
        if contents.marker.kind != "pack" and (index := find_index(source)) is not None:
            said.append(f"not copied: its index, {index}")
    if contents.left_out:
        said.append(
            f"left out: {format_count(contents.left_out, 'hidden file or folder', 'hidden files or folders')}"
        )
    return said


def _summarise(staging: Staging, seconds: float) -> StageResult:
    marker = staging.copy.marker
    return StageResult(
        source=marker.address,
        path=str(staging.copy.path),
        kind=marker.kind,
        node=find_node(),
        scratch=str(staging.scratch.path),
        why=staging.scratch.why,
        files=len(marker.files),
        size_bytes=marker.size_bytes,
        copied_files=staging.copied_files,
        copied_bytes=staging.copied_bytes,
        resumed_bytes=staging.resumed_bytes,
        is_joined=staging.is_joined,
        is_public=marker.is_public,
        keep_s=marker.keep_s,
        seconds=seconds,
    )
