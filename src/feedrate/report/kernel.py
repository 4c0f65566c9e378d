# SPDX-License-Identifier: Apache-2.0
"""Draw the result of `bench kernel`: per set a table of decoders, and one of the kernel's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedrate.bench.results import KernelResult, KernelSet, KernelStanding
from feedrate.report.bench import make_table
from feedrate.units import format_bytes, format_count, format_ratio, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


_NOT_ANTIALIASED = ("bicubic", "lanczos")  # by OpenCV


def draw_kernel(result: KernelResult, console: Console) -> None:
    for number, one in enumerate(result.sets):
        if number:
            console.print()
        _draw_set(one, result, console)


def _draw_set(one: KernelSet, result: KernelResult, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    side = result.image_side
    how = "" if result.interpolation == "bilinear" else f" ({result.interpolation})"
    say(
        f"{one.name}: {format_count(one.images, 'image')} ({one.mean_megapixels:.1f} megapixel, "
        f"{format_bytes(one.mean_bytes)}), crops to {side} x {side}{how}, one thread"
    )
    table = make_table("", "images/CPU s", "quartiles", "feedrate is", "PSNR to Pillow")
    for standing in one.standings:
        table.add_row(
            standing.contestant,
            _format_rate(standing.images_per_cpu_s),
            f"{_format_rate(standing.slow_images_per_cpu_s)}-{_format_rate(standing.fast_images_per_cpu_s)}",
            "" if standing.contestant == "feedrate" else format_ratio(standing.ratio),
            describe_psnr(standing),
            style="bold" if standing.contestant == "feedrate" else "",
        )
    console.print(table)
    if one.stages:
        say("where feedrate's time goes, per image:")
    for stage in one.stages:
        say(f"  {stage.name:<22}{_format_step(stage.cpu_s_per_image):>8}  {stage.what}")
    for line in describe_exceptions(one):
        say(line)
    if result.interpolation in _NOT_ANTIALIASED and any("OpenCV" in s.contestant for s in one.standings):
        say(f"OpenCV's {result.interpolation} does not antialias: it leaves pixels out, which is less work")


def describe_psnr(standing: KernelStanding) -> str:
    if standing.contestant == "Pillow":
        return ""
    return "equal" if standing.mean_psnr_db is None else f"{standing.mean_psnr_db:.1f} dB"


def describe_exceptions(one: KernelSet) -> list[str]:
    """Return what did not take part, or took part in another way than one might think."""
    lines = []
    if one.by_pillow:
        why = ", ".join(f"{count:,} {reason}" for reason, count in one.by_pillow.items())
        lines.append(f"feedrate leaves {sum(one.by_pillow.values()):,} of them to Pillow ({why})")
    for why in dict.fromkeys(one.left_out.values()):
        names = "; ".join(name for name, reason in one.left_out.items() if reason == why)
        lines.append(f"left out: {names}: {why}")
    if one.rejected:
        first = one.rejected[0]
        images = format_count(len(one.rejected), "image")
        lines.append(f"not decoded by anyone: {images}, e.g. {first.path}: {first.reason}")
    return lines


def _format_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def _format_step(seconds: float) -> str:
    # A difference of two measurements may come out below zero; that is then what was measured.
    return format_seconds(seconds) if seconds >= 0 else f"-{format_seconds(-seconds)}"
