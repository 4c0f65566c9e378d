# SPDX-License-Identifier: Apache-2.0
"""Draw the results of `bench` and `demo`, one table each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from feedrate.bench.results import BenchResult, DemoResult, Standing
from feedrate.loader.results import PixelCheck
from feedrate.units import format_bytes, format_count, format_ratio, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Two medians on a shared machine differ by this much without a reason.
_NOISE = 0.05


def draw_bench(result: BenchResult, console: Console) -> None:
    before, after = result.before, result.after
    table = make_table("", "images/s", "quartiles", "CPU/image", "memory", "first batch")
    for one, style in ((before, ""), (after, "bold")):
        table.add_row(
            one.contestant,
            f"{one.images_per_s:,.0f}",
            f"{one.slow_images_per_s:,.0f}-{one.fast_images_per_s:,.0f}",
            format_seconds(one.cpu_s_per_image),
            format_bytes(one.peak_memory_bytes),
            format_seconds(one.first_batch_s),
            style=style,
        )
    table.add_row(
        "ratio",
        format_ratio(result.ratio),
        "",
        format_ratio(after.cpu_s_per_image / before.cpu_s_per_image),
        format_ratio(after.peak_memory_bytes / before.peak_memory_bytes),
        format_ratio(after.first_batch_s / before.first_batch_s),
    )
    rounds = 1 + max(run.round for run in result.runs)
    console.print(
        f"{result.source}: {format_count(result.dataset_images, 'image')}, crops of {result.image_side} x "
        f"{result.image_side}, batches of {result.batch_size}, {result.threads} threads or workers, "
        f"{format_count(rounds, 'round')}, files in the page cache",
        highlight=False, markup=False,
    )  # fmt: skip
    console.print(table)
    console.print(describe_pixels(result.pixels), highlight=False)
    console.print(describe_ratio(result.ratio, before, after), style="bold", highlight=False)


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


def describe_ratio(ratio: float, before: Standing, after: Standing) -> str:
    """Return the verdict in one sentence; losses are said as plainly as gains."""
    if ratio > 1 + _NOISE:
        return f"{after.contestant} gives {format_ratio(ratio)} the images per second of {before.contestant}."
    if ratio < 1 - _NOISE:
        return f"{after.contestant} loses here: {format_ratio(ratio)} the images/s of {before.contestant}."
    return f"No difference here beyond noise ({format_ratio(ratio)} the images per second)."


def draw_demo(result: DemoResult, console: Console) -> None:
    before, after = result.before, result.after
    table = make_table("", before.contestant, after.contestant, "ratio")

    def add(name: str, first: str, second: str, ratio: str) -> None:
        table.add_row(name, first, second, ratio)

    add(
        "images per second",
        f"{before.images_per_s:,.0f}",
        f"{after.images_per_s:,.0f}",
        format_ratio(result.ratio),
    )
    add("waited for data", _describe_wait(before), _describe_wait(after), _ratio(after.wait_s, before.wait_s))
    add("CPU time per image", format_seconds(before.cpu_s_per_image), format_seconds(after.cpu_s_per_image),
        _ratio(after.cpu_s_per_image, before.cpu_s_per_image))  # fmt: skip
    add("peak memory", format_bytes(before.peak_memory_bytes), format_bytes(after.peak_memory_bytes),
        _ratio(after.peak_memory_bytes, before.peak_memory_bytes))  # fmt: skip
    if before.accuracy is not None and after.accuracy is not None:
        compared = compare_accuracies(before.accuracy, after.accuracy, result.held_out_images)
        add("accuracy, held out", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}", compared)
    console.print(table)
    console.print(describe_ratio(result.ratio, before, after), style="bold", highlight=False)
    packing = f"Packing {format_count(result.images, 'image')} took {format_seconds(result.pack_s)}, once."
    console.print(packing, highlight=False)
    console.print(_describe_next(result), highlight=False, markup=False)


def compare_accuracies(before: float, after: float, images: int) -> str:
    """Say whether so many held-out images can tell the two accuracies from chance."""
    # Two standard errors of a difference of two shares; that crops are random adds to it.
    mean = (before + after) / 2
    if abs(after - before) <= 2 * math.sqrt(2 * mean * (1 - mean) / images):
        return "within chance"
    return f"{100 * (after - before):+.1f} points"


def _describe_wait(one: Standing) -> str:
    return f"{format_seconds(one.wait_s)} ({one.wait_share:.0%})"


def _ratio(after: float, before: float) -> str:
    return format_ratio(after / before) if before else "-"


def _describe_next(result: DemoResult) -> str:
    lines = [
        "",
        "Next, with your own images:",
        "  feedrate bench loader FOLDER     the same comparison on them, without training",
        "  feedrate pack FOLDER PACK        pack them once",
        '  feedrate.Loader("PACK", ...)     in place of the DataLoader in your script',
    ]
    if result.kept is not None:
        lines += ["", f"Images and pack are kept in {result.kept}"]
    return "\n".join(lines)


def make_table(*columns: str) -> Table:
    """Return a table whose first column is of names and whose others are of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return table
