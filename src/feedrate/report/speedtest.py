# SPDX-License-Identifier: Apache-2.0
"""The result of `feedrate speedtest` as words and a table."""

from __future__ import annotations

from collections.abc import Callable

from feedrate.bench.results import SpeedStanding, SpeedtestResult
from feedrate.report.lines import Command, Line, lay_out
from feedrate.units import format_bytes, format_count, format_percent, format_ratio, format_seconds


def draw_speedtest(result: SpeedtestResult, width: int | None = None) -> str:
    loading = [*_list_loading(result.before), *_list_loading(result.after)]
    notes = [f"note: {note}" for note in result.notes]
    end = ["", result.verdict, result.advice, Command(f"  {result.next_command}")]
    return lay_out([*_head(result), *notes, "", *_list_rows(result), "", *loading, *end], width)


def _list_rows(result: SpeedtestResult) -> list[Line]:
    def row(name: str, draw: Callable[[SpeedStanding], str], ratio: str = "") -> tuple[str, ...]:
        return name, draw(result.before), draw(result.after), ratio

    rows = [
        row("", lambda one: one.contestant, "ratio"),
        row("images/s trained", _rate, format_ratio(result.ratio)),
        row("images/s, loader alone", lambda one: _number(one.alone_images_per_s)),
        row("waiting for data", lambda one: format_percent(one.wait_share)),
        row("copy to the device", lambda one: _copy(one, result)),
        row("computing", lambda one: format_percent(one.compute_share)),
        row("CPU time in total", lambda one: format_seconds(one.cpu_s)),
        row("device time in total", lambda one: format_seconds(one.device_s)),
        row("images in that time", lambda one: f"{one.images:,}"),
    ]
    if result.after.utilisation is not None:
        rows.append(row("GPU utilisation", lambda one: _percent(one.utilisation)))
    if result.after.power_w is not None:
        rows.append(row("GPU power", lambda one: _watts(one.power_w)))
    return [*rows]


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
    return [*rows, ("measured", f"just now, all of it, in {format_seconds(result.seconds)}")]


def _say_source(result: SpeedtestResult) -> str:
    subset = result.subset
    if result.source is None:
        return "made here"
    if subset.is_whole_listing and subset.images == subset.listed:
        return f"all of {result.source}"
    of = "" if subset.is_whole_listing else " that could be listed in time"
    return f"drawn from the {subset.listed:,} images of {result.source}{of}"


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
