# SPDX-License-Identifier: Apache-2.0
"""Remedies that an experiment tried on the device: half precision and channels-last, on known times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.findings.fact_table import list_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis, Remedy
from feedrate.report import doctor_words as words
from feedrate.report.doctor import draw_diagnosis
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge


def make_device_bound(factor: float = 1.0) -> FakeLoop:
    """A loop of 40 ms steps that never waits, replayed as it is and in a layout in which it takes longer."""
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=0.2, forward=15, backward=24)
    for _ in range(20):
        loop.step(wait=0.01, forward=15, backward=24, phase=layout.REPLAY)
    try_layout(loop, factor)
    return loop


def try_layout(loop: FakeLoop, factor: float) -> None:
    # The steps in between were disturbed: what was computed counts.
    detail = {"samples": 8.0, "last_s": 0.2, "plain_s": 0.1, "last_cpu_s": 0.04 * factor, "plain_cpu_s": 0.04}
    phase = layout.REPLAY_CHANNELS_LAST
    loop.main.fact("phase", phase=phase, start_ns=0, end_ns=1, batches=20, detail=detail)


def judge_loop(loop: FakeLoop, folder: Path) -> Diagnosis:
    loop.fetches(200, 30, cpu=10).write(folder)
    loop.main.write(folder)
    return judge(folder)[1]


def find(diagnosis: Diagnosis, name: str) -> Remedy:
    return next(remedy for remedy in diagnosis.remedies if remedy.name == name)


def test_what_channels_last_gave_is_a_remedy_of_a_busy_device(tmp_path: Path) -> None:
    diagnosis = judge_loop(make_device_bound(factor=0.5), tmp_path)
    remedy = find(diagnosis, "channels-last")
    assert diagnosis.findings[0].code == "device-bound"
    assert remedy in diagnosis.findings[0].remedies
    assert remedy.predicted_speedup == pytest.approx(2.0, rel=0.05)
    assert remedy.low < remedy.predicted_speedup < remedy.high
    assert (remedy.basis, remedy.next_bottleneck, remedy.note) == ("measured", "device-bound", "")
    assert "model = model.to(memory_format=torch.channels_last)" in (remedy.change or "")
    assert [rate.name for rate in diagnosis.rates if rate.batches] == ["real", "device", "channels-last"]


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.0, "tried here, a step took as long as before"),
        (1.5, "tried here, a step took 1.50 times as long"),
    ],
)
def test_a_layout_that_gives_nothing_is_said_to_give_nothing(
    tmp_path: Path, factor: float, said: str
) -> None:
    remedy = find(judge_loop(make_device_bound(factor=factor), tmp_path), "channels-last")
    assert remedy.predicted_speedup < 1.03
    assert words.useless(remedy) == f"lay out images and weights channels-last: {said}"


def test_a_faster_device_gives_nothing_to_a_run_that_waits_for_data(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    for _ in range(40):
        loop.step(wait=90)
    for _ in range(20):
        loop.step(wait=0.01, phase=layout.REPLAY)
    try_layout(loop, 0.5)
    loop.fetches(200, 40, cpu=100).write(tmp_path)
    loop.main.write(tmp_path)
    remedy = find(judge(tmp_path)[1], "channels-last")
    assert remedy.note == "the device is not what this run waits for"


@pytest.mark.parametrize(("kind", "scaled"), [("bfloat16", False), ("float16", True)])
def test_half_precision_names_the_type_that_was_tried(tmp_path: Path, kind: str, scaled: bool) -> None:
    loop = make_device_bound()
    loop.main.fact(
        "phase", phase=layout.REPLAY_HALF_PRECISION, start_ns=0, end_ns=15 * 20 * MS, batches=15,
        detail={"samples": 8.0, "dtype": kind},
    )  # fmt: skip
    remedy = find(judge_loop(loop, tmp_path), "half-precision")
    assert remedy.title == f"compute in {kind}"
    assert f"dtype=torch.{kind})" in (remedy.change or "")
    assert ("GradScaler" in (remedy.change or "")) is scaled


@pytest.mark.parametrize(("value", "said"), [(True, ["True"]), (False, ["False"]), (None, [])])
def test_the_layout_of_a_model_that_has_one_is_a_fact(
    tmp_path: Path, value: bool | None, said: list[str]
) -> None:
    loop = make_device_bound()
    loop.main.fact("module", **{"class": "Net", "device": "cpu", "channels_last": value})
    loop.main.write(tmp_path)
    facts = list_facts(judge(tmp_path)[0], SimpleNamespace(unread={}))  # type: ignore[arg-type]
    assert [fact.value for fact in facts if fact.name == "channels last"] == said


def test_trials_of_a_run_that_went_twice_as_fast_once_more_are_dropped_and_that_is_said(
    tmp_path: Path,
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (95, 0)}).write(tmp_path)
    for workers, step_ms in ((2, 20), (3, 10)):
        detail = {"workers": workers}
        loop.main.fact(
            "phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * step_ms * MS, batches=20, detail=detail
        )
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, MachineSummary(cores=4.0))
    assert list(measured.experiments.trials) == [2]
    said = "other workers: none counts: a step took 50.0 ms, and 20.0 ms once more"
    assert diagnosis.run.unseen[0].startswith(said)
    assert f"not seen  {said}" in draw_diagnosis(diagnosis)
