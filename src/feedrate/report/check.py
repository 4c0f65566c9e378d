# SPDX-License-Identifier: Apache-2.0
"""Results of `unpack`, `verify`, `ls` and `stage --warm` as plain lines."""

from __future__ import annotations

import re

from feedrate.packing.results import (
    FieldSummary,
    PackDescription,
    PixelComparison,
    Problem,
    UnpackResult,
    VerifyResult,
    WarmResult,
)
from feedrate.report.lines import Line, count_words, lay_out, name_largest, name_some, table_lines
from feedrate.report.pack import name_field
from feedrate.report.quality import list_quality
from feedrate.units import format_bytes, format_count, format_percent, format_seconds


def draw_unpack(result: UnpackResult, width: int | None = None) -> str:
    kept = f", {result.kept:,} of them were there already" if result.kept else ""
    files, time = format_count(result.files, "file"), format_seconds(result.seconds)
    lines = [f"restored {files} ({format_bytes(result.size_bytes)}) in {result.target}{kept}, in {time}"]
    if result.pixels:
        what = "samples" if result.is_mapped else "images"
        lines.append(f"these are not all the original files; packing changed {what} ({result.pixels})")
    return lay_out(lines, width)


def draw_verify(result: VerifyResult, width: int | None = None) -> str:
    samples, shards = format_count(result.samples, "sample"), format_count(result.shards, "shard")
    size, time = format_bytes(result.size_bytes), format_seconds(result.seconds)
    lines: list[Line] = [f"{result.pack}: {samples}, {shards}, {size}, checked in {time}"]
    if result.pixels:
        lines.append(f"{'samples' if result.is_mapped else 'pixels'} are {result.pixels}")
    lines += [_extra_line(name) for name in result.extra_files]
    lines += [_problem_line(problem) for problem in result.problems]
    if result.comparison is not None:
        lines += _comparison_lines(result.comparison)
    done, again = ("indexed", "index them") if result.is_index else ("packed", "pack the source")
    if result.problems:
        step = f"restore the named files from a copy, or {again} again"
        step = step if result.comparison is None else "report it as a bug, with a file"
        lines += [format_count(len(result.problems), "problem"), "", f"next: {step}"]
    elif result.manifest_checked:
        lines.append(f"good: every byte is as it was {done}")
    else:
        lines.append(
            f"good: every byte of its data is as it was {done}; pack.json is of an earlier version or "
            "was edited, and has no digest to check it by"
        )
    return lay_out(lines, width)


def _comparison_lines(found: PixelComparison) -> list[tuple[str, str]]:
    images, equal = format_count(found.images, "image"), found.equal_images
    rows = [("pixels", f"{images} compared with Pillow, on random crops; {equal:,} equal throughout")]
    if found.mean_psnr_db is not None:
        zero, one, two, more = map(_say_exactly, found.level_shares)
        lowest = f"{found.lowest_psnr_db:.1f} dB at the lowest: {found.worst}"
        levels = f"{one} differ by 1 level of 255, {two} by 2, {more} by more"
        rows.append(("", f"{found.mean_psnr_db:.1f} dB PSNR on average, {lowest}"))
        rows.append(("", f"{zero} of the pixels identical, {levels}"))
    if found.by_pillow:
        why = count_words(found.by_pillow, few=3)
        count = format_count(sum(found.by_pillow.values()), "image")
        rows.append(("", f"{count} through Pillow anyway, which proves nothing ({why})"))
    if not found.outside and found.images:
        rows.append(("", "Pillow's pixels, but for rounding"))
    return rows


def _say_exactly(share: float) -> str:
    """Return a percentage that is 0 % or 100 % only where nothing is missing."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    return ">99.99%" if share > 0.9999 else f"{100 * share:.2f}%"


def _extra_line(name: str) -> str:
    if re.fullmatch(r"column-.+-[0-9a-f]{16}\.arrow", name):
        # A job that runs, or a pack that refers to this one, may read it still: it is not for us to delete.
        return f"column that was replaced, no part of the pack any more; delete it if nothing uses it: {name}"
    return f"extra file, no part of the pack: {name}"


def draw_description(description: PackDescription, width: int | None = None) -> str:
    lines: list[Line] = [
        f"{description.pack}: {format_count(description.samples, 'sample')}",
        *table_lines(describe_fields(description)),
    ]
    if description.first_samples:
        lines += ["", ("key", "path", "bytes", "label")]
        lines += [(s.key, s.path, f"{s.size_bytes:,}", s.label or "") for s in description.first_samples]
    if description.quality is not None:
        lines += ["", *list_quality(description.quality)]
    return lay_out(lines, width)


def describe_fields(description: PackDescription) -> list[tuple[str, str]]:
    classes, rejected = description.class_counts, format_count(description.rejected, "input")
    return [
        *(("field", _summary_words(field)) for field in description.fields),
        ("samples" if "map" in description.settings else "pixels", description.pixels),
        ("classes", f"{len(classes):,}: {name_largest(classes)}" if classes else ""),
        *(("parts", f"{name}: {name_largest(c)}") for name, c in description.column_counts.items()),
        ("shards", f"{description.shards:,}, {format_bytes(description.shard_bytes)}, "
                   f"and {format_bytes(description.index_bytes)} of index"),
        ("entries", _say_entries(description)),
        ("memory", say_resident(description.resident_share)),
        ("rejected", f"{rejected} (named in rejected.jsonl)" if description.rejected else ""),
    ]  # fmt: skip


def _say_entries(description: PackDescription) -> str:
    """Say how far apart entry points are, where somebody has chosen that."""
    if len(description.entries) < 2 and "entries" not in description.settings:
        return ""
    return f"about every {' or '.join(f'{n:,}' for n in description.entries)} bytes of a JPEG"


def say_resident(share: float | None) -> str:
    if share is None:
        return "unknown: this file system does not say what the page cache holds"
    return f"{format_percent(share)} of it lies in the page cache"


def _problem_line(problem: Problem) -> str:
    where = [f"sample '{problem.key}'"] if problem.key else []
    where += [f"byte {problem.offset}"] if problem.offset is not None else []
    place = f" ({', '.join(where)})" if where else ""
    return f"{problem.file}{place}: {problem.text}"


def _summary_words(field: FieldSummary) -> str:
    words = [name_field(field.name, field.kind)]
    if field.dtype:
        words.append(field.dtype)
    if field.shape is not None:
        words.append("all " + " x ".join(map(str, field.shape)))
    elif field.mean_width is not None and field.mean_height is not None:
        words.append(f"{field.mean_height:.0f} x {field.mean_width:.0f} pixels on average (height x width)")
    if field.coding != "file":
        codings = {"raw": "raw rows", "recoded": "encoded anew where asked for"}
        words.append(codings.get(field.coding, field.coding))
    words.append(format_bytes(field.size_bytes))
    if field.kernel_share is not None:
        verb = "read" if field.coding == "raw" else "decoded"
        words.append(f"{field.kernel_share:.1%} {verb} by the kernel")
    return ", ".join(words)


def draw_warm(result: WarmResult, width: int | None = None) -> str:
    files, size = format_count(result.files, "file"), format_bytes(result.size_bytes)
    rate = format_bytes(result.loaded_bytes / max(result.seconds, 1e-9))
    before, after = (
        "unknown (this file system does not tell)" if share is None else format_percent(share)
        for share in (result.resident_before, result.resident_after)
    )
    room = f"{format_bytes(result.limit_bytes)}: {result.limit_reason}" if result.left_out else ""
    rows = [
        ("memory", f"{before} before, {after} now"),
        ("loaded", f"{format_bytes(result.loaded_bytes)} in {format_seconds(result.seconds)}, {rate}/s"),
        ("room", room),
    ]
    lines = [f"{result.pack}: {files}, {size}", *table_lines(rows)]
    if result.left_out:
        where, step = (
            ", to be read from the disk",
            "next: ask for more memory, or put the pack on a local disk",
        )
        if result.resident_after == 1:
            where, step = " into that room, and lie in memory all the same", ""
        count = format_count(len(result.left_out), "file")
        what = f"{count} ({format_bytes(result.left_out_bytes)}) did not fit{where}"
        lines += [f"{what}: {name_some(result.left_out)}", *(["", step] if step else [])]
    return lay_out(lines, width)
