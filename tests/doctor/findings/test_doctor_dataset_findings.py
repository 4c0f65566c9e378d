# SPDX-License-Identifier: Apache-2.0
"""Causes in how a dataset is written: workers without data, views of large tensors, decoding in advance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_doctor_findings import run_steps

from feedrate.doctor.analyse.machine_summary import MachineSummary
from feedrate.doctor.results import Diagnosis, Finding, Remedy
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge

ROOMY = MachineSummary(cores=8.0)


def find(diagnosis: Diagnosis, code: str) -> Finding | None:
    return next((finding for finding in diagnosis.findings if finding.code == code), None)


def remedy_of(diagnosis: Diagnosis, name: str) -> Remedy | None:
    return next((remedy for remedy in diagnosis.remedies if remedy.name == name), None)


# -- workers without data ----------------------------------------------------------------------------------


def judge_workers(
    folder: Path, *, idle: int, wait: float = 22.0, workers: int = 4, **ended: Any
) -> Diagnosis:
    """A step waits for workers of which only some have data; each batch takes them 60 ms."""
    loop = FakeLoop(workers=workers, loader={"iterable": True})
    loop.main.fact("workers", loader="loader-0", pids=list(range(200, 200 + workers)))
    run_steps(loop, wait)
    for pid in range(200, 200 + workers):
        has_data = pid < 200 + workers - idle
        worker = loop.fetches(pid, 20 if has_data else 0, cpu=60, parts={"decode:PIL": (55, 0)})
        if not has_data:
            worker.fact("worker-ended", worker_id=pid - 200, batches=0, **{"shards": None, **ended})
        worker.write(folder)
    loop.main.write(folder)
    return judge(folder, ROOMY)[1]


def test_workers_that_gave_no_batch_are_counted(tmp_path: Path) -> None:
    diagnosis = judge_workers(tmp_path, idle=2)
    finding = find(diagnosis, "workers-idle")
    assert finding is diagnosis.findings[0]
    assert finding.evidence[0].startswith("2 of 4 workers gave no batch in a whole epoch")
    assert finding.numbers == {"workers": 4, "idle_workers": 2, "shards": None}
    assert finding.share > 0.2


def test_the_number_of_shards_is_told_where_the_dataset_knows_it(tmp_path: Path) -> None:
    finding = find(judge_workers(tmp_path, idle=3, shards=1), "workers-idle")
    assert finding is not None
    assert finding.evidence[1] == "1 worker made all batches; the dataset has 1 shard"


def test_shards_for_all_workers_give_what_more_workers_would(tmp_path: Path) -> None:
    diagnosis = judge_workers(tmp_path, idle=2)
    remedy = remedy_of(diagnosis, "more-shards")
    assert remedy is not None
    # 60 ms a batch by two workers make steps of 30 ms; by four, 15 ms, where computing takes 10.
    assert remedy.predicted_speedup == pytest.approx(2.0, rel=0.1)
    assert "num_workers=2" in (remedy.change or "")


def test_more_workers_are_not_advised_where_some_have_no_data(tmp_path: Path) -> None:
    diagnosis = judge_workers(tmp_path, idle=2)
    assert remedy_of(diagnosis, "more-workers") is None
    assert find(diagnosis, "workers-starved") is None


def test_idle_workers_that_nobody_waits_for_cost_nothing(tmp_path: Path) -> None:
    finding = find(judge_workers(tmp_path, idle=2, wait=0.1), "workers-idle")
    assert finding is not None
    assert finding.share == 0


def test_workers_that_all_gave_batches_are_no_cause(tmp_path: Path) -> None:
    diagnosis = judge_workers(tmp_path, idle=0)
    assert find(diagnosis, "workers-idle") is None
    assert remedy_of(diagnosis, "more-shards") is None


def test_a_worker_that_came_to_its_end_after_some_batches_had_data(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2, loader={"iterable": True})
    loop.main.fact("workers", loader="loader-0", pids=[200, 201])
    run_steps(loop, 22)
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=60)
        worker.fact("worker-ended", worker_id=pid - 200, batches=20, shards=None)
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    assert find(judge(tmp_path, ROOMY)[1], "workers-idle") is None


# -- views of large tensors --------------------------------------------------------------------------------


def judge_views(folder: Path, *, used: float, copied: float, pickling: float = 30.0) -> Diagnosis:
    """Two workers make a batch in 10 ms, and need some more to hand it over."""
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", tensors=[{"bytes": int(used)}], samples=8)
    run_steps(loop, 15)
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=10)
        for number in range(20):
            worker.record(22, "", (1000 + 10 * number + 9) * MS, MS, cpu=MS // 100, a=round(pickling * MS))
        for _ in range(4):
            worker.fact("views", used_bytes=int(used), copied_bytes=int(copied))
        worker.write(folder)
    loop.main.write(folder)
    return judge(folder, ROOMY)[1]


def test_views_of_large_tensors_hold_up_the_hand_over(tmp_path: Path) -> None:
    diagnosis = judge_views(tmp_path, used=1e6, copied=4e7)
    finding = find(diagnosis, "large-views")
    assert finding is diagnosis.findings[0]
    assert "1.00 MB of tensors, which are views of 40.0 MB" in finding.evidence[0]
    assert finding.share > 0.3


def test_cloning_is_predicted_by_the_bytes_that_it_saves(tmp_path: Path) -> None:
    remedy = remedy_of(judge_views(tmp_path, used=1e6, copied=4e7), "clone-views")
    assert remedy is not None
    assert ".clone()" in (remedy.change or "")
    # 40 ms of two workers a batch make 20 ms; without the copying 5, where computing takes 10.
    assert remedy.predicted_speedup == pytest.approx(2.0, rel=0.1)


def test_tensors_that_are_handed_over_whole_are_no_views(tmp_path: Path) -> None:
    diagnosis = judge_views(tmp_path, used=3e7, copied=4e7)
    assert find(diagnosis, "large-views") is None
    assert remedy_of(diagnosis, "clone-views") is None


def test_a_large_tensor_that_is_shared_once_is_not_copied_with_every_batch(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 15)
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=10)
        for _ in range(2):  # the second is made before the first is on its way
            worker.fact("views", used_bytes=1_000_000, copied_bytes=40_000_000)
        for _ in range(3):
            worker.fact("views", used_bytes=1_000_000, copied_bytes=0)
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    assert find(judge(tmp_path, ROOMY)[1], "large-views") is None


def test_what_lies_under_views_must_fit_into_shared_memory(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", tensors=[{"bytes": 1_000_000}], samples=8)
    run_steps(loop, 15)
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=10)
        for _ in range(4):
            worker.fact("views", used_bytes=1_000_000, copied_bytes=40_000_000)
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0, shm_size_bytes=64e6))
    finding = find(diagnosis, "shm-too-small")
    assert finding is not None
    assert any("160 MB" in line for line in finding.evidence)


# -- decoding before the first step ------------------------------------------------------------------------


def judge_start(folder: Path, *parts: tuple[str, float, int], wall: float, **loader: Any) -> Diagnosis:
    loop = FakeLoop(workers=0, loader=loader)
    loop.main.fact(
        "before-loop", wall_ns=round(wall * 1e9), cpu_ns=0,
        parts=[
            {"name": name, "wall_ns": round(seconds * 1e9), "calls": calls, "place": "train.py:9"}
            for name, seconds, calls in parts
        ],
    )  # fmt: skip
    run_steps(loop, 0.1, forward=40, backward=50, optimizer=9.9)  # steps of 100 ms
    loop.main.write(folder)
    return judge(folder, ROOMY)[1]


def test_samples_that_are_decoded_before_the_first_step_are_told_with_their_time(tmp_path: Path) -> None:
    diagnosis = judge_start(tmp_path, ("decode:PIL", 80, 5000), ("read:PIL.Image.open", 10, 5000), wall=100)
    finding = find(diagnosis, "slow-start")
    assert finding is diagnosis.findings[0]
    assert finding.evidence[0] == (
        "the first batch was asked for after 1 min 40 s; of that took decoding 80.0 s (80%) and reading "
        "10.0 s (10%), in one thread of the training process"
    )
    assert finding.evidence[1] == "PIL was called 5,000 times at train.py:9"


def test_of_a_start_that_little_is_known_of_the_larger_part_is_told(tmp_path: Path) -> None:
    diagnosis = judge_start(tmp_path, ("decode:PIL", 40, 5000), ("read:PIL.Image.open", 30, 5000), wall=1000)
    finding = find(diagnosis, "slow-start")
    assert finding is not None
    assert "of that took decoding 40.0 s (4%), in one thread" in finding.evidence[0]


def test_a_start_is_weighed_against_the_epoch_that_follows(tmp_path: Path) -> None:
    # 20 s of decoding on 8 cores instead of one: 17.5 s of 22 s and an epoch of 1000 steps, 100 s.
    remedy = remedy_of(
        judge_start(tmp_path, ("decode:PIL", 20, 5000), wall=22, batches=1000), "decode-side-by-side"
    )
    assert remedy is not None
    assert remedy.predicted_speedup == pytest.approx(122 / (122 - 17.5), rel=0.01)
    assert "ThreadPoolExecutor(8)" in (remedy.change or "")


def test_a_short_start_before_a_long_epoch_is_no_cause(tmp_path: Path) -> None:
    diagnosis = judge_start(tmp_path, ("decode:PIL", 20, 5000), wall=22, batches=50_000)
    assert find(diagnosis, "slow-start") is None
    assert remedy_of(diagnosis, "decode-side-by-side") is None


def test_minutes_of_decoding_are_told_whatever_follows(tmp_path: Path) -> None:
    finding = find(judge_start(tmp_path, ("decode:PIL", 90, 5000), wall=95, batches=50_000), "slow-start")
    assert finding is not None
    assert finding.share < 0.05


@pytest.mark.parametrize(
    "part", [("read:torch.load", 30.0, 100), ("read:numpy.load", 30.0, 1), ("decode:gzip", 2.0, 400)]
)
def test_weights_a_single_array_and_little_decoding_are_no_slow_start(
    part: tuple[str, float, int], tmp_path: Path
) -> None:
    assert find(judge_start(tmp_path, part, wall=35), "slow-start") is None


def test_reads_that_burn_cpu_are_named_before_the_handing_over(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts={"read:h5py": (80, 0), "collate:": (10, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    first = judge(tmp_path, MachineSummary(cores=2.0))[1].findings[0]
    assert first.code == "unpack-bound"
    assert "reading (h5py) takes 10.0 ms of CPU a sample, 80% of it" in first.evidence[0]
