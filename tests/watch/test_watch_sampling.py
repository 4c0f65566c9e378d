# SPDX-License-Identifier: Apache-2.0
"""Two readings of a job: rates from counters that are made up, and a small tree of real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.errors import NotFound, UsageError
from feedrate.machine.gpu import GpuReader
from feedrate.machine.process import read_io
from feedrate.watch import sampling
from feedrate.watch.devices import Gpus, find_data_mounts, list_stores
from feedrate.watch.results import JobSummary, Shares
from feedrate.watch.sampling import Counters, JobSampler, UserSampler, choose_job, divide_time, find_state
from support.nvml import make_nvml


@pytest.mark.parametrize(
    ("after", "states", "shares"),
    [
        (Counters(1.0, 0.0), {}, Shares(1.0, 0.0, 0.0, 0.0)),
        (Counters(0.5, 0.25), {"asleep": 9}, Shares(0.5, 0.25, 0.0, 0.25)),
        (Counters(0.2, 0.0), {"blocked": 3, "asleep": 1, "running": 4}, Shares(0.2, 0.0, 0.6, 0.2)),
        (Counters(4.0, 3.0), {"blocked": 5}, Shares(1.0, 0.0, 0.0, 0.0)),
        (Counters(-1.0, -1.0), {}, Shares(0.0, 0.0, 0.0, 1.0)),
    ],
    ids=["computing", "queued", "blocked", "many threads", "counters that fell"],
)
def test_what_counters_leave_of_the_time_is_divided_by_the_states_seen(
    after: Counters, states: dict[str, int], shares: Shares
) -> None:
    found = divide_time(Counters(0.0, 0.0), after, 1.0, states)
    assert [round(getattr(found, name), 6) for name in Shares.__slots__] == [
        getattr(shares, name) for name in Shares.__slots__
    ]


@pytest.mark.parametrize(
    ("state", "where", "found"),
    [
        ("D", "", "blocked"),
        ("S", "request_wait_answer", "blocked"),
        ("S", "poll_schedule_timeout", "asleep"),
        ("S", "0", "asleep"),
        ("R", "", "running"),
        (None, "", ""),
    ],
)
def test_a_sleep_inside_of_a_file_system_counts_as_waiting_for_storage(
    monkeypatch: pytest.MonkeyPatch, state: str | None, where: str, found: str
) -> None:
    files = {"/proc/7/stat": f"7 (a) b) {state} 1 1".encode(), "/proc/7/wchan": where.encode()}
    monkeypatch.setattr(sampling, "read_file", lambda path: files[path] if state else None)
    assert find_state(7) == found


TREE = """
    import multiprocessing, os, sys, time

    def work(ready, number):
        ready.put(number)
        while number:
            pass
        time.sleep(1000)

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        ready = context.SimpleQueue()
        for number in (0, 1):
            context.Process(target=work, args=(ready, number), daemon=True).start()
        ready.get(), ready.get()
        data = open(sys.argv[1], "rb")
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a worker that computes and one that sleeps, and an open file; or another script."""
    code, *words = getattr(request, "param", (TREE,))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    with subprocess.Popen(
        [sys.executable, script, script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        process.wait()


def take_until(sampler: Any, is_enough: Any, glances: int = 20) -> Any:
    """Read again until the counters of the kernel have moved: they do so a hundred times a second."""
    while True:
        for _ in range(glances):
            sampler.glance()
        seen = sampler.take()
        if is_enough(seen):
            return seen


def test_a_job_is_its_training_process_and_its_workers_with_what_each_does(job: Any) -> None:
    sampler = JobSampler(job.pid, Gpus())
    wanted = ["computing", "idle"]
    seen = take_until(sampler, lambda job: sorted(one.doing for one in job.workers) == wanted)
    assert [one.pid for one in seen.trainers] == [job.pid]
    assert seen.command[0] == sys.executable
    assert seen.helpers == 0
    assert seen.not_visible == ()
    assert seen.memory.job_bytes > 0
    assert seen.cores.job > 0


COMPRESSING = """
    import multiprocessing, os, sys, threading, zlib

    def burn(ready):
        ready.put(None)
        while True:
            pass

    def compress():
        data = os.urandom(1 << 20)
        while True:
            zlib.compress(data)  # lets the main thread run, as the writer of a checkpoint does

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        ready = context.SimpleQueue()
        worker = context.Process(target=burn, args=(ready,), daemon=True)
        worker.start()
        ready.get()
        threading.Thread(target=compress, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()
        worker.kill()
        os._exit(0)
"""
RANKS = """
    import multiprocessing, multiprocessing.connection, sys, threading

    def train(ready, read):
        ready.put(None)
        while not read.poll():
            sum(range(10000))

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[2])
        ready = context.SimpleQueue()
        read, write = context.Pipe(duplex=False)
        ranks = [context.Process(target=train, args=(ready, read), daemon=True) for _ in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            ready.get()
        print("ready", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), write.send(0)), daemon=True).start()
        if sys.argv[2] == "spawn":
            # As torch.multiprocessing.spawn waits.
            multiprocessing.connection.wait([rank.sentinel for rank in ranks])
        else:
            ranks[0].join()
"""
FED = """
    import multiprocessing, sys, threading

    def load(batches, read):
        while not read.poll():
            sum(range(1000000))
            batches.put(None)

    def take(batches):
        while True:
            batches.get()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[2])
        batches = context.SimpleQueue()
        read, write = context.Pipe(duplex=False)
        workers = [context.Process(target=load, args=(batches, read), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            batches.get()
        # As a Pool takes its results.
        threading.Thread(target=take, args=(batches,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()
        write.send(0)
        for worker in workers:
            worker.join()
"""


@pytest.mark.parametrize("job", [(COMPRESSING,)], indirect=True)
def test_a_busy_thread_of_the_trainer_does_not_hide_that_its_main_thread_waits(job: Any) -> None:
    sampler = JobSampler(job.pid, Gpus())
    seen = take_until(sampler, lambda seen: seen.trainers[0].cores > 0.5 and seen.workers[0].cores > 0.1)
    assert seen.trainers[0].doing == "idle"
    assert seen.trainers[0].shares.computing < 0.3


@pytest.mark.parametrize("job", [(RANKS, "spawn"), (RANKS, "fork")], indirect=True, ids=["spawn", "fork"])
def test_ranks_on_the_cpu_whose_parent_only_waits_for_their_end_train_and_are_no_workers(job: Any) -> None:
    def compute(seen: Any) -> bool:
        return sum(one.cores > 0.1 for one in seen.processes if one.pid != job.pid) == 2

    seen = take_until(JobSampler(job.pid, Gpus()), compute, glances=500)
    assert [one.role for one in seen.processes] == ["trainer", "trainer"]


@pytest.mark.parametrize(
    "job", [(FED, "spawn"), (FED, "forkserver")], indirect=True, ids=["spawn", "forkserver"]
)
def test_what_feeds_a_parent_that_waits_for_it_is_a_worker_however_it_was_started(job: Any) -> None:
    def count_read() -> int:
        found = read_io(job.pid)
        assert found is not None
        return found["rchar"]

    def compute(seen: Any) -> bool:
        return sum(one.cores > 0.1 for one in seen.processes if one.pid != job.pid) == 2

    sampler, has_read, seen = JobSampler(job.pid, Gpus()), False, None
    while not has_read or not compute(seen):
        before = count_read()
        for _ in range(500):
            sampler.glance()
        has_read = count_read() > before
        seen = sampler.take()
    assert [(one.role, one.pid == job.pid) for one in seen.processes] == [
        ("trainer", True), ("worker", False), ("worker", False),
    ]  # fmt: skip


def test_a_job_that_has_ended_gives_no_view(job: Any) -> None:
    sampler = JobSampler(job.pid, Gpus())
    job.stdin.close()
    job.wait()
    assert sampler.take() is None


def summarise(pid: int, cores: float, gpus: tuple[int, ...] = ()) -> JobSummary:
    return JobSummary(pid, "alice", ("python", "train.py"), cores, gpus, 10**9 * len(gpus), 10**9)


def find_jobs(monkeypatch: pytest.MonkeyPatch, *jobs: JobSummary) -> None:
    monkeypatch.setattr(sampling.JobFinder, "find", lambda *_: list(jobs))


def choose(monkeypatch: pytest.MonkeyPatch, *jobs: JobSummary) -> JobSampler:
    find_jobs(monkeypatch, *jobs)
    return choose_job(os.getuid(), Gpus(), lambda: None)


MAPPED = (
    "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
)
WAITING = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def start_in_new_session(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Start processes of other sessions, which have a file mapped; return their numbers."""
    with contextlib.ExitStack() as stack:

        def start(mapped: str) -> int:
            (tmp_path / mapped).write_bytes(b"x")
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", MAPPED + WAITING, tmp_path / mapped],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            return process.pid

        yield start


def test_without_a_number_the_job_of_this_session_is_chosen_and_the_others_are_listed(
    monkeypatch: pytest.MonkeyPatch, job: Any, start_in_new_session: Callable[[str], int]
) -> None:
    other = summarise(start_in_new_session("libtorch_cpu.so"), 0.9)
    sampler = choose(monkeypatch, other, summarise(job.pid, 0.2), summarise(8, 0.01))
    seen = sampler.take()
    assert seen is not None
    assert seen.pid == job.pid
    assert seen.notes[0].startswith("started from here of the jobs of")
    assert seen.other_jobs == (other,)


def test_without_a_number_the_only_training_of_a_user_is_chosen(
    monkeypatch: pytest.MonkeyPatch, start_in_new_session: Callable[[str], int]
) -> None:
    training = start_in_new_session("libtorch_cpu.so")
    assert (
        choose(monkeypatch, summarise(start_in_new_session("x"), 0.9), summarise(training, 0.2)).pid
        == training
    )


def test_a_job_of_another_session_that_does_not_train_is_named_and_not_watched(
    monkeypatch: pytest.MonkeyPatch, start_in_new_session: Callable[[str], int]
) -> None:
    pid = start_in_new_session("x")
    with pytest.raises(NotFound, match="no job was started from this session") as caught:
        choose(monkeypatch, summarise(pid, 0.9))
    assert f"\nfeedrate watch {pid}  # python train.py" in str(caught.value.hint)


def test_several_trainings_are_listed_with_the_lines_to_type(
    monkeypatch: pytest.MonkeyPatch, start_in_new_session: Callable[[str], int]
) -> None:
    pids = [start_in_new_session("libtorch_cpu.so") for _ in range(2)]
    with pytest.raises(UsageError, match=r"2 jobs of .* may be meant") as caught:
        choose(monkeypatch, *(summarise(pid, 0.9) for pid in pids))
    for pid in pids:
        assert f"\nfeedrate watch {pid}  # python train.py" in str(caught.value.hint)


def test_a_job_of_the_scheduler_that_this_process_is_of_is_chosen(
    monkeypatch: pytest.MonkeyPatch, start_in_new_session: Callable[[str], int]
) -> None:
    stranger = start_in_new_session("libtorch_cpu.so")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    mine = start_in_new_session("libtorch_cpu.so")
    assert choose(monkeypatch, summarise(stranger, 0.9), summarise(mine, 0.2)).pid == mine


def test_a_job_that_a_doctor_runs_is_not_sent_to_a_doctor(tmp_path: Path) -> None:
    program = tmp_path / "feedrate"
    program.write_text(WAITING)
    line = [sys.executable, program, "doctor", "--", "python", "train.py"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        seen = JobSampler(process.pid, Gpus()).take()
        process.communicate()
    assert seen is not None
    assert seen.verdict.next.startswith(f"a doctor is running on it already (process {process.pid})")


def test_without_a_busy_job_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find_jobs(monkeypatch, summarise(8, 0.01))
    with pytest.raises(NotFound, match="uses a GPU or a tenth of a core just now"):
        choose_job(os.getuid(), Gpus(), lambda: None)


def test_of_a_user_all_jobs_are_watched(monkeypatch: pytest.MonkeyPatch, job: Any) -> None:
    find_jobs(monkeypatch, summarise(job.pid, 0.9), summarise(2**22 + 1, 0.2))
    jobs = UserSampler(os.getuid(), Gpus())
    jobs.glance()
    assert [one.pid for one in jobs.take().jobs] == [job.pid]


def test_gpus_of_a_job_are_those_where_it_holds_memory_and_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, other = os.getpid(), os.getppid()
    nvml = make_nvml(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=80),
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=3 << 30, total=8 << 30),
        nvmlDeviceGetPowerUsage=250_000,
        nvmlDeviceGetName="NVIDIA H200",
        nvmlDeviceGetComputeRunningProcesses=[
            SimpleNamespace(pid=mine, usedGpuMemory=1 << 30),
            SimpleNamespace(pid=other, usedGpuMemory=2 << 30),
            SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None),
        ],
        nvmlDeviceGetProcessUtilization=[
            SimpleNamespace(pid=mine, smUtil=50),
            SimpleNamespace(pid=other, smUtil=30),
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = Gpus(GpuReader())
    gpus.glance()
    gpus.refresh()
    (gpu,) = gpus.of({mine})
    assert (gpu.utilisation, gpu.power_w, gpu.others_share) == (0.8, 250.0, 0.3)
    assert [(one.pid, one.share) for one in gpu.job] == [(mine, 0.5)]
    assert [(one.pid, one.name is None) for one in gpu.others] == [(other, False), (2**22 + 1, True)]
    assert gpus.of({1}) == ()
    assert gpus.list_free() == ()


def test_in_a_container_a_gpu_is_known_by_its_open_file_and_nobody_is_called_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = [SimpleNamespace(pid=2**22 + 1, usedGpuMemory=1)]
    nvml = make_nvml(nvmlDeviceGetComputeRunningProcesses=outside, nvmlDeviceGetMinorNumber=3)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = Gpus(GpuReader())
    gpus.refresh()
    assert gpus.of({7}, ["/dev/nvidia0"]) == ()
    (gpu,) = gpus.of({7}, ["/dev/nvidia3", "/dev/nvidiactl"])
    assert (gpu.index, gpu.job, gpu.others) == (0, (), ())


def test_data_files_are_known_by_their_mount_and_devices_and_code_are_none() -> None:
    assert find_data_mounts(["/dev/null", "/proc/1/stat", "/lib/x.so", "/memfd:a"]) == set()
    assert find_data_mounts(["/no/such/file.jpg"]) == {"/"}


def test_stores_are_those_of_the_jobs_files_first_then_those_that_are_busy() -> None:
    quiet = {"read_per_s": 0, "write_per_s": 0, "busy": 0.0}
    disks = {"sda": {**quiet, "busy": 0.9}, "sdb": quiet}
    rates = {"read_per_s": 5, "write_per_s": 0, "operations_per_s": 0.0, "round_trip_s": None}
    nfs = {"/no/a": rates, "/no/b": rates}  # no mounts that this machine has
    stores = list_stores(disks, nfs, {"/no/a"})
    assert [(store.name, store.mount_points) for store in stores] == [("/no/a", ("/no/a",)), ("sda", ())]
