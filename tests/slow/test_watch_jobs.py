# SPDX-License-Identifier: Apache-2.0
"""`feedrate watch --once` on real trainings: workers of each start method, another user's job, TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from support.frameworks import VARIABLE, find_python

pytestmark = pytest.mark.slow

DATALOADER = """
    import sys, time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 10**7
        def __getitem__(self, i):
            end = time.process_time() + 0.005
            while time.process_time() < end:
                pass
            return torch.zeros(10)

    if __name__ == "__main__":
        loader = DataLoader(Slow(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
        for number, x in enumerate(loader):
            if number == 4:
                print("trains", flush=True)
"""
TENSORFLOW = """
    import tensorflow as tf
    square = tf.random.uniform([300, 300])
    data = tf.data.Dataset.range(10**9).map(lambda i: square @ square)
    for number, x in enumerate(data.batch(8).prefetch(2)):
        if number == 4:
            print("trains", flush=True)
"""


@contextmanager
def training(tmp_path: Path, script: str, *words: str, python: str | Path = sys.executable) -> Iterator[int]:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(script))
    with subprocess.Popen([python, path, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"trains\n"
            yield process.pid
        finally:
            process.terminate()


def watch(pid: int, tmp_path: Path) -> Any:
    target = tmp_path / "view.json"
    assert main(["watch", "--once", "--force", "--json", str(target), str(pid)]) == 0
    return json.loads(target.read_text())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_known_however_they_were_started(method: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with training(tmp_path, DATALOADER, method) as pid:
        view = watch(pid, tmp_path)
        worker = next(one for one in view["processes"] if one["role"] == "worker")
        assert watch(worker["pid"], tmp_path)["pid"] == pid
    assert [one["role"] for one in view["processes"]] == ["trainer", "worker", "worker"]
    assert view["frameworks"] == ["PyTorch"]
    trainer, *workers = (one["shares"] for one in view["processes"])
    assert trainer["idle"] > 0.3
    assert all(one["computing"] + one["queued"] > 0.5 for one in workers)
    assert view["verdict"]["codes"]


def fork_as(user: int, function: Callable[[], int]) -> int:
    """Run a function as another user, in a process that has imported all that it needs; return its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        os._exit(function())
    finally:
        os._exit(99)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two other users")
def test_of_another_users_job_is_shown_what_the_rights_allow(capfd: pytest.CaptureFixture[str]) -> None:
    told, tell = os.pipe()

    def wait() -> int:
        os.write(tell, b".")
        while True:
            pass

    job = fork_as(65534, wait)
    try:
        os.read(told, 1)
        main(["watch", "--once", str(job)])  # imports what the other user may not read
        capfd.readouterr()
        watcher = fork_as(1, lambda: main(["watch", "--once", str(job)]))
        _, status = os.waitpid(watcher, 0)
    finally:
        os.kill(job, 9)
        os.waitpid(job, 0)
        os.close(told)
        os.close(tell)
    text = capfd.readouterr().out
    assert status == 0, text
    assert text.startswith(f"{job}: ")
    assert "what this job reads and writes is not visible" in text
    assert "hide from other users" in text


def test_a_tensorflow_job_shows_its_threads(tmp_path: Path) -> None:
    python = find_python("tensorflow")
    if python is None:
        pytest.skip(f"tensorflow is not installed; {VARIABLE} may name a Python that has it")
    with training(tmp_path, TENSORFLOW, python=python) as pid:
        view = watch(pid, tmp_path)
    assert "TensorFlow" in view["frameworks"]
    assert sum(group["count"] for group in view["threads"]) > 3
    assert "TensorBoard" in view["verdict"]["next"]
