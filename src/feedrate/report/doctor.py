# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor` in a terminal, as plain lines: one screen, the verdict first; with --full, all."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from feedrate.doctor.results import (
    CONTENDED,
    RUN,
    Diagnosis,
    Finding,
    Remedy,
    RunFacts,
    SamplePart,
    TimeShare,
    name_phase,
)
from feedrate.report import doctor_words as words
from feedrate.report.lines import Command, Line, Number, count_cells, cut, lay_out, pad, shorten, wrap
from feedrate.report.page import describe_machine
from feedrate.units import clamp, format_count, is_number

_WIDTH = 80
_SCREEN = 23  # of 24 lines: the prompt that follows must not push the verdict off
_MOST_OF_THE_TIME = 0.8
_LABEL = 10
_NAME = 26  # of a part of the step, at most
_BAR = 38  # name and bar together
_GAIN = 20
_LONGEST_COMMAND = 400
_SHORT_NOTE = 50
LEFT_OUT = "What this does not do, or does otherwise:"
_MOST_LEFT_OUT = 8


@dataclass(frozen=True)
class _Room:
    """How many lines each part of the report may take, and how small a share of a step has its own."""

    shares: int
    least_share: float
    evidence: int
    remedies: int
    has_notes: bool
    useless: int
    others: int
    unseen: int
    is_dense: bool = False


# The first that fits a screen is drawn. The last one is at most 30 lines, whatever was found.
_ROOMS = (
    _Room(6, 0.01, 6, 4, True, 2, 4, 2),
    _Room(5, 0.02, 6, 3, True, 2, 3, 2),
    _Room(4, 0.03, 5, 3, False, 2, 3, 2),
    _Room(3, 0.05, 4, 3, False, 2, 2, 1),
    _Room(3, 0.05, 4, 2, False, 2, 2, 1),
    _Room(3, 0.05, 4, 2, False, 1, 2, 1),
    _Room(3, 0.05, 4, 2, False, 1, 1, 1, is_dense=True),
    _Room(3, 0.05, 3, 2, False, 1, 1, 1, is_dense=True),
)


def draw_diagnosis(diagnosis: Diagnosis) -> str:
    """Return the verdict and what it rests on, in plain lines."""
    code, last = _code(diagnosis.remedies), _run(diagnosis.remedies)
    for room in _ROOMS:
        lines = _draw(diagnosis, room)
        if len(lines) + (0 if code else len(last)) <= _SCREEN:
            break
    # What is to be pasted comes below the screen: it is not read, and it must be whole.
    return "\n".join([*lines, *code, *last, ""])


def _run(remedies: Sequence[Remedy]) -> list[str]:
    """Return the line to type for the remedy that edits nothing: what a report ends with is what is tried."""
    one = next((one for one in remedies if one.name == RUN and one.helps), None)
    if one is None or one.command is None:
        return []
    return ["", f"Without an edit, {one.gain}:", f"  $ {shorten(one.command, _LONGEST_COMMAND)}"]


def _code(remedies: Sequence[Remedy]) -> list[str]:
    """Return the lines to paste for the best remedy that has some."""
    helping, _ = words.part_remedies(remedies)
    one = next((one for one in helping if one.code), None)
    if one is None or one.code is None:
        return []
    lines = ["", *_wrap(f"The code to {one.title}, {one.gain}:", 3), ""]
    if one.command:
        lines += [f"  $ {shorten(one.command, _LONGEST_COMMAND)}", ""]
    lines += [f"  {line}".rstrip() for line in one.code.rstrip().split("\n")]
    if one.left_out:
        lines += ["", LEFT_OUT]
        for text in one.left_out[:_MOST_LEFT_OUT]:
            lines += _wrap(text, 3, "  - ")
        more = len(one.left_out) - _MOST_LEFT_OUT
        lines += [f"  - {more} more: see --full, --html or --json"] if more > 0 else []
    return lines


def _draw(diagnosis: Diagnosis, room: _Room) -> list[str]:
    blocks = [
        _wrap(words.verdict(diagnosis), 3),
        [
            *_step(diagnosis.run),
            *_shares(diagnosis.split, room),
            *_sample(diagnosis.sample),
            *(line for _, lines in _fit_evidence(diagnosis.findings, room.evidence) for line in lines),
            *_hottest(diagnosis, room.evidence),
        ],
        _remedies(diagnosis.remedies, room) if diagnosis.run.steps else _cures(diagnosis.remedies),
        [
            *(_useless(diagnosis.remedies, room.useless) if diagnosis.run.steps else []),
            *_warning(diagnosis.findings[1:]),
            *_others(diagnosis.findings, room.others),
            *_list("not seen", diagnosis.run.unseen, room.unseen),
            *_line("doctor", f"{words.end(diagnosis.run)}; {words.overhead(diagnosis)}"),
        ],
    ]
    lines: list[str] = []
    for number, block in enumerate(blocks):
        is_apart = lines and block and not (room.is_dense and number == len(blocks) - 1)
        lines += ["", *block] if is_apart else block
    return lines


def _step(run: RunFacts) -> list[str]:
    if not run.steps:
        return []
    return _line("a step", _fit(f"{words.step(run)} (", words.list_setting(run), ")"))


def _shares(split: Sequence[TimeShare], room: _Room) -> list[str]:
    parts = sorted((one for one in split if is_number(one.share)), key=lambda one: -one.share)
    # Waiting has a line however short it is: it is what everybody came to see.
    waits = [one for one in parts if one.exposed_s_per_step is not None][:1]
    most = room.shares - len(waits)
    large = [one for one in parts if one.share >= room.least_share and one not in waits][:most]
    named = [one for one in parts if one in waits or one in large]
    rest = [one for one in parts if one not in named]
    if len(rest) > 1:
        names = ", ".join(one.name for one in rest)
        share, seconds = sum(one.share for one in rest), sum(one.seconds_per_step for one in rest)
        rest = [TimeShare("the rest", seconds, share, detail=names)] if share >= 0.005 else []
    shown = [*named, *rest]
    width = min(_NAME, max((count_cells(one.name) for one in shown), default=0) + 1)
    return [shorten(_share(one, width), _WIDTH) for one in shown]


def _share(one: TimeShare, width: int) -> str:
    room = _BAR - width
    halves = round(2 * room * clamp(one.share))
    bar, detail = "█" * (halves // 2) + "▌" * (halves % 2), words.without_folders(one.detail)
    idle = one.exposed_s_per_step
    if is_number(idle) and is_number(one.seconds_per_step) and one.seconds_per_step > 0:
        # A wait that the device did not notice costs nothing: it is drawn lighter.
        exposed = round(len(bar) * clamp(idle / one.seconds_per_step))
        bar, detail = bar[:exposed].ljust(len(bar), "░"), f"device idle {words.seconds(idle)}"
    name = f"  {shorten(one.name, width - 1)}"
    time, share = words.seconds(one.seconds_per_step), words.share(one.share)
    return f"{pad(name, width + 2)}{bar:<{room}}{time:>10}{share:>6}  {detail}".rstrip()


def _sample(sample: Sequence[SamplePart]) -> list[str]:
    parts = [one for one in sample if is_number(one.cpu_s + one.queue_s + one.blocked_s)]
    states = {
        "on a core": sum(one.cpu_s for one in parts),
        "queued for one": sum(one.queue_s for one in parts),
        "blocked": sum(one.blocked_s for one in parts),
    }
    wall = sum(states.values())
    if not (is_number(wall) and wall > 0):
        return []
    kinds = defaultdict[str, float](float)
    for one in parts:
        kinds[one.kind] += one.cpu_s + one.queue_s + one.blocked_s
    most = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    named = [f"{kind} {words.share(seconds / wall)}" for kind, seconds in most]
    how = ", ".join(f"{words.share(s / wall)} {name}" for name, s in states.items() if s / wall >= 0.1)
    return _line("a sample", _fit(f"{words.seconds(wall)}: ", named, f"; {how}"))


def _hottest(diagnosis: Diagnosis, most: int) -> list[str]:
    """Name the line that has most of the workers' time, where the evidence that is shown does not."""
    hot = next((one for one in diagnosis.hot_lines if one.where == "worker"), None)
    if hot is None or not is_number(hot.share) or hot.share < _MOST_OF_THE_TIME or not diagnosis.run.workers:
        return []
    # Where images are decoded, the line adds nothing to a finding that says how they are.
    if any(one.code == "decode-bound" for one in diagnosis.findings[:1]):
        return []
    if any(hot.place in text for text, _ in _fit_evidence(diagnosis.findings, most)):
        return []
    place = words.without_folders(hot.place)
    source = f": {hot.source}" if hot.source else ""
    return _line(
        "hot line", shorten(f"{words.share(hot.share)} of the workers' time: {place}{source}", _WIDTH)
    )


def _fit_evidence(findings: Sequence[Finding], most: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the evidence for which there is room, each with its lines."""
    label = "why"
    for text in findings[0].evidence if findings else ():
        lines = _wrap(words.without_folders(text), 2, f"{label:<{_LABEL - 2}}- ")
        most -= len(lines)
        if most < 0:
            return
        yield text, lines
        label = ""


def _remedies(remedies: Sequence[Remedy], room: _Room) -> list[str]:
    helping, useless = words.part_remedies(remedies)
    if not helping:
        return ["Nothing that was predicted or tried makes this run faster."] if useless else []
    count = f" (best {room.remedies} of {len(helping)})" if len(helping) > room.remedies else ""
    lines = [f"What would help{count}: speed-up of the whole run; then its next limit"]
    for one in helping[: room.remedies]:
        lines += _remedy(one, has_notes=room.has_notes)
    return lines


def _cures(remedies: Sequence[Remedy]) -> list[str]:
    """Of a run that ended before its first step nothing can be predicted; there is something to do first."""
    lines = ["What to do:"]
    for one in remedies[:2]:
        lines += _wrap(one.title, 2, "  ")
        lines += [f"    {shorten(one.change, _LONGEST_COMMAND)}"] if one.change else []
        lines += _wrap(one.note, 2, "    ") if one.note else []
    return lines if remedies else []


def _remedy(one: Remedy, *, has_notes: bool) -> list[str]:
    text = words.without_folders(one.title)
    if one.basis == "measured":
        text += " (tried)"
    if one.next_bottleneck:
        text += f"; then {one.next_bottleneck}"
    if not has_notes and len(one.note) <= _SHORT_NOTE:
        # A warning ("may cost accuracy") is short; how a gain comes about is long, and stands on the page.
        text += f" ({one.note})" if one.note else ""
    indent = " " * _GAIN
    gain = shorten(one.gain, _GAIN - 3)
    lines = _wrap(text, 2, f"  {gain}".ljust(_GAIN))
    # What is to be typed is not cut at the edge of the screen: it has to be copied.
    if one.command and one.name != RUN:  # which the report ends with
        lines.append(f"{indent}$ {shorten(one.command, _LONGEST_COMMAND)}")
    if one.change and (has_notes or not one.command):
        lines.append(f"{indent}{shorten(one.change, _LONGEST_COMMAND)}")
    if has_notes and one.note:
        lines += _wrap(one.note, 1, indent)
    return lines


def _useless(remedies: Sequence[Remedy], most: int) -> list[str]:
    _, useless = words.part_remedies(remedies)
    room = most * (_WIDTH - _LABEL) - 20  # for a word that does not fit, and how many are left
    return _list("no gain", [words.useless(one, room) for one in useless], most)


def _warning(findings: Sequence[Finding]) -> list[str]:
    """A busy machine is no cause that the user can cure; what was measured has to be read with it in mind."""
    said = next(filter(None, (one.company for one in findings)), "")
    return _wrap(f"the machine was busy: {said}", 2, f"{'warning':<{_LABEL}}") if said else []


def _others(findings: Sequence[Finding], most: int) -> list[str]:
    told = [
        f"{one.code} {words.share(one.share)}{words.reason(one, findings)}: {one.title}"
        for one in findings[1:]
        if one.code != CONTENDED
    ]
    lines = [line for text in told[: most - 1] for line in _line("", text)]
    lines += _line("", told[most - 1], more=len(told) - most) if len(told) >= most else []
    return [f"{'also':<{_LABEL}}{lines[0][_LABEL:]}", *lines[1:]] if lines else []


def _list(label: str, items: Iterable[str], most: int) -> list[str]:
    """Return as many whole items as fit on so many lines, and how many are left."""
    listed, drawn = list(items), list[str]()
    for count in range(1, len(listed) + 1):
        more = f" (+{len(listed) - count} more)" if count < len(listed) else ""
        longer = "; ".join(listed[:count]) + more
        if drawn and len(_wrap(longer, 99, " " * _LABEL)) > most:
            break
        drawn = _wrap(longer, most, f"{label:<{_LABEL}}")
    return drawn


def _fit(head: str, parts: Sequence[str], tail: str) -> str:
    """Return as many of the parts as fit on a line, one at least."""
    texts = [f"{head}{', '.join(parts[:count])}{tail}" for count in range(len(parts), 0, -1)]
    return next((text for text in texts if count_cells(text) <= _WIDTH - _LABEL), texts[-1])


def _line(label: str, text: str, *, more: int = 0) -> list[str]:
    tail = f" (+{more} more)" if more > 0 else ""
    return [f"{label:<{_LABEL}}{shorten(text, _WIDTH - _LABEL - len(tail))}{tail}"]


def _wrap(text: str, lines: int, first: str = "") -> list[str]:
    """Return so many lines at most, the first behind `first`, the others below it."""
    wrapped = wrap(text, _WIDTH, first, " " * len(first), cuts=True)
    if len(wrapped) <= lines:
        return wrapped
    last, room = wrapped[lines - 1], _WIDTH - len(" ...")
    if count_cells(last) > room:
        last = cut(last, room + 1)[0].rpartition(" ")[0].rstrip() or cut(last, room)[0]
    return [*wrapped[: lines - 1], f"{last} ..."]


_FULL_BAR = 16
_HEIGHTS = "▁▂▃▄▅▆▇█"


def draw_full(diagnosis: Diagnosis, width: int = 80) -> str:
    """Return the whole report. Only what is to be typed may be wider than the terminal."""
    lines: list[Line] = [words.verdict(diagnosis)]
    for title, body in _list_sections(diagnosis, width):
        told = [line for line in body if isinstance(line, Command) or "".join(line).strip()]
        lines += ["", title, *told] if told else []
    return lay_out(lines, width, cuts=True)


def _list_sections(diagnosis: Diagnosis, width: int) -> Iterator[tuple[str, Iterable[Line]]]:
    run, machine = diagnosis.run, describe_machine(diagnosis.machine)
    step = f"  a step takes {words.step(run)} ({', '.join(words.list_setting(run))})" if run.steps else ""
    yield "The run", [f"  $ {shlex.join(diagnosis.command)}", step]
    title = "What would help: speed-up of the whole run" if run.steps else "What to do"
    yield title, _list_items(words.list_remedies(diagnosis))
    if run.steps:
        useless = words.part_remedies(diagnosis.remedies)[1]
        yield "Would give nothing", [f"  - {words.useless(one)}" for one in useless]
    yield "Why", _list_items(words.list_findings(diagnosis))
    yield "Where a step's time goes", map(_list_share, diagnosis.split)
    title = "Where a sample's time goes: in all; on a core, queued for one, blocked"
    yield title, map(_list_part, diagnosis.sample)
    phases = defaultdict[str, list[float]](list)
    for row in diagnosis.timeline:
        phases[name_phase(row.phase)].append(row.wall_s)
    yield (
        "Step by step: the higher, the longer",
        [(f"{name}, {format_count(len(walls), 'step')}", _draw_line(walls, width // 2 - 14))
         for name, walls in phases.items()],
    )  # fmt: skip
    yield (
        "What each part could do",
        [(one.title, f"{words.rate(one.samples_per_s)} ({words.number(one.low)} to {words.number(one.high)})")
         for one in diagnosis.rates],
    )  # fmt: skip
    yield "Busy lines of code", _list_items(words.list_hot_lines(diagnosis))
    title = "What the machine did: in the steps, and at most in the whole run"
    yield title, [(one.name, words.curve(one)) for one in diagnosis.curves]
    facts = [(one.name, one.value or "-") for one in diagnosis.facts]
    yield "Machine and data", [*facts, f"  {machine}"]
    yield "What was done and seen", [f"  - {text}" for text in words.list_doings(diagnosis)]


def _list_items(items: Iterable[words.Item]) -> Iterator[Line]:
    for one in items:
        indent = " " * (_GAIN + 1 if one.remedy else 4)
        yield (f"{one.remedy.gain:<{_GAIN - 3}}", one.title) if one.remedy else f"  - {one.title}"
        yield from (Command(f"{indent}{text.strip()}") for text in one.typed)
        yield from (f"{indent}{text}" for text in one.lines)
        yield from (f"{indent}- {text}" for text in one.points)
        if one.code:  # little indented, so that none is broken at the edge of a terminal
            yield from map(Command, ["", *(f"  {line}" for line in one.code.rstrip().split("\n")), ""])
        if one.left_out:
            yield f"{indent}{LEFT_OUT}"
            yield from (f"{indent}- {text}" for text in one.left_out)


def _list_share(one: TimeShare) -> Line:
    idle = one.exposed_s_per_step
    more = [*([f"device idle {words.seconds(idle)}"] if idle is not None else []), one.detail]
    bar = "█" * round(_FULL_BAR * clamp(one.share))
    numbers = Number(words.seconds(one.seconds_per_step)), Number(words.share(one.share))
    return one.name, *numbers, f"{bar:<{_FULL_BAR}}  {', '.join(filter(None, more))}"


def _list_part(one: SamplePart) -> Line:
    states = (one.cpu_s, one.queue_s, one.blocked_s)
    shares = f"{words.share(one.share)};", *map(words.seconds, states)
    return f"{one.kind}: {one.name}", *map(Number, (words.seconds(sum(states)), *shares))


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
    return f"{bars} {words.seconds(min(known))} to {words.seconds(max(known))}"
