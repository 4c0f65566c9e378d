# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --verify` and `--check`: predicted against actual, and whether a limit is kept."""

from __future__ import annotations

from feedrate.doctor.results import Diagnosis, PartChange, Verification
from feedrate.report import doctor_words as words
from feedrate.units import format_count, is_number

_NOISE = 0.03  # two runs of one script differ by this much without a reason
_FEW_STEPS = 20


def draw_verification(verification: Verification) -> str:
    """Return predicted against actual, and what else is not as it was, in plain lines."""
    v = verification
    if v.differs:
        what = f"Not comparable: the two runs are of different things ({'; '.join(v.differs)})."
        return f"{what}\nGive --verify the document of an earlier run of this training.\n"
    lines = [
        _describe_outcome(v),
        "",
        *_lines("before", _describe_speed(v.before_samples_per_s, v.before_spread)),
        *_lines("now", _describe_speed(v.after_samples_per_s, v.after_spread)),
        *_lines("predicted", _describe_prediction(v)),
        *_lines("actual", f"{words.factor(v.actual_speedup)}{_describe_range(v)}"),
        *_lines("idle", _describe_wait(v)),
        *_lines("changed", *(v.changed or ["nothing that the doctor can see"])),
        *_lines("a step", *map(_describe_part, v.parts)),
        *_lines("findings", *_describe_findings(v)),
        *_lines("note", *v.notes),
    ]
    return "\n".join([*lines, ""])


def draw_check(diagnosis: Diagnosis, limit: float) -> str:
    """Return one line: whether the device waited for data for no more than `limit` (a share) of the time."""
    share = diagnosis.run.exposed_wait_share
    wait = f"the device stood idle, waiting for data, {words.share(share)} of the time"
    if not is_number(share):
        wait = "how long the device stood idle, waiting for data, is unknown"
    steps = format_count(diagnosis.run.steps, "step")
    few = f"; only {steps} seen" if diagnosis.run.steps < _FEW_STEPS else ""
    if diagnosis.keeps_wait_below(limit):
        return f"passed: {wait} (limit {words.share(limit)}{few}).\n"
    first = diagnosis.findings[0] if diagnosis.findings else None
    why = f": {first.code}, {first.title}" if first else ""
    return f"failed: {wait} (limit {words.share(limit)}{few}){why}.\n"


def draw_gate(verification: Verification, limit: float) -> str:
    """Return one line: whether this run lost no more than `limit` (a share) of the earlier one's speed."""
    if verification.differs:
        return "failed: the two runs are not comparable.\n"
    if not verification.keeps_speed(limit) and (company := _describe_company(verification)):
        return f"failed: not comparable: the machine was busy {company}.\n"
    lost = 1 - verification.actual_speedup
    speed = f"{words.factor(verification.actual_speedup)} as fast"
    change = f"{words.share(lost)} slower" if lost > 0 else speed
    word = "passed" if verification.keeps_speed(limit) else "failed"
    now, before = map(words.rate, (verification.after_samples_per_s, verification.before_samples_per_s))
    return f"{word}: {now}, {before} before: {change} (limit {words.share(limit)} slower).\n"


def _describe_company(v: Verification) -> str:
    """Return in which run others used the machine, and who; empty: in neither."""
    runs = ((v.busy_before, "the earlier run"), (v.busy_after, "this run"))
    return " and ".join(f"in {run} ({who})" for who, run in runs if who)


def _describe_outcome(v: Verification) -> str:
    if company := _describe_company(v):
        return f"Not comparable: the machine was busy {company}.\nMeasure again when it is quiet."
    factor = words.factor(v.actual_speedup)
    word = "Faster" if v.actual_speedup > 1 + _NOISE else "Slower" if v.actual_speedup < 1 - _NOISE else ""
    text = f"{word}: {factor} the samples per second" if word else f"No difference beyond noise ({factor})"
    if v.applied is None:
        return f"{text}."
    return f"{text}, {'inside' if v.is_inside else 'outside'} the predicted {v.applied.gain}."


def _describe_speed(rate: float, spread: tuple[float, float] | None) -> str:
    text = words.rate(rate)
    return f"{text} ({words.number(spread[0])} to {words.number(spread[1])})" if spread else text


def _describe_prediction(v: Verification) -> str:
    if v.applied is None:
        return "--applied NAME says which remedy of the earlier run to hold against this one"
    return f"{v.applied.gain} by '{v.applied.title}'"


def _describe_range(v: Verification) -> str:
    """Say where the speed-up may be, given how much each run's speed varied."""
    if v.before_spread is None or v.after_spread is None or min(*v.before_spread, *v.after_spread) <= 0:
        return ""
    low, high = v.after_spread[0] / v.before_spread[1], v.after_spread[1] / v.before_spread[0]
    text = f" (by the spread of both runs {words.factor(low)} to {words.factor(high)}"
    if v.applied is not None and not v.is_inside and low <= v.applied.high and high >= v.applied.low:
        text += ", which reaches into the predicted interval"
    return f"{text})"


def _describe_wait(v: Verification) -> str:
    if v.before_exposed_share is None or v.after_exposed_share is None:
        return "unknown in one of the runs"
    change = v.after_exposed_share - v.before_exposed_share
    word = "no change" if abs(change) < _NOISE else "worse" if change > 0 else "better"
    old, new = words.share(v.before_exposed_share), words.share(v.after_exposed_share)
    return f"{old} -> {new} of the time the device stands idle, waiting for data: {word}"


def _describe_part(one: PartChange) -> str:
    old, new = ("0 s" if s is None else words.seconds(s) for s in (one.before_s, one.after_s))
    return f"{one.name}: {old} -> {new}"


def _describe_findings(v: Verification) -> list[str]:
    named = (("gone", v.gone), ("new", v.new), ("still there", v.still))
    told = [f"{word}: {', '.join(codes)}" for word, codes in named if codes]
    return told or ["none, as before"]


def _lines(label: str, *texts: str) -> list[str]:
    return [f"{'' if number else label:<10}{text}" for number, text in enumerate(texts)]
