# SPDX-License-Identifier: Apache-2.0
"""The doctor outside of real launchers (srun on two nodes, torchrun), and killed among real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from feedrate.doctor.run.processes import read_mapped_names
from feedrate.machine.process import list_processes, read_environ
from support.slurm_cluster import cluster_or_skip
from support.trees import find_below
from support.waiting import wait_until

pytestmark = pytest.mark.slow

# Says when it trains, and trains until it is ended.
TRAINING = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Noise(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        return torch.full((3, 64, 64), float(index % 7)), index % 10

if __name__ == "__main__":
    if "SHARING" in os.environ:
        torch.multiprocessing.set_sharing_strategy(os.environ["SHARING"])
    workers = int(os.environ.get("WORKERS", "1"))
    context = os.environ.get("CONTEXT", "fork") if workers else None
    loader = DataLoader(Noise(), batch_size=8, num_workers=workers, multiprocessing_context=context)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == 3:
            print("training", os.getpid(), flush=True)
        while number == 40 and "HANGING" in os.environ:
            pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def doctor(*words: str) -> list[str]:
    return [sys.executable, "-m", "feedrate", "doctor", *words]


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1", **more}


def find_processes(folder: Path) -> list[int]:
    """Return the processes of runs whose folders lie here."""
    found = ((pid, read_environ(pid, "FEEDRATE_DOCTOR")) for pid in list_processes())
    return [pid for pid, run in found if run is not None and run.startswith(str(folder))]


def list_leftovers(folder: Path, shared: Collection[str] = ()) -> list[str]:
    names = [str(path) for path in find_below(folder, "*feedrate-doctor*")]
    names += [str(pid) for pid in find_processes(folder)]
    return names + sorted(name for name in shared if os.path.exists(name))


def list_shared(folder: Path) -> set[str]:
    """Return what processes of runs whose folders lie here have mapped in /dev/shm."""
    return {f"/dev/shm/{name}" for pid in find_processes(folder) for name in read_mapped_names(pid)}


@pytest.mark.parametrize(
    ("target", "context", "sharing"),
    [
        ("script", "fork", "file_system"),
        ("script", "spawn", "file_descriptor"),
        ("doctor", "fork", "file_descriptor"),
        ("doctor", "spawn", "file_system"),
        ("group", "spawn", "file_descriptor"),
    ],
)
def test_a_kill_among_workers_leaves_nothing_behind(
    folder: Path, target: str, context: str, sharing: str
) -> None:
    process = subprocess.Popen(
        doctor("--passive", "--", sys.executable, str(folder / "train.py")), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env=environment_of(folder, WORKERS="2", CONTEXT=context, SHARING=sharing),
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["training"]
        shared = list_shared(folder)
        assert len(find_processes(folder)) >= 3
        if target == "script":
            os.kill(int(words[1]), signal.SIGKILL)
            assert process.wait() == 137
        elif target == "doctor":
            process.kill()
        else:
            # Two samples, so that what the processes share is known: theirs to remove is killed with them.
            samples = find_below(folder, "machine.jsonl")[0]
            seen = len(samples.read_bytes().splitlines())
            assert wait_until(lambda: len(samples.read_bytes().splitlines()) >= seen + 2)
            os.killpg(process.pid, signal.SIGKILL)
        assert wait_until(lambda: list_leftovers(folder, shared) == []), list_leftovers(folder, shared)


def test_ctrl_c_ends_the_run_and_leaves_nothing_behind(folder: Path) -> None:
    process = subprocess.Popen(
        doctor("--passive", "--", sys.executable, str(folder / "train.py")), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment_of(folder, WORKERS="2"),
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("training")
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    # The script's own complaint, once; none of the doctor's.
    assert error.count("KeyboardInterrupt") >= 1
    assert "feedrate/doctor/launch" not in error
    assert list_leftovers(folder) == []


def test_torchrun_ranks_are_seen_and_ended_after_the_experiments(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        doctor("--steps", "24", "--json", "report.json", "--", *command, "train.py"),
        cwd=folder, env=environment_of(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    document = json.loads((folder / "report.json").read_text())
    assert document["run"]["ranks"] == 2
    assert document["run"]["mode"] == "experiments"
    assert list_leftovers(folder) == []


def test_a_loop_that_hangs_is_judged_by_the_steps_before(folder: Path) -> None:
    done = subprocess.run(
        doctor("--seconds", "5", "--json", "report.json", "--", sys.executable, "train.py"),
        cwd=folder, env=environment_of(folder, HANGING="1"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "the command stood still for 5.00 s, waiting for the next batch after 41 steps" in done.stderr
    run = json.loads((folder / "report.json").read_text())["run"]
    assert (run["mode"], run["exit_code"]) == ("ended", None)
    assert list_leftovers(folder) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    with cluster_or_skip() as environment:
        yield environment


def test_srun_on_two_nodes_is_watched_from_outside(folder: Path, cluster: dict[str, str]) -> None:
    command = ["srun", "-N", "2", "-n", "2", sys.executable, "train.py"]
    done = subprocess.run(
        doctor("--steps", "24", "--json", "report.json", "--", *command), cwd=folder,
        env={**environment_of(folder), "SLURM_CONF": cluster["SLURM_CONF"]}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    document = json.loads((folder / "report.json").read_text())
    assert document["run"]["ranks"] == 2
    assert list_leftovers(folder) == []


def test_the_exit_code_of_a_job_passes_through_srun(folder: Path, cluster: dict[str, str]) -> None:
    done = subprocess.run(
        doctor("--", "srun", "-n", "1", sys.executable, "-c", "import sys; sys.exit(5)"), cwd=folder,
        env={**environment_of(folder), "SLURM_CONF": cluster["SLURM_CONF"]}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert "error: the command ended with exit code 5 before its first batch" in done.stderr
    assert list(folder.glob(".feedrate-doctor-*")) == []


def test_a_cancelled_job_leaves_nothing_behind(folder: Path, cluster: dict[str, str]) -> None:
    environment = {**environment_of(folder), "SLURM_CONF": cluster["SLURM_CONF"]}
    process = subprocess.Popen(
        doctor("--passive", "--", "srun", "-n", "1", sys.executable, "train.py"), cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("training")
        subprocess.run(["scancel", "-p", "main"], env=environment, check=True)
        assert process.wait() != 0
    assert wait_until(lambda: list_leftovers(folder) == []), list_leftovers(folder)
