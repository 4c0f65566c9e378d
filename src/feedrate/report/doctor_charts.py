# SPDX-License-Identifier: Apache-2.0
"""The charts of the doctor's page, as HTML and SVG without a script.

Shapes are widened to the width of the page, so words stand beside them, in HTML, and never inside.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from feedrate.doctor.results import Curve, StepRow, name_phase
from feedrate.report import doctor_words as words
from feedrate.report.page import draw_ticks, draw_track, show
from feedrate.units import clamp, is_number, place

MOST_COLUMNS = 400
MOST_RANKS = 16
# Words of a part's name, and the colour it goes by; the first that fits counts.
_TONES = (
    ("waiting for the device", "sync"), ("sync", "sync"), ("readback", "sync"), ("copy back", "sync"),
    ("output", "sync"), ("wait", "exposed"), ("copy", "copy"), ("forward", "forward"),
    ("backward", "backward"), ("optimizer", "optimizer"), ("sav", "save"), ("checkpoint", "save"),
    ("writ", "save"), ("valid", "validation"), ("epoch", "validation"),
)  # fmt: skip
_HEIGHT = 200.0


def find_tone(name: str) -> str:
    return next((tone for word, tone in _TONES if word in name.lower()), "other")


def draw_interval(low: float, value: float, high: float, *, start: float, end: float) -> str:
    """Return a track with the interval, the value, and a line at one; on a scale of factors."""
    if not all(is_number(one) and one > 0 for one in (low, value, high)):
        return draw_track(())
    left, point, right, one = (_place_factor(at, start, end) for at in (low, value, high, 1.0))
    return draw_track((("one", one, one), ("reach", left, right), ("point", point, point)))


def draw_scale(start: float, end: float) -> str:
    """Return the factors below a column of intervals, at most eight of them."""
    fine, coarse = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0), (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    ticks = (at for at in (fine if end < 3.5 else coarse) if start <= at <= end)
    return draw_ticks((_place_factor(at, start, end), f"{at:g}x") for at in ticks)


def _place_factor(value: float, start: float, end: float) -> float:
    return place(math.log(value), math.log(start), math.log(end))


@dataclass(frozen=True)
class _Column:
    """One step on the chart, or the mean of several that stand for one."""

    phase: str
    parts: Mapping[str, float]  # by colour, from the bottom up
    wall_s: float
    largest_s: float
    title: str


def draw_timeline(rows: Sequence[StepRow]) -> str:
    """Return a chart of columns, one per step, with the phases named below; ranks one under the other."""
    good = [row for row in rows if all(map(is_number, (row.wall_s, row.wait_s, row.exposed_s)))]
    ranks = sorted({row.rank for row in good})[:MOST_RANKS]
    if not ranks:
        return '<p class="soft">No step was seen.</p>'
    most = max(20, MOST_COLUMNS // len(ranks))
    columns = {rank: _gather([row for row in good if row.rank == rank], most) for rank in ranks}
    top = _find_top([one.wall_s for some in columns.values() for one in some])
    charts = "".join(_chart(f"rank {rank}" if len(ranks) > 1 else "", columns[rank], top) for rank in ranks)
    grouped = max(_group_size(sum(row.rank == rank for row in good), most) for rank in ranks)
    note = f"<small>Each column is the mean of up to {grouped} steps.</small>" if grouped > 1 else ""
    return (
        f'<div class="{"ranks" if len(ranks) > 1 else ""}">{charts}</div>{_phases(columns[ranks[0]])}{note}'
    )


def _group_size(steps: int, most: int) -> int:
    return max(1, math.ceil(steps / most))


def _gather(rows: Sequence[StepRow], most: int) -> list[_Column]:
    size = _group_size(len(rows), most)
    columns, first = [], 0
    for _, group in groupby(rows, lambda row: row.phase):
        phase = list(group)
        columns += [_column(phase[at : at + size], first + at) for at in range(0, len(phase), size)]
        first += len(phase)
    return columns


def _column(group: Sequence[StepRow], number: int) -> _Column:
    parts, count = defaultdict[str, float](float), len(group)
    for row in group:
        exposed = clamp(row.exposed_s, 0.0, max(0.0, row.wait_s))
        shares = defaultdict(float, exposed=exposed, hidden=row.wait_s - exposed)
        for name, seconds in row.parts.items():
            shares[find_tone(name)] += seconds if is_number(seconds) else 0.0
        shares["other"] += max(0.0, row.wall_s - sum(shares.values()))
        for tone, seconds in shares.items():
            parts[tone] += max(0.0, seconds) / count
    wall = sum(row.wall_s for row in group) / count
    said = ", ".join(f"{tone} {words.seconds(s)}" for tone, s in parts.items() if s > 0)
    phase = name_phase(group[0].phase)
    title = f"step {number + 1}, {phase}: {words.seconds(wall)} ({said})"
    return _Column(group[0].phase, parts, wall, max(row.wall_s for row in group), title)


def _find_top(walls: Sequence[float]) -> float:
    """Return where the scale ends: above nearly all steps, so that one long pause does not press the rest."""
    ordered = sorted(walls)
    usual = ordered[min(len(ordered) - 1, int(0.97 * len(ordered)))]
    return max(1e-9, min(1.15 * usual, 1.02 * ordered[-1]))


def _chart(name: str, columns: Sequence[_Column], top: float) -> str:
    width = 1000 / len(columns)
    shapes = []
    for number, one in enumerate(columns):
        left, height = number * width, 0.0
        boxes = [f"<title>{show(one.title)}</title>"]
        if one.phase != "real":
            boxes.append(_box("shade", left, _HEIGHT, width, _HEIGHT))
        for tone, seconds in one.parts.items():
            size = clamp(_HEIGHT * seconds / top, 0.0, _HEIGHT - height)
            if size > 0:
                boxes.append(_box(tone, left, height + size, 0.9 * width, size))
                height += size
        if one.largest_s > 1.05 * max(one.wall_s, top) or one.wall_s > top:
            boxes.append(_box("over", left, _HEIGHT, max(2.0, 0.9 * width), 5))
        shapes.append(f"<g>{''.join(boxes)}</g>")
    label = f"{show(name)} {words.seconds(top)}".strip()
    return (
        f'<div class="chart"><span class="top">{label}</span>'
        f'<svg class="steps" viewBox="0 0 1000 {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="time of each step">{"".join(shapes)}</svg></div>'
    )


def _box(tone: str, left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle; `top` is counted from the bottom."""
    y = _HEIGHT - top
    return f'<rect class="{tone}" x="{left:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'


def _phases(columns: Sequence[_Column]) -> str:
    return '<div class="phases">' + "".join(
        f'<span class="{"real" if phase == "real" else ""}" style="flex: {len(list(group))} 0 0" '
        f'title="{show(name_phase(phase))}">{show(name_phase(phase))}</span>'
        for phase, group in groupby(columns, lambda one: one.phase)
    ) + "</div>"  # fmt: skip


def draw_curve(curve: Curve, *, real_until_s: float | None) -> str:
    """Return one small chart; a gap where nothing was read, and a shade where the experiments are."""
    points = [(t, v) for t, v in zip(curve.times_s, curve.values, strict=False) if math.isfinite(t)]
    values = [v for _, v in points if is_number(v)]
    title = f"<figcaption>{show(curve.name)} <small>{show(words.curve(curve))}</small></figcaption>"
    if not values:
        return f"<figure>{title}</figure>"
    start, end = points[0][0], max(points[-1][0], points[0][0] + 1e-9)
    top = max([*values, curve.limit if is_number(curve.limit) else 0.0, 1e-9])
    low = min(0.0, *values)

    def at(t: float, v: float) -> str:
        return f"{300 * place(t, start, end):.1f},{66 - 62 * place(v, low, top):.1f}"

    path, step = [], "M"
    for t, v in points:
        path += [f"{step}{at(t, v)}"] if is_number(v) else []
        step = "L" if is_number(v) else "M"
    shade = ""
    if real_until_s is not None and start < real_until_s < end:
        x = 300 * place(real_until_s, start, end)
        shade = f'<rect class="frame" x="{x:.1f}" y="0" width="{300 - x:.1f}" height="68"/>'
    limit = ""
    if is_number(curve.limit):
        y = at(start, curve.limit).partition(",")[2]
        limit = f'<line class="limit" x1="0" x2="300" y1="{y}" y2="{y}"/>'
    return (
        f'<figure>{title}<div class="chart"><svg viewBox="0 0 300 68" preserveAspectRatio="none" role="img" '
        f'aria-label="{show(curve.name)}">{shade}{limit}<path class="curve" d="{"".join(path)}"/></svg></div>'
        f'<div class="scale"><span>{words.seconds(start)}</span><span>{words.seconds(end)}</span></div>'
        "</figure>"
    )
