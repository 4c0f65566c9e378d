# SPDX-License-Identifier: Apache-2.0
"""The result of `feedrate speedtest` as tables and words, which rich prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from feedrate.bench.results import SpeedStanding, SpeedtestResult
from feedrate.report.bench import make_report, make_table
from feedrate.report.lines import lay_out
from feedrate.units import format_bytes, format_count, format_percent, format_ratio, format_seconds

if TYPE_CHECKING:
    from rich.console import Group


def draw_speedtest(result: SpeedtestResult, width: int | None = None) -> Group:
    from rich.text import Text

    before, after = result.before, result.after
    table = make_table("", before.contestant, after.contestant, "ratio")
    table.add_row("images/s trained", *_each(result, _rate), format_ratio(result.ratio), style="bold")
    table.add_row("images/s, loader alone", *_each(result, lambda one: _number(one.alone_images_per_s)))
    table.add_row("waiting for data", *_each(result, lambda one: format_percent(one.wait_share)))
    table.add_row("copy to the device", *_each(result, lambda one: _copy(one, result)))
    table.add_row("computing", *_each(result, lambda one: format_percent(one.compute_share)))
    table.add_row("CPU time in total", *_each(result, lambda one: format_seconds(one.cpu_s)))
    table.add_row("device time in total", *_each(result, lambda one: format_seconds(one.device_s)))
    table.add_row("images in that time", *_each(result, lambda one: f"{one.images:,}"))
    if after.utilisation is not None:
        table.add_row("GPU utilisation", *_each(result, lambda one: _percent(one.utilisation)))
    if after.power_w is not None:
        table.add_row("GPU power", *_each(result, lambda one: _watts(one.power_w)))
    lines = [*_list_loading(before), *_list_loading(after)]
    head = lay_out([*_head(result), *(f"note: {note}" for note in result.notes)], width)
    tail = lay_out([*lines, "", result.verdict], width)
    advice = lay_out([result.advice, f"  {result.command}"], None)
    return make_report(head.rstrip("\n"), table, Text(tail.rstrip("\n")), advice.rstrip("\n"))


def _head(result: SpeedtestResult) -> list[tuple[str, str]]:
    alone, subset = result.device_alone, result.subset
    where = result.device_kind if result.device_kind == "cuda" else "the CPU"
    pixels = f"{result.image_side} x {result.image_side} pixels"
    labels = f"of {format_count(subset.labels, 'label')}" if subset.labels else "without labels"
    images = f"{format_count(subset.images, 'image')} {labels}, {format_bytes(subset.size_bytes)}"
    rates = f"{_number(alone.images_per_s)} images/s ({_number(alone.low)}-{_number(alone.high)})"
    rows = [
        ("device", f"{result.device} ({where})"),
        ("model", f"{result.model}, {result.dtype}, batches of {result.batch_size}, {pixels}"),
        ("images", f"{images}, {_say_source(result)}"),
        ("device alone", f"{rates}, batches on it already"),
        ("loaders", f"{format_count(result.workers, 'worker')} or threads each, files in the page cache"),
    ]
    if subset.read_images_per_s is not None:
        share = subset.cached_share
        cached = "" if share is None else f", {format_percent(share)} in the page cache"
        rate, readers = _number(subset.read_images_per_s), format_count(subset.readers, "reader")
        rows.append(("storage", f"{rate} images/s to {readers}, files as they were found{cached}"))
    return rows


def _say_source(result: SpeedtestResult) -> str:
    subset = result.subset
    if result.source is None:
        return "made here"
    if subset.is_whole_listing and subset.images == subset.listed:
        return f"all of {result.source}"
    of = "" if subset.is_whole_listing else " that could be listed in time"
    return f"drawn from the {subset.listed:,} images of {result.source}{of}"


def _each(result: SpeedtestResult, draw: Callable[[SpeedStanding], str]) -> tuple[str, str]:
    return draw(result.before), draw(result.after)


def _rate(one: SpeedStanding) -> str:
    return f"{_number(one.images_per_s)} ({_number(one.low_images_per_s)}-{_number(one.high_images_per_s)})"


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _copy(one: SpeedStanding, result: SpeedtestResult) -> str:
    if result.device_kind == "cpu":
        return "-"
    return "while it computes" if one is result.after else format_percent(one.copy_share)


def _percent(share: float | None) -> str:
    return "-" if share is None else format_percent(share)


def _watts(power_w: float | None) -> str:
    return "-" if power_w is None else f"{power_w:.0f} W"


def _list_loading(one: SpeedStanding) -> list[str]:
    shares = [f"{name} {format_percent(share)}" for name, share in one.loading.items()]
    if not shares:
        return []
    there = f"; {format_percent(one.by_gpu_share)} of the images on the GPU" if one.by_gpu_share else ""
    return [f"loading by {one.contestant}: {', '.join(shares)}{there}"]
