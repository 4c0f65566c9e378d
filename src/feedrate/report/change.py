# SPDX-License-Identifier: Apache-2.0
"""Results of `append`, `add-column`, `split`, and `index` of a pack that is there as plain lines."""

from __future__ import annotations

from feedrate.packing.results import (
    AppendResult,
    ClassShare,
    ColumnResult,
    EntriesResult,
    SplitResult,
)
from feedrate.report.lines import (
    Command,
    Line,
    lay_out,
    name_largest,
    name_some,
    rejection_lines,
    table_lines,
)
from feedrate.units import format_bytes, format_count, format_seconds, shell_quote


def draw_split(result: SplitResult, width: int | None = None) -> str:
    rows: list[Line] = []
    for name, count in result.parts.items():
        groups = f" in {format_count(result.groups[name], 'group')}" if name in result.groups else ""
        classes = result.class_counts.get(name)
        share = count / max(result.samples, 1)
        words = f"{format_count(count, 'sample')}{groups}, {share:.2%}"
        rows.append((name, words + (f" ({name_largest(classes)})" if classes else "")))
    if result.least_even is not None:
        rows.append(("classes", _describe_evenness(result.least_even)))
    again = " again" if result.replaced else ""
    head = f"split {format_count(result.samples, 'sample')} of {result.pack}{again} ('{result.name}')"
    first = next(iter(result.parts))
    told = first if result.name == "split" else f"{result.name}:{first}"
    return lay_out([head, *rows, "", Command(f'next: Loader("{result.pack}", split="{told}")')], width)


def _describe_evenness(least: ClassShare) -> str:
    points = abs(least.share - least.share_of_all) * 100
    words = f"within {points:.1f} points of the whole: {least.name} {least.share:.1%} of {least.part}"
    absent = "".join(
        f"; {part} has no sample of {format_count(count, 'class', 'classes')}"
        for part, count in least.absent.items()
    )
    return f"{words}, {least.share_of_all:.1%} of all{absent}"


def draw_column(result: ColumnResult, width: int | None = None) -> str:
    kind = f"{result.kind}, {result.dtype}" if result.kind == "number" else result.kind
    verb = "replaced" if result.replaced else "added"
    counts = result.class_counts
    rows = [
        ("classes", f"{len(counts):,}: {name_largest(counts)}" if counts else ""),
        ("default", f"for {format_count(result.defaults, 'sample')}" if result.defaults else ""),
        ("unused", f"{format_count(result.unused, 'row')} about no sample" if result.unused else ""),
        ("size", format_bytes(result.size_bytes)),
    ]
    samples = format_count(result.samples, "sample")
    head = f"{verb} '{result.name}' ({kind}) for {samples} of {result.pack}, from {result.table}"
    return lay_out([head, *table_lines(rows)], width)


def draw_entries(result: EntriesResult, width: int | None = None) -> str:
    distance = f"entry points about every {result.entries:,} bytes"
    before = ", ".join(f"{entries:,}" for entries in result.entries_before)
    share, removed = result.index_bytes / max(result.shard_bytes, 1), result.removed_parts
    head = f"{result.pack} has {distance} now (before: {before})"
    if not result.changed_parts:
        head = f"{result.pack} has {distance} already"
    rows = [
        ("index", f"{format_bytes(result.index_bytes)}, before {format_bytes(result.index_bytes_before)}"
                  + (f": {share:.2%} of the data" if result.shard_bytes else "")),
        ("samples", f"{format_count(result.samples, 'sample')}, not one byte of them written"),
        ("time", format_seconds(result.seconds)),
        ("removed", format_count(len(removed), "old index file") if removed else ""),
        ("old", f"{format_count(len(result.old_parts), 'index file')} kept for whoever has the pack open: "
                f"{name_some(result.old_parts, 2)}" if result.old_parts else ""),
    ]  # fmt: skip
    lines: list[Line] = [head, *table_lines(rows)]
    if result.old_parts:
        command = f"feedrate index {shell_quote(result.pack)} --entries {result.entries} --remove-old"
        lines += ["", Command(f"when nobody reads it any more: {command}")]
    return lay_out(lines, width)


def draw_append(result: AppendResult, width: int | None = None) -> str:
    total = format_count(result.samples, "sample")
    what = "sample" if result.refers else "file"
    skipped = f"{format_count(result.skipped, what)} the pack has already" if result.skipped else ""
    if not result.added:
        rejected = rejection_lines("rejected", result.rejected)
        return lay_out([f"nothing new in {result.source}: {skipped}", *rejected], width)
    size, shards = format_bytes(result.size_bytes), format_count(result.shards, "shard")
    rows = [
        ("size", f"{size} in {shards}"),
        ("skipped", skipped),
        ("classes", f"new: {', '.join(result.new_classes)}" if result.new_classes else ""),
        ("time", format_seconds(result.seconds)),
    ]
    lines = [
        f"appended {format_count(result.added, 'sample')} to {result.pack}, which has {total} now",
        *table_lines(rows),
        *([f"the new shards lie in {result.source}, which must stay where it is"] if result.refers else []),
        *(
            Command(
                f"the new samples are in no part of '{name}' yet: "
                f"feedrate split {shell_quote(result.pack)} --name {name} --extend"
            )
            for name in result.unassigned
        ),
        *rejection_lines("rejected", result.rejected, "all of them: rejected.jsonl in the pack"),
    ]
    return lay_out([*lines, "", Command(f"next: feedrate verify {shell_quote(result.pack)}")], width)
