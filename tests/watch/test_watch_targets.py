# SPDX-License-Identifier: Apache-2.0
"""Which processes are a job, and which numbers and names are none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from feedrate.errors import NotFound, UsageError
from feedrate.machine.process import ProcessStat
from feedrate.machine.results import GpuProcess
from feedrate.watch.results import HELPER, TRAINER, WORKER
from feedrate.watch.targets import (
    JobFinder,
    Member,
    assign_roles,
    find_frameworks,
    find_root,
    find_target,
    find_user,
    promote_ranks,
)

TRAIN = ("python3", "train.py")
SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)")
SERVER = ("python3", "-c", "from multiprocessing.forkserver import main; main(8, 9)")
TRACKER = ("python3", "-c", "from multiprocessing.resource_tracker import main;main(5)")


def roles(*members: tuple[int, int, str, tuple[str, ...]]) -> dict[int, str]:
    return assign_roles({member[0]: Member(*member) for member in members})


def test_forks_of_a_python_process_are_its_workers_under_any_name() -> None:
    found = roles((1, 0, "python3", TRAIN), (2, 1, "python3", TRAIN), (3, 1, "pt_data_worker", TRAIN))
    assert found == {1: TRAINER, 2: WORKER, 3: WORKER}


def test_spawned_workers_are_workers_and_the_tracker_helps() -> None:
    assert roles((1, 0, "python3", TRAIN), (2, 1, "pt_data_worker", SPAWN), (3, 1, "python3", TRACKER)) == {
        1: TRAINER, 2: WORKER, 3: HELPER,
    }  # fmt: skip


def test_a_fork_server_helps_and_what_it_forked_are_workers() -> None:
    assert roles((1, 0, "python3", TRAIN), (2, 1, "python3", SERVER), (3, 2, "python3", SERVER)) == {
        1: TRAINER, 2: HELPER, 3: WORKER,
    }  # fmt: skip


def test_a_helper_is_known_by_its_program_or_module_and_never_by_arguments() -> None:
    arguments = ("--report_to", "tensorboard", "--note", "resource_tracker", "multiprocessing.spawn")
    helpers = [
        ("/opt/env/bin/python3", "/opt/env/bin/tensorboard", "--logdir", "runs"),
        ("python3", "-u", "-m", "tensorboard.main", "--logdir", "runs"),
        ("python3", "-W", "ignore", "-c", TRACKER[2]),
        ("python3", "/opt/env/torch/_inductor/compile_worker/__main__.py", "--workers=4"),
        ("/opt/env/torch/bin/torch_shm_manager",),
    ]
    trainings = [
        ("python3", "-u", "/home/tensorboard/train.py", *arguments),
        ("python3", "-m", "train", *arguments),
        ("torchrun", "train.py", *arguments),
    ]
    assert [roles((1, 0, "python3", command))[1] for command in helpers] == [HELPER] * 5
    assert [roles((1, 0, "python3", command))[1] for command in trainings] == [TRAINER] * 3


def test_ranks_that_a_launcher_started_are_no_workers() -> None:
    launcher = ("python3", "-m", "torch.distributed.run", "train.py")
    assert roles((1, 0, "torchrun", launcher), (2, 1, "python3", TRAIN)) == {1: TRAINER, 2: TRAINER}


def test_forks_of_what_is_not_python_are_no_workers() -> None:
    assert roles((1, 0, "bash", ("bash", "x.sh")), (2, 1, "bash", ("bash", "x.sh"))) == {
        1: TRAINER,
        2: TRAINER,
    }


def stat(pid: int, parent: int, name: str) -> ProcessStat:
    return ProcessStat(pid, name, "S", parent, 1, 1, 0, 0.0, 0.0, 1, pid, 0, 0)


def test_ranks_that_python_spawned_train_if_they_have_workers_or_a_gpu() -> None:
    stats = [stat(1, 0, "python3"), *(stat(pid, 1, "python3") for pid in (2, 3, 5))]
    members = {one.pid: one for one in [*stats, stat(4, 2, "pt_data_worker")]}
    found = {1: TRAINER, 2: WORKER, 3: WORKER, 4: WORKER, 5: WORKER}
    promote_ranks(found, members, {3, 4})
    assert found == {1: TRAINER, 2: TRAINER, 3: TRAINER, 4: WORKER, 5: WORKER}


def test_a_job_reaches_up_to_the_first_process_that_a_shell_started() -> None:
    tree = [stat(10, 1, "sshd"), stat(11, 10, "bash"), stat(12, 11, "torchrun"), stat(13, 12, "python3")]
    stats = {one.pid: one for one in tree}
    assert [find_root(one, stats) for one in tree] == [None, None, 12, 12]


def test_the_first_process_of_the_machine_and_threads_of_the_kernel_are_no_jobs() -> None:
    tree = [stat(1, 0, "my-init"), stat(2, 0, "kthreadd"), stat(3, 2, "kworker/0:0"), stat(4, 1, "python3")]
    stats = {one.pid: one for one in tree}
    assert [find_root(one, stats) for one in tree] == [None, None, None, 4]


@pytest.mark.parametrize("text", ["train.py", "0", "-3", "", "4 2", "٣"])
def test_what_is_no_number_of_a_process_is_said(text: str) -> None:
    with pytest.raises((UsageError, NotFound), match="process"):
        find_target(text)


def test_a_process_that_never_was_is_said() -> None:
    with pytest.raises(NotFound, match="there is no process 4194305"):
        find_target("4194305")
    with pytest.raises(NotFound, match="there is no process"):
        find_target("9" * 30)


def test_a_thread_of_the_kernel_is_no_job() -> None:
    if os.path.exists("/proc/2/exe") and not os.path.exists("/proc/2/stat"):
        pytest.skip("there is no kthreadd here")
    with open("/proc/2/stat") as file:
        if "kthreadd" not in file.read():
            pytest.skip("process 2 is something else here")
    with pytest.raises(UsageError, match="thread of Linux's kernel"):
        find_target("2")


def test_a_zombie_names_its_parent() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UsageError, match="has ended") as error:
        find_target(str(process.pid))
    assert str(os.getpid()) in str(error.value.hint)
    process.wait()


def test_a_thread_stands_for_its_process() -> None:
    told, done = threading.Event(), threading.Event()
    found: list[int] = []

    def wait() -> None:
        found.append(threading.get_native_id())
        told.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    told.wait()
    pid, notes = find_target(str(found[0]))
    done.set()
    thread.join()
    assert (pid, notes) == (
        os.getpid(),
        (f"{found[0]} is a thread of process {os.getpid()}, which is shown",),
    )


def test_an_unknown_user_is_said_and_a_slip_of_the_finger_is_guessed() -> None:
    assert find_user("root") == 0
    with pytest.raises(NotFound, match="there is no user 'rooot'") as error:
        find_user("rooot")
    assert error.value.hint == "did you mean 'root'?"


def test_a_framework_is_known_by_libraries_and_else_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "feedrate.watch.targets.read_file", lambda _: b"7f00-7f01 r-xp /lib/libtensorflow_cc.so.2\n"
    )
    assert find_frameworks(1, ["python", "jax_train.py"]) == ("TensorFlow",)
    monkeypatch.setattr("feedrate.watch.targets.read_file", lambda _: None)
    assert find_frameworks(1, ["python", "jax_train.py"]) == ("JAX",)
    assert find_frameworks(1, ["python", "train.py"]) == ()


def test_jobs_of_a_user_come_by_gpu_memory_then_by_cores_and_small_ones_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def machine(passed_s: float) -> list[ProcessStat]:
        rates = {10: 0.5, 11: 0.4, 20: 0.0, 30: 0.7, 40: 0.001}
        parents = {10: 1, 11: 10, 20: 1, 30: 1, 40: 1}
        return [
            replace(stat(pid, parents[pid], "python3"), cpu_s=100 + rate * passed_s)
            for pid, rate in rates.items()
        ]

    monkeypatch.setattr(JobFinder, "_read", lambda _: machine(0.0))
    finder = JobFinder(os.getuid(), 0.0)
    monkeypatch.setattr(JobFinder, "_read", lambda _: machine(2.0))
    jobs = finder.find(2.0, [GpuProcess(1, 20, 10**9)])
    assert [(job.pid, round(job.cores, 3), job.gpus) for job in jobs] == [
        (20, 0.0, (1,)),
        (10, 0.9, ()),
        (30, 0.7, ()),
    ]
