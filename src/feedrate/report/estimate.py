# SPDX-License-Identifier: Apache-2.0
"""`feedrate estimate` in a terminal: the answer, between which bounds it is, and what it is made of."""

from __future__ import annotations

from feedrate.figures import ASSUMED, STORED, Figure
from feedrate.plan.results import Estimate
from feedrate.report.figures import TIE, describe_origin, format_spread, say_bounds, say_value
from feedrate.report.lines import Command, Line, lay_out


def draw_estimate(estimate: Estimate, width: int | None = None) -> str:
    answers = {name: _say_answer(one, estimate.unit) for name, one in estimate.answers.items()}
    lines: list[Line] = [f"{estimate.question}:"]
    if len(answers) == 1:
        lines = [f"{estimate.question}: {' '.join(filter(None, (*answers, *answers.values())))}"]
    else:
        lines += [*answers.items(), ""]
    lines += [
        (name, f"{say_value(one.value, unit)} {format_spread(one)}".rstrip(), describe_origin(one))
        for name, (one, unit) in estimate.figures.items()
    ]
    lines += [f"note: {note}" for note in estimate.notes]
    lines += [Command(f"next: {command}") for command in estimate.commands]
    return lay_out(lines, width).replace(TIE, " ")


def _say_answer(figure: Figure, unit: str) -> str:
    bounds = say_bounds(figure, unit)
    rests = f", {figure.origin}" if figure.origin in (STORED, ASSUMED) else ""
    return say_value(figure.value, unit) + (f" ({bounds})" if bounds else "") + rests
