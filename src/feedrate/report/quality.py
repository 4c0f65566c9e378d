# SPDX-License-Identifier: Apache-2.0
"""The quality of a dataset, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from feedrate.report.lines import Line
from feedrate.units import format_bytes, format_count, format_percent, format_seconds

if TYPE_CHECKING:  # as in `report.pack`, which needs a few lines of this
    from feedrate.packing.results import ClassSize, Oddity, Quality

_FEW_EXAMPLES, _FEW_CLASSES, _BAR = 3, 8, 24


DEEP_REMEDY = 'loading them needs depth="uint16", (low, high) or "clip"'

# What a code means, and what it means for training.
_MEANINGS = {
    "missing": ("rows name files that do not exist", "is part of the dataset elsewhere?"),
    "unreadable": ("unreadable", "look at the disk, or at the rights"),
    "empty": ("empty", "nothing can be learnt from them"),
    "truncated": ("cut short", "a copy or a download that did not end; fetch them again"),
    "corrupt": ("damaged, or no image at all", "nobody decodes them"),
    "outside": ("outside of the source folder", "pack the folder that holds them all"),
    "named-twice": ("named twice by the table", "the first row counts: which label is right?"),
    "incomplete": ("without a label, a value or a file", "see the table"),
    "too-large": ("too large for a shard's format", "--format tar holds them"),
    "map-failed": ("your function failed", "see its messages"),
    "duplicate": ("copies of others", "they weigh twice, and may leak from training into validation"),
    "wrong-suffix": ("other than the suffix says", "harmless here; other programs may stumble"),
    "rotated": ("on their side (EXIF)", "loading leaves them as they lie: --normalise turns them upright"),
    "slow": ("far slower to decode than the median", "they hold up their batch: --max-side shrinks them"),
    "deep": ("gray of more than 8 bits", f"{DEEP_REMEDY}: what is white?"),
    "animated": ("more than one frame", "only the first is used"),
    "cmyk": ("CMYK", "decoded by Pillow: --normalise makes RGB of them"),
    "alpha": ("alpha channel", "it is dropped when they are loaded"),
    "progressive": ("progressive JPEG", "decoded by Pillow, many times slower: --normalise costs no pixel"),
    "gray": ("no colour", "loaded as three equal channels, or as one if asked for"),
}
# Of no concern where all of the dataset is like that.
_COMMON = frozenset(("gray", "alpha", "progressive", "cmyk"))


def list_quality(quality: Quality) -> list[Line]:
    """Return the whole report as plain lines."""
    lines: list[Line] = [describe_verdict(quality)]
    if quality.left_out:
        lines.append(f"{format_count(quality.left_out, 'sample')} left out by the map")
    for oddity in quality.oddities:
        lines += ["", *_draw_oddity(oddity)]
    if quality.formats:
        lines += ["", "formats", *((name, words) for name, _, words in list_formats(quality))]
    for title, counts in (("shorter side", quality.short_sides), ("longer side", quality.long_sides)):
        if counts:
            lines += ["", f"{title} in pixels", *_draw_bars(counts)]
    if quality.smallest is not None and quality.largest is not None:
        extremes = (("smallest", quality.smallest), ("largest", quality.largest))
        lines.append("  " + "; ".join(f"{w}: {one.width} x {one.height} ({one.path})" for w, one in extremes))
    if quality.classes:
        lines += ["", describe_classes(quality), *_draw_classes(quality)]
    return lines


def summarise_quality(quality: Quality) -> list[tuple[str, ...]]:
    """Return the rows that `feedrate pack` shows: a line per kind of oddity."""
    rows: list[tuple[str, ...]] = []
    for oddity in quality.oddities:
        text = f"{describe_code(oddity.code)}: {describe_done(oddity)}"
        if oddity.code == "duplicate":
            text += _describe_conflict(quality)
        rows.append(("quality" if not rows else "", f"{oddity.samples:>7,}", text))
    if not rows:
        rows.append(("quality", "nothing odd was found"))
    if quality.imbalance is not None and quality.imbalance >= 2:
        rows.append(("", describe_classes(quality)))
    return rows


def describe_counts(quality: Quality) -> str:
    words = [format_count(quality.samples, "sample")]
    if quality.rejected:
        words.append(f"{quality.rejected:,} rejected")
    if quality.left_out:
        words.append(f"{quality.left_out:,} left out by the map")
    return ", ".join(words)


def list_urgent(quality: Quality) -> list[Oddity]:
    """Return what deserves a look."""
    return [one for one in quality.oddities if not _is_no_concern(one, quality)]


def describe_verdict(quality: Quality) -> str:
    """Return one sentence that says how things stand."""
    urgent = list_urgent(quality)
    if not urgent:
        return "good: nothing that deserves a look was found"
    rejected = sum(one.done.get("rejected", 0) for one in urgent)
    kinds = format_count(len(urgent), "kind")
    # One sample may be odd in two ways.
    packed = (
        f"{format_count(rejected, 'input')} could not be packed" if rejected else "all samples were packed"
    )
    return f"{kinds} of oddities deserve a look; {packed}"


def _is_no_concern(oddity: Oddity, quality: Quality) -> bool:
    return _is_settled(oddity) or (oddity.code in _COMMON and oddity.samples >= quality.samples)


def _is_settled(oddity: Oddity) -> bool:
    return not oddity.done.get("kept") and not oddity.done.get("rejected")


def describe_code(code: str) -> str:
    return _MEANINGS.get(code, (code, ""))[0]


def describe_meaning(oddity: Oddity) -> str:
    """Return what it means for training; nothing where it has been taken care of."""
    return "" if _is_settled(oddity) else _MEANINGS.get(oddity.code, ("", ""))[1]


def describe_done(oddity: Oddity) -> str:
    """Return `3 kept, 1 rejected`, or `all kept`."""
    if len(oddity.done) == 1:
        done = next(iter(oddity.done))
        return f"{'all ' if oddity.samples > 1 else ''}{done}"
    return ", ".join(f"{count:,} {done}" for done, count in sorted(oddity.done.items()))


def list_formats(quality: Quality) -> list[tuple[str, int, str]]:
    """Return of each format its name, its images, and these in words."""
    images = max(1, sum(one.images for one in quality.formats))
    return [
        (one.name, one.images,
         f"{one.images:,} ({format_percent(one.images / images)}), {format_bytes(one.size_bytes)}")
        for one in quality.formats
    ]  # fmt: skip


def describe_classes(quality: Quality) -> str:
    most = max(quality.classes, key=lambda one: one.samples)
    least = min(quality.classes, key=lambda one: one.samples)
    classes = format_count(len(quality.classes), "class", "classes")
    if most.samples == least.samples:
        return f"{classes} of {format_count(most.samples, 'sample')} each"
    fewer = f"{least.samples:,} ({quality.imbalance:,.3g} times fewer)" if least.samples else "none"
    return f"{classes}: {most.name} has {format_count(most.samples, 'sample')}, {least.name} {fewer}"


def describe_duplicates(quality: Quality) -> str:
    found = quality.duplicates
    groups = f"{format_count(found.copies, 'copy', 'copies')} in {format_count(found.groups, 'group')}"
    return f"{groups}, {format_bytes(found.size_bytes)}{_describe_conflict(quality)}"


def _describe_conflict(quality: Quality) -> str:
    groups = format_count(quality.duplicates.conflicting, "group")
    return f"; {groups} with different labels" if quality.duplicates.conflicting else ""


def describe_cost(quality: Quality) -> str:
    if quality.median_cost_us is None:
        return ""
    return f"the image in the middle takes about {format_seconds(quality.median_cost_us / 1e6)} to decode"


def _draw_oddity(oddity: Oddity) -> list[str]:
    meaning = describe_meaning(oddity)
    lines = [f"{describe_code(oddity.code)}: {oddity.samples:,}, {describe_done(oddity)}"]
    lines += [f"  ({meaning})"] if meaning else []
    lines += [f"  {one.path}: {one.detail}" for one in oddity.examples[:_FEW_EXAMPLES]]
    more = oddity.samples - min(len(oddity.examples), _FEW_EXAMPLES)
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def _draw_bars(counts: Mapping[str, int]) -> list[str]:
    most, width = max(counts.values()), max(map(len, counts))
    return [f"  {name:>{width}}  {_bar(count, most)}  {count:,}" for name, count in counts.items()]


def _bar(count: int, most: int) -> str:
    # What is there at all is seen.
    return f"{'#' * max(round(_BAR * count / max(most, 1)), bool(count)):<{_BAR}}"


def _draw_classes(quality: Quality) -> list[Line]:
    shown, skipped = pick_classes(quality, _FEW_CLASSES)
    lines: list[Line] = [
        (one.name, _bar(one.samples, shown[0].samples), f"{one.samples:,}, {format_bytes(one.size_bytes)}")
        for one in shown
    ]
    if skipped:
        lines.insert(_FEW_CLASSES // 2, (f"... {skipped:,} more ...",))
    return lines


def pick_classes(quality: Quality, most: int) -> tuple[list[ClassSize], int]:
    """Return the largest and the smallest classes, and how many are between them."""
    classes = sorted(quality.classes, key=lambda one: (-one.samples, one.name))
    if len(classes) <= most:
        return classes, 0
    return [*classes[: most // 2], *classes[-most // 2 :]], len(classes) - most
