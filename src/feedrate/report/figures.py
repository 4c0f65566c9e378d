# SPDX-License-Identifier: Apache-2.0
"""Figures as words: the value, how sure it is, where it comes from. `feedrate estimate` is made of these."""

from __future__ import annotations

from collections.abc import Iterable

from feedrate.figures import ASSUMED, GIVEN, STORED, Figure
from feedrate.plan.results import Estimate
from feedrate.report.lines import Command, Line, lay_out
from feedrate.units import (
    format_bytes,
    format_duration,
    format_number,
    format_rate,
    format_seconds,
    is_number,
)

_MARKS = {STORED: "°", ASSUMED: "*"}
_LEGEND = {
    STORED: "stored: measured on this node by 'feedrate bench machine', or computed from that",
    ASSUMED: "assumed, or computed from what is assumed",
}
# Bounds, as shares of a value: nearer ones are not said; from here on both are, where one is farther away;
# and always where the farther one is as far away as nothing is.
_LEAST_SPREAD, _WIDE, _UNEVEN, _MOST_SPREAD = 0.005, 0.5, 1.4, 0.995
# Between the parts of a figure, where no line breaks.
TIE = "\N{NO-BREAK SPACE}"


def mark(figure: Figure) -> str:
    return _MARKS.get(figure.origin, "")


def find_spread(figure: Figure) -> float:
    """Return how far the farther bound is from the value, as a share of it; 0: they are at it."""
    value, ends = figure.value, (figure.low, figure.high)
    if not (is_number(value) and value and all(map(is_number, ends))):
        return 0.0
    share = max(abs(end - value) for end in ends) / abs(value)
    return share if share >= _LEAST_SPREAD else 0.0


def is_uneven(figure: Figure) -> bool:
    """Return whether both bounds must be said: one is much farther away, or `±` would reach below nothing."""
    near, far = sorted((figure.value - figure.low, figure.high - figure.value))
    spread = find_spread(figure)
    return spread >= _MOST_SPREAD or (spread >= _WIDE and far > _UNEVEN * near)


def format_spread(figure: Figure) -> str:
    """Return `±9%`: how far the bounds are from the value; nothing where they are at it."""
    share = find_spread(figure)
    return f"±{100 * share:.0f}%" if share else ""


def say_value(value: float, unit: str) -> str:
    """Return a number with its unit: `s`, `bytes`, `bytes/s`, `images/s`, or any word; empty: a count."""
    if unit == "s":
        return format_seconds(value) if value > 0 else "0 s"
    if unit.startswith("bytes"):
        return format_bytes(value) + unit.removeprefix("bytes")
    if unit.endswith("/s"):
        return format_rate(value, unit.removesuffix("/s"))
    number = format_number(value if abs(value) < 10 else round(value))
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}".rstrip()


def say_figure(figure: Figure | None, unit: str) -> str:
    """Return `4 min 10 s ±9%*`; with both bounds where they are uneven; of what nobody knows, `unknown`."""
    if figure is None or not is_number(figure.value):
        return "unknown"
    given = " (given)" if figure.origin == GIVEN else ""
    return (_say_spread(figure, unit) + mark(figure) + given).replace(" ", TIE)


def _say_spread(figure: Figure, unit: str) -> str:
    if not figure.is_known:
        return "unknown"
    spread = f"({say_bounds(figure, unit)})" if is_uneven(figure) else format_spread(figure)
    return f"{say_value(figure.value, unit)} {spread}".rstrip()


def say_bounds(figure: Figure, unit: str) -> str:
    """Return `3 min 50 s to 4 min 40 s`; nothing where a figure is exact."""
    return f"{say_value(figure.low, unit)} to {say_value(figure.high, unit)}" if find_spread(figure) else ""


def short_time(figure: Figure, *, has_spread: bool = True) -> str:
    """Return a time for a table: `4m10s ±9%`, `16m00s to 1h04m` where its bounds are uneven, `-` for none."""
    if not is_number(figure.value):
        return "never" if figure.value == float("inf") else "unknown"
    if figure.value <= 0:
        return "-"
    if not figure.is_known:
        return f"unknown{mark(figure)}"
    text = format_duration(figure.value)
    if has_spread and is_uneven(figure):
        text = f"{format_duration(figure.low)} to {format_duration(figure.high)}"
    elif has_spread:
        text = f"{text} {format_spread(figure)}".rstrip()
    return text + mark(figure)


def describe_origin(figure: Figure) -> str:
    """Return `stored: 2026-11-02`, `assumed: a table of rates`; where a figure comes from, whole."""
    return f"{figure.origin}: {figure.note}" if figure.note else figure.origin


def list_marks(text: str, figures: Iterable[Figure | None]) -> list[str]:
    """Return a line for each mark that stands in a text, with the dates and sources of the figures."""
    known = [one for one in figures if one is not None]
    lines = []
    for origin, sign in _MARKS.items():
        said = (one.note.split("; ") for one in known if one.origin == origin and one.note)
        notes = "; ".join(dict.fromkeys(note for notes in said for note in notes))
        if sign in text:
            lines.append(f"{sign} {_LEGEND[origin]}" + (f": {notes}" if notes else ""))
    return [*lines, "no mark: measured just now, or given"] if lines else []


def draw_estimate(estimate: Estimate, width: int | None = None) -> str:
    answers = {name: _say_answer(one, estimate.unit) for name, one in estimate.answers.items()}
    lines: list[Line] = [f"{estimate.question}:"]
    if len(answers) == 1:
        lines = [f"{estimate.question}: {' '.join(filter(None, (*answers, *answers.values())))}"]
    else:
        lines += [*answers.items(), ""]
    lines += [
        (name, _say_spread(one, unit), describe_origin(one)) for name, (one, unit) in estimate.figures.items()
    ]
    lines += [f"note: {note}" for note in estimate.notes]
    lines += [Command(f"next: {command}") for command in estimate.commands]
    return lay_out(lines, width).replace(TIE, " ")


def _say_answer(figure: Figure, unit: str) -> str:
    bounds = say_bounds(figure, unit)
    rests = f", in part from {figure.origin} figures" if figure.origin in (STORED, ASSUMED) else ""
    return say_value(figure.value, unit) + (f" ({bounds})" if bounds else "") + rests
