# SPDX-License-Identifier: Apache-2.0
"""The verdict on readings that are made up: each in the doctor's words, and none where they do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from feedrate.watch.results import ThreadGroup, Verdict
from feedrate.watch.verdict import UNKNOWN, judge, settle
from support.watched import GB, make_gpu, make_job, make_process, make_store, make_workers

WAITING, BUSY = make_process(1, computing=0.05), make_process(1, computing=0.95)


def codes(*processes: Any, **more: Any) -> tuple[str, ...]:
    return judge(make_job(*processes, **more)).codes


def test_workers_that_compute_beside_idle_cores_are_too_few_and_the_number_to_set_is_said() -> None:
    verdict = judge(make_job(WAITING, *make_workers(2, computing=0.97)))
    assert verdict.codes == ("workers-starved",)
    assert (
        "the training waits 95% of the time, while 2 workers compute 97% of it; 6.0 of 8 cores"
        in verdict.reason
    )
    assert verdict.remedy == "DataLoader(..., num_workers=8), now 2"
    assert verdict.next == "feedrate doctor -- python train.py"


def test_workers_that_compute_on_all_cores_decode_or_transform() -> None:
    assert codes(WAITING, *make_workers(8, computing=0.95)) == ("decode-bound", "transform-bound")


def test_workers_of_two_ranks_are_counted_for_each() -> None:
    ranks = [make_process(pid, computing=0.05) for pid in (1, 2)]
    assert judge(make_job(*ranks, *make_workers(4, computing=0.97))).remedy.endswith("num_workers=4), now 2")


def test_workers_that_wait_for_storage_are_storage_bound_and_a_busy_disk_is_named() -> None:
    verdict = judge(
        make_job(WAITING, *make_workers(4, computing=0.1, storage=0.8), stores=(make_store(busy=0.97),))
    )
    assert verdict.codes == ("storage-bound", "cold-cache")
    assert "4 workers wait for storage 80% of it; vda is 97% busy" in verdict.reason
    assert "feedrate pack" in verdict.remedy


def test_files_on_a_network_mount_are_staged() -> None:
    stores = (make_store(name="/data", kind="nfs4", mount_points=("/data",), busy=None),)
    verdict = judge(make_job(WAITING, *make_workers(4, storage=0.9), stores=stores))
    assert "feedrate stage" in verdict.remedy


def test_a_training_that_computes_on_the_cpu_beside_idle_workers_is_the_good_case() -> None:
    verdict = judge(make_job(BUSY, *make_workers(2, computing=0.05)))
    assert (verdict.codes, verdict.is_good, verdict.next) == (("device-bound",), True, "")


def test_a_training_that_computes_beside_workers_that_compute_too_is_not_called_good() -> None:
    verdict = judge(make_job(BUSY, *make_workers(2, computing=0.9)))
    assert (verdict.title, verdict.is_good) == (UNKNOWN, False)
    assert "2 workers compute 90% of it" in verdict.reason


def test_a_busy_gpu_is_the_good_case_whatever_the_trainer_does() -> None:
    for trainer in (WAITING, BUSY):
        verdict = judge(make_job(trainer, *make_workers(2, computing=0.3), gpus=(make_gpu(0.97),)))
        assert (verdict.codes, verdict.is_good) == (("device-bound",), True)


def test_a_gpu_that_is_busy_at_little_power_is_said_to_do_little() -> None:
    verdict = judge(make_job(BUSY, gpus=(make_gpu(0.97, power_w=150.0),)))
    assert "150 of 700 W" in verdict.reason


def test_a_gpu_that_others_use_is_contended_also_when_it_is_busy() -> None:
    verdict = judge(make_job(BUSY, gpus=(make_gpu(0.99, others_share=0.45),)))
    assert verdict.codes == ("contended",)
    assert "45%" in verdict.reason


def test_an_idle_gpu_beside_a_busy_training_process_is_the_loops_own_python() -> None:
    assert codes(BUSY, *make_workers(2, computing=0.1), gpus=(make_gpu(0.4),)) == (
        "main-thread-bound",
        "sync-bound",
    )


def test_a_training_process_that_reads_its_data_itself_has_too_few_workers() -> None:
    reader = make_process(1, computing=0.95, read_bytes_per_s=50e6)
    assert codes(reader, gpus=(make_gpu(0.4),)) == ("workers-starved",)
    assert codes(BUSY, gpus=(make_gpu(0.4),)) == ("main-thread-bound", "workers-starved")


def test_a_free_gpu_beside_a_training_on_the_cpu_is_unused() -> None:
    assert codes(BUSY, *make_workers(2), free_gpus=(0,)) == ("gpu-unused",)
    assert codes(BUSY, free_gpus=(0,)) == ("gpu-unused",)


def test_a_job_that_swaps_is_short_of_memory_first_of_all() -> None:
    memory = {"swap_in_bytes_per_s": 30e6, "job_swap_bytes": 2 * GB}
    verdict = judge(make_job(WAITING, *make_workers(2, storage=0.9), memory=memory, gpus=(make_gpu(0.99),)))
    assert verdict.codes == ("memory-pressure",)
    assert "2.00 GB of the job is in swap, and 30.0 MB/s are swapped" in verdict.reason
    assert "--mem" in verdict.remedy


def test_the_swapping_of_others_is_not_this_jobs() -> None:
    memory = {"swap_in_bytes_per_s": 30e6, "job_swap_bytes": 0}
    assert codes(BUSY, *make_workers(2), memory=memory) == ("device-bound",)


def test_a_full_limit_with_page_faults_is_short_memory_and_page_cache_alone_is_not() -> None:
    faults = {"used_bytes": 63 * GB, "major_faults_per_s": 400.0}
    assert codes(BUSY, *make_workers(2), memory={**faults, "cache_bytes": GB}) == ("memory-pressure",)
    assert codes(BUSY, *make_workers(2), memory={**faults, "cache_bytes": 50 * GB}) == ("device-bound",)


def test_a_quota_that_stops_the_job_is_named() -> None:
    verdict = judge(make_job(BUSY, cores={"quota": 2.0, "throttled_share": 0.4}))
    assert verdict.codes == ("workers-pinned",)
    assert "quota of 2 cores stopped the job 40% of the time" in verdict.reason


def test_processes_without_a_core_are_too_many_or_share_with_others() -> None:
    crowd = (WAITING, *make_workers(16, computing=0.5, queued=0.5))
    full = {"idle": 0.0}
    assert codes(*crowd, cores=full) == ("workers-oversubscribed",)
    others = {**full, "others": 4.0, "biggest_other": ("make", "bob", 4.0)}
    verdict = judge(make_job(*crowd, cores=others))
    assert verdict.codes == ("contended",)
    assert "others use 4.0 of 8 cores, most by make" in verdict.reason


def test_a_trainer_that_waits_for_the_disk_reads_or_writes() -> None:
    assert codes(make_process(1, storage=0.6))[0] == "storage-bound"
    writer = make_process(1, storage=0.6, written_bytes_per_s=90e6)
    assert codes(writer) == ("write-bound", "checkpoint-bound")


def test_a_job_that_sleeps_altogether_cannot_be_told_and_the_network_is_mentioned() -> None:
    verdict = judge(make_job(WAITING, *make_workers(2), received_bytes_per_s=40e6))
    assert (verdict.codes, verdict.title) == ((), UNKNOWN)
    assert "40.0 MB/s come over the network" in verdict.reason


def test_threads_of_tensorflow_on_the_cpu_cannot_be_told_apart() -> None:
    threads = (ThreadGroup("python", 9, 6.5, 0.1, 0),)
    verdict = judge(
        make_job(make_process(1, computing=1.0, cores=6.5), frameworks=("TensorFlow",), threads=threads)
    )
    assert verdict.codes == ()
    assert "TensorBoard" in verdict.next


def test_threads_that_wait_for_storage_beside_idle_cores_are_storage_bound() -> None:
    threads = (ThreadGroup("python", 9, 0.3, 0.0, 3),)
    assert codes(WAITING, threads=threads, frameworks=("JAX",))[0] == "storage-bound"


def test_all_cores_busy_with_threads_beside_an_idle_gpu_is_decoding_or_transforming() -> None:
    busy = make_process(1, computing=1.0, cores=7.5)
    assert codes(busy, gpus=(make_gpu(0.3),)) == ("decode-bound", "transform-bound")


def test_a_process_that_does_nothing_at_all_cannot_be_told() -> None:
    assert codes(make_process(1)) == ()
    assert codes() == ()


@pytest.mark.parametrize(
    ("titles", "settled"), [("aab", "a"), ("ab", "b"), ("abb", "b"), ("abab", "b"), ("a", "a")]
)
def test_a_verdict_changes_when_most_of_the_latest_readings_say_so(titles: str, settled: str) -> None:
    verdicts = [Verdict((title,), title, str(number), "", "") for number, title in enumerate(titles)]
    found = settle(verdicts)
    assert (found.title, found.reason) == (settled, str(titles.rindex(settled)))


def test_a_gpu_that_does_not_tell_how_busy_it_is_is_no_idle_one_and_no_reason_to_use_another() -> None:
    for processes in ((BUSY, *make_workers(2, computing=0.1)), (BUSY,)):
        verdict = judge(make_job(*processes, gpus=(make_gpu(None),), free_gpus=(1,)))
        assert (verdict.title, verdict.codes) == (UNKNOWN, ())
        assert "the driver does not tell" in verdict.reason


def test_a_job_that_sleeps_is_not_held_up_by_a_quota_that_it_shares() -> None:
    cores = {"quota": 2.0, "throttled_share": 0.6}
    assert codes(make_process(1), cores=cores) == ()


def test_threads_that_load_beside_a_main_thread_that_waits_are_not_too_few_workers() -> None:
    loading = make_process(1, computing=0.2, cores=1.5, read_bytes_per_s=50e6)
    threads = (ThreadGroup("main thread", 1, 0.2, 0.0, 0), ThreadGroup("feedrate", 4, 1.3, 0.0, 0))
    assert codes(loading, gpus=(make_gpu(0.6),), threads=threads) == ()
