# SPDX-License-Identifier: Apache-2.0
"""What holds up a GPU besides data: Python that gives it work too slowly, and other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_doctor_findings import first, run_steps

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.hook.feedrate_hook import layout
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge


def run_on_gpu(folder: Path, **around: Any) -> Any:
    """Judge steps of 10 ms in which data is waited for 0.1 ms; 4, 5 and 1 ms go into launching."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    run_steps(loop, 0.1)
    loop.main.write(folder)
    _, diagnosis = judge(folder, MachineSummary(cores=8.0, gpus=1, gpu_name="H200", **around))
    return diagnosis


def test_a_busy_gpu_is_the_good_case(tmp_path: Path) -> None:
    assert first(run_on_gpu(tmp_path, gpu_utilisation=0.97)) == "device-bound"


def test_a_gpu_that_idles_while_it_is_given_work_waits_for_python(tmp_path: Path) -> None:
    diagnosis = run_on_gpu(tmp_path, gpu_utilisation=0.3)
    assert first(diagnosis) == "main-thread-bound"
    finding = diagnosis.findings[0]
    assert finding.share == pytest.approx(0.69, abs=0.02)
    assert finding.evidence[0] == "the GPU is at work 30% of the time, giving it that work takes 99%"
    assert "gives the GPU its work too slowly" in diagnosis.verdict


def test_without_word_of_the_gpus_work_nobody_is_blamed(tmp_path: Path) -> None:
    assert first(run_on_gpu(tmp_path, gpu_utilisation=None)) == "device-bound"


def test_a_gpu_that_works_for_others_is_contended(tmp_path: Path) -> None:
    """One that could use 80% gets every other turn: this run was measured at half its speed."""
    diagnosis = run_on_gpu(tmp_path, gpu_utilisation=1.0, gpu_others=1, gpu_others_share=0.8)
    assert first(diagnosis) == "contended"
    finding = diagnosis.findings[0]
    assert finding.evidence[0] == "1 other process has 80% of the GPU's time"
    (alone,) = [r for r in finding.remedies if r.name == "stop-others"]
    assert alone.low <= 2.0 <= alone.high


def test_processes_that_only_hold_memory_of_the_gpu_cost_nothing(tmp_path: Path) -> None:
    diagnosis = run_on_gpu(tmp_path, gpu_utilisation=0.97, gpu_others=2, gpu_others_share=0.0)
    assert [finding.code for finding in diagnosis.findings] == ["device-bound"]


def copy_pageable(folder: Path, *, pending: float) -> Any:
    """Judge steps whose copy of 300 MB takes 40 ms, after it has waited for `pending` ms of computing.

    On the device's clock there is the copy, and then the computing: 2 ms, and what the next copy waits for.
    """
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    loop.main.fact("copy-rates", pinned_bytes_per_s=5e10, pageable_bytes_per_s=8e9)
    for _ in range(40):
        timed = 40 + pending
        arrived = loop.now + round(0.1 * MS)
        loop.main.record(layout.COPY, "train.py:9", arrived, round(timed * MS), a=300_000_000, c=4)
        before = round(40 * MS)
        wall = before + round((2 + pending) * MS)
        loop.main.record(layout.DEVICE, "", arrived, wall, a=before, b=-1, c=MS)
        loop.step(wait=0.1, before=timed, forward=0.5, backward=1, optimizer=0.5)
    loop.main.write(folder)
    around = MachineSummary(
        cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.2, copied_bytes=3e8, copied_element_bytes=4
    )
    return judge(folder, around)[1]


def pinned_gain(diagnosis: Any) -> Any:
    return next(remedy for remedy in diagnosis.remedies if remedy.name == "pinned-memory")


def test_from_pinned_memory_a_copy_takes_what_the_bus_takes(tmp_path: Path) -> None:
    diagnosis = copy_pageable(tmp_path, pending=0)
    assert first(diagnosis) == "copy-bound"
    # 6 ms for the copy and 2 ms of computing, instead of 42.1 ms.
    assert pinned_gain(diagnosis).low < 42.1 / 8 < pinned_gain(diagnosis).high


def test_computing_that_a_copy_waits_for_stays_when_the_copy_is_pinned(tmp_path: Path) -> None:
    gain = pinned_gain(copy_pageable(tmp_path, pending=30))
    assert gain.low < 72.1 / 38 < gain.high
