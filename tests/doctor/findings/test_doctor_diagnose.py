# SPDX-License-Identifier: Apache-2.0
"""From records to findings, on loops whose times are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.analyse.machine_summary import DataFiles, MachineSummary
from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.analyse.sample import measure_sample
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.report.doctor import draw_diagnosis
from support.doctor_runs import MS, FakeLoop, FakeProcess
from support.judged_runs import judge


def test_a_loop_that_never_waits_is_device_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=0.2)
    loop.fetches(200, 30, cpu=10).write(tmp_path)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert measured.loop.own_s == pytest.approx(0.0102, rel=0.01)
    assert [f.code for f in diagnosis.findings] == ["device-bound"]


def test_the_step_before_the_experiments_counts_with_the_validation_in_it(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=1)
    for number in range(5):
        loop.main.record(layout.WAIT, "loader-1", loop.now, MS, a=8, b=number)
        loop.now += 10 * MS
    loop.main.fact("watched", t_ns=loop.now)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert (len(measured.loop.steps), measured.loop.validations) == (38, 1)
    assert measured.loop.steps[-1].wall_s == pytest.approx(0.061)
    assert not any("no validation" in line for line in diagnosis.run.unseen)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_gpu_that_could_not_be_looked_at_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(20):
        loop.step(wait=1)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    loop.main.write(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if is_there else None)
    said = "how busy the GPU was: nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    assert (said in judge(tmp_path)[1].run.unseen) is not is_there


def test_the_time_in_which_writers_were_waited_for_in_vain_is_no_step_and_the_reason_is_told_once(
    tmp_path: Path,
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(20):
        loop.step(wait=1)
    loop.main.fact("watched", t_ns=loop.now)
    loop.now += 60_000 * MS
    for phase in range(layout.DRAIN, len(layout.PHASES)):
        loop.main.fact("skipped", phase=phase, why="the thread saver was still at work after 60 s")
    for _ in range(20):
        loop.step(wait=1)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, mode="ended")
    assert max(step.wall_s for step in measured.loop.steps) == pytest.approx(0.011)
    told = "no experiments: the thread saver was still at work after 60 s"
    assert [line for line in diagnosis.run.unseen if "experiments" in line] == [told]
    assert told in " ".join(draw_diagnosis(diagnosis).split())


def test_workers_busy_decoding_on_full_cores_are_decode_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=100, parts={"decode:PIL": (80, 0), "collate:default": (2, 0)})
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert measured.samples.cost is not None
    assert measured.samples.cost.kind("decode").cpu_s == pytest.approx(0.080 / 8)
    assert diagnosis.findings[0].code == "decode-bound"
    assert diagnosis.run.exposed_wait_share == pytest.approx(0.8, abs=0.01)


def test_two_busy_workers_on_eight_cores_are_starved_not_decode_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (80, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0))
    assert [f.code for f in diagnosis.findings[:2]] == ["workers-starved", "decode-bound"]
    assert diagnosis.findings[0].remedies[0].name == "more-workers"


def test_workers_that_wait_for_their_files_are_storage_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    loop.fetches(200, 20, cpu=5, blocked=95, parts={"decode:PIL": (4, 80)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert diagnosis.findings[0].code == "storage-bound"


def test_the_shares_of_a_step_add_up(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0)
    for i in range(40):
        loop.step(wait=3, other=2, probed=i % 4 != 3)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    assert sum(share.share for share in diagnosis.split) == pytest.approx(1.0)


def test_a_validation_loader_is_told_from_the_training_loader(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for i in range(40):
        loop.step(wait=0.2)
        if i % 10 == 9:
            for b in range(5):
                loop.main.record(
                    layout.WAIT, "loader-1", loop.now, MS, a=8 if b < 4 else -1, b=b, c=layout.PROBED
                )
                loop.now += 21 * MS
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert measured.loop.loader == "loader-0"
    assert measured.loop.validations == 3
    assert diagnosis.findings[0].code == "validation-bound"


def test_an_epoch_start_is_a_pause_and_not_a_wait(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(5):
        loop.number = 0
        loop.main.record(layout.ITERATOR, "loader-0", loop.now, 200 * MS)
        loop.now += 200 * MS
        loop.step(wait=300)
        for _ in range(8):
            loop.step(wait=0.5)
        loop.main.record(layout.WAIT, "loader-0", loop.now, 10 * MS, a=-1, b=9)
        loop.now += 10 * MS
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert diagnosis.findings[0].code == "epoch-start-pause"
    assert measured.loop.wait_s < 0.001


def test_replayed_batches_say_what_the_device_takes(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(30):
        loop.step(wait=40)
    for _ in range(20):
        loop.step(wait=0.01, phase=layout.REPLAY)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path)
    assert measured.experiments.device is not None
    assert measured.experiments.device.seconds == pytest.approx(0.010, rel=0.01)


def test_a_ring_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    loop = FakeLoop(workers=0)
    for _ in range(40):
        loop.step(wait=1)
    loop.main.write(tmp_path)
    ring = next(tmp_path.glob("*.ring"))
    ring.write_bytes(ring.read_bytes()[:-1000])
    facts = next(tmp_path.glob("*.facts"))
    facts.write_bytes(facts.read_bytes()[:-3])
    assert len(read_run(tmp_path).processes[0].records) == 160 - 16


def test_what_is_done_once_is_still_handed_over_in_every_epoch(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", tensors=[{"bytes": 20_000_000, "dtype": "torch.float32"}])
    for _ in range(40):
        loop.step(wait=60, wait_cpu=2)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=9, detail={"same": True})
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=100)
        for number in range(20):
            worker.record(layout.HANDOVER, "", (1000 + 100 * number) * MS, 40 * MS, cpu=0, a=40 * MS)
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert measured.samples.feeder_cpu_s == pytest.approx(0.040)
    once = next(remedy for remedy in diagnosis.remedies if remedy.name == "preprocess-once")
    # Of 152 ms on two cores, 56 stay: taking 20 MB, handing them over, and the training process.
    assert once.predicted_speedup == pytest.approx(152 / 56, rel=0.05)
    assert sum(part.share for part in diagnosis.sample) == pytest.approx(1.0)  # hand-over among them


def test_threads_that_help_with_samples_are_not_taken_for_the_handing_over(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("batch", loader="loader-0", tensors=[{"bytes": 1_000_000, "dtype": "torch.float32"}])
    for _ in range(40):
        loop.step(wait=60, wait_cpu=1)
    worker = loop.fetches(200, 20, cpu=100)
    for number in range(20):
        worker.record(layout.HANDOVER, "", (1000 + 100 * number) * MS, 40 * MS, cpu=0, a=90 * MS)
    worker.write(tmp_path)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path, MachineSummary(cores=4.0))
    assert measured.samples.feeder_cpu_s < 0.003
    assert measured.samples.feeder_cpu_s + measured.samples.helpers_cpu_s == pytest.approx(0.090)


@pytest.mark.parametrize(
    ("no_room", "why"),
    [
        ({}, ""),
        (
            {"steps": 110, "left": 40, "needed": 60},
            ": after 110 steps its epoch had 40 left, and they need 60; --steps 90 begins them in time",
        ),
        ({"steps": 30, "left": 2, "needed": 20}, ": after 30 steps its epoch had 2 left, and they need 20"),
    ],
)
def test_a_script_that_ended_by_itself_is_told_why_there_were_no_experiments(
    tmp_path: Path, no_room: dict[str, int], why: str
) -> None:
    loop = FakeLoop(workers=0)
    for _ in range(40):
        loop.step(wait=1)
    if no_room:
        loop.main.fact("no-room", **no_room)
    loop.main.write(tmp_path)
    unseen = judge(tmp_path, mode="ended")[1].run.unseen
    assert unseen[-1] == f"the script ended after 40 steps, before the experiments{why}"
    assert not any("--passive" in line for line in unseen)
    assert any("--passive" in line for line in judge(tmp_path)[1].run.unseen)


def test_fetches_without_a_cpu_clock_are_split_as_those_that_have_one(tmp_path: Path) -> None:
    process = FakeProcess(100)
    for number, (wall, cpu, queue) in enumerate(
        [(10, 6, 1), (8, None, None), (8, None, None), (8, None, None)]
    ):
        process.record(
            layout.FETCH, "", (1000 + 20 * number) * MS, wall * MS, a=4,
            cpu=-1 if cpu is None else cpu * MS, queue=-1 if queue is None else queue * MS,
        )  # fmt: skip
    process.write(tmp_path)
    sample = measure_sample(read_run(tmp_path).processes)
    assert sample is not None
    total = sample.total
    assert total.wall_s == pytest.approx(0.034 / 16)
    assert [total.cpu_s, total.queue_s, total.blocked_s] == pytest.approx(
        [share * total.wall_s for share in (0.6, 0.1, 0.3)]
    )


@pytest.mark.parametrize(
    ("from_disk", "words"),
    [
        (0.5, "50% of the bytes came from the disk, not memory"),
        (4.3, "the disk gave 430 KB for the 100 KB that a sample reads: it reads ahead, or whole blocks"),
    ],
)
def test_a_disk_that_reads_ahead_gives_no_more_than_all_of_the_bytes(
    tmp_path: Path, from_disk: float, words: str
) -> None:
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40)
    parts = {"decode:PIL": (4.0, 80.0)}
    loop.fetches(200, 20, cpu=5, blocked=95, parts=parts, from_disk=from_disk).write(tmp_path)
    loop.fetches(201, 20, cpu=5, blocked=1, phase=layout.AGAIN).write(tmp_path)
    loop.main.write(tmp_path)
    data = DataFiles(
        folder="/data", kind="ext4", source="/dev/sda1", is_network=False, is_fuse=False, is_memory=False,
        is_rotational=False, files_seen=400, mean_bytes=1e5, suffixes=(".jpg",), resident=0.1,
        dataset_bytes=1e9,
    )  # fmt: skip
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, data=data, memory_limit_bytes=8e9))
    assert diagnosis.findings[0].code == "cold-cache"
    assert words in diagnosis.findings[0].evidence
