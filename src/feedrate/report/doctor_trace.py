# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --trace`: the steps as a trace that Perfetto and chrome://tracing open.

A step's parts are known by how long they took, not by when they began: they are laid one after the other, in
the order in which a step goes through them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from feedrate.doctor.results import Curve, Diagnosis, StepRow
from feedrate.report import doctor_words as words

_ORDER = ("copy", "forward", "backward", "optimizer", "sync", "save", "validation")
_STEPS, _PHASES = 1, 2  # threads of a rank
_LONGEST_S = 1e9  # beyond that, microseconds have no digits left for what is shorter than a step
_MACHINE = 1_000_000  # the process of the machine's curves, above all ranks

Event = dict[str, object]


def draw_trace(diagnosis: Diagnosis) -> str:
    """Return the trace as JSON; times are microseconds from the first step."""
    timed = [row for row in diagnosis.timeline if _is_time(row.start_s) and _is_time(row.wall_s)]
    ranks: dict[int, list[StepRow]] = {}
    for row in sorted(timed, key=lambda row: (row.rank, row.start_s)):
        ranks.setdefault(row.rank, []).append(row)
    events = [event for rank in ranks for event in _names(rank)]
    if diagnosis.curves:
        events.append(_name("process_name", _MACHINE, 0, "machine"))
    for rows in ranks.values():
        events += _phases(rows)
        for number, row in enumerate(rows):
            events += _step(row, number)
    for curve in diagnosis.curves:
        events += _counter(curve)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "verdict": words.verdict(diagnosis),
            "command": diagnosis.command,
            "layout": "parts of a step are in order, but their exact beginnings are not known",
        },
    }
    return json.dumps(document, allow_nan=False) + "\n"


def _names(rank: int) -> Iterator[Event]:
    yield _name("process_name", rank, 0, f"rank {rank}")
    yield _name("thread_name", rank, _STEPS, "steps")
    yield _name("thread_name", rank, _PHASES, "real run and experiments")


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _phases(rows: Sequence[StepRow]) -> Iterator[Event]:
    phases = [list(group) for _, group in groupby(rows, lambda row: row.phase)]
    for steps, following in zip_longest(phases, phases[1:]):
        start, end = steps[0].start_s, max(one.start_s + one.wall_s for one in steps)
        end = min(end, following[0].start_s) if following else end
        name, count = steps[0].phase, {"steps": len(steps)}
        yield _span(name, "phase", steps[0].rank, _PHASES, start, end - start, count)


def _step(row: StepRow, number: int) -> Iterator[Event]:
    wall = max(0.0, row.wall_s)
    end = row.start_s + wall
    args = {"phase": row.phase}
    yield _span(f"step {number}", "step", row.rank, _STEPS, row.start_s, wall, args)
    wait = _bounded(row.wait_s, wall)
    now = row.start_s
    if wait > 0:
        yield _span("wait", "wait", row.rank, _STEPS, now, wait, args)
        exposed = _bounded(row.exposed_s, wait)
        if exposed > 0:
            # The device goes idle when its queued work is done, so at the end of the wait.
            yield _span("device idle", "wait", row.rank, _STEPS, now + wait - exposed, exposed, args)
    now += wait
    for name in dict.fromkeys([*(name for name in _ORDER if name in row.parts), *row.parts]):
        length = _bounded(row.parts[name], end - now)
        if length > 0:
            yield _span(name, "part", row.rank, _STEPS, now, length, args)
            now += length


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and abs(seconds) < _LONGEST_S


def _bounded(seconds: float, most: float) -> float:
    return min(max(0.0, seconds), max(0.0, most)) if math.isfinite(seconds) else 0.0


def _span(
    name: str, category: str, rank: int, thread: int, start_s: float, length_s: float, args: object
) -> Event:
    # Beginning and end are rounded, not the length: a part must not stick out of its step by a nanosecond.
    start, end = round(start_s * 1e6, 3), round((start_s + length_s) * 1e6, 3)
    return {"name": name, "cat": category, "ph": "X", "ts": start, "dur": round(max(0.0, end - start), 3),
            "pid": rank, "tid": thread, "args": args}  # fmt: skip


def _counter(curve: Curve) -> Iterator[Event]:
    name = f"{curve.name} ({curve.unit})"
    for at, value in zip(curve.times_s, curve.values, strict=False):
        if value is not None and math.isfinite(value) and _is_time(at):
            yield {"name": name, "ph": "C", "ts": round(at * 1e6, 3), "pid": _MACHINE, "tid": 0,
                   "args": {curve.unit or "value": value}}  # fmt: skip
