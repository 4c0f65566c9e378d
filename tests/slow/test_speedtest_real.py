# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest` with a real model, in a process of its own: ended by itself, and by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.images import save_image
from support.waiting import wait_until

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def temporary() -> Iterator[str]:
    """A folder with a short name, as one for temporary files has: sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        yield name


def start(temporary: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "feedrate", "speedtest", "--device", "cpu", "--quick", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": temporary},
        start_new_session=True,
    )


def _trains(pid: int) -> bool:
    """Return whether the script's workers have begun to decode."""
    scripts = [
        child for child in psutil.Process(pid).children() if "standard.py" in " ".join(child.cmdline())
    ]
    times = [worker.cpu_times() for script in scripts for worker in script.children()]
    return any(one.user + one.system > 0.5 for one in times)


def test_a_model_is_trained_on_a_folder_and_nothing_is_left(tmp_path: Path, temporary: str) -> None:
    for number in range(20):
        save_image(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    process = start(temporary, str(tmp_path / "photos"), "--model", "resnet18", "--size", "64", "--json", "-")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["diagnosis"]["run"]["device"] == "cpu"
    assert result["diagnosis"]["findings"]
    assert result["diagnosis"]["verdict"]
    assert 0 < result["device_s"] <= result["steps_s"]
    assert result["cpu_s"] > 0
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_training_leaves_neither_files_nor_processes(
    number: signal.Signals, temporary: str
) -> None:
    process = start(temporary, "--model", "resnet18", "--size", "64")
    assert wait_until(lambda: _trains(process.pid))
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number is signal.SIGINT else 128 + number)
    assert os.listdir(temporary) == []
    # A process of the group that was ended may still have to be taken from the table by its new parent.
    assert wait_until(lambda: _is_gone(process.pid))


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
