# SPDX-License-Identifier: Apache-2.0
"""Memory that fills up step by step: the run's own, steadily, and soon enough to matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.machine_summary import Growth, MachineSummary, measure_growth
from support.doctor_runs import FakeLoop
from support.judged_runs import judge
from support.machine_samples import SECOND, make_process, make_sample, write_samples

GB = 10**9
MAIN, WORKER = 4, 5


def watch(
    run: Path,
    memory: Callable[[int], dict[int, float]],
    *,
    left: float | None = 10 * GB,
    steps: int = 100,
    used: Callable[[int], float] = lambda _: 3 * GB,
) -> Growth | None:
    """Return what is said of 40 s in which processes have `memory(second)` bytes, by pid."""
    samples: list[dict[str, Any]] = []
    for second in range(41):
        processes = [
            make_process(pid, parent=MAIN if pid != MAIN else 1, anonymous=size, cpu_s=0.0)
            for pid, size in memory(second).items()
        ]
        machine = {"used": used(second), "limit": 25 * GB, "cache": 0.0}
        samples.append(make_sample(second, processes=processes, memory=machine))
    trace = read_machine(write_samples(run, samples))
    return measure_growth(trace, 0, 40 * SECOND, steps=steps, left_bytes=left, main_pid=MAIN)


def test_a_worker_that_grows_steadily_is_named_with_the_steps_to_the_limit(tmp_path: Path) -> None:
    growth = watch(tmp_path, lambda second: {MAIN: GB, WORKER: GB + second * 20e6})
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(8e6)
    assert growth.steps_to_limit == pytest.approx(1250)
    assert growth.where == "a worker"


def test_several_growing_processes_are_counted_together(tmp_path: Path) -> None:
    growth = watch(tmp_path, lambda second: dict.fromkeys((MAIN, 5, 6), GB + second * 10e6))
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(12e6)
    assert growth.where == "the training process and 2 workers"


def test_what_others_take_of_the_machine_is_not_the_runs_growth(tmp_path: Path) -> None:
    steady = {MAIN: float(GB), WORKER: float(GB)}
    assert watch(tmp_path, lambda _: steady, used=lambda second: 3 * GB + second * 100e6) is None


def test_memory_that_only_fills_up_at_first_is_no_growth(tmp_path: Path) -> None:
    assert watch(tmp_path, lambda second: {MAIN: GB + min(second, 22) * 50e6}) is None


def test_memory_that_moves_from_one_process_to_another_is_no_growth(tmp_path: Path) -> None:
    moving = watch(tmp_path, lambda second: {MAIN: 3 * GB - second * 20e6, WORKER: GB + second * 20e6})
    assert moving is None


def test_workers_that_come_and_go_with_their_epoch_are_no_growth(tmp_path: Path) -> None:
    growth = watch(tmp_path, lambda second: {MAIN: GB, 10 + second // 10: second % 10 * 50e6})
    assert growth is None


@pytest.mark.parametrize(
    ("per_s", "left", "steps"),
    [(0.5e6, 1e8, 100), (5e6, 20 * GB, 100), (20e6, 10 * GB, 20), (20e6, None, 100)],
)
def test_too_little_growth_too_few_steps_or_an_unknown_limit_say_nothing(
    tmp_path: Path, per_s: float, left: float | None, steps: int
) -> None:
    assert watch(tmp_path, lambda second: {MAIN: GB + second * per_s}, left=left, steps=steps) is None


def judge_growth(folder: Path, growth: Growth, used: float) -> Any:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=0.2)
    loop.main.write(folder)
    around = MachineSummary(cores=2.0, memory_limit_bytes=25e9, memory_used_bytes=used, growth=growth)
    return judge(folder, around)[1]


def test_growth_costs_no_time_yet_and_is_told_after_what_does(tmp_path: Path) -> None:
    diagnosis = judge_growth(tmp_path, Growth(8e6, 2000.0, "a worker"), used=9e9)
    device, memory = diagnosis.findings
    assert (device.code, memory.code, memory.share) == ("device-bound", "memory-pressure", 0.0)
    assert memory.title == "Memory fills up step by step"
    assert "grows by 8.00 MB a step in a worker: the limit is 2,000 steps away (20.4 s)" in memory.evidence[1]


def test_a_limit_that_is_near_is_the_verdict_without_a_made_up_cost(tmp_path: Path) -> None:
    diagnosis = judge_growth(tmp_path, Growth(8e6, 200.0, "a worker"), used=23e9)
    assert diagnosis.findings[0].code == "memory-pressure"
    assert diagnosis.verdict == "Memory fills up step by step."


def test_a_limit_that_a_day_does_not_reach_is_not_told(tmp_path: Path) -> None:
    diagnosis = judge_growth(tmp_path, Growth(8e3, 1e8, "a worker"), used=9e9)
    assert [finding.code for finding in diagnosis.findings] == ["device-bound"]
