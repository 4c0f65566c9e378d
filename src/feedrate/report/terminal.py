# SPDX-License-Identifier: Apache-2.0
"""Results of `pack`, `index`, `unpack`, `verify` and `ls` as plain lines, for a terminal or a log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from feedrate.report.lines import Command, Line, lay_out
from feedrate.report.quality import summarise_quality
from feedrate.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    shell_quote,
)

if TYPE_CHECKING:  # a command that draws what it found need not load what others find
    from feedrate.packing.results import (
        FieldSummary,
        IndexResult,
        Mapped,
        PackDescription,
        PackResult,
        Problem,
        Recoded,
        UnpackResult,
        VerifyResult,
    )
    from feedrate.progress import Rejection

_FEW = 5


def draw_pack(result: PackResult, width: int | None = None) -> str:
    classes = _label_words(result.fields, result.classes)
    lines: list[Line] = [
        *_most_left_out(result),
        f"packed {format_count(result.samples, 'sample')} ({classes}) into {result.target}",
        *table_lines(
            [
                ("fields", ", ".join(_field_words(name, kind) for name, kind in result.fields.items())),
                ("size", f"{format_bytes(result.size_bytes)} in {format_count(result.shards, 'shard')}, "
                         f"from {format_bytes(result.source_bytes)} of files"),
                *_recoded_rows(result.recoded),
                ("time", _time_words(result)),
                ("decoder", _decoder_words(result.by_kernel, result.by_pillow)),
                ("ignored", _ignored_words(result.ignored)),
                ("left out", _if(result.unlisted, "image", "that the table does not name")),
                *_mapped_rows(result.mapped),
                *(summarise_quality(result.quality) if result.quality is not None else ()),
            ]
        ),
    ]  # fmt: skip
    lines += rejection_lines("rejected", result.rejected, "all of them: rejected.jsonl in the pack")
    lines += rejection_lines("damaged, but kept since Pillow decodes it", result.damaged, None)
    return lay_out([*lines, "", Command(f"next: feedrate verify {shell_quote(result.target)}")], width)


def _most_left_out(result: PackResult | IndexResult) -> list[str]:
    rejected = len(result.rejected)
    if rejected <= result.samples:
        return []
    whole = rejected + result.samples
    return [f"WARNING: most of the dataset was left out: {rejected:,} of {whole:,} samples, see below", ""]


def _label_words(fields: Mapping[str, str], classes: int | None) -> str:
    if classes is not None:
        return format_count(classes, "class", "classes")
    if "labels" in fields:
        return "several labels each"
    return "labels are numbers" if "label" in fields else "no labels"


def draw_index(result: IndexResult, width: int | None = None) -> str:
    classes = _label_words(result.fields, result.classes)
    where = "files of their own" if result.files is None else format_count(result.files, "file")
    resumed = ""
    if result.resumed_parts:
        resumed = f", {result.resumed_parts:,} of {result.parts:,} parts done before"
    rate = format_rate(result.samples / result.seconds, "samples") if result.seconds else ""
    lines: list[Line] = [
        *_most_left_out(result),
        f"indexed {format_count(result.samples, 'sample')} ({classes}) of {result.source}",
        *table_lines(
            [
                ("fields", ", ".join(_field_words(name, kind) for name, kind in result.fields.items())),
                ("samples", f"{format_bytes(result.source_bytes)} in {where}, where they were"),
                ("index", f"{format_bytes(result.index_bytes)} in {result.target}"),
                ("time", f"{format_seconds(result.seconds)}, {rate}{resumed}"),
                ("decoder", _decoder_words(result.by_kernel, result.by_pillow)),
                ("ignored", _count_words(result.ignored, "file") if result.ignored else ""),
                *(("left out", f"field '{name}': {why}") for name, why in result.left_out.items()),
            ]
        ),
    ]
    lines += rejection_lines("rejected", result.rejected, "all of them: rejected.jsonl beside the index")
    lines += rejection_lines("damaged, but kept since Pillow decodes it", result.damaged, None)
    next_line = (
        f"next: feedrate ls {shell_quote(result.target)}, or in Python feedrate.Loader({result.target!r})"
    )
    return lay_out([*lines, "", Command(next_line)], width)


def draw_unpack(result: UnpackResult, width: int | None = None) -> str:
    kept = f", {result.kept:,} of them were there already" if result.kept else ""
    files, time = format_count(result.files, "file"), format_seconds(result.seconds)
    lines = [f"restored {files} ({format_bytes(result.size_bytes)}) in {result.target}{kept}, in {time}"]
    if result.pixels:
        what = "samples" if _is_mapped(result.pixels) else "images"
        lines.append(f"these are not all the original files; packing changed {what} ({result.pixels})")
    return lay_out(lines, width)


def draw_verify(result: VerifyResult, width: int | None = None) -> str:
    samples, shards = format_count(result.samples, "sample"), format_count(result.shards, "shard")
    size, time = format_bytes(result.size_bytes), format_seconds(result.seconds)
    lines = [f"{result.pack}: {samples}, {shards}, {size}, checked in {time}"]
    lines += (
        [f"{'samples' if _is_mapped(result.pixels) else 'pixels'} are {result.pixels}"]
        if result.pixels
        else []
    )
    lines += [_extra_line(name) for name in result.extra_files]
    lines += [_problem_line(problem) for problem in result.problems]
    done = "indexed" if result.is_index else "packed"
    if not result.problems:
        lines.append(
            f"good: every byte is as it was {done}"
            if result.manifest_checked
            else f"good: every byte of its data is as it was {done}; pack.json is of an earlier version or "
            "was edited, and has no digest to check it by"
        )
    else:
        again = "index them" if result.is_index else "pack the source"
        lines += [format_count(len(result.problems), "problem")]
        lines += ["", f"next: restore the named files from a copy, or {again} again"]
    return lay_out(lines, width)


def _extra_line(name: str) -> str:
    if re.fullmatch(r"column-.+-[0-9a-f]{16}\.arrow", name):
        # A job that runs, or a pack that refers to this one, may read it still: it is not for us to delete.
        return f"column that was replaced, no part of the pack any more; delete it if nothing uses it: {name}"
    return f"extra file, no part of the pack: {name}"


def draw_description(description: PackDescription, width: int | None = None) -> str:
    classes = description.class_counts
    lines: list[Line] = [
        f"{description.pack}: {format_count(description.samples, 'sample')}",
        *table_lines(
            [
                *(("field", _summary_words(field)) for field in description.fields),
                ("samples" if _is_mapped(description.pixels) else "pixels", description.pixels),
                ("classes", f"{len(classes):,}: {most(classes)}" if classes else ""),
                *(("parts", f"{name}: {most(c)}") for name, c in description.column_counts.items()),
                ("shards", f"{description.shards:,}, {format_bytes(description.shard_bytes)}, "
                           f"and {format_bytes(description.index_bytes)} of index"),
                ("entries", _say_entries(description)),
                ("memory", say_resident(description.resident_share)),
                ("rejected", _if(description.rejected, "input", "(named in rejected.jsonl)")),
            ]
        ),
    ]  # fmt: skip
    if description.first_samples:
        lines += ["", ("key", "path", "bytes", "label")]
        lines += [(s.key, s.path, f"{s.size_bytes:,}", s.label or "") for s in description.first_samples]
    return lay_out(lines, width)


def _say_entries(description: PackDescription) -> str:
    """Say how far apart entry points are, where somebody has chosen that."""
    if len(description.entries) < 2 and "entries" not in description.settings:
        return ""
    return f"about every {' or '.join(f'{n:,}' for n in description.entries)} bytes of a JPEG"


def say_resident(share: float | None) -> str:
    if share is None:
        return "unknown: this file system does not say what the page cache holds"
    return f"{format_percent(share)} of it lies in the page cache"


def _is_mapped(words: str) -> bool:
    return words.startswith("mapped")


def table_lines(rows: Iterable[tuple[str, ...]]) -> list[Line]:
    """Return the rows that say something, their names at least as wide as in the other reports."""
    return [(f"{name:<7}", *cells) for name, *cells in rows if cells[-1]]


def _if(count: int, noun: str, rest: str) -> str:
    return f"{format_count(count, noun)} {rest}" if count else ""


def _field_words(name: str, kind: str) -> str:
    return name if name == kind else f"{name} ({kind})"


def _recoded_rows(recoded: Recoded | None) -> list[tuple[str, str]]:
    if recoded is None:
        return []
    images = format_count(recoded.images, "image")
    changes = [f"{recoded.resized:,} of them resized"] if recoded.resized else []
    changes += [f"{recoded.lossless:,} without loss"] if recoded.lossless else []
    how = f" ({', '.join(changes)})" if changes else ""
    kept = f"; {format_count(recoded.kept, 'image')} kept as they were" if recoded.kept else ""
    masks = f"; {format_count(recoded.masks, 'mask')} resized" if recoded.masks else ""
    before, after = format_bytes(recoded.before_bytes), format_bytes(recoded.after_bytes)
    rows = [
        (
            "samples" if _is_mapped(recoded.words) else "pixels",
            f"{recoded.words}; 'feedrate unpack' cannot give the original files back",
        ),
        ("", f"{images} stored anew{how}, {before} became {after}{kept}{masks}"),
    ]
    if recoded.rewritten:
        rows.append(("", f"normalised without loss: {_count_words(recoded.rewritten, None)}"))
    if recoded.encoded:
        rows.append(("", f"normalised by encoding anew: {_count_words(recoded.encoded, None)}"))
    after_resize = ", after the resize" if recoded.resized else ""
    if recoded.mean_psnr_db is not None:
        sample = format_count(recoded.psnr_images, "image")
        rows.append(
            ("", f"encoding left {recoded.mean_psnr_db:.1f} dB PSNR (mean of {sample}{after_resize})")
        )
    return rows


def _mapped_rows(mapped: Mapped | None) -> list[tuple[str, str]]:
    if mapped is None:
        return []
    rows = [("map", mapped.function)]
    saved = mapped.seconds_per_epoch
    if saved is not None:
        each = format_seconds(mapped.seconds / mapped.samples)
        rows = [
            ("map", f"{mapped.function} took {each} per sample: {format_seconds(saved)} of one core that")
        ]
        rows.append(("", "every epoch no longer spends, if it did this while training"))
    if mapped.left_out:
        rows.append(("", f"it left {format_count(mapped.left_out, 'sample')} out"))
    return rows


def _time_words(result: PackResult) -> str:
    text = format_seconds(result.seconds)
    if result.resumed_shards:
        return f"{text}; {format_count(result.resumed_shards, 'shard')} had been made before"
    return f"{text}, {format_bytes(result.source_bytes / max(result.seconds, 1e-9))}/s"


def _decoder_words(by_kernel: int, by_pillow: Mapping[str, int]) -> str:
    through_pillow = sum(by_pillow.values())
    if not through_pillow:
        return f"all {format_count(by_kernel, 'image')} by the kernel"
    why = _count_words(by_pillow, None)
    images = format_count(by_kernel, "image")
    return f"{images} by the kernel, {through_pillow:,} through Pillow, which is slower ({why})"


def _ignored_words(ignored: Mapping[str, int]) -> str:
    # Suffixes of files, or in words what was in a record file.
    are_files = all(name == "" or name.startswith(".") for name in ignored)
    return _count_words(ignored, "file" if are_files else None) if ignored else ""


def _count_words(counts: Mapping[str, int], noun: str | None) -> str:
    most = Counter(counts).most_common(_FEW)
    words = [f"{count:,} {name or 'without suffix'}" for name, count in most]
    rest = sum(counts.values()) - sum(count for _, count in most)
    if rest:
        words.append(f"{rest:,} {'other' if noun or rest == 1 else 'others'}")
    plural = "" if (rest or sum(counts.values())) == 1 else "s"
    return ", ".join(words) + (f" {noun}{plural}" if noun else "")


def rejection_lines(title: str, rejections: Sequence[Rejection], footer: str | None) -> list[Line]:
    if not rejections:
        return []
    lines: list[Line] = ["", f"{title}: {len(rejections):,}"]
    reasons = Counter(r.reason for r in rejections)
    for reason, count in reasons.most_common(_FEW):
        paths = [r.path for r in rejections if r.reason == reason][:3]
        more = ", ..." if count > len(paths) else ""
        lines.append((f"{count:>7,}", f"{reason}: {', '.join(paths)}{more}"))
    if len(reasons) > _FEW:
        lines.append(f"  {len(reasons) - _FEW:,} more reasons")
    return [*lines, *([f"  {footer}"] if footer else [])]


def _problem_line(problem: Problem) -> str:
    where = [
        f"sample '{problem.key}'" if problem.key else "",
        f"byte {problem.offset}" if problem.offset is not None else "",
    ]
    place = ", ".join(w for w in where if w)
    return f"{problem.file}{f' ({place})' if place else ''}: {problem.text}"


def _summary_words(field: FieldSummary) -> str:
    words = [_field_words(field.name, field.kind)]
    if field.dtype:
        words.append(field.dtype)
    if field.shape is not None:
        words.append("all " + " x ".join(str(n) for n in field.shape))
    elif field.mean_width is not None and field.mean_height is not None:
        words.append(f"{field.mean_height:.0f} x {field.mean_width:.0f} pixels on average (height x width)")
    if field.coding != "file":
        words.append(
            {"raw": "raw rows", "recoded": "encoded anew where asked for"}.get(field.coding, field.coding)
        )
    words.append(format_bytes(field.size_bytes))
    if field.kernel_share is not None:
        words.append(
            f"{field.kernel_share:.1%} {'read' if field.coding == 'raw' else 'decoded'} by the kernel"
        )
    return ", ".join(words)


def most(counts: Mapping[str, int]) -> str:
    most = Counter(counts).most_common(_FEW)
    return ", ".join(f"{name} {count:,}" for name, count in most) + (
        ", ..." if len(counts) > len(most) else ""
    )
