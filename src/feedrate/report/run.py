# SPDX-License-Identifier: Apache-2.0
"""What `feedrate run` says when the command has ended: lines that stand among those of the command."""

from __future__ import annotations

from feedrate.report.figures import say_bounds
from feedrate.run.results import LoaderReport, RunReport
from feedrate.units import format_count, format_number, format_seconds

_LEAST_S = 1.0  # of a difference: below, the run would have taken as long


def draw_run(report: RunReport) -> list[str]:
    """Return what was taken and left of each loader, and how long the run would have taken without."""
    lines = [line for loader in report.loaders for line in _draw_loader(loader)]
    lines += [f"ran bare: {why}" for why in report.bare]
    lines += report.notes
    took = f"took {format_seconds(report.seconds)}"
    bare = report.seconds_bare
    if bare is not None:
        if abs(bare.value - report.seconds) < _LEAST_S:
            took += "; without feedrate it would have taken as long"
        else:
            took += f"; without feedrate it would have taken {format_seconds(bare.value)}"
            bounds = say_bounds(bare, "s")
            took += f" ({bounds})" if bounds else ""
    return [*lines, took]


def _draw_loader(loader: LoaderReport) -> list[str]:
    head = f"loader {loader.number} ({loader.dataset})"
    if not loader.is_taken:
        return [f"{head} ran bare: {loader.why}"]
    left = [f"{format_number(count)} {words}" for words, count in loader.left.items()]
    rest = f"left to Pillow: {', '.join(left)}" if left else "none left to Pillow"
    return [f"{head}: {format_count(loader.images, 'image')} by the kernel, {rest}"]


def draw_patched(report: RunReport) -> list[str]:
    """Return the full name of everything that was replaced."""
    return [f"replaced {name}" for name in report.patched] or ["replaced nothing"]
