# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor` in a terminal: plain lines, one screen of them, the verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feedrate.doctor.results import Diagnosis, Finding, Remedy, RunFacts, SamplePart, TimeShare
from feedrate.errors import clean
from feedrate.report.doctor_words import (
    CONTENDED,
    clamp,
    describe_company,
    describe_end,
    describe_gain,
    describe_overhead,
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
from feedrate.report.lines import count_cells, cut, pad, wrap

_WIDTH = 80
_SCREEN = 23  # of 24 lines: the prompt that follows must not push the verdict off
_LABEL = 10
_NAME = 26  # of a part of the step, at most
_BAR = 38  # name and bar together
_GAIN = 20
_LONGEST_COMMAND = 400
_SHORT_NOTE = 50
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
    for room in _ROOMS:
        lines = _draw(diagnosis, room)
        if len(lines) <= _SCREEN:
            break
    # What is to be pasted comes below the screen: it is not read, and it must be whole.
    return "\n".join([*lines, *_code(diagnosis.remedies), ""])


def _code(remedies: Sequence[Remedy]) -> list[str]:
    """Return the lines to paste for the best remedy that has some."""
    helping, _ = part_remedies(remedies)
    one = next((one for one in helping if one.code), None)
    if one is None or one.code is None:
        return []
    lines = ["", *_wrap(f"The code to {clean(one.title)}, {describe_gain(one)}:", lines=3), ""]
    if one.command:
        lines += [f"  $ {_shorten(clean(one.command), _LONGEST_COMMAND)}", ""]
    lines += [f"  {clean(line)}".rstrip() for line in one.code.rstrip().split("\n")]
    if one.left_out:
        lines += ["", "What this does not do, or does otherwise:"]
        for text in one.left_out[:_MOST_LEFT_OUT]:
            lines += _wrap(clean(text), first="  - ", rest="    ", lines=3)
        more = len(one.left_out) - _MOST_LEFT_OUT
        lines += [f"  - {more} more: see --full, --html or --json"] if more > 0 else []
    return lines


def _draw(diagnosis: Diagnosis, room: _Room) -> list[str]:
    blocks = [
        _wrap(describe_verdict(diagnosis), lines=3),
        [
            *_step(diagnosis.run),
            *_shares(diagnosis.split, room),
            *_sample(diagnosis.sample),
            *_evidence(diagnosis.findings, room.evidence),
        ],
        _remedies(diagnosis.remedies, room) if diagnosis.run.steps else _cures(diagnosis.remedies),
        [
            *(_useless(diagnosis.remedies, room.useless) if diagnosis.run.steps else []),
            *_warning(diagnosis.findings[1:]),
            *_others(diagnosis.findings, room.others),
            *_list("not seen", map(clean, diagnosis.run.unseen), room.unseen),
            *_line("doctor", f"{describe_end(diagnosis.run)}; {describe_overhead(diagnosis)}"),
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
    return _line("a step", _fit(f"{describe_step(run)} (", list_setting(run), ")"))


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
    width = min(_NAME, max((count_cells(clean(one.name)) for one in shown), default=0) + 1)
    return [_shorten(_share(one, width), _WIDTH) for one in shown]


def _share(one: TimeShare, width: int) -> str:
    room = _BAR - width
    halves = round(2 * room * clamp(one.share))
    bar, detail, idle = "█" * (halves // 2) + "▌" * (halves % 2), clean(one.detail), one.exposed_s_per_step
    if is_number(idle) and is_number(one.seconds_per_step) and one.seconds_per_step > 0:
        # A wait that the device did not notice costs nothing: it is drawn lighter.
        exposed = round(len(bar) * clamp(idle / one.seconds_per_step))
        bar, detail = bar[:exposed].ljust(len(bar), "░"), f"device idle {describe_seconds(idle)}"
    name = f"  {_shorten(clean(one.name), width - 1)}"
    time, share = describe_seconds(one.seconds_per_step), describe_share(one.share)
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
    kinds: dict[str, float] = {}
    for one in parts:
        kinds[one.kind] = kinds.get(one.kind, 0.0) + one.cpu_s + one.queue_s + one.blocked_s
    most = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    words = [f"{clean(kind)} {describe_share(seconds / wall)}" for kind, seconds in most]
    how = ", ".join(f"{describe_share(s / wall)} {name}" for name, s in states.items() if s / wall >= 0.1)
    return _line("a sample", _fit(f"{describe_seconds(wall)}: ", words, f"; {how}"))


def _evidence(findings: Sequence[Finding], most: int) -> list[str]:
    lines: list[str] = []
    for text in findings[0].evidence if findings else ():
        label = "" if lines else "why"
        added = _wrap(clean(text), first=f"{label:<{_LABEL - 2}}- ", rest=" " * _LABEL, lines=2)
        if len(lines) + len(added) > most:
            break
        lines += added
    return lines


def _remedies(remedies: Sequence[Remedy], room: _Room) -> list[str]:
    helping, useless = part_remedies(remedies)
    if not helping:
        return ["Nothing that was predicted or tried makes this run faster."] if useless else []
    count = f", {room.remedies} of {len(helping)}" if len(helping) > room.remedies else ""
    lines = [f"What would help (speed-up of the whole run{count}; what limits it then):"]
    for one in helping[: room.remedies]:
        lines += _remedy(one, has_notes=room.has_notes)
    return lines


def _cures(remedies: Sequence[Remedy]) -> list[str]:
    """Of a run that ended before its first step nothing can be predicted; there is something to do first."""
    lines = ["What to do:"]
    for one in remedies[:2]:
        lines += _wrap(clean(one.title), first="  ", rest="  ", lines=2)
        lines += [f"    {_shorten(clean(one.change), _LONGEST_COMMAND)}"] if one.change else []
        lines += _wrap(clean(one.note), first="    ", rest="    ", lines=2) if one.note else []
    return lines if remedies else []


def _remedy(one: Remedy, *, has_notes: bool) -> list[str]:
    text = clean(one.title)
    if one.basis == "measured":
        text += " (tried)"
    if one.next_bottleneck:
        text += f"; then {clean(one.next_bottleneck)}"
    if not has_notes and len(one.note) <= _SHORT_NOTE:
        # A warning ("may cost accuracy") is short; how a gain comes about is long, and stands on the page.
        text += f" ({clean(one.note)})" if one.note else ""
    indent = " " * _GAIN
    gain = _shorten(describe_gain(one), _GAIN - 3)
    lines = _wrap(text, first=f"  {gain}".ljust(_GAIN), rest=indent, lines=2)
    # What is to be typed is not cut at the edge of the screen: it has to be copied.
    if one.command:
        lines.append(f"{indent}$ {_shorten(clean(one.command), _LONGEST_COMMAND)}")
    if one.change and (has_notes or not one.command):
        lines.append(f"{indent}{_shorten(clean(one.change), _LONGEST_COMMAND)}")
    if has_notes and one.note:
        lines += _wrap(clean(one.note), first=indent, rest=indent, lines=1)
    return lines


def _useless(remedies: Sequence[Remedy], most: int) -> list[str]:
    _, useless = part_remedies(remedies)
    room = most * (_WIDTH - _LABEL) - 20  # for a word that does not fit, and how many are left
    return _list("no gain", [describe_useless(one, room) for one in useless], most)


def _warning(findings: Sequence[Finding]) -> list[str]:
    """A busy machine is no cause that the user can cure; what was measured has to be read with it in mind."""
    said = next(
        (text for one in findings if (text := describe_company(one.code, one.title, one.evidence))), ""
    )
    first = f"{'warning':<{_LABEL}}"
    return _wrap(f"the machine was busy: {said}", first=first, rest=" " * _LABEL, lines=2) if said else []


def _others(findings: Sequence[Finding], most: int) -> list[str]:
    lines = [
        f"{clean(one.code)} {describe_share(one.share)}{describe_reason(one, findings)}: {clean(one.title)}"
        for one in findings[1:]
        if one.code != CONTENDED
    ]
    return [
        line
        for number, text in enumerate(lines[:most])
        for line in _line("" if number else "also", text, more=len(lines) - most if number == most - 1 else 0)
    ]


def _list(label: str, items: Iterable[str], most: int) -> list[str]:
    """Return as many whole items as fit on so many lines, and how many are left."""
    left, taken = list(items), ""
    while left:
        longer = f"{taken}; {left[0]}" if taken else left[0]
        more = f" (+{len(left) - 1} more)" if len(left) > 1 else ""
        if taken and len(_wrap(longer + more, rest=" " * _LABEL, first=" " * _LABEL, lines=99)) > most:
            break
        taken = longer
        left.pop(0)
    if not taken:
        return []
    more = f" (+{len(left)} more)" if left else ""
    return _wrap(taken + more, first=f"{label:<{_LABEL}}", rest=" " * _LABEL, lines=most)


def _fit(head: str, words: Sequence[str], tail: str) -> str:
    """Return as many of the words as fit on a line, one at least."""
    texts = [f"{head}{', '.join(words[:count])}{tail}" for count in range(len(words), 0, -1)]
    return next((text for text in texts if count_cells(text) <= _WIDTH - _LABEL), texts[-1])


def _line(label: str, text: str, *, more: int = 0) -> list[str]:
    tail = f" (+{more} more)" if more > 0 else ""
    return [f"{label:<{_LABEL}}{_shorten(text, _WIDTH - _LABEL - len(tail))}{tail}"]


def _wrap(text: str, *, first: str = "", rest: str = "", lines: int) -> list[str]:
    wrapped = wrap(text, _WIDTH, first, rest, cuts=True)
    if len(wrapped) <= lines:
        return wrapped
    last, room = wrapped[lines - 1], _WIDTH - len(" ...")
    if count_cells(last) > room:
        last = cut(last, room + 1)[0].rpartition(" ")[0].rstrip() or cut(last, room)[0]
    return [*wrapped[: lines - 1], f"{last} ..."]


def _shorten(text: str, width: int) -> str:
    return text if count_cells(text) <= width else cut(text, max(0, width - 3))[0].rstrip() + "..."
