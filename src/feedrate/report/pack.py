# SPDX-License-Identifier: Apache-2.0
"""Results of the commands that make or change a pack, or an index, as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from feedrate.report.lines import (
    Command,
    Line,
    count_words,
    lay_out,
    name_largest,
    name_some,
    rejection_lines,
    table_lines,
)
from feedrate.report.quality import DEEP_REMEDY, summarise_quality
from feedrate.units import format_bytes, format_count, format_rate, format_seconds, shell_quote

if TYPE_CHECKING:  # a command that draws what it found need not load what others find
    from feedrate.packing.results import (
        AppendResult,
        ClassShare,
        ColumnResult,
        EntriesResult,
        IndexResult,
        Mapped,
        PackResult,
        Recoded,
        SplitResult,
    )


def draw_pack(result: PackResult, width: int | None = None) -> str:
    unlisted = format_count(result.unlisted, "image")
    rows = [
        ("fields", ", ".join(map(name_field, result.fields, result.fields.values()))),
        ("labels", _column_words(result.label_columns)),
        ("size", f"{format_bytes(result.size_bytes)} in {format_count(result.shards, 'shard')}, "
                 f"from {format_bytes(result.source_bytes)} of files"),
        *_recoded_rows(result.recoded, is_mapped=result.mapped is not None),
        ("time", _time_words(result)),
        ("decoder", _decoder_words(result.by_kernel, result.by_pillow)),
        *_pixel_rows(result),
        ("ignored", _ignored_words(result.ignored)),
        ("left out", f"{unlisted} that the table does not name" if result.unlisted else ""),
        *_mapped_rows(result.mapped),
        *(summarise_quality(result.quality) if result.quality is not None else ()),
    ]  # fmt: skip
    done = f"packed {format_count(result.samples, 'sample')} ({_label_words(result)}) into {result.target}"
    step = f"feedrate verify {shell_quote(result.target)}"
    return lay_out([*_list_made(result, done, rows, "in the pack"), "", Command(f"next: {step}")], width)


def _list_made(
    result: PackResult | IndexResult, done: str, rows: Iterable[tuple[str, ...]], where: str
) -> list[Line]:
    """Return what all of them say: how much was made, and of which samples it was not."""
    return [
        *_most_left_out(result),
        *_deep_words(result),
        done,
        *table_lines(rows),
        *rejection_lines("rejected", result.rejected, f"all of them: rejected.jsonl {where}"),
        *rejection_lines("damaged, but kept since Pillow decodes it", result.damaged),
    ]


def _column_words(columns: tuple[str, ...]) -> str:
    names = ", ".join(f"'{name}'" for name in columns[:8]) + (", ..." if len(columns) > 8 else "")
    return f"{'column' if len(columns) == 1 else 'columns'} {names} of the table" if columns else ""


def _most_left_out(result: PackResult | IndexResult) -> list[str]:
    rejected = len(result.rejected)
    if rejected <= result.samples:
        return []
    whole = rejected + result.samples
    return [f"WARNING: most of the dataset was left out: {rejected:,} of {whole:,} samples, see below", ""]


def _deep_words(result: PackResult | IndexResult) -> list[str]:
    deep, images = result.deep_images, result.by_kernel + sum(result.by_pillow.values())
    if not deep:
        return []
    of_all = f"all {images:,}" if deep == images else f"{deep:,} of {images:,}"
    are = ("images" if images > 1 else "image") + (" are" if deep > 1 else " is")
    return [f"WARNING: {of_all} {are} gray of more than 8 bits: {DEEP_REMEDY}", ""]


def _label_words(result: PackResult | IndexResult) -> str:
    if result.classes is not None:
        return format_count(result.classes, "class", "classes")
    if "labels" in result.fields:
        return "several labels each"
    return "labels are numbers" if "label" in result.fields else "no labels"


def draw_index(result: IndexResult, width: int | None = None) -> str:
    where = "files of their own" if result.files is None else format_count(result.files, "file")
    resumed = ""
    if result.resumed_parts:
        resumed = f", {result.resumed_parts:,} of {result.parts:,} parts done before"
    rate = format_rate(result.samples / result.seconds, "samples") if result.seconds else ""
    rows = [
        ("fields", ", ".join(map(name_field, result.fields, result.fields.values()))),
        ("samples", f"{format_bytes(result.source_bytes)} in {where}, where they were"),
        ("index", f"{format_bytes(result.index_bytes)} in {result.target}"),
        ("time", f"{format_seconds(result.seconds)}, {rate}{resumed}"),
        ("decoder", _decoder_words(result.by_kernel, result.by_pillow)),
        ("ignored", count_words(result.ignored, "file") if result.ignored else ""),
        *(("left out", f"field '{name}': {why}") for name, why in result.left_out.items()),
    ]
    done = f"indexed {format_count(result.samples, 'sample')} ({_label_words(result)}) of {result.source}"
    lines = _list_made(result, done, rows, "beside the index")
    lines += ["", f"note: {result.to_allow}"] if result.to_allow else []
    split = f', split="{result.split}"' if result.split else ""
    depth = ", depth=..." if result.deep_images else ""
    loader = f"feedrate.Loader({result.target!r}{split}{depth})"
    next_line = f"next: feedrate ls {shell_quote(result.target)}, or in Python {loader}"
    return lay_out([*lines, "", Command(next_line)], width)


def name_field(name: str, kind: str) -> str:
    return name if name == kind else f"{name} ({kind})"


def _recoded_rows(recoded: Recoded | None, *, is_mapped: bool) -> list[tuple[str, str]]:
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
            "samples" if is_mapped else "pixels",
            f"{recoded.words}; 'feedrate unpack' cannot give the original files back",
        ),
        ("", f"{images} stored anew{how}, {before} became {after}{kept}{masks}"),
    ]
    if recoded.rewritten:
        rows.append(("", f"normalised without loss: {count_words(recoded.rewritten)}"))
    if recoded.encoded:
        rows.append(("", f"normalised by encoding anew: {count_words(recoded.encoded)}"))
    if recoded.mean_psnr_db is not None:
        sample = format_count(recoded.psnr_images, "image") + (
            ", after the resize" if recoded.resized else ""
        )
        rows.append(("", f"encoding left {recoded.mean_psnr_db:.1f} dB PSNR (mean of {sample})"))
    return rows


def _mapped_rows(mapped: Mapped | None) -> list[tuple[str, str]]:
    if mapped is None:
        return []
    saved = mapped.seconds_per_epoch
    if saved is None:
        rows = [("map", mapped.function)]
    else:
        each = format_seconds(mapped.seconds / mapped.samples)
        rows = [
            ("map", f"{mapped.function} took {each} per sample: {format_seconds(saved)} of one core that"),
            ("", "every epoch no longer spends, if it did this while training"),
        ]
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
    why = count_words(by_pillow)
    images = format_count(by_kernel, "image")
    return f"{images} by the kernel, {through_pillow:,} through Pillow, which is slower ({why})"


def _pixel_rows(result: PackResult) -> list[tuple[str, str]]:
    """Say what suits images that come as bare pixels, as those of HDF5 do: they are stored as PPM."""
    formats = () if result.quality is None else result.quality.formats
    if result.recoded is not None or not formats or any(one.name != "PPM" for one in formats):
        return []
    return [("", "stored as pixels anyway: with --raw the kernel reads them")]


def _ignored_words(ignored: Mapping[str, int]) -> str:
    # Suffixes of files, or in words what was in a record file.
    are_files = all(name == "" or name.startswith(".") for name in ignored)
    return count_words(ignored, "file" if are_files else "") if ignored else ""


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
