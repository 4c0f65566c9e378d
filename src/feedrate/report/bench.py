# SPDX-License-Identifier: Apache-2.0
"""Results of `bench loader` and `demo` as tables and words, which rich prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from feedrate.bench.results import BenchResult
from feedrate.demo.results import DemoResult
from feedrate.loader.results import PixelCheck
from feedrate.units import format_bytes, format_count, format_ratio, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

# Two medians on a shared machine differ by this much without a reason.
_NOISE = 0.05


def draw_bench(result: BenchResult, width: int | None = None) -> Group:  # noqa: ARG001 - rich knows it
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
    head = (
        f"{result.source}: {format_count(result.dataset_images, 'image')}, crops of {result.image_side} x "
        f"{result.image_side}, batches of {result.batch_size}, {result.threads} threads or workers, "
        f"{format_count(rounds, 'round')}, files in the page cache"
    )
    return make_report(head, table, describe_pixels(result.pixels), describe_ratio(result))


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


def describe_ratio(result: BenchResult | DemoResult) -> Text:
    """Return the verdict in one sentence; losses are said as plainly as gains."""
    from rich.text import Text

    ratio, before, after = format_ratio(result.ratio), result.before.contestant, result.after.contestant
    if result.ratio > 1 + _NOISE:
        return Text(f"{after} gives {ratio} the images per second of {before}.", "bold")
    if result.ratio < 1 - _NOISE:
        return Text(f"{after} loses here: {ratio} the images/s of {before}.", "bold")
    return Text(f"No difference here beyond noise ({ratio} the images per second).", "bold")


def draw_demo(result: DemoResult, width: int | None = None) -> Group:  # noqa: ARG001 - rich knows it
    before, after = result.before, result.after
    table = make_table("", before.contestant, after.contestant, "ratio")
    rates = [f"{one.images_per_s:,.0f}" for one in (before, after)]
    table.add_row("images per second", *rates, format_ratio(result.ratio))
    waits = [f"{format_seconds(one.wait_s)} ({one.wait_share:.0%})" for one in (before, after)]
    table.add_row("waited for data", *waits, _ratio(after.wait_s, before.wait_s))
    for name, attribute, describe in (
        ("CPU time per image", "cpu_s_per_image", format_seconds),
        ("peak memory", "peak_memory_bytes", format_bytes),
    ):
        first, second = (getattr(one, attribute) for one in (before, after))
        table.add_row(name, describe(first), describe(second), _ratio(second, first))
    if before.accuracy is not None and after.accuracy is not None:
        compared = compare_accuracies(before.accuracy, after.accuracy, result.held_out_images)
        table.add_row("accuracy, held out", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}", compared)
    packing = f"Packing {format_count(result.images, 'image')} took {format_seconds(result.pack_s)}, once."
    following = (
        "\nNext, with your own images:\n"
        "  feedrate bench loader FOLDER     the same comparison on them, without training\n"
        "  feedrate pack FOLDER PACK        pack them once\n"
        '  feedrate.Loader("PACK", ...)     in place of the DataLoader in your script'
    )
    kept = [] if result.kept is None else [f"\nImages and pack are kept in {result.kept}"]
    return make_report(table, describe_ratio(result), packing, following, *kept)


def compare_accuracies(before: float, after: float, images: int) -> str:
    """Say whether so many held-out images can tell the two accuracies from chance."""
    # Two standard errors of a difference of two shares; that crops are random adds to it.
    mean = (before + after) / 2
    if abs(after - before) <= 2 * math.sqrt(2 * mean * (1 - mean) / images):
        return "within chance"
    return f"{100 * (after - before):+.1f} points"


def _ratio(after: float, before: float) -> str:
    return format_ratio(after / before) if before else "-"


def make_report(*parts: str | Text | Table) -> Group:
    """Put texts and tables below each other; a text is shown as it is, whatever rich would read in it."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(part) if isinstance(part, str) else part for part in parts))


def make_table(*columns: str) -> Table:
    """Return a table whose first column is of names and whose others are of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return table
