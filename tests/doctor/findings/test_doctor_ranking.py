# SPDX-License-Identifier: Apache-2.0
"""The order of findings, and the shares that are published beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.findings.catalogue import CATALOGUE
from feedrate.doctor.findings.diagnose import rank
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Finding
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge


def test_without_explanations_the_shares_are_the_order() -> None:
    assert rank({"a": 0.1, "b": 0.5, "c": 0.3}, {}) == ["b", "c", "a"]


def test_a_reason_stands_before_what_it_explains_however_little_it_costs() -> None:
    assert rank({"decode": 0.6, "starved": 0.2}, {"starved": ["decode"]}) == ["starved", "decode"]


def test_a_reason_counts_for_as_much_as_what_it_explains() -> None:
    weights = {"decode": 0.6, "starved": 0.2, "validation": 0.4}
    assert rank(weights, {"starved": ["decode"]}) == ["starved", "decode", "validation"]


def test_a_reason_from_outside_counts_for_what_it_costs() -> None:
    weights = {"decode": 0.9, "contended": 0.35, "validation": 0.5}
    order = rank(weights, {"contended": ["decode"]}, outside=["contended"])
    assert order == ["validation", "contended", "decode"]


def test_a_chain_of_reasons_is_kept_also_where_they_cost_the_same() -> None:
    weights = {"transform": 0.5, "repeated": 0.5, "contended": 0.5}
    explains = {"repeated": ["transform"], "contended": ["transform", "repeated"]}
    assert rank(weights, explains, outside=["contended"]) == ["contended", "repeated", "transform"]


def test_nothing_in_the_catalogue_explains_its_own_reason() -> None:
    explains = {entry.code: entry.explains for entry in CATALOGUE}
    order = rank(dict.fromkeys(explains, 0.5), explains)
    assert sorted(order) == sorted(explains)


def test_contention_leaves_the_shares_of_what_it_explains_alone(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=90)
    loop.fetches(200, 20, cpu=80, queue=100, parts={"decode:PIL": (80, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, cores_ours=0.9, cores_others=1.1))
    contended, decode = diagnosis.findings[:2]
    assert (contended.code, decode.code) == ("contended", "decode-bound")
    assert contended.share == pytest.approx(0.5, abs=0.03)
    assert decode.share == pytest.approx(0.85, abs=0.05)
    assert contended.explains == ("decode-bound",)


def test_too_few_workers_stand_before_the_decoding_with_the_share_that_more_of_them_save(
    tmp_path: Path,
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (95, 0)}).write(tmp_path)
    detail = {"workers": 3}
    loop.main.fact("phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * 35 * MS, batches=20, detail=detail)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=3.0))
    starved, decode = diagnosis.findings[:2]
    assert (starved.code, decode.code) == ("workers-starved", "decode-bound")
    assert starved.share == pytest.approx(0.3, abs=0.02)
    assert decode.share > 0.7


def test_a_device_at_work_stands_behind_a_cause_that_can_be_cured_with_the_time_that_is_left_to_it(
    tmp_path: Path,
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=0.2, other=4)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    slow, good = diagnosis.findings
    assert (slow.code, good.code) == ("main-thread-bound", "device-bound")
    assert good.share == pytest.approx(1 - slow.share, abs=0.001)
    assert good.share > slow.share


def test_a_loader_that_only_shares_the_cores_is_told_with_its_share_after_the_device(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for phase, backward in ((layout.REAL, 50), (layout.REPLAY, 40)):
        for _ in range(40):
            loop.step(wait=0.2, backward=backward, phase=phase)
    loop.fetches(200, 20, cpu=60, parts={"decode:PIL": (58, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    device, decode = diagnosis.findings
    assert (device.code, decode.code) == ("device-bound", "decode-bound")
    assert 0.1 < decode.share < 0.2


def judge_repeated_loop(folder: Path, script: str) -> list[Finding]:
    """Return the findings of a dataset whose own code is the same every epoch, looked at in line 3."""
    source = folder / "data.py"
    source.write_text(script)
    run = folder / "run"
    run.mkdir()
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    worker = loop.fetches(200, 20, cpu=100, parts={"read:numpy.load": (3, 0)})
    for number in range(20):
        fetch = "/site-packages/torch/utils/data/_utils/fetch.py:52 fetch"
        bits = layout.IN_FETCH | layout.ON_CPU
        worker.record(layout.STACK, f"{source}:3@8 __getitem__;{fetch}", (1000 + number) * MS, 0, a=bits)
    worker.write(run)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": True})
    loop.main.write(run)
    return list(judge(run, MachineSummary(cores=2.0))[1].findings)


def test_a_loop_that_repeats_stands_first_as_the_root_and_keeping_its_result_is_the_second_way(
    tmp_path: Path,
) -> None:
    looped = "def __getitem__(self, i):\n    for row in rows:\n        total += np.dot(row, row)\n"
    first, second = judge_repeated_loop(tmp_path, looped)[:2]
    assert (first.code, second.code) == ("transform-bound", "repeated-work")
    assert first.explains == ("repeated-work",)
    assert first.share >= second.share
    assert "a second way" in " ".join(first.evidence)


def test_one_call_that_repeats_is_repeated_work_first(tmp_path: Path) -> None:
    plain = "def __getitem__(self, i):\n    x = load(i)\n    return spectrogram(x)\n"
    assert judge_repeated_loop(tmp_path, plain)[0].code == "repeated-work"
