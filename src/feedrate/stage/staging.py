# SPDX-License-Identifier: Apache-2.0
"""`feedrate stage`: a source is brought to scratch, and held there while this process lives."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence

from feedrate.files.trust import find_replaceable
from feedrate.probe.storage import describe_storage
from feedrate.remote.addresses import is_url
from feedrate.remote.sources import read_addresses
from feedrate.results.progress import Tick
from feedrate.results.scratch import StageResult
from feedrate.scratch.lease import Lease
from feedrate.scratch.marker import find_node
from feedrate.scratch.staging import Staging, StagingOptions, open_staging
from feedrate.units import format_count, parse_keep, parse_rate


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
        allow_addresses: where files may lie that a pack names which somebody else may have made:
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
    if contents.left_out:
        said.append(
            f"left out: {format_count(contents.left_out, 'hidden file or folder', 'hidden files or folders')}"
        )
    return said


def _summarise(staging: Staging, seconds: float) -> StageResult:
    marker = staging.copy.marker
    return StageResult(
        source=marker.address,
        path=str(staging.path),
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
