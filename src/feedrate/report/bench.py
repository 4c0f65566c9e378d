# SPDX-License-Identifier: Apache-2.0
"""Results of `bench loader` and `demo` as tables and words."""

from __future__ import annotations

import math

from feedrate.bench.results import BenchResult
from feedrate.demo.results import DemoResult
from feedrate.loader.results import PixelCheck
from feedrate.report.lines import Command, Number, lay_out
from feedrate.units import format_bytes, format_count, format_ratio, format_seconds

# Two medians on a shared machine differ by this much without a reason.
_NOISE = 0.05


def draw_bench(result: BenchResult, width: int | None = None) -> str:
    before, after = result.before, result.after
    rounds = 1 + max(run.round for run in result.runs)
    head = (
        f"{result.source}: {format_count(result.dataset_images, 'image')}, crops of {result.image_side} x "
        f"{result.image_side}, batches of {result.batch_size}, {result.threads} threads or workers, "
        f"{format_count(rounds, 'round')}, files in the page cache"
    )
    rows = [
        (
            one.contestant,
            f"{one.images_per_s:,.0f}",
            f"{one.slow_images_per_s:,.0f}-{one.fast_images_per_s:,.0f}",
            format_seconds(one.cpu_s_per_image),
            format_bytes(one.peak_memory_bytes),
            format_seconds(one.first_batch_s),
        )
        for one in (before, after)
    ]
    ratios = (
        "ratio",
        format_ratio(result.ratio),
        "",
        _ratio(after.cpu_s_per_image, before.cpu_s_per_image),
        _ratio(after.peak_memory_bytes, before.peak_memory_bytes),
        _ratio(after.first_batch_s, before.first_batch_s),
    )
    titles = ("", "images/s", "quartiles", "CPU/image", "memory", "first batch")
    end = [describe_pixels(result.pixels), describe_ratio(result)]
    return lay_out([head, "", *map(_numbers, (titles, *rows, ratios)), "", *end], width)


def describe_pixels(pixels: PixelCheck) -> str:
    crops = format_count(pixels.images, "random crop")
    if pixels.by_pillow:
        crops += f" ({pixels.by_pillow} by Pillow both times: not for the kernel)"
    if pixels.lowest_psnr_db is None:
        return f"Pixels: {crops} are equal to Pillow's in every pixel."
    differ = f"differ by at most {format_count(pixels.largest_difference, 'level')} of 255"
    psnr = f"PSNR {pixels.lowest_psnr_db:.1f} dB or more"
    if pixels.is_same:
        return f"Pixels: {crops} {differ} from Pillow's ({psnr}): the same but for rounding."
    return f"Pixels: NOT the same: {crops} {differ} from Pillow's ({psnr}). Please report this as a bug."


def describe_ratio(result: BenchResult | DemoResult) -> str:
    """Return the verdict in one sentence; losses are said as plainly as gains."""
    ratio, before, after = format_ratio(result.ratio), result.before.contestant, result.after.contestant
    if result.ratio > 1 + _NOISE:
        return f"{after} gives {ratio} the images per second of {before}."
    if result.ratio < 1 - _NOISE:
        return f"{after} loses here: {ratio} the images/s of {before}."
    return f"No difference here beyond noise ({ratio} the images per second)."


def draw_demo(result: DemoResult, width: int | None = None) -> str:
    before, after = result.before, result.after
    both = (before, after)
    rows = [
        ("", before.contestant, after.contestant, "ratio"),
        ("images per second", *(f"{one.images_per_s:,.0f}" for one in both), format_ratio(result.ratio)),
        (
            "waited for data",
            *(f"{format_seconds(one.wait_s)} ({one.wait_share:.0%})" for one in both),
            _ratio(after.wait_s, before.wait_s),
        ),
        (
            "CPU time per image",
            *(format_seconds(one.cpu_s_per_image) for one in both),
            _ratio(after.cpu_s_per_image, before.cpu_s_per_image),
        ),
        (
            "peak memory",
            *(format_bytes(one.peak_memory_bytes) for one in both),
            _ratio(after.peak_memory_bytes, before.peak_memory_bytes),
        ),
    ]
    if before.accuracy is not None and after.accuracy is not None:
        compared = compare_accuracies(before.accuracy, after.accuracy, result.held_out_images)
        rows.append(("accuracy, held out", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}", compared))
    packing = f"Packing {format_count(result.images, 'image')} took {format_seconds(result.pack_s)}, once."
    following = [
        "Next, with your own images:",
        Command("  feedrate bench loader FOLDER     the same comparison on them, without training"),
        Command("  feedrate pack FOLDER PACK        pack them once"),
        Command('  feedrate.Loader("PACK", ...)     in place of the DataLoader in your script'),
    ]
    kept = [] if result.kept is None else ["", f"Images and pack are kept in {result.kept}"]
    return lay_out([*map(_numbers, rows), "", describe_ratio(result), packing, "", *following, *kept], width)


def compare_accuracies(before: float, after: float, images: int) -> str:
    """Say whether so many held-out images can tell the two accuracies from chance."""
    # Two standard errors of a difference of two shares; that crops are random adds to it.
    mean = (before + after) / 2
    if abs(after - before) <= 2 * math.sqrt(2 * mean * (1 - mean) / images):
        return "within chance"
    return f"{100 * (after - before):+.1f} points"


def _ratio(after: float, before: float) -> str:
    return format_ratio(after / before) if before else "-"


def _numbers(row: tuple[str, ...]) -> tuple[str, ...]:
    return (row[0], *map(Number, row[1:]))
