# SPDX-License-Identifier: Apache-2.0
"""Results of `stage` and `scratch`: what was copied, what is on scratch, what was deleted, as plain lines."""

from __future__ import annotations

import os

from feedrate.report.lines import Line, lay_out
from feedrate.scratch.results import (
    CacheInfo,
    ClearResult,
    CopyInfo,
    Everywhere,
    ScratchFolder,
    ScratchListing,
    StageResult,
    Verdict,
)
from feedrate.units import format_age, format_bytes, format_count, format_percent, format_seconds


def draw_stage(result: StageResult, width: int | None = None) -> str:
    whole = f"{format_bytes(result.size_bytes)} in {format_count(result.files, 'file')}"
    if not result.copied_files:
        how = "another process copied it" if result.is_joined else "it was there already"
        return lay_out([f"{whole}: {how} ({format_seconds(result.seconds)})"], width)
    rate = f", {format_bytes(result.copied_bytes / result.seconds)}/s" if result.seconds else ""
    rest = ""
    if result.copied_files < result.files or result.resumed_bytes:
        rest = f"; {format_bytes(result.size_bytes - result.copied_bytes)} were there already"
    copied = f"copied {format_bytes(result.copied_bytes)} in {format_count(result.copied_files, 'file')}"
    return lay_out([f"{copied} in {format_seconds(result.seconds)}{rate}{rest}"], width)


def draw_scratch(listing: ScratchListing, width: int | None = None) -> str:
    if not listing.folders:
        said = f"no scratch folder is known on {listing.node}; name one: feedrate scratch ls --scratch FOLDER"
        return lay_out([said], width)
    lines = [line for folder in listing.folders for line in ("", *_folder_lines(folder, listing.now))]
    return lay_out(lines[1:], width)


def draw_everywhere(everywhere: Everywhere, width: int | None = None) -> str:
    copies = everywhere.copies
    if not copies:
        return lay_out(["nothing is staged anywhere, as far as your home folder knows"], width)
    rows: list[Line] = [("NODE", "SIZE", "STAGED", "KEPT", "PATH", "SOURCE")]
    rows += [
        (
            copy.node + (" (this one)" if copy.node == everywhere.node else ""),
            format_bytes(copy.size_bytes),
            _ago(everywhere.now - copy.created),
            "until deleted" if copy.keep_s is None else f"{format_age(copy.keep_s)} after use",
            copy.path,
            copy.source,
        )
        for copy in copies
    ]
    total = format_bytes(sum(copy.size_bytes for copy in copies))
    nodes = format_count(len({copy.node for copy in copies}), "node")
    head = f"{format_count(len(copies), 'copy', 'copies')}, {total}, on {nodes}"
    return lay_out([head, *rows], width)


def draw_cleared(result: ClearResult, width: int | None = None) -> str:
    verb, freed = ("would delete", "would free") if result.is_trial else ("deleted", "freed")
    lines = [f"{verb} {_verdict_words(one)}" for one in result.removed]
    lines += [f"put back {_verdict_words(one)}" for one in result.restored]
    lines += [f"kept {_verdict_words(one)}" for one in result.kept]
    size = format_bytes(sum(one.size_bytes for one in result.removed))
    limit = "" if result.limit_bytes is None else f", and may take {format_bytes(result.limit_bytes)}"
    lines.append(f"{freed} {size}; your copies take {format_bytes(result.used_bytes)}{limit}")
    return lay_out(lines, width)


def _folder_lines(folder: ScratchFolder, now: float) -> list[Line]:
    copies = format_count(len(folder.copies), "copy", "copies")
    size = format_bytes(sum(copy.landed_bytes + copy.partial_bytes for copy in folder.copies))
    held = f"{copies}, {size}"
    if folder.caches:
        cached = format_bytes(sum(cache.size_bytes for cache in folder.caches))
        held += f"; {format_count(len(folder.caches), 'cache')}, {cached}"
    lines: list[Line] = [f"{folder.scratch} ({folder.why}): {held}; {format_bytes(folder.free_bytes)} free"]
    if folder.copies:
        lines.append(("NAME", "SIZE", "OWNER", "LAST USED", "KEPT", "IN USE BY", "SOURCE"))
        lines += [_copy_row(copy, now) for copy in folder.copies]
    if folder.caches:
        lines += [""] if folder.copies else []  # two tables, with widths of their own
        lines.append(("CACHE", "SIZE", "SAMPLES", "LAST USED", "IN USE BY"))
        lines += [_cache_row(cache, now) for cache in folder.caches]
    lines += [
        f"  left behind: {one.path}, {one.what}, {format_bytes(one.size_bytes)}" for one in folder.leftovers
    ]
    if folder.leftovers:
        lines.append("  next: feedrate scratch gc")
    return lines


def _copy_row(copy: CopyInfo, now: float) -> tuple[str, ...]:
    name = os.path.basename(copy.folder)
    if copy.problem:
        return (name, "", copy.owner, "", "", "", copy.problem)
    return (
        name,
        _size_words(copy),
        copy.owner + ("" if copy.is_trusted else " (not trusted)"),
        _ago(now - copy.used),
        "" if copy.keep_s is None else format_age(copy.keep_s),
        _user_words(copy),
        copy.source,
    )


def _cache_row(cache: CacheInfo, now: float) -> tuple[str, ...]:
    users = format_count(len(cache.users), "process", "processes") if cache.users else "nobody"
    return (
        os.path.basename(cache.path),
        format_bytes(cache.size_bytes),
        f"{cache.samples:,}",
        _ago(now - cache.used),
        users + (", being filled" if cache.is_being_filled else ""),
    )


def _size_words(copy: CopyInfo) -> str:
    size = format_bytes(copy.size_bytes)
    if copy.is_complete:
        return size
    share = (copy.landed_bytes + copy.partial_bytes) / max(copy.size_bytes, 1)
    return f"{format_percent(share)} of {size}"


def _user_words(copy: CopyInfo) -> str:
    words = ["being copied"] if copy.is_being_written else []
    jobs = sorted({lease.job for lease in copy.leases if lease.job})
    loose = [lease for lease in copy.leases if not lease.job]
    words += [f"job {job}" for job in jobs[:3]] + (["..."] if len(jobs) > 3 else [])
    if loose:
        users = sorted({lease.user for lease in loose if lease.user})
        words.append(
            format_count(len(loose), "process", "processes") + (f" of {', '.join(users)}" if users else "")
        )
    return ", ".join(words) or "nobody"


def _verdict_words(one: Verdict) -> str:
    source = f" (copy of {one.source})" if one.source else ""
    return f"{one.path}{source}, {format_bytes(one.size_bytes)}: {one.why}"


def _ago(seconds: float) -> str:
    # A clock that was set back makes the past the future.
    return "just now" if seconds < 60 else f"{format_age(seconds)} ago"
