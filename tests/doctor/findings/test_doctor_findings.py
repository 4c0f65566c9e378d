# SPDX-License-Identifier: Apache-2.0
"""Each cause of the catalogue, on a loop that has it and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.doctor.analyse.machine_summary import DataFiles, MachineSummary
from feedrate.doctor.findings.catalogue import CATALOGUE, REMEDIES
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.results import Diagnosis
from support.doctor_runs import MS, FakeLoop
from support.judged_runs import judge

LOCAL = DataFiles(
    folder="/data", kind="ext4", source="/dev/sda1", is_network=False, is_fuse=False, is_memory=False,
    is_rotational=False, files_seen=400, mean_bytes=1e5, suffixes=(".jpg",), resident=0.1, dataset_bytes=1e9,
)  # fmt: skip


def first(diagnosis: Diagnosis) -> str:
    return diagnosis.findings[0].code


def run_steps(loop: FakeLoop, wait: float, steps: int = 40, **step: float) -> None:
    for _ in range(steps):
        loop.step(wait=wait, **step)  # type: ignore[arg-type]


def test_the_catalogue_holds_every_promised_code() -> None:
    assert {entry.code for entry in CATALOGUE} == {
        "storage-bound", "decode-bound", "transform-bound", "workers-starved", "workers-oversubscribed",
        "workers-pinned", "handover-bound", "copy-bound", "sync-bound", "device-bound", "main-thread-bound",
        "memory-pressure", "cold-cache", "epoch-start-pause", "validation-bound", "checkpoint-bound",
        "slow-rank",
        "shm-too-small", "gpu-unused", "write-bound", "readback-bound", "contended", "repeated-work",
        "workers-idle", "large-views", "unpack-bound", "slow-start",
    }  # fmt: skip


def test_every_cure_that_the_catalogue_names_can_be_judged() -> None:
    source = "".join(Path(str(make.__code__.co_filename)).read_text() for make in REMEDIES)
    named = {cure for entry in CATALOGUE for cure in entry.cures}
    assert {cure for cure in named if f'"{cure}"' not in source} == set()


def test_every_explained_code_exists() -> None:
    codes = {entry.code for entry in CATALOGUE}
    assert {code for entry in CATALOGUE for code in entry.explains} <= codes


def test_waiting_for_cores_that_others_use_is_contention(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=40, queue=60, parts={"decode:PIL": (35, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, cores_ours=0.9, cores_others=1.1))
    assert first(diagnosis) == "contended"
    gain = next(remedy for remedy in diagnosis.remedies if remedy.name == "stop-others")
    assert diagnosis.findings[0].share == pytest.approx(1 - 1 / gain.predicted_speedup, abs=0.01)


def test_busy_neighbours_that_nobody_waits_for_are_no_cause(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, parts={"decode:PIL": (90, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, cores_ours=1.0, cores_others=0.9))
    assert "contended" not in [f.code for f in diagnosis.findings]


def test_some_company_on_a_shared_machine_hides_no_other_cause(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=80, queue=20, parts={"decode:PIL": (75, 0)}).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, cores_ours=1.6, cores_others=0.4))
    shares = {finding.code: finding.share for finding in diagnosis.findings}
    assert first(diagnosis) == "decode-bound"
    assert 0.1 < shares["contended"] < 0.25


def test_workers_that_may_use_one_core_only_are_pinned(tmp_path: Path) -> None:
    loop = FakeLoop(workers=4)
    run_steps(loop, 60)
    loop.main.fact("workers", loader="loader-0", pids=[200, 201])
    for pid in (200, 201):
        worker = loop.fetches(pid, 20, cpu=50, queue=150, parts={"decode:PIL": (45, 0)})
        worker.fact("worker", worker_id=pid - 200, affinity=[0])
        worker.write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=4.0))
    assert first(diagnosis) == "workers-pinned"
    assert "unpin-workers" in [r.name for r in diagnosis.findings[0].remedies]


def test_fewer_workers_that_were_tried_and_gave_more_show_oversubscription(tmp_path: Path) -> None:
    loop = FakeLoop(workers=16)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=100, queue=500, parts={"decode:PIL": (90, 0)}).write(tmp_path)
    detail = {"workers": 2}
    loop.main.fact("phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * 35 * MS, batches=20, detail=detail)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert first(diagnosis) == "workers-oversubscribed"
    assert diagnosis.findings[0].remedies[0].basis == "measured"


def test_a_trial_counts_against_the_present_number_of_workers_at_that_time(tmp_path: Path) -> None:
    loop = FakeLoop(workers=1)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=50, parts={"decode:PIL": (45, 0)}).write(tmp_path)
    # The machine has slowed down since the steps that were watched, which took half as long.
    for workers, step in ((2, 70), (1, 100)):
        loop.main.fact(
            "phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * step * MS, batches=20,
            detail={"workers": workers},
        )  # fmt: skip
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    more = next(remedy for remedy in diagnosis.remedies if remedy.name == "more-workers")
    assert (more.basis, more.predicted_speedup) == ("measured", pytest.approx(100 / 70, rel=0.01))
    titles = {rate.name: rate.title for rate in diagnosis.rates}
    assert titles["trial-1-workers"] == "the run as it is, once more"


@pytest.mark.parametrize(("blocked", "expected"), [(0, 12.0), (60, 10.0)], ids=["computing", "reading"])
def test_a_replay_on_a_machine_that_has_become_faster_counts_as_on_the_slower_one(
    tmp_path: Path, blocked: int, expected: float
) -> None:
    # Steps of 60 ms, of which 50 are waiting, take 50 when tried again; samples that were read from a disk in
    # the real steps may come from memory by then.
    loop = FakeLoop(workers=1)
    run_steps(loop, 48, other=2)
    run_steps(loop, 0.01, phase=layout.REPLAY)
    loop.fetches(200, 20, cpu=60 - blocked / 2, blocked=blocked / 2).write(tmp_path)
    detail = {"workers": 1}
    loop.main.fact("phase", phase=layout.TRIAL, start_ns=0, end_ns=20 * 50 * MS, batches=20, detail=detail)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path, MachineSummary(cores=2.0))
    assert measured.device_s * 1e3 == pytest.approx(expected, rel=0.02)


def test_a_loop_that_spends_its_time_in_its_own_code_is_main_thread_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 0.2, other=20)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    assert first(diagnosis) == "main-thread-bound"


def test_saving_every_few_steps_is_checkpoint_bound_and_named_by_its_line(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    for i in range(40):
        loop.step(wait=0.2)
        if i % 4 == 0:
            loop.main.record(layout.SAVE, "torch.save train.py:9", loop.now, 60 * MS)
            loop.now += 60 * MS
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert first(diagnosis) == "checkpoint-bound"
    assert "torch.save train.py:9" in diagnosis.findings[0].evidence
    assert measured.loop.saves == 9
    saved = next(r for r in diagnosis.remedies if r.name == "fewer-checkpoints")
    assert saved.predicted_speedup == pytest.approx(2.2, rel=0.1)


def test_steps_that_are_shorter_without_a_checkpoint_count_for_fewer_of_them(tmp_path: Path) -> None:
    """Replayed steps save, too, into memory; what the saving took there is not the device's."""
    loop = FakeLoop(workers=0)
    for phase, backward in ((layout.REAL, 25), (layout.REPLAY, 15)):
        for _ in range(40):
            loop.step(wait=0.2, backward=backward, phase=phase)
            loop.main.record(layout.SAVE, "torch.save train.py:9", loop.now, 30 * MS, phase=phase)
            loop.now += 30 * MS
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path)
    assert measured.device_s == pytest.approx(0.020, rel=0.02)
    saved = next(r for r in diagnosis.remedies if r.name == "fewer-checkpoints")
    assert saved.predicted_speedup == pytest.approx(60.2 / 21.7, rel=0.03)


def test_a_model_left_on_the_cpu_of_a_machine_with_a_gpu_is_named(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 0.2)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0, gpus=1, gpu_name="H200"))
    assert first(diagnosis) == "gpu-unused"


def test_a_loader_that_is_made_anew_for_each_epoch_is_to_be_made_once(tmp_path: Path) -> None:
    """Its workers would stay, but it does not."""
    loop = FakeLoop(workers=2, loader={"persistent_workers": True})
    loop.main.fact("loader-anew", loader="loader-0")
    for _ in range(5):
        loop.number = 0
        loop.step(wait=100)
        run_steps(loop, 0.2, steps=9)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    assert first(diagnosis) == "epoch-start-pause"
    assert "2 workers are started anew for each epoch (fork)" in diagnosis.findings[0].evidence
    remedy = diagnosis.findings[0].remedies[0]
    assert (remedy.name, remedy.title) == ("persistent-workers", "make the loader once, and keep its workers")


def test_workers_that_stay_leave_an_epoch_the_making_of_its_first_batch(tmp_path: Path) -> None:
    """The second worker's first batch waits for its start, too: that goes with the starting."""
    loop = FakeLoop(workers=2, loader={"dataset_len": 1000})
    for _ in range(31):
        loop.number = 0
        loop.step(wait=2000)
        loop.step(wait=90)
        run_steps(loop, 0.2, steps=8)
    loop.fetches(200, 20, cpu=15, blocked=5).write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    remedy = next(remedy for remedy in diagnosis.remedies if remedy.name == "persistent-workers")
    before = 2000 + 90 + 8 * 0.2 + 100  # ms an epoch
    after = 10 * 10.2 + 20  # ten steps as they are in the middle of an epoch, and a batch to wait for
    assert remedy.predicted_speedup == pytest.approx(before / after, rel=0.04)


def test_the_rank_whose_data_comes_late_is_named(tmp_path: Path) -> None:
    for rank, wait in ((0, 0.2), (1, 30)):
        loop = FakeLoop(workers=2, pid=100 + rank)
        loop.main.facts[0]["rank"] = rank
        run_steps(loop, wait, backward=5 if rank else 34.8)
        loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path)
    assert first(diagnosis) == "slow-rank"
    assert "rank 1" in diagnosis.findings[0].evidence[0]


def test_files_that_come_from_memory_the_second_time_are_a_cold_cache(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    worker = loop.fetches(200, 20, cpu=5, blocked=95, parts={"decode:PIL": (4, 80)}, from_disk=1.0)
    worker.write(tmp_path)
    loop.fetches(201, 20, cpu=5, blocked=1, phase=layout.AGAIN).write(tmp_path)
    loop.main.write(tmp_path)
    around = MachineSummary(cores=2.0, data=LOCAL, memory_limit_bytes=8e9)
    _, diagnosis = judge(tmp_path, around)
    assert first(diagnosis) == "cold-cache"


def test_deterministic_work_in_compiled_code_is_repeated_work(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(
        200, 20, cpu=100, parts={"transform:scipy.spectrogram": (85, 0), "read:numpy.load": (3, 0)}
    ).write(tmp_path)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": True})
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert first(diagnosis) == "repeated-work"


def test_data_that_is_gone_through_once_repeats_nothing(tmp_path: Path) -> None:
    """Inference over one epoch: nothing is kept for the next one; another run may use what is stored."""
    loop = FakeLoop(workers=2)
    for _ in range(40):
        loop.step(wait=40, backward=0, optimizer=0)
    loop.fetches(
        200, 20, cpu=100, parts={"transform:scipy.spectrogram": (75, 0), "decode:PIL": (15, 0)}
    ).write(tmp_path)
    loop.main.fact("phase", phase=layout.AGAIN, start_ns=0, end_ns=1, batches=20, detail={"same": True})
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0, data=LOCAL, memory_limit_bytes=8e9))
    assert first(diagnosis) == "transform-bound"
    assert not {"cache-in-memory", "warm-page-cache"} & {remedy.name for remedy in diagnosis.remedies}
    once = next(remedy for remedy in diagnosis.remedies if remedy.name == "preprocess-once")
    assert "in every run" in once.title
    assert once.note.endswith("; for data that is gone through again")


def test_batches_that_cost_more_to_hand_over_than_to_make_are_handover_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40, wait_cpu=20)
    worker = loop.fetches(200, 20, cpu=70, parts={"collate:default_collate": (55, 0)})
    worker.write(tmp_path)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert first(diagnosis) == "handover-bound"


def test_unpinned_floats_that_take_long_to_copy_are_copy_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    loop.main.fact("copy-rates", pinned_bytes_per_s=5e10, pageable_bytes_per_s=1e10)
    run_steps(loop, 0.2)
    loop.main.write(tmp_path)
    around = MachineSummary(
        cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.6, copied_bytes=4e7, copied_element_bytes=4
    )
    _, diagnosis = judge(tmp_path, around)
    assert first(diagnosis) == "copy-bound"
    assert {r.name for r in diagnosis.findings[0].remedies} == {"pinned-memory", "uint8-transfer"}


def test_pinned_copies_that_the_computing_waits_for_are_copy_bound(tmp_path: Path) -> None:
    """They are asked for and forgotten; much later, a value is read, and waits for all of them."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    loop.main.fact("copy-rates", pinned_bytes_per_s=5e10, pageable_bytes_per_s=1e10)
    for _ in range(40):
        loop.step(wait=0.1, forward=0.2, backward=1.5, optimizer=0.3)
        loop.main.record(layout.SYNC, "item train.py:30", loop.now, 5 * MS)
        loop.now += 5 * MS
    loop.main.write(tmp_path)
    around = MachineSummary(
        cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.2, copied_bytes=3e8, copied_element_bytes=4,
        copies_are_pinned=True,
    )  # fmt: skip
    _, diagnosis = judge(tmp_path, around)
    assert first(diagnosis) == "copy-bound"
    assert "sync-bound" not in [f.code for f in diagnosis.findings]
    uint8 = next(r for r in diagnosis.remedies if r.name == "uint8-transfer")
    assert uint8.predicted_speedup == pytest.approx(7.1 / (7.1 - 4.5), rel=0.1)


def test_copies_beside_the_computing_are_not_its_cause(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    loop.main.fact("copy-rates", pinned_bytes_per_s=5e10, pageable_bytes_per_s=1e10)
    run_steps(loop, 0.2)
    loop.main.write(tmp_path)
    around = MachineSummary(
        cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.95, copied_bytes=3e8, copied_element_bytes=4,
        copies_are_pinned=True, copies_are_beside=True,
    )  # fmt: skip
    _, diagnosis = judge(tmp_path, around)
    assert "copy-bound" not in [f.code for f in diagnosis.findings]


def test_two_loaders_in_one_step_count_together(tmp_path: Path) -> None:
    """On two cores there is one worker for each; the one with three quarters of the samples sets the pace."""
    loop = FakeLoop(workers=0, batch=2)
    loop.main.fact("loader", loader="loader-1", num_workers=0, batch_size=6)
    for number in range(40):
        loop.main.record(layout.WAIT, "loader-1", loop.now, 27 * MS, a=6, b=number, c=layout.PROBED)
        loop.main.record(layout.FETCH, "", loop.now, 27 * MS, cpu=27 * MS, a=6, c=number)
        loop.now += 27 * MS
        loop.main.record(layout.FETCH, "", loop.now, 9 * MS, cpu=9 * MS, a=2, c=number)
        loop.step(wait=9, forward=2, backward=2, optimizer=1)
    loop.main.write(tmp_path)
    measured, diagnosis = judge(tmp_path, MachineSummary(cores=2.0))
    assert measured.loop.samples_per_step == pytest.approx(8)
    assert first(diagnosis) == "workers-starved"
    more = next(r for r in diagnosis.remedies if r.name == "more-workers")
    assert more.title == "use 1 worker in each loader instead of 0"
    assert more.predicted_speedup == pytest.approx(41 / 27, rel=0.1)


def test_two_loaders_in_one_step_are_known_where_few_steps_are_probed(tmp_path: Path) -> None:
    """Optimizer steps are recorded in probed steps only; a loader that none follows would be validation."""
    loop = FakeLoop(workers=0, batch=2)
    loop.main.fact("loader", loader="loader-1", num_workers=0, batch_size=6)
    for number in range(160):
        is_probed = number % 8 == 3
        c = layout.PROBED if is_probed else 0
        loop.main.record(layout.WAIT, "loader-1", loop.now, 27 * MS, a=6, b=number, c=c)
        loop.now += 27 * MS
        loop.step(wait=9, forward=2, backward=2, optimizer=1, probed=is_probed)
    loop.main.write(tmp_path)
    measured, _ = judge(tmp_path, MachineSummary(cores=2.0))
    assert measured.loop.validations == 0
    assert measured.loop.samples_per_step == pytest.approx(8)


def test_a_value_read_at_every_step_of_an_idle_gpu_is_sync_bound(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    for _ in range(40):
        loop.step(wait=0.1)
        loop.main.record(layout.SYNC, "item train.py:30", loop.now, 8 * MS)
        loop.now += 8 * MS
    loop.main.write(tmp_path)
    around = MachineSummary(cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.5)
    _, diagnosis = judge(tmp_path, around)
    assert first(diagnosis) == "sync-bound"


def test_a_value_read_now_and_then_from_a_busy_gpu_is_no_cause(tmp_path: Path) -> None:
    """The wait is for work that the device has been given; NVML's gaps between short kernels are not its."""
    loop = FakeLoop(workers=2)
    loop.main.fact("module", **{"class": "Net", "device": "cuda:0"})
    for number in range(60):
        loop.step(wait=0.1, forward=4, backward=5, optimizer=1)
        if number % 10 == 9:
            loop.main.record(layout.SYNC, "item train.py:30", loop.now, 33 * MS)
            loop.now += 33 * MS
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0, gpus=1, gpu_name="H200", gpu_utilisation=0.79))
    assert first(diagnosis) == "device-bound"


def test_page_faults_of_a_job_at_its_memory_limit_are_memory_pressure(tmp_path: Path) -> None:
    loop = FakeLoop(workers=2)
    run_steps(loop, 40)
    loop.fetches(200, 20, cpu=5, blocked=95, faults=500).write(tmp_path)
    loop.main.write(tmp_path)
    around = MachineSummary(
        cores=2.0, memory_limit_bytes=1e9, memory_used_bytes=0.97e9, major_faults_per_s=2000.0, data=LOCAL
    )
    _, diagnosis = judge(tmp_path, around)
    assert first(diagnosis) == "memory-pressure"


def test_a_run_that_died_of_a_full_shm_says_so(tmp_path: Path) -> None:
    loop = FakeLoop(workers=8)
    run_steps(loop, 0.2)
    error = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."
    loop.main.fact("end", how="exception", error=error)
    loop.main.write(tmp_path)
    _, diagnosis = judge(tmp_path, MachineSummary(cores=8.0, shm_size_bytes=6.4e7))
    assert first(diagnosis) == "shm-too-small"
