# SPDX-License-Identifier: Apache-2.0
"""The sampler and what is read of it: real samples of real processes, and means of made-up ones."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedrate.doctor.analyse.machine import read_machine
from feedrate.doctor.analyse.machine_summary import find_gpu
from feedrate.doctor.facts import read_samples
from feedrate.doctor.run import processes, sampler
from feedrate.doctor.run.processes import ENVIRONMENT, make_meter
from feedrate.doctor.run.sampler import GpuMeter, Sampler, pace
from feedrate.machine import process_tree
from feedrate.machine.process import read_stat
from support.doctor_runs import fill
from support.machine_samples import SECOND, make_process, make_sample, write_samples
from support.nvml import make_nvml

WAITING = "import sys; print('up', flush=True); sys.stdin.read()"
# A process between the test and the one that waits.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITING!r}])"
# The same, but it ends at once: its child loses its parent.
ORPHANING = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, '-c', {WAITING!r}])
"""


@pytest.fixture
def start() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, **environ: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.read()  # ends when the last process that waits has ended
        process.stdout.close()


def test_the_tree_holds_children_and_their_children_and_not_the_root(start: Any) -> None:
    process = start(PARENT)
    tree = make_meter(os.getpid(), "/run", ignored=set()).tree
    for now in (0.0, 0.1, 100.0):  # walking, asking the known ones, walking
        members = tree.look(now)
        assert os.getpid() not in members
        grandchildren = [stat for stat in members.values() if stat.parent == process.pid]
        assert process.pid in members
        assert len(grandchildren) == 1
    assert tree.known().keys() >= {process.pid, grandchildren[0].pid}


def test_a_member_that_ended_stays_known_and_is_not_asked_again(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(WAITING)
    tree = make_meter(os.getpid(), "/run", ignored=set()).tree
    tree.look(0.0)
    process.stdin.close()
    process.wait()
    tree.look(0.1)
    asked: list[int] = []
    monkeypatch.setattr(process_tree, "read_stat", asked.append)
    tree.look(0.2)
    assert process.pid not in asked
    assert process.pid in tree.known()


def test_a_process_that_lost_its_parent_is_known_by_its_environment(start: Any, tmp_path: Path) -> None:
    process = start(ORPHANING, **{ENVIRONMENT: str(tmp_path)})
    process.wait()
    nobody = 2**22 + 1  # no such process: nothing descends from it
    names = [stat.name for stat in make_meter(nobody, str(tmp_path), ignored=set()).tree.look(0.0).values()]
    assert len(names) == 1
    assert make_meter(nobody, "/another/run", ignored=set()).tree.look(0.0) == {}


def test_who_watches_does_not_belong_to_the_tree(start: Any) -> None:
    process = start(PARENT)
    members = make_meter(os.getpid(), "/run", ignored={process.pid}).tree.look(0.0)
    assert process.pid not in members
    assert all(stat.parent != process.pid for stat in members.values())


def test_a_sample_tells_of_machine_and_processes(start: Any, tmp_path: Path) -> None:
    process = start(WAITING)
    taker = Sampler(tmp_path, os.getpid(), ignored=set())
    taker.take()
    sample = json.loads(json.dumps(taker.take(is_last=True)))
    assert "unread" not in sample
    (mine,) = [p for p in sample["processes"] if p["pid"] == process.pid]
    assert mine["anonymous"] > 0
    assert len(sample["cpu"]["busy"]) == len(os.sched_getaffinity(0))
    assert sample["cpu"]["ours"] >= 0
    assert 0 < sample["memory"]["used"] <= sample["memory"]["total"]
    assert sample["memory"]["limit"] <= sample["memory"]["total"]
    assert sample["gpu_processes"] == []
    assert sample["gpus"] == [] or sample["gpus"][0]["name"]


def test_a_part_that_cannot_be_read_is_unknown_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Sampler(tmp_path, os.getpid(), ignored=set())

    def fail() -> None:
        raise ValueError("an odd line")

    monkeypatch.setattr("feedrate.machine.process.read_network", fail)
    assert taker.take()["network"] is None
    sample = taker.take()
    assert sample["unread"] == {"network": "ValueError: an odd line"}
    assert sample["memory"]["total"] > 0


def test_the_sampler_imports_nothing_heavy() -> None:
    code = (
        "import sys, feedrate.doctor.run.sampler; "
        "print(sorted({'numpy', 'torch', 'pyarrow', 'PIL', 'rich', 'psutil'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def start_sampler(run: Path, root: int, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "feedrate.doctor.run.sampler", str(run), str(root)], stdin=stdin
    )


def test_the_sampler_takes_a_last_sample_when_told_to_and_leaves_the_folder_to_the_doctor(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    theirs, ours = os.pipe()
    os.write(ours, sampler.STOP)  # before it begins, so that the last sample is the only one
    with start_sampler(run, os.getpid(), theirs) as process:
        os.close(theirs)
        path = run / "machine.jsonl"
        while not (path.exists() and path.read_bytes().endswith(b"\n")):
            assert process.poll() is None
        run.rename(tmp_path / "kept")
        os.close(ours)
        assert process.wait() == 0
    assert len(list(read_samples(tmp_path / "kept"))) == 1


@pytest.mark.parametrize("has_file", [True, False], ids=["full later", "full from the start"])
def test_a_full_disk_costs_samples_and_does_not_end_the_command(small_disk: Path, has_file: bool) -> None:
    run = small_disk / "run"
    run.mkdir()
    if has_file:
        (run / "machine.jsonl").touch()
    fill(small_disk)
    code = (
        "import os, sys; from feedrate.doctor.run import sampler; "
        "sampler.main(sys.argv[1:], tell=lambda byte: os.write(1, bytes([byte])))"
    )
    command = [sys.executable, "-c", code, str(run), str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(1) == bytes([sampler.READY])
        process.stdin.write(sampler.STOP)
        assert process.stdout.read(1) == bytes([sampler.STOPPED])
        run.rename(small_disk / "kept")


def test_the_sampler_ends_and_removes_the_folder_when_the_doctor_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with start_sampler(run, os.getpid()) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
    assert not run.exists()


def test_the_sampler_ends_when_its_root_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with start_sampler(run, 2**22 + 1) as process:
        assert process.wait() == 0
    assert not run.exists()


def test_a_long_run_is_sampled_less_often() -> None:
    assert pace(0, 0.001) == pace(599, 0.001) == 0.5
    assert pace(3600, 0.001) == 3.0
    assert pace(86400, 0.001) == 10.0


def test_many_processes_are_sampled_less_often() -> None:
    assert pace(0, 0.016) == pytest.approx(2.0)


def test_torchs_shared_memory_is_told_by_processes_that_ended(tmp_path: Path) -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    gone, stranger = 2**22 + 1, 2**22 + 2
    for pid in (gone, stranger, stat.pid):
        (tmp_path / f"torch_{pid}_123_0").touch()
    known = {gone: 5, stat.pid: stat.start}
    assert processes.find_torch_names(known, tmp_path) == {f"torch_{gone}_123_0"}


def test_memory_of_a_process_whose_number_is_anothers_by_now_is_that_of_one_that_ended(
    tmp_path: Path,
) -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    name = f"torch_{stat.pid}_123_0"
    (tmp_path / name).touch()
    assert processes.find_torch_names({stat.pid: stat.start - 5}, tmp_path) == {name}
    assert processes.find_torch_names({stat.pid: -1}, tmp_path) == set()


def test_memory_of_a_process_that_nobody_has_waited_for_is_that_of_one_that_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as zombie:
        assert zombie.stdout is not None
        zombie.stdout.read()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        name = f"torch_{zombie.pid}_123_0"
        (tmp_path / name).touch()
        assert processes.find_torch_names({zombie.pid: -1}, tmp_path) == {name}


def test_memory_of_a_worker_that_only_left_records_is_removed(tmp_path: Path) -> None:
    worker, stranger = 2**22 + 1, 2**22 + 2
    (tmp_path / "settings.json").touch()
    (tmp_path / f"{worker}-77.ring").touch()
    names = {pid: processes.FOLDER / f"torch_{pid}_{uuid.uuid4().hex}" for pid in (worker, stranger)}
    for name in names.values():
        name.touch()
    try:
        processes.remove_shared_memory(tmp_path, {}, [])
        assert {pid: name.exists() for pid, name in names.items()} == {worker: False, stranger: True}
    finally:
        for name in names.values():
            name.unlink(missing_ok=True)


MAPPING = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.write(b"x" * 4096)
    file.flush()
    memory = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
sys.stdin.read()
"""


def test_shared_memory_that_is_mapped_is_known_and_is_removed_when_nobody_uses_it(
    tmp_path: Path, start: Any
) -> None:
    path = tmp_path / "sem.mp-1"
    process = start(MAPPING.replace("sys.argv[1]", repr(str(path))))
    assert processes.read_mapped_names(process.pid, tmp_path) == {"sem.mp-1"}
    processes.remove_names({"sem.mp-1", "gone"}, since=0.0, folder=tmp_path)
    assert path.exists()
    process.stdin.close()
    process.wait()
    processes.remove_names({"sem.mp-1"}, since=path.stat().st_ctime + 1, folder=tmp_path)
    assert path.exists()
    processes.remove_names({"sem.mp-1"}, since=path.stat().st_ctime, folder=tmp_path)
    assert not path.exists()


def test_a_process_is_asked_for_its_shared_memory_after_it_started_and_when_it_gets_a_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(processes, "read_mapped_names", lambda pid: asked.append(pid) or {f"of {pid}"})
    stat = read_stat(os.getpid())
    assert stat is not None
    parent = dataclasses.replace(stat, pid=5, parent=1)
    child = dataclasses.replace(stat, pid=6, parent=5)
    names = processes.SharedNames()
    assert [names.look({5: parent}), names.look({5: parent}), names.look({5: parent})] == [[], ["of 5"], []]
    assert [names.look({5: parent, 6: child}), names.look({5: parent, 6: child})] == [[], ["of 6"]]
    assert asked == [5, 5, 6]
    assert names.names == {"of 5", "of 6"}


def test_means_are_weighted_by_the_time_that_a_sample_speaks_for(tmp_path: Path) -> None:
    samples = [make_sample(10 + n, cpu={"ours": float(n)}) for n in range(4)]
    trace = read_machine(write_samples(tmp_path, samples))
    # Sample 1 speaks for 10 to 11 s, sample 2 for 11 to 12 s: half of the first, all of the second.
    means = trace.between(round(10.5 * SECOND), 12 * SECOND)
    assert means.cores_ours == pytest.approx((0.5 * 1 + 1.0 * 2) / 1.5)
    assert means.seconds == pytest.approx(1.5)
    assert means.per_core == (1.0, 0.5)
    assert means.busiest_core == 1.0
    assert trace.cores == (0, 3)
    assert trace.t_s.tolist() == [0, 1, 2, 3]


def test_what_was_not_told_is_unknown(tmp_path: Path) -> None:
    trace = read_machine(write_samples(tmp_path, [make_sample(1, pressure=None, disks={}, nfs=None)]))
    means = trace.between(0, 5 * SECOND)
    assert means.cores_ours == 1.0
    assert (
        means.io_stall_share
        is means.disk_busy
        is means.nfs_read_bytes_per_s
        is means.memory_held_bytes
        is means.swap_in_bytes_per_s
        is None
    )
    assert means.throttled_share is means.biggest_other is None
    assert means.gpus == ()
    assert trace.between(50 * SECOND, 60 * SECOND).cores_ours is None


def test_a_machine_on_which_the_command_never_ran_says_nothing_about_it(tmp_path: Path) -> None:
    trace = read_machine(write_samples(tmp_path, [make_sample(n, processes=[]) for n in range(3)]))
    assert len(trace) == 0
    assert trace.between(0, 3 * SECOND).cores_others is None


def test_a_run_without_samples_answers_unknown(tmp_path: Path) -> None:
    trace = read_machine(tmp_path)
    assert len(trace) == 0
    assert trace.between(0, SECOND).cores_ours is None
    assert trace.growth_per_s(1) is None
    assert trace.curves(0, 2**62) == ()


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    trace = read_machine(write_samples(tmp_path, [make_sample(1), make_sample(2)], end='{"t_ns": 3000, "cpu'))
    assert len(trace) == 2


def test_disks_add_up_without_what_lies_above_them(tmp_path: Path) -> None:
    disk = {"read_per_s": 100, "write_per_s": 10, "busy": 0.25}
    disks = {"sda": disk, "sdb": {**disk, "busy": 0.75}, "dm-0": {**disk, "read_per_s": 200}}
    means = read_machine(write_samples(tmp_path, [make_sample(1, disks=disks)])).between(0, SECOND)
    assert (means.disk_read_bytes_per_s, means.disk_written_bytes_per_s, means.disk_busy) == (200, 20, 0.75)


def test_the_biggest_other_is_the_one_that_used_most_over_the_whole_time(tmp_path: Path) -> None:
    short = {"name": "burst", "user": "ann", "cores": 3.0}
    steady = {"name": "train", "user": "bob", "cores": 1.5}
    samples = [
        make_sample(1 + n, cpu={"biggest_other": other})
        for n, other in enumerate([short, steady, steady, steady])
    ]
    other = read_machine(write_samples(tmp_path, samples)).between(0, 4 * SECOND).biggest_other
    assert other is not None
    assert (other.name, other.user, other.cores) == ("train", "bob", pytest.approx(4.5 / 4))


def test_throttling_is_a_share_of_the_time(tmp_path: Path) -> None:
    samples = [make_sample(n, cpu={"throttled": {"times": n, "seconds": n * 1.0}}) for n in range(5)]
    means = read_machine(write_samples(tmp_path, samples)).between(0, 4 * SECOND)
    assert means.throttled_share == pytest.approx(0.5)  # one second each second, on two cores


def test_growth_comes_from_private_memory_and_is_not_fooled_by_a_jump(tmp_path: Path) -> None:
    def at(second: int) -> dict[str, Any]:
        jump = 10**9 if second >= 10 else 0
        more = {"private": 1000 * second + jump} if second % 2 == 0 else {}
        return make_sample(second, processes=[make_process(4, anonymous=5, cpu_s=second * 0.5, **more)])

    trace = read_machine(write_samples(tmp_path, [at(second) for second in range(20)]))
    assert trace.growth_per_s(4, 0, 9 * SECOND) == pytest.approx(1000)
    assert trace.growth_per_s(4, 10 * SECOND, 19 * SECOND) == pytest.approx(1000)
    assert trace.process_cores(4, 2 * SECOND, 12 * SECOND) == pytest.approx(0.5)


def test_growth_comes_from_anonymous_memory_where_private_memory_was_asked_too_seldom(tmp_path: Path) -> None:
    samples = [
        make_sample(n, processes=[make_process(4, anonymous=50 * n, cpu_s=0.0, private=9)] if n else [])
        for n in range(4)
    ]
    samples += [make_sample(4, processes=[make_process(4, anonymous=200, cpu_s=0.0)])]
    for sample in samples[1:4:2]:
        del sample["processes"][0]["private"]
    trace = read_machine(write_samples(tmp_path, samples))
    assert trace.growth_per_s(4) == pytest.approx(50)


def test_gpus_are_read_one_by_one_and_what_they_do_not_tell_is_unknown(tmp_path: Path) -> None:
    def gpu(share: float | None, used: int) -> dict[str, Any]:
        return {
            "name": "GPU", "utilisation": share, "memory_used": used, "memory": 100, "power_w": 300.0,
            "power_limit_w": 700.0, "to_device_per_s": None,
        }  # fmt: skip

    samples = [make_sample(n, gpus=[gpu(0.5, 10), gpu(None, 20)]) for n in (1, 2)]
    samples[0]["gpu_processes"] = [{"gpu": 1, "pid": 99, "memory": 20}]
    trace = read_machine(write_samples(tmp_path, samples))
    means = trace.between(0, 2 * SECOND)
    assert [gpu.utilisation for gpu in means.gpus] == [0.5, None]
    assert [gpu.memory_used_bytes for gpu in means.gpus] == [10, 20]
    assert [gpu.to_device_bytes_per_s for gpu in means.gpus] == [None, None]
    assert trace.gpu_others == {(1, 99)}
    names = {curve.name for curve in trace.curves(0, 2**62)}
    assert "GPU 0, busy" in names
    assert "GPU 1, busy" not in names


def test_a_gpu_is_as_busy_as_the_looks_inside_the_time_say(tmp_path: Path) -> None:
    """A sample comes every few seconds and tells of its last moment; looks in between tell of theirs."""
    gpu = {"name": "GPU", "utilisation": 0.0, "others": 0.25}
    looks = [[round(t * SECOND), [busy]] for t, busy in ((1.1, 0.0), (2.0, 0.9), (2.5, 1.0), (3.5, 0.0))]
    trace = read_machine(
        write_samples(tmp_path, [make_sample(1, gpus=[gpu]), make_sample(4, gpus=[gpu], gpu_glances=looks)])
    )
    assert trace.between(1 * SECOND, 3 * SECOND).gpus[0].utilisation == pytest.approx(0.95)
    assert trace.between(1 * SECOND, 4 * SECOND).gpus[0].others_share == 0.25
    assert trace.between(10 * SECOND, 11 * SECOND).gpus[0].utilisation is None


def test_what_others_have_of_a_gpu_is_asked_when_somebody_was_there_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container the command's own process may have another number for the driver: 77 began later."""
    shares = [SimpleNamespace(pid=55, smUtil=40), SimpleNamespace(pid=77, smUtil=60)]
    there = [SimpleNamespace(pid=55, usedGpuMemory=5)]
    nvml = make_nvml(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=90),
        nvmlDeviceGetProcessUtilization=shares,
        nvmlDeviceGetComputeRunningProcesses=there,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = GpuMeter()
    assert meter.read()[0]["others"] is None
    assert [other["pid"] for other in meter.read_processes(set())] == [55]
    assert meter.read()[0]["others"] == 0.4
    meter.glance()
    assert [busy for _, busy in meter.take_glances()] == [(0.9,)]
    assert meter.take_glances() == []


def test_curves_know_their_limits_and_leave_out_what_is_unknown(tmp_path: Path) -> None:
    memory = {
        "used": 40, "limit": 100, "cache": 10, "available": 60, "swap_in_per_s": 0.0, "swap_out_per_s": 5.0,
        "major_faults_per_s": 0.0,
    }  # fmt: skip
    samples = [make_sample(n, memory=memory) for n in (1, 2)]
    curves = {c.name: c for c in read_machine(write_samples(tmp_path, samples)).curves(0, 2**62)}
    assert curves["cores busy, this run"].limit == 2
    assert curves["cores busy, this run"].times_s == (0.0, 1.0)
    assert curves["memory used, page cache included"].limit == 100
    assert "swapped out" in curves
    assert not {"swapped in", "NFS, read", "stalled for storage"} & set(curves)


def test_the_curves_of_a_long_run_are_thinned(tmp_path: Path) -> None:
    samples = [make_sample(n, cpu={"ours": float(n % 2)}) for n in range(5000)]
    for curve in read_machine(write_samples(tmp_path, samples)).curves(0, 2**62):
        assert len(curve.values) == len(curve.times_s) <= 600
        assert all(value is None or math.isfinite(value) for value in curve.values)


@pytest.mark.parametrize(
    ("visible", "ordinal", "number"),
    [
        (None, 1, 1),
        (None, 4, None),
        ("2,0", 0, 2),
        ("2, 0", 1, 0),
        ("GPU-bb", 0, 1),
        ("GPU-", 0, None),
        ("MIG-1", 0, None),
        ("7", 0, None),
        ("", 0, None),
    ],
)
def test_torchs_gpu_is_found_among_those_of_the_machine(
    visible: str | None, ordinal: int, number: int | None
) -> None:
    assert find_gpu(["GPU-aa", "GPU-bb", "GPU-cc"], ordinal, visible) == number


def test_a_lone_gpu_of_a_job_is_the_one_whatever_its_number() -> None:
    assert find_gpu(["GPU-aa"], 0, "5") == 0
