# SPDX-License-Identifier: Apache-2.0
"""Fresh processes: what comes back, what a failure says, and that nothing is left running."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from feedrate.cli import main
from feedrate.lab.child import RunFailed, run_in_process

VICTIMS = """
import os, signal, subprocess, sys, time

def talk(text):
    print(text)
    os.system("echo " + text)
    return {"said": text, "pid": os.getpid()}

def look_for(module):
    import importlib.util
    return {"is_there": importlib.util.find_spec(module) is not None}

def fail(reason):
    raise RuntimeError(reason)

def fall_silent():
    os._exit(3)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def hang_with_a_child(note):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(note + ".part", "w") as file:
        file.write(str(child.pid))
    os.rename(note + ".part", note)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _victims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "victims.py").write_text(VICTIMS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_function_runs_in_another_process_and_what_it_prints_does_not_spoil_its_result() -> None:
    result, peak_bytes = run_in_process("victims:talk", {"text": "hello"})
    assert result["said"] == "hello"
    assert result["pid"] != os.getpid()
    assert peak_bytes >= 0


def test_another_python_needs_none_of_our_dependencies(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site-packages
    bare.chmod(0o755)
    result, _ = run_in_process("victims:look_for", {"module": "numpy"}, python=str(bare))
    assert result == {"is_there": False}


def test_a_failing_process_is_described_by_its_last_lines() -> None:
    with pytest.raises(
        RunFailed, match=r"(?s)ended with exit code 1; its last lines:.*RuntimeError: too bad$"
    ):
        run_in_process("victims:fail", {"reason": "too bad"})


def test_the_last_lines_of_a_failed_process_are_lines_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail = partial(run_in_process, "victims:fail", {"reason": "too bad\x1b[31m\nhint: type this"})
    monkeypatch.setattr("feedrate.cli.demo.run", lambda _: fail())
    assert main(["demo"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("ended with exit code 1; its last lines:")
    assert lines[-2].strip() == "RuntimeError: too bad\\x1b[31m"
    assert not any(line.startswith("hint:") for line in lines)


def test_a_process_that_says_nothing_is_described_by_its_exit_code() -> None:
    with pytest.raises(RunFailed, match="victims:fall_silent ended with exit code 3 and said nothing"):
        run_in_process("victims:fall_silent", {})


def test_a_killed_process_is_described_by_its_signal() -> None:
    with pytest.raises(RunFailed, match=r"was ended by signal 9 \(out of memory\?\)"):
        run_in_process("victims:die", {})


def test_an_interrupt_ends_the_whole_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "child"
    real = subprocess.Popen.communicate
    interrupts = iter([KeyboardInterrupt])
    parents: list[int] = []

    def communicate(self: subprocess.Popen[bytes], data: bytes | None = None, *timeout: object) -> object:
        interrupt = next(interrupts, None)
        if interrupt is None:
            return real(self, data, *timeout)
        parents.append(self.pid)
        assert self.stdin is not None
        self.stdin.write(data or b"")
        self.stdin.close()
        self.stdin = None
        wait_for(note, self)
        raise interrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        run_in_process("victims:hang_with_a_child", {"note": str(note)})
    assert not psutil.pid_exists(parents[0])
    assert not is_running(int(note.read_text()))
    assert "feedrate-memory-watch" not in [thread.name for thread in threading.enumerate()]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        threading.Event().wait(0.01)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
