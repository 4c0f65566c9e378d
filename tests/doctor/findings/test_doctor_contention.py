# SPDX-License-Identifier: Apache-2.0
"""A busy machine: whom the doctor names, what its verdict begins with, and what can still be compared."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_doctor_advice import find
from test_doctor_findings import run_steps

from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.compare import compare_runs
from feedrate.doctor.examine import judge_run, measure_run
from feedrate.doctor.findings.diagnose import diagnose, rank_remedies
from feedrate.doctor.findings.fact_table import list_facts
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.results import Diagnosis, Finding, Remedy
from feedrate.doctor.run.launch import Observed
from feedrate.machine import process_tree as trees
from feedrate.machine.process import ProcessStat
from feedrate.report.doctor import draw_diagnosis, draw_full
from feedrate.report.doctor_verify import draw_gate, draw_verification
from support.diagnoses import make_decode_bound, reread, rerun
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import MACHINE, judge
from support.machine_samples import make_process, make_sample, write_samples


def crowd(folder: Path, queue: float, *, others: float = 1.1) -> Diagnosis:
    """Return the verdict on workers that decode and wait for cores `queue` of 100 ms a batch."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 90)
    cpu = 100 - queue
    loop.fetches(200, 20, cpu=cpu, queue=queue, parts={"decode:PIL": (0.9 * cpu, 0)}).write(folder)
    loop.main.write(folder)
    return judge(folder, MachineSummary(cores=2.0, cores_ours=0.9, cores_others=others))[1]


def test_a_busy_machine_is_a_warning_where_the_user_can_do_more(tmp_path: Path) -> None:
    diagnosis = crowd(tmp_path, queue=38)
    shares = {finding.code: finding.share for finding in diagnosis.findings}
    assert shares["contended"] > 0.3
    assert diagnosis.findings[0].code == "decode-bound"
    text = draw_diagnosis(diagnosis)
    assert text.startswith("decode-bound: ")
    assert "\nwarning   the machine was busy: other processes use 1.1 of 2 cores\n" in text
    assert "contended" not in text


def test_a_busy_machine_is_the_verdict_where_it_is_most_of_the_loss(tmp_path: Path) -> None:
    diagnosis = crowd(tmp_path, queue=60)
    assert diagnosis.findings[0].code == "contended"
    assert "warning" not in draw_diagnosis(diagnosis)


@pytest.mark.parametrize(("queue", "first"), [(38, "more-workers"), (60, "stop-others")])
def test_what_the_user_cannot_do_is_the_first_advice_only_where_it_is_the_verdict(
    tmp_path: Path, queue: float, first: str
) -> None:
    findings = crowd(tmp_path, queue).findings
    remedies = [Remedy("stop-others", "", 3.0, 2.5, 3.5), Remedy("more-workers", "", 1.5, 1.4, 1.6)]
    assert rank_remedies(findings, remedies)[0].name == first


def watch_neighbour(folder: Path, other: dict[str, Any]) -> Diagnosis:
    """Return the verdict on a run beside others that use 1.4 cores, the biggest of them as told."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 90)
    loop.fetches(200, 20, cpu=40, queue=60, parts={"decode:PIL": (35, 0)}).write(folder)
    loop.main.write(folder)
    samples = [
        make_sample(1 + n, cpu={"others": 1.4, "biggest_other": other}, processes=[make_process(100)])
        for n in range(6)
    ]
    measured = measure_run(read_run(folder), read_machine(write_samples(folder, samples)), DoctorOptions())
    assert measured is not None
    return diagnose(measured, command=["x"], mode="experiments", exit_code=None, seconds=1.0, machine=MACHINE)


def list_words(diagnosis: Diagnosis) -> str:
    said = [line for finding in diagnosis.findings for line in finding.evidence]
    return "\n".join([*said, *(f"{one.title} {one.note}" for one in diagnosis.remedies)])


@pytest.mark.parametrize("name", ["kworker/0:1", "feedrate"])
def test_a_process_that_explains_nothing_is_not_named(tmp_path: Path, name: str) -> None:
    diagnosis = watch_neighbour(tmp_path, {"name": name, "user": "root", "cores": 0.02})
    assert diagnosis.findings[0].code == "contended"
    assert name not in list_words(diagnosis)
    assert "other processes use 1.4 of" in list_words(diagnosis)


@pytest.mark.parametrize(("user", "words"), [("ada", "simulate (ada)"), (None, "simulate")])
def test_a_process_that_is_most_of_the_load_is_named(tmp_path: Path, user: str | None, words: str) -> None:
    diagnosis = watch_neighbour(tmp_path, {"name": "simulate", "user": user, "cores": 1.2})
    assert f" cores, 1.2 of them by {words}\n" in list_words(diagnosis)


def test_cores_of_other_virtual_machines_are_told_beside_those_of_other_processes(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 90)
    loop.fetches(200, 20, cpu=40, queue=60, parts={"decode:PIL": (35, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    around = MachineSummary(cores=2.0, cores_ours=0.9, cores_others=0.04, steal_cores=1.15)
    measured, diagnosis = judge(tmp_path, around)
    (contended,) = [finding for finding in diagnosis.findings if finding.code == "contended"]
    assert contended.evidence[0] == "other processes use 0.0 of 2 cores, other virtual machines 1.1"
    assert contended.numbers == {"cores_others": 0.04, "steal_cores": 1.15, "cores": 2.0}
    facts = {fact.name: fact.value for fact in list_facts(measured, read_machine(tmp_path))}
    assert facts["cores used by others"] == "0.0"
    assert facts["cores taken by other virtual machines"] == "1.1"


def test_the_report_has_one_figure_for_the_cores_of_others(tmp_path: Path) -> None:
    """Others come when the experiments are made: what they use then is no figure of the steps."""
    loop = FakeLoop(workers=2)
    run_steps(loop, 90)
    loop.fetches(200, 20, cpu=40, parts={"decode:PIL": (35, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    last = loop.now // (1000 * MS)
    samples = [
        make_sample(1 + n, cpu={"others": 0.25 if n <= last else 1.75}, processes=[make_process(100)])
        for n in range(3 * last)
    ]
    trace = read_machine(write_samples(tmp_path, samples))
    observed = Observed(("x",), tmp_path, 0, None, 9.0, 0, False, True)
    diagnosis = judge_run(observed, read_run(tmp_path), trace, DoctorOptions())
    text = draw_full(diagnosis, 80)
    assert re.search(r"cores used by others +0\.2\n", text)
    assert re.search(r"cores busy, others +0\.25, at most 1\.75 of 2 cores\n", text)


def stat(pid: int, name: str, parent: int, cpu_s: float) -> ProcessStat:
    return ProcessStat(pid, name, "R", parent, 1, 1, 0, cpu_s, 0.0, 1, pid, 0, 0)


def find_biggest_other(monkeypatch: pytest.MonkeyPatch, *walks: list[ProcessStat]) -> trees.Other | None:
    """Look once at each of these machines, a second after the other; 10 is the doctor, 11 its sampler."""
    tree = trees.Tree(10, ignored={11})
    monkeypatch.setattr(trees, "read_user", lambda _: 0)
    for number, walk in enumerate(walks):
        stats = {one.pid: one for one in walk}
        monkeypatch.setattr(trees, "list_processes", lambda stats=stats: list(stats))
        monkeypatch.setattr(trees, "read_stat", lambda pid, stats=stats: stats[pid])
        tree.look(1000.0 * (number + 1))
    return tree.biggest_other


def test_what_the_doctor_and_its_helpers_use_is_not_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(cpu_s: float) -> list[ProcessStat]:
        return [
            stat(10, "feedrate", 1, cpu_s), stat(11, "sampler", 10, cpu_s), stat(12, "helper", 11, cpu_s),
            stat(20, "python", 10, cpu_s), stat(30, "shell", 1, cpu_s / 100),
        ]  # fmt: skip

    other = find_biggest_other(monkeypatch, machine(0.0), machine(900.0))
    assert other is not None
    assert other.name == "shell"


def test_many_small_processes_of_one_name_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build starts compilers that live for less than a second: they were not there before."""
    before = [stat(10, "feedrate", 1, 0.0), stat(30, "editor", 1, 0.0)]
    compilers = [stat(40 + n, "cc1plus", 1, 200.0) for n in range(4)]
    other = find_biggest_other(monkeypatch, before, [before[0], stat(30, "editor", 1, 300.0), *compilers])
    assert other is not None
    assert (other.name, other.cores) == ("cc1plus", pytest.approx(0.8))


def test_trials_on_a_busy_machine_count_only_beside_the_run_as_it_is(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=50, parts={"decode:PIL": (45, 0)}).write(tmp_path)
    detail = {"workers": 2}
    loop.main.fact("phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * 25 * MS, batches=20, detail=detail)
    loop.main.write(tmp_path)
    quiet = judge(tmp_path, MachineSummary(cores=2.0))[1]
    busy = judge(tmp_path, MachineSummary(cores=2.0, cores_others=1.0))[1]
    assert [one.basis for one in quiet.remedies if one.name == "more-workers"] == ["measured"]
    assert "measured" not in [one.basis for one in busy.remedies if one.name == "more-workers"]


def test_half_precision_counts_against_the_steps_on_the_same_batches(tmp_path: Path) -> None:
    """Both took 4 times as long as the real steps: somebody used the device meanwhile."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    run_steps(loop, 0.1)
    for phase, step in ((layout.REPLAY, 40), (layout.REPLAY_HALF_PRECISION, 20)):
        loop.main.fact("phase", phase=phase, start_ns=0, end_ns=20 * step * MS, batches=20)
    loop.main.write(tmp_path)
    remedy = find(judge(tmp_path, MachineSummary(cores=2.0, gpus=1))[1], "half-precision")
    assert remedy is not None
    assert remedy.predicted_speedup == pytest.approx(2.0, rel=0.1)


BUSY = Finding(
    "contended", 0.4, "Other processes take the machine", "", ("other processes use 1.4 of 2 cores",)
)


def test_a_run_on_a_busy_machine_is_not_comparable() -> None:
    before = make_decode_bound()
    after = rerun(before, 0.27, findings=(BUSY, *before.findings))
    verification = compare_runs(reread(before), after)
    text = draw_verification(verification)
    assert text.startswith(
        "Not comparable: the machine was busy in this run (other processes use 1.4 of 2 cores).\n"
        "Measure again when it is quiet.\n"
    )
    assert "actual    0.27x" in text
    assert "note      other processes" not in text
    assert not verification.keeps_speed(0.05)
    assert draw_gate(verification, 0.05).startswith(
        "failed: not comparable: the machine was busy in this run"
    )


def test_an_earlier_run_on_a_busy_machine_is_no_measure_either() -> None:
    quiet = make_decode_bound()
    before = replace(quiet, findings=(BUSY, *quiet.findings))
    verification = compare_runs(reread(before), rerun(quiet, 2.5))
    assert draw_verification(verification).startswith(
        "Not comparable: the machine was busy in the earlier run (other processes use 1.4 of 2 cores).\n"
    )
    assert not verification.keeps_speed(0.05)


def test_who_is_fast_enough_on_a_busy_machine_passes_the_gate() -> None:
    before = make_decode_bound()
    after = rerun(before, 1.2, findings=(BUSY, *before.findings))
    assert compare_runs(reread(before), after).keeps_speed(0.05)
