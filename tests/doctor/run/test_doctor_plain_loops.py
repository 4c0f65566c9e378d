# SPDX-License-Identifier: Apache-2.0
"""Loops that use neither torch nor a loader: ended after --seconds, with the line that has the time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_doctor_command import LOADER, PROCESS, check_seen, observe, write_facts

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.run import standstill as standstill_rules
from feedrate.doctor.run.standstill import Standstill
from feedrate.errors import DoctorError
from feedrate.machine.process import ProcessStat
from support.doctor_runs import MS, FakeProcess

NUMPY_LOOP = """
import numpy as np

def make_batch(rng):
    return np.array([[value * 2 for value in rng.random(64).tolist()] for _ in range(64)])

def train():
    rng, weights = np.random.default_rng(0), np.zeros((64, 4))
    while True:
        batch = make_batch(rng)
        weights -= 1e-6 * batch.T @ (batch @ weights - 1)

train()
"""
PLAIN = {"kind": "plain", "pid": 1}
TORCH_IMPORTED = {"kind": "patched", "module": "torch.serialization"}


def test_a_loop_in_numpy_is_ended_after_the_seconds_and_its_hottest_line_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NUMPY_LOOP)
    done = subprocess.run(
        [sys.executable, "-m", "feedrate", "doctor", "--seconds", "1.5", "--", sys.executable, str(script)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: the command ran for 1.50 s without torch, and asked no DataLoader" in done.stderr
    assert f"of the looks at it are at {script}:5 (make_batch" in done.stderr


@pytest.mark.parametrize(
    ("options", "facts", "ends"),
    [
        (DoctorOptions(), (PLAIN,), (False, False, True, False)),
        (DoctorOptions(passive=True), (PLAIN,), (False, False, False, False)),
        (DoctorOptions(), (PLAIN, TORCH_IMPORTED), (False, False, False, True)),
        (DoctorOptions(), (PLAIN, LOADER), (False, False, False, False)),
        (DoctorOptions(), (), (False, False, False, False)),
    ],
    ids=["plain", "passive", "torch was imported", "a loader came later", "not known to be plain"],
)
def test_a_loop_without_a_loader_is_ended_after_the_seconds_with_torch_after_ten_times_as_many(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: DoctorOptions,
    facts: Any,
    ends: tuple[bool, ...],
) -> None:
    now, used = [1000.0], [0.0]
    monkeypatch.setattr(standstill_rules.time, "monotonic", lambda: now[0])
    stat = ProcessStat(1, "python", "R", 0, 1, 1, 0, 0.0, 0.0, 1, 1, 0, 0)
    monkeypatch.setattr(standstill_rules, "read_stat", lambda _: replace(stat, cpu_s=used[0]))
    standstill = Standstill(tmp_path, options, is_shared=False, watch=lambda _: None)
    write_facts(tmp_path, PROCESS, *facts)
    ended = []
    for passed_s in (6, 20, 20, 405):
        now[0] += passed_s
        used[0] += passed_s
        ended.append(standstill.look())
    assert tuple(ended) == ends


def test_a_program_that_waits_for_another_one_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python script may start the training as a process of its own, which imports torch later."""
    now = [1000.0]
    monkeypatch.setattr(standstill_rules.time, "monotonic", lambda: now[0])
    standstill = Standstill(tmp_path, DoctorOptions(), is_shared=False, watch=lambda _: None)
    environ = {"FEEDRATE_DOCTOR": str(tmp_path)}
    waits = "import subprocess, sys; print(flush=True); sys.stdin.read()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", starts], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        write_facts(tmp_path, PROCESS, {"kind": "plain", "pid": parent.pid})
        for _ in range(3):
            now[0] += 20
            assert not standstill.look()
        parent.communicate()


def test_the_hottest_line_of_a_loop_that_ended_by_itself_is_named_too(tmp_path: Path) -> None:
    process = FakeProcess(5)
    process.fact("plain", pid=5)
    for look in range(20):
        place = "/home/ada/fit.py:17@4 make_batch;/home/ada/fit.py:40 main"
        process.record(layout.STACK, place, look * MS, 0, a=layout.ON_CPU | layout.UNASKED)
    process.write(tmp_path)
    with pytest.raises(DoctorError) as caught:
        check_seen(observe(tmp_path))
    assert "never imported torch" in str(caught.value)
    assert "100% of the looks at it are at /home/ada/fit.py:17 (make_batch)" in str(caught.value)
