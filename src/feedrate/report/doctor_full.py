# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --full`: all that the page tells, as plain lines for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from feedrate.doctor.results import Diagnosis, Finding, Remedy, SamplePart, TimeShare
from feedrate.errors import clean
from feedrate.report.doctor_words import (
    clamp,
    describe_curve,
    describe_end,
    describe_gain,
    describe_named,
    describe_number,
    describe_overhead,
    describe_rate,
    describe_reason,
    describe_seconds,
    describe_share,
    describe_step,
    describe_useless,
    describe_verdict,
    is_number,
    list_setting,
    part_remedies,
)
from feedrate.report.lines import count_cells, pad, wrap
from feedrate.report.page import describe_machine
from feedrate.units import format_count

_BESIDE = 42  # columns that the names of a table leave to what stands beside them: a row of numbers whole
_BAR = 16
_GAIN = 20
_HEIGHTS = "▁▂▃▄▅▆▇█"


def draw_full(diagnosis: Diagnosis, width: int = 80) -> str:
    """Return the whole report. Only what is to be typed may be wider than the terminal."""
    page, run = _Page(width), diagnosis.run
    page.add(describe_verdict(diagnosis))
    page.head("The run")
    page.add(f"$ {shlex.join(diagnosis.command)}", "  ", "    ")
    if run.steps:
        page.add(f"a step takes {describe_step(run)} ({', '.join(list_setting(run))})", "  ", "    ")
    _draw_remedies(page, diagnosis)
    page.head("Why")
    for one in diagnosis.findings:
        _draw_finding(page, one, diagnosis)
    page.head("Where a step's time goes")
    page.table((one.name, _word_share(one)) for one in diagnosis.split)
    page.head("Where a sample's time goes: in all; on a core, queued for one, blocked")
    page.table((f"{one.kind}: {one.name}", _word_part(one)) for one in diagnosis.sample)
    page.head("Step by step: the higher, the longer")
    phases: dict[str, list[float]] = {}
    for row in diagnosis.timeline:
        phases.setdefault(row.phase, []).append(row.wall_s)
    page.table(
        (f"{phase}, {format_count(len(walls), 'step')}", _draw_line(walls, width // 2 - 14))
        for phase, walls in phases.items()
    )
    page.head("What each part could do")
    page.table(
        (
            one.title,
            f"{describe_rate(one.samples_per_s)} ({describe_number(one.low)} to {describe_number(one.high)})",
        )
        for one in diagnosis.rates
    )
    page.head("Busy lines of code")
    for line in diagnosis.hot_lines:
        where = "training process" if line.where == "main" else line.where
        page.item(f"{describe_share(line.share)} of the looks at the {where}: {line.place} {line.function}")
        page.add(line.source, "      ", "      ")
    page.head("What the machine did: the median, and the largest reading")
    page.table((one.name, describe_curve(one)) for one in diagnosis.curves)
    page.head("Machine and data")
    page.table((one.name, one.value) for one in diagnosis.facts)
    page.add(describe_machine(diagnosis.machine), "  ", "    ")
    page.head("What was done and seen")
    page.item(f"{describe_end(run)}; {describe_seconds(run.seconds)}")
    page.item(f"{format_count(run.warmup_steps, 'step')} of warm-up left out of the figures")
    for text in (*run.experiments, *(f"not seen: {text}" for text in run.unseen)):
        page.item(text)
    page.item(f"the doctor itself: {describe_overhead(diagnosis)}")
    return page.text()


class _Page:
    """Lines no wider than the terminal; a heading that nothing follows is left out."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[str] = []
        self._heading = ""

    def head(self, title: str) -> None:
        self._heading = title

    def add(self, text: str, first: str = "", rest: str = "") -> None:
        """Add a paragraph with so much in front of its lines."""
        if text := clean(text).strip():
            self._put(wrap(text, self._width, first, rest, cuts=True))

    def item(self, text: str) -> None:
        self.add(text, "  - ", "    ")

    def copy(self, text: str, indent: str) -> None:
        """Add what is to be typed: on one line, however long, so that it can be copied."""
        self._put([f"{indent}{clean(text)}"])

    def code(self, text: str) -> None:
        """Add lines to paste: little indented, so that none is broken at the edge of a terminal."""
        self._put(["", *(f"  {clean(line)}" for line in text.rstrip().split("\n")), ""])

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        pairs = [(clean(name), text) for name, text in rows]
        beside = min(max((count_cells(text) for _, text in pairs), default=0), _BESIDE)
        label = min(max((count_cells(name) for name, _ in pairs), default=0), self._width - beside - 4)
        for name, text in pairs:
            if count_cells(name) > label:
                self.add(name, "  ", "    ")
                name = ""
            self.add(text or "-", f"  {pad(name, label)}  ", " " * (label + 4))

    def text(self) -> str:
        return "\n".join([*self._lines, ""])

    def _put(self, lines: Sequence[str]) -> None:
        if self._heading and lines:
            self._lines += ["", self._heading]
            self._heading = ""
        self._lines += [line.rstrip() for line in lines]


def _draw_remedies(page: _Page, diagnosis: Diagnosis) -> None:
    helping, useless = part_remedies(diagnosis.remedies)
    if not diagnosis.run.steps:
        # Of a run that ended before its first step nothing can be predicted.
        helping, useless = list(diagnosis.remedies), []
    page.head("What would help: speed-up of the whole run" if diagnosis.run.steps else "What to do")
    for one in helping:
        _draw_remedy(page, one, has_gain=diagnosis.run.steps > 0)
    page.head("Would give nothing")
    for one in useless:
        page.item(describe_useless(one))


def _draw_remedy(page: _Page, one: Remedy, *, has_gain: bool) -> None:
    indent = " " * (_GAIN if has_gain else 4)
    said = f" ({'tried in this run' if one.basis == 'measured' else 'predicted'}"
    said += f"; then the limit is {one.next_bottleneck})" if one.next_bottleneck else ")"
    gain = f"  {describe_gain(one)} " if has_gain else "  - "
    page.add(f"{one.title}{said if has_gain else ''}", gain.ljust(len(indent)), indent)
    if one.command:
        page.copy(f"$ {one.command}", indent)
    if one.change:
        page.copy(one.change, indent)
    page.add(one.note, indent, indent)
    if one.code:
        page.code(one.code)
    if one.left_out:
        page.add("What this does not do, or does otherwise:", indent, indent)
    for text in one.left_out:
        page.add(text, f"{indent}- ", f"{indent}  ")


def _draw_finding(page: _Page, one: Finding, diagnosis: Diagnosis) -> None:
    # A run that died before its first step has no time to take a share of.
    share = f" {describe_share(one.share)} of the time" if diagnosis.run.steps else ""
    page.add(f"{one.code}{share}{describe_reason(one, diagnosis.findings)}: {one.title}", "  ", "    ")
    page.add(one.cause, "    ", "    ")
    for text in one.evidence:
        page.add(text, "    - ", "      ")
    numbers = "; ".join(describe_named(name, value) for name, value in one.numbers.items())
    page.add(f"({numbers})" if numbers else "", "    ", "    ")


def _word_share(one: TimeShare) -> str:
    idle = one.exposed_s_per_step
    more = [*([f"device idle {describe_seconds(idle)}"] if idle is not None else []), one.detail]
    bar = "█" * round(_BAR * clamp(one.share))
    numbers = f"{describe_seconds(one.seconds_per_step):>8}{describe_share(one.share):>6}  {bar:<{_BAR}}"
    return f"{numbers}  {', '.join(filter(None, more))}".rstrip()


def _word_part(one: SamplePart) -> str:
    states = (one.cpu_s, one.queue_s, one.blocked_s)
    told = "".join(f"{describe_seconds(seconds):>9}" for seconds in states)
    return f"{describe_seconds(sum(states)):>8}{describe_share(one.share):>6};{told}"


def _draw_line(values: Sequence[float], width: int) -> str:
    """Return the values as a row of bars, the mean of several each where there is no room for all."""
    known = [value for value in values if is_number(value) and value >= 0]
    if not known:
        return ""
    size = -(-len(known) // width)
    groups = [known[at : at + size] for at in range(0, len(known), size)]
    means = [sum(group) / len(group) for group in groups]
    top = sorted(means)[int(0.95 * (len(means) - 1))] or 1.0
    bars = "".join(_HEIGHTS[round(7 * clamp(mean / top))] for mean in means)
    return f"{bars} {describe_seconds(min(known))} to {describe_seconds(max(known))}"
