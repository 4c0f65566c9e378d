# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest` with a real model, in a process of its own: ended by itself, and by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.images import save_image
from support.waiting import wait_until

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.slow


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    (tmp_path / "temporary").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "feedrate", "speedtest", "--device", "cpu", "--seconds", "20", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        start_new_session=True,
    )


def _last_worker_cpu_s(pid: int) -> float:
    """Return the processor time of the child that was started last; 0: there is none yet."""
    children = psutil.Process(pid).children()
    times = max(children, key=lambda child: child.create_time()).cpu_times() if children else None
    return times.user + times.system if times is not None else 0.0


def test_a_model_is_trained_on_a_folder_and_nothing_is_left(tmp_path: Path) -> None:
    for number in range(20):
        save_image(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    process = start(tmp_path, str(tmp_path / "photos"), "--model", "resnet18", "--size", "64", "--json", "-")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["subset"]["images"], result["subset"]["labels"]) == (20, 2)
    assert result["before"]["limit"] == "device"
    assert "is the limit" in result["verdict"]
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_training_leaves_neither_files_nor_processes(
    number: signal.Signals, tmp_path: Path
) -> None:
    # So many seconds that a busy machine is not refused; the signal ends it long before.
    process = start(tmp_path, "--model", "resnet18", "--size", "64", "--seconds", "300")
    assert process.stderr is not None
    assert any("training with" in line for line in process.stderr)
    # Python loses an exception that a signal raises inside fork(): wait until the last worker is at work.
    assert wait_until(lambda: _last_worker_cpu_s(process.pid) > 0.5)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number is signal.SIGINT else 128 + number)
    assert os.listdir(tmp_path / "temporary") == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
