# SPDX-License-Identifier: Apache-2.0
"""What the doctor's reports have in common: numbers and names as words, whatever the run handed in.

A diagnosis holds paths, source lines and messages that others wrote, and numbers that could not always be
measured: nothing here raises on either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from feedrate.doctor.results import Curve, Diagnosis, Finding, Remedy, RunFacts
from feedrate.units import (
    format_bytes,
    format_count,
    format_factor,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    is_number,
)

UNKNOWN = "unknown"
_SPELT = ("B", "B/s", "share", "s")  # units of curves that are part of the number


def _if_known(say: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: say(value) if is_number(value) else UNKNOWN


seconds = _if_known(lambda value: format_seconds(value) if value > 0 else "0 s")
share, number, in_bytes = map(_if_known, (format_percent, format_number, format_bytes))
rate = _if_known(lambda value: format_rate(value, "samples"))
factor = _if_known(lambda value: f"{format_factor(value)}x")


def part_remedies(remedies: Iterable[Remedy]) -> tuple[list[Remedy], list[Remedy]]:
    """Return the remedies that give something, and those that do not, each in the order given."""
    listed = list(remedies)
    return [one for one in listed if one.helps], [one for one in listed if not one.helps]


def verdict(diagnosis: Diagnosis) -> str:
    """Return the verdict, beginning with the code of the first finding where it does not name it."""
    said = diagnosis.verdict.strip()
    if not diagnosis.findings:
        return said or "nothing found: no cause costs enough to be named."
    first = diagnosis.findings[0]
    return said if first.code in said else f"{first.code}: {said or first.title}"


def reason(one: Finding, findings: Iterable[Finding]) -> str:
    """Return `, explained by CODE` where a finding before it is the reason."""
    code = next((other.code for other in findings if one.code in other.explains), None)
    return f", explained by {code}" if code else ""


_FOLDERS = re.compile(r"/(?:[^/()\s]+/)+(?=[^/():\s]+:\d)")


def without_folders(text: str) -> str:
    """Return text with places as file name and line: folders are long, and stand in the whole report."""
    return _FOLDERS.sub("", text)


def named(name: str, value: float | int | str | None) -> str:
    """Return a number with its name and unit, both from a name like `decode_cpu_s`."""
    if isinstance(value, str):
        said = value
    elif name.endswith("_per_s"):
        name, said = f"{name.removesuffix('_per_s')} a second", number(value)
    elif name.endswith("_s"):
        name, said = name.removesuffix("_s"), seconds(value)
    elif name.endswith("_bytes"):
        name, said = name.removesuffix("_bytes"), in_bytes(value)
    else:
        said = share(value) if name.endswith("_share") else number(value)
    return f"{name.replace('_', ' ')}: {said}"


def curve(one: Curve) -> str:
    """Return the mean of the steps and the largest reading of all, and the limit where there is one."""
    values = sorted(filter(is_number, one.values))
    if not values:
        return UNKNOWN
    # That a share ends at 100% goes without saying.
    limits = [one.limit] if is_number(one.limit) and one.unit != "share" else []
    usual = one.mean if is_number(one.mean) else sum(values) / len(values)
    words = [_describe_reading(value, one.unit) for value in (usual, values[-1], *limits)]
    text = f"{words[0]}, at most {words[1]}" + (f" of {words[2]}" if limits else "")
    return text if one.unit in _SPELT else f"{text} {one.unit}"


def _describe_reading(value: float, unit: str) -> str:
    if unit in ("B", "B/s"):
        return format_bytes(value) + unit[1:]
    if unit == "share":
        return share(value)
    return seconds(value) if unit == "s" else number(value)


def is_healthy(diagnosis: Diagnosis) -> bool:
    return not diagnosis.findings or diagnosis.findings[0].code == "device-bound"


def useless(remedy: Remedy, most: int = 10_000) -> str:
    """Return what gives nothing, and why.

    Of more than `most` characters, it is the title that is cut, not the reason.
    """
    why = remedy.note.rstrip(".") or f"{factor(remedy.predicted_speedup)} predicted"
    title, room = remedy.title, max(most - len(why) - 2, 20)
    return f"{title if len(title) <= room else title[: room - 4].rstrip() + ' ...'}: {why}"


def step(run: RunFacts) -> str:
    """Return the step in numbers: how long, how many samples."""
    samples = f"{number(run.samples_per_step)} sample{'' if run.samples_per_step == 1 else 's'}"
    return f"{seconds(run.seconds_per_step)}, {samples}: {rate(run.samples_per_s)}"


def list_setting(run: RunFacts) -> list[str]:
    """Return what the step ran on, the most telling first."""
    several = run.ranks > 1
    workers = format_count(run.workers, "worker") if run.workers else "no workers"
    if run.threads is not None:
        workers = format_count(run.threads, "thread")
    cores = number(run.usable_cores)
    return [
        f"{run.ranks:,} x {run.device}" if several else run.device,
        f"{workers} each" if several else workers,
        f"{cores} {'core' if cores == '1' else 'cores'}",
    ]


def end(run: RunFacts) -> str:
    """Return what was watched, and how it ended."""
    steps = format_count(run.steps, "step")
    code = UNKNOWN if run.exit_code is None else str(run.exit_code)
    if run.mode == "passive":
        return f"{steps}, nothing changed, exit code {code}"
    if run.mode == "ended":
        return f"{steps}, then it ended (exit code {code})"
    done = format_count(len(run.experiments), "experiment") if run.experiments else "no experiments"
    return f"{steps}, {done}, " + ("run ended" if run.exit_code is None else f"exit code {code}")


def overhead(diagnosis: Diagnosis) -> str:
    cost = diagnosis.overhead
    if cost is None or not is_number(cost.seconds_per_step):
        return "own cost unknown: too few steps"
    if cost.seconds_per_step <= 0:
        return "own cost too small to see"
    return f"cost {seconds(cost.seconds_per_step)} a step ({share(cost.share)})"


@dataclass(frozen=True)
class Item:
    """One thing that the page and the whole report tell alike.

    Attributes:
        remedy: whose gain stands beside it; None: there is none.
        lines: sentences below it; `points`: a list below those.
        typed: lines to copy; `code`: lines to paste; `left_out`: what that code does not do.
    """

    title: str
    remedy: Remedy | None = None
    lines: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()
    code: str = ""
    left_out: tuple[str, ...] = ()


def list_remedies(diagnosis: Diagnosis) -> list[Item]:
    """Return what would help; of a run that ended before its first step, without a gain, what to do."""
    has_gain = diagnosis.run.steps > 0
    items = []
    for one in part_remedies(diagnosis.remedies)[0] if has_gain else diagnosis.remedies:
        how = "tried in this run" if one.basis == "measured" else "predicted"
        limit = f"; then the limit is {one.next_bottleneck}" if one.next_bottleneck else ""
        typed = tuple(filter(None, (one.command and f"$ {one.command}", one.change)))
        title = f"{one.title} ({how}{limit}; --applied {one.name})" if has_gain else one.title
        notes = (one.note,) if one.note else ()
        items.append(Item(title, one if has_gain else None, notes, (), typed, one.code or "", one.left_out))
    return items


def list_findings(diagnosis: Diagnosis) -> list[Item]:
    items = []
    for one in diagnosis.findings:
        # A run that died before its first step has no time to take a share of.
        cost = f" {share(one.share)} of the time" if diagnosis.run.steps else ""
        title = f"{one.code}{cost}{reason(one, diagnosis.findings)}: {one.title}"
        numbers = "; ".join(named(name, value) for name, value in one.numbers.items())
        cause = (one.cause,) if one.cause else ()
        points = (*one.evidence, f"({numbers})") if numbers else one.evidence
        items.append(Item(title, lines=cause, points=points))
    return items


def list_hot_lines(diagnosis: Diagnosis) -> list[Item]:
    items = []
    for one in diagnosis.hot_lines:
        where = "training process" if one.where == "main" else one.where
        title = f"{share(one.share)} of the looks at the {where}: {one.place} {one.function}"
        items.append(Item(title, typed=(one.source,) if one.source else ()))
    return items


def list_doings(diagnosis: Diagnosis) -> list[str]:
    """Return what was done and seen, and what that cost."""
    run = diagnosis.run
    cost = diagnosis.overhead
    probed = f" ({cost.probed_steps:,} probed against {cost.unprobed_steps:,} unprobed steps)" if cost else ""
    return [
        f"{end(run)}; {seconds(run.seconds)}",
        f"{format_count(run.warmup_steps, 'step')} of warm-up left out of the figures",
        *run.experiments,
        *(f"not seen: {text}" for text in run.unseen),
        f"the doctor itself: {overhead(diagnosis)}{probed}",
    ]
