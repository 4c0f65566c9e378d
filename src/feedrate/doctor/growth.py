# SPDX-License-Identifier: Apache-2.0
"""Do the run's own processes take more memory step by step, so steadily that they will fill what there is?"""

from __future__ import annotations

from dataclasses import dataclass

from feedrate.doctor.machine import MachineTrace

_LEAST_STEPS = 30
_LEAST_BYTES_PER_S = 1e6  # less is how any program breathes
_LEAST_PART = 0.02  # of what is left, while it was watched: the limit is at most 50 times as far away
_LEVELLING_OFF = 0.5  # of the whole growth, what the second half must still have
_LATE, _EARLY = 0.1, 0.2  # of the time watched: so late a process may come, and so early be done
_TELLING = 0.2  # of all growth: a process with less is not named


@dataclass(frozen=True, slots=True)
class Growth:
    """`where`: the processes that grow, in words."""

    bytes_per_step: float
    steps_to_limit: float
    where: str


def measure_growth(
    trace: MachineTrace, start_ns: int, end_ns: int, *, steps: int, left_bytes: float | None, main_pid: int
) -> Growth | None:
    """Return how the processes of this run grow over the steps; None: they do not, or it cannot be told.

    What other programs take, and the page cache, are not counted. Growth that slows down (buffers that fill,
    a program that warms up) ends by itself. `left_bytes`: inside the limit; None: unknown.
    """
    seconds = (end_ns - start_ns) / 1e9
    if steps < _LEAST_STEPS or not left_bytes or left_bytes < 0:
        return None
    late_ns, early_ns = (round(part * (end_ns - start_ns)) for part in (_LATE, _EARLY))
    # One that was started or ended meanwhile takes its memory along.
    staying = [
        pid
        for pid, process in trace.processes.items()
        if process.times_ns[0] <= start_ns + late_ns and process.times_ns[-1] >= end_ns - early_ns
    ]

    def slopes(start: int, end: int) -> dict[int, float]:
        return {pid: slope for pid in staying if (slope := trace.growth_per_s(pid, start, end)) is not None}

    middle = (start_ns + end_ns) // 2
    whole, early, late = slopes(start_ns, end_ns), slopes(start_ns, middle), slopes(middle, end_ns)
    per_s = sum(whole.values())
    if per_s < _LEAST_BYTES_PER_S or per_s * seconds < _LEAST_PART * left_bytes:
        return None
    if sum(early.values()) <= 0 or sum(late.values()) < _LEVELLING_OFF * per_s:
        return None
    growing = [pid for pid, slope in whole.items() if slope > _TELLING * per_s]
    per_step = per_s * seconds / steps
    return Growth(per_step, left_bytes / per_step, _name(trace, growing, main_pid))


def _name(trace: MachineTrace, growing: list[int], main_pid: int) -> str:
    workers = [pid for pid in growing if trace.processes[pid].parent == main_pid]
    named = ["the training process"] if main_pid in growing else []
    if workers:
        named.append("a worker" if len(workers) == 1 else f"{len(workers)} workers")
    return " and ".join(named) or "its processes"
