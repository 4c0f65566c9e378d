# SPDX-License-Identifier: Apache-2.0
"""What the doctor's reports have in common: numbers and names as words, whatever the run handed in.

A diagnosis holds paths, source lines and messages that others wrote, and numbers that could not always be
measured: nothing here raises on either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from feedrate.doctor.results import Curve, Diagnosis, Finding, Remedy, RunFacts
from feedrate.errors import clean
from feedrate.units import format_bytes, format_count, format_percent, format_rate, format_seconds

# Below this a prediction is not worth a change to a script.
GAIN_WORTH_NAMING = 1.03
GOOD_CODES = ("device-bound",)
CONTENDED = "contended"
UNKNOWN = "unknown"
_SPELT = ("B", "B/s", "share", "s")  # units of curves that are part of the number


def is_number(value: float | None) -> TypeGuard[float]:
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:  # a whole number without a float
        return False


def clamp(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return min(high, max(low, value)) if math.isfinite(value) else low


def place(value: float, start: float, end: float) -> float:
    """Return where a value lies between two others, from 0 to 1."""
    return clamp((value - start) / (end - start)) if end > start else 0.0


def describe_seconds(value: float | None) -> str:
    if not is_number(value):
        return UNKNOWN
    return format_seconds(value) if value > 0 else "0 s"


def describe_share(value: float | None) -> str:
    return format_percent(value) if is_number(value) else UNKNOWN


def describe_rate(value: float | None) -> str:
    return format_rate(value, "samples") if is_number(value) else UNKNOWN


def describe_number(value: float | None) -> str:
    """Return three digits of any number, for scales and tables."""
    if not is_number(value):
        return UNKNOWN
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2g}"
    return f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.3g}"


def describe_factor(value: float) -> str:
    """Return `2.4x`; below two one digit more, since 1.04 and 1.00 are not the same."""
    if not is_number(value):
        return UNKNOWN
    return f"{_factor(value, value)}x"


def describe_gain(remedy: Remedy) -> str:
    """Return `2.4x (2.0-2.8)`."""
    if not is_number(remedy.predicted_speedup):
        return UNKNOWN
    text = describe_factor(remedy.predicted_speedup)
    if not (is_number(remedy.low) and is_number(remedy.high)):
        return text
    low, high = (_factor(one, remedy.predicted_speedup) for one in (remedy.low, remedy.high))
    return f"{text} ({low}-{high})"


def _factor(value: float, scale: float) -> str:
    size = abs(scale)
    return f"{value:.2g}" if size >= 1e6 else f"{value:.{2 if size < 1.995 else 1 if size < 9.95 else 0}f}"


def part_remedies(remedies: Iterable[Remedy]) -> tuple[list[Remedy], list[Remedy]]:
    """Return the remedies that give something, and those that do not, each in the order given."""
    helping: list[Remedy] = []
    useless: list[Remedy] = []
    for one in remedies:
        (helping if one.predicted_speedup >= GAIN_WORTH_NAMING else useless).append(one)
    return helping, useless


def describe_verdict(diagnosis: Diagnosis) -> str:
    """Return the verdict, beginning with the code of the first finding where it does not name it."""
    verdict = clean(diagnosis.verdict).strip()
    if not diagnosis.findings:
        return verdict or "nothing found: no cause costs enough to be named."
    first = diagnosis.findings[0]
    return verdict if first.code in verdict else f"{clean(first.code)}: {verdict or clean(first.title)}"


def describe_company(code: str, title: str, evidence: Sequence[str]) -> str:
    """Return who else used the machine by a finding that says so; empty: another finding."""
    return clean(evidence[0] if evidence else title) if code == CONTENDED else ""


def describe_reason(one: Finding, findings: Iterable[Finding]) -> str:
    """Return `, explained by CODE` where a finding before it is the reason."""
    reason = next((other.code for other in findings if one.code in other.explains), None)
    return f", explained by {clean(reason)}" if reason else ""


def describe_named(name: str, value: float | int | str | None) -> str:
    """Return a number with its name and unit, both from a name like `decode_cpu_s`."""
    words = clean(name)
    if isinstance(value, str):
        said = clean(value)
    elif words.endswith("_per_s"):
        words, said = f"{words.removesuffix('_per_s')} a second", describe_number(value)
    elif words.endswith("_s"):
        words, said = words.removesuffix("_s"), describe_seconds(value)
    elif words.endswith("_bytes"):
        words, said = words.removesuffix("_bytes"), format_bytes(value) if is_number(value) else UNKNOWN
    else:
        said = describe_share(value) if words.endswith("_share") else describe_number(value)
    return f"{words.replace('_', ' ')}: {said}"


def describe_curve(curve: Curve) -> str:
    """Return the median and the largest reading, and the limit where there is one."""
    values = sorted(filter(is_number, curve.values))
    if not values:
        return UNKNOWN
    # That a share ends at 100% goes without saying.
    limits = [curve.limit] if is_number(curve.limit) and curve.unit != "share" else []
    words = [_describe_reading(one, curve.unit) for one in (values[len(values) // 2], values[-1], *limits)]
    text = f"{words[0]}, at most {words[1]}" + (f" of {words[2]}" if limits else "")
    return text if curve.unit in _SPELT else f"{text} {clean(curve.unit)}"


def _describe_reading(value: float, unit: str) -> str:
    if unit in ("B", "B/s"):
        return format_bytes(value) + unit[1:]
    if unit == "share":
        return describe_share(value)
    return describe_seconds(value) if unit == "s" else describe_number(value)


def is_healthy(diagnosis: Diagnosis) -> bool:
    return not diagnosis.findings or diagnosis.findings[0].code in GOOD_CODES


def describe_useless(remedy: Remedy, most: int = 10_000) -> str:
    """Return what gives nothing, and why; a note that is a whole sentence says both.

    Of more than `most` characters, it is the title that is cut, not the reason.
    """
    why = clean(remedy.note).rstrip(".")
    if not why or why.startswith("may "):
        # A warning of what it may spoil is no reason.
        why = f"{describe_factor(remedy.predicted_speedup)} predicted"
    if "will not help" in why:
        return why
    title, room = clean(remedy.title), max(most - len(why) - 2, 20)
    return f"{title if len(title) <= room else title[: room - 4].rstrip() + ' ...'}: {why}"


def describe_step(run: RunFacts) -> str:
    """Return the step in numbers: how long, how many samples."""
    samples = f"{describe_number(run.samples_per_step)} sample{'' if run.samples_per_step == 1 else 's'}"
    return f"{describe_seconds(run.seconds_per_step)}, {samples}: {describe_rate(run.samples_per_s)}"


def list_setting(run: RunFacts) -> list[str]:
    """Return what the step ran on, the most telling first."""
    several = run.ranks > 1
    workers = format_count(run.workers, "worker") if run.workers else "no workers"
    if run.threads is not None:
        workers = format_count(run.threads, "thread")
    cores = describe_number(run.usable_cores)
    return [
        f"{run.ranks:,} x {clean(run.device)}" if several else clean(run.device),
        f"{workers} each" if several else workers,
        f"{cores} {'core' if cores == '1' else 'cores'}",
    ]


def describe_end(run: RunFacts) -> str:
    """Return what was watched, and how it ended."""
    steps = format_count(run.steps, "step")
    code = UNKNOWN if run.exit_code is None else str(run.exit_code)
    if run.mode == "passive":
        return f"{steps}, nothing changed, exit code {code}"
    if run.mode == "ended":
        return f"{steps}, then it ended (exit code {code})"
    done = format_count(len(run.experiments), "experiment") if run.experiments else "no experiments"
    return f"{steps}, {done}, " + ("run ended" if run.exit_code is None else f"exit code {code}")


def describe_overhead(diagnosis: Diagnosis) -> str:
    cost = diagnosis.overhead
    if cost is None or not is_number(cost.seconds_per_step):
        return "own cost unknown: too few steps"
    if cost.seconds_per_step <= 0:
        return "own cost too small to see"
    return f"cost {describe_seconds(cost.seconds_per_step)} a step ({describe_share(cost.share)})"
