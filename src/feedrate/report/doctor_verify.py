# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --verify` and `--check`: this run against an earlier one, its predictions, or a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feedrate.doctor.results import Diagnosis, PartChange, Verification
from feedrate.errors import clean
from feedrate.report.doctor_applied import describe_changes, find_applied
from feedrate.report.doctor_earlier import Seen, read_earlier, read_present
from feedrate.report.doctor_same import list_differences
from feedrate.report.doctor_words import (
    CONTENDED,
    describe_factor,
    describe_gain,
    describe_number,
    describe_rate,
    describe_seconds,
    describe_share,
    is_number,
)
from feedrate.units import format_count

_NOISE = 0.03  # two runs of one script differ by this much without a reason
_FEW_STEPS = 20
_MOST_PARTS = 5


def compare_runs(before: Mapping[str, object], after: Diagnosis) -> Verification:
    """Compare a run with the document that `feedrate doctor --json` wrote of an earlier one.

    Raises:
        UsageError: the document is none of the doctor's, or cannot be read, or a run has no speed.
    """
    old, new = read_earlier(before), read_present(after)
    speedup = new.samples_per_s / old.samples_per_s
    differs = list_differences(old, new)
    applied, notes = (None, []) if differs else find_applied(old, new)
    return Verification(
        before_samples_per_s=old.samples_per_s,
        after_samples_per_s=new.samples_per_s,
        actual_speedup=speedup,
        applied=applied,
        is_inside=applied.low <= speedup <= applied.high if applied is not None else None,
        changed=tuple(describe_changes(old, new)),
        gone=tuple(code for code in old.codes if code not in new.codes),
        new=tuple(code for code in new.codes if code not in old.codes),
        still=tuple(code for code in new.codes if code in old.codes),
        before_spread=old.spread,
        after_spread=new.spread,
        before_exposed_share=old.exposed_share,
        after_exposed_share=new.exposed_share,
        parts=tuple(_compare_parts(old, new)),
        notes=(*notes, *_list_doubts(old, new)),
        differs=differs,
        busy_before=old.busy,
        busy_after=new.busy,
    )


def draw_verification(verification: Verification) -> str:
    """Return predicted against actual, and what else is not as it was, in plain lines."""
    v = verification
    if v.differs:
        what = f"Not comparable: the two runs are of different things ({'; '.join(map(clean, v.differs))})."
        return f"{what}\nGive --verify the document of an earlier run of this training.\n"
    lines = [
        _describe_outcome(v),
        "",
        *_lines("before", [_describe_speed(v.before_samples_per_s, v.before_spread)]),
        *_lines("now", [_describe_speed(v.after_samples_per_s, v.after_spread)]),
        *_lines("predicted", [_describe_prediction(v)]),
        *_lines("actual", [f"{describe_factor(v.actual_speedup)}{_describe_range(v)}"]),
        *_lines("idle", [_describe_wait(v)]),
        *_lines("changed", [clean(one) for one in v.changed] or ["nothing that the doctor can see"]),
        *_lines("a step", [_describe_part(one) for one in v.parts]),
        *_lines("findings", _describe_findings(v)),
        *_lines("note", [clean(one) for one in v.notes]),
    ]
    return "\n".join([*lines, ""])


def draw_check(diagnosis: Diagnosis, limit: float) -> str:
    """Return one line: whether the device waited for data for no more than `limit` (a share) of the time."""
    share = diagnosis.run.exposed_wait_share
    wait = f"the device stood idle, waiting for data, {describe_share(share)} of the time"
    if not is_number(share):
        wait = "how long the device stood idle, waiting for data, is unknown"
    steps = format_count(diagnosis.run.steps, "step")
    few = f"; only {steps} seen" if diagnosis.run.steps < _FEW_STEPS else ""
    if passes_check(diagnosis, limit):
        return f"passed: {wait} (limit {describe_share(limit)}{few}).\n"
    first = diagnosis.findings[0] if diagnosis.findings else None
    why = f": {clean(first.code)}, {clean(first.title)}" if first else ""
    return f"failed: {wait} (limit {describe_share(limit)}{few}){why}.\n"


def passes_check(diagnosis: Diagnosis, limit: float) -> bool:
    """Return whether the run keeps to the limit. What could not be measured does not pass."""
    return is_number(diagnosis.run.exposed_wait_share) and diagnosis.run.exposed_wait_share <= limit


def draw_gate(verification: Verification, limit: float) -> str:
    """Return one line: whether this run lost no more than `limit` (a share) of the earlier one's speed."""
    if verification.differs:
        return "failed: the two runs are not comparable.\n"
    if not passes_gate(verification, limit) and (company := _describe_company(verification)):
        return f"failed: not comparable: the machine was busy {company}.\n"
    lost = 1 - verification.actual_speedup
    now, before = verification.after_samples_per_s, verification.before_samples_per_s
    change = (
        f"{describe_share(lost)} slower"
        if lost > 0
        else f"{describe_factor(verification.actual_speedup)} as fast"
    )
    word = "passed" if passes_gate(verification, limit) else "failed"
    speeds = f"{describe_rate(now)}, {describe_rate(before)} before"
    return f"{word}: {speeds}: {change} (limit {describe_share(limit)} slower).\n"


def passes_gate(verification: Verification, limit: float) -> bool:
    """Return whether the run keeps to the limit. A busy machine makes it slower, never faster.

    An earlier run on a busy machine is no measure.
    """
    if verification.differs or verification.busy_before:
        return False
    return verification.actual_speedup >= 1 - limit


def _compare_parts(old: Seen, new: Seen) -> list[PartChange]:
    """Return the parts of the step that changed, the largest change first."""
    names = dict.fromkeys([*old.split, *new.split])
    changes = [PartChange(name, old.split.get(name), new.split.get(name)) for name in names]

    def size(one: PartChange) -> float:
        return abs((one.after_s or 0.0) - (one.before_s or 0.0))

    worth = 0.01 * sum(old.split.values())
    return sorted((one for one in changes if size(one) > worth), key=size, reverse=True)[:_MOST_PARTS]


def _list_doubts(old: Seen, new: Seen) -> list[str]:
    """Return why the two runs may not be compared like for like."""
    doubts = []
    if old.device != new.device:
        doubts.append("the device is not the same: what was predicted was predicted for the other one")
    if old.ranks is not None and old.ranks != new.ranks:
        doubts.append("the number of ranks is not the same")
    if old.usable_cores is not None and new.usable_cores is not None and old.usable_cores != new.usable_cores:
        cores = [describe_number(one) for one in (old.usable_cores, new.usable_cores)]
        doubts.append(f"{cores[0]} cores could be used before, {cores[1]} now")
    if CONTENDED in (*old.codes, *new.codes) and not (old.busy or new.busy):
        doubts.append("other processes took the machine in one of the runs: measure again when it is quiet")
    fewest = min(old.steps if old.steps is not None else _FEW_STEPS, new.steps or 0)
    if fewest < _FEW_STEPS:
        doubts.append(f"one of the runs saw {format_count(int(fewest), 'step')} only: its speed is rough")
    return doubts


def _describe_company(v: Verification) -> str:
    """Return in which run others used the machine, and who; empty: in neither."""
    runs = ((v.busy_before, "the earlier run"), (v.busy_after, "this run"))
    return " and ".join(f"in {run} ({clean(who)})" for who, run in runs if who)


def _describe_outcome(v: Verification) -> str:
    if company := _describe_company(v):
        return f"Not comparable: the machine was busy {company}.\nMeasure again when it is quiet."
    factor = describe_factor(v.actual_speedup)
    word = "Faster" if v.actual_speedup > 1 + _NOISE else "Slower" if v.actual_speedup < 1 - _NOISE else ""
    text = f"{word}: {factor} the samples per second" if word else f"No difference beyond noise ({factor})"
    if v.applied is None:
        return f"{text}."
    return f"{text}, {'inside' if v.is_inside else 'outside'} the predicted {describe_gain(v.applied)}."


def _describe_speed(rate: float, spread: tuple[float, float] | None) -> str:
    text = describe_rate(rate)
    return f"{text} ({describe_number(spread[0])} to {describe_number(spread[1])})" if spread else text


def _describe_prediction(v: Verification) -> str:
    if v.applied is None:
        return "nothing: no remedy of the earlier run is seen to be applied"
    return f"{describe_gain(v.applied)} by '{clean(v.applied.title)}'"


def _describe_range(v: Verification) -> str:
    """Say where the speed-up may lie, given how much each run's speed varied."""
    if v.before_spread is None or v.after_spread is None or min(*v.before_spread, *v.after_spread) <= 0:
        return ""
    low, high = v.after_spread[0] / v.before_spread[1], v.after_spread[1] / v.before_spread[0]
    text = f" (by the spread of both runs {describe_factor(low)} to {describe_factor(high)}"
    if v.applied is not None and not v.is_inside and low <= v.applied.high and high >= v.applied.low:
        text += ", which reaches into the predicted interval"
    return f"{text})"


def _describe_wait(v: Verification) -> str:
    if v.before_exposed_share is None or v.after_exposed_share is None:
        return "unknown in one of the runs"
    change = v.after_exposed_share - v.before_exposed_share
    word = "no change" if abs(change) < _NOISE else "worse" if change > 0 else "better"
    old, new = describe_share(v.before_exposed_share), describe_share(v.after_exposed_share)
    return f"{old} -> {new} of the time the device stands idle, waiting for data: {word}"


def _describe_part(one: PartChange) -> str:
    old, new = ("0 s" if s is None else describe_seconds(s) for s in (one.before_s, one.after_s))
    return f"{clean(one.name)}: {old} -> {new}"


def _describe_findings(v: Verification) -> list[str]:
    named = (("gone", v.gone), ("new", v.new), ("still there", v.still))
    return [f"{word}: {', '.join(map(clean, codes))}" for word, codes in named if codes] or [
        "none, as before"
    ]


def _lines(label: str, texts: Sequence[str]) -> list[str]:
    return [f"{'' if number else label:<10}{text}" for number, text in enumerate(texts)]
