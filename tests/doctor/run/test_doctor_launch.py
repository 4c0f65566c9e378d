# SPDX-License-Identifier: Apache-2.0
"""The doctor runs a command: streams, exit code and signals pass through, and nothing stays behind."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feedrate.doctor.facts import read_samples
from feedrate.doctor.no_result import check_seen
from feedrate.doctor.options import DoctorOptions
from feedrate.doctor.run import launch
from feedrate.doctor.run.launch import HOOK, Observed, run_command
from feedrate.errors import DoctorError, StorageError, UsageError
from feedrate.hooking.launch import make_environment
from feedrate.machine.process import is_alive, read_stat
from support.waiting import wait_until

# Runs the doctor's launcher on the words after it, in a process that a test can kill.
DOCTOR = """
import sys
from feedrate.doctor.run.launch import run_command
from feedrate.doctor.options import DoctorOptions
with run_command(sys.argv[1:], DoctorOptions()) as observed:
    print("observed", observed.exit_code, observed.signal, observed.interrupted, flush=True)
sys.exit(observed.exit_code)
"""
# Counts the signals that reach it; SIGUSR1 ends it. Says when it is ready.
COUNTING = """
import signal, sys, time
seen = []
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda n, _: (seen.append(n), print("got", n, flush=True)))
signal.signal(signal.SIGUSR1, lambda *_: (print("seen", *seen, flush=True), sys.exit(7)))
print("ready", flush=True)
while True:
    time.sleep(0.05)  # a signal just before pause() would be heard at the next one
"""
# Starts a child that outlives it, and dies. The child's number and start go to the file that is named.
LEAVING = """
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
    stdout=subprocess.PIPE, start_new_session=sys.argv[2] == "daemon",
)
child.stdout.readline()
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(0)
"""


def run(code: str, *words: object, options: DoctorOptions | None = None) -> Observed:
    with run_command([sys.executable, "-c", code, *map(str, words)], options or DoctorOptions()) as observed:
        return observed


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give run folders a place of their own, so that one that stays is seen."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@contextmanager
def doctor_in_a_process(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", DOCTOR, *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], 120)
        assert ready, f"nothing came after {line!r}"
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, f"the end came after {line!r}"
        line += byte
    return line.decode().strip()


@pytest.mark.parametrize(
    ("code", "exit_code", "ended_by"),
    [
        ("pass", 0, None),
        ("import sys; sys.exit(3)", 3, None),
        ("import os; os.kill(os.getpid(), 9)", 137, signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, signal.SIGTERM),
    ],
)
def test_the_commands_exit_code_is_what_a_shell_would_report(
    code: str, exit_code: int, ended_by: int | None
) -> None:
    observed = run(code)
    assert (observed.exit_code, observed.signal) == (exit_code, ended_by)
    assert not observed.interrupted
    assert not observed.ended_by_doctor


def test_the_commands_streams_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    run("import sys; print('out'); print('err', file=sys.stderr)")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_standard_input_reaches_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, sys.executable, "-c", "print(input()[::-1])"],
        input="abc\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "cba\nobserved 0 None False\n"


def test_the_command_finds_the_hook_before_the_users_own_path(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    observed = run("import os; print(os.environ['PYTHONPATH']); print(os.environ['FEEDRATE_DOCTOR'])")
    path, folder = capfd.readouterr().out.splitlines()
    startup, hook, *rest = path.split(os.pathsep)
    assert rest == ["/mine"]
    assert (Path(startup) / "sitecustomize.py").is_file()
    assert (Path(hook) / "feedrate_hook").is_dir()
    assert folder == str(observed.run_folder)


def test_an_empty_path_does_not_become_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    assert not make_environment(HOOK, Path("/run"), is_shared=False)["PYTHONPATH"].endswith(os.pathsep)


def test_the_run_folder_is_private_holds_the_settings_and_is_gone_afterwards(scratch: Path) -> None:
    options = DoctorOptions(steps=40, passive=True, seconds=9)
    with run_command([sys.executable, "-c", "pass"], options) as observed:
        assert observed.run_folder.parent == scratch
        assert observed.run_folder.stat().st_mode & 0o777 == 0o700
        settings = json.loads((observed.run_folder / "settings.json").read_text())
        assert len(list(read_samples(observed.run_folder))) >= 1
    assert list(scratch.iterdir()) == []
    assert settings["version"] == 1
    assert (settings["steps"], settings["warmup"], settings["seconds"]) == (40, 10, 9)
    assert settings["passive"] is True
    assert settings["run"] == str(observed.run_folder)
    assert settings["usable_cores"] >= 0.01
    assert settings["started_ns"] < observed.started_ns


def test_the_run_folder_is_gone_when_reading_it_fails(scratch: Path) -> None:
    def fail() -> None:
        with run_command([sys.executable, "-c", "pass"], DoctorOptions()):
            raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        fail()
    assert list(scratch.iterdir()) == []


def test_without_a_place_for_the_run_folder_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(StorageError, match="cannot make a folder in /no/such/folder"):
        run("raise SystemExit(9)")


def test_a_script_without_an_interpreter_is_a_sentence(tmp_path: Path, scratch: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    with (
        pytest.raises(UsageError, match=r"cannot run .*script: Exec format error"),
        run_command([str(script)], DoctorOptions()),
    ):
        pass
    assert list(scratch.iterdir()) == []


def test_a_command_that_the_experiments_ended_has_exit_code_0() -> None:
    fact = {"kind": "end", "how": "experiments", "t_ns": 1, "exit": None}
    code = f"import os; open(os.environ['FEEDRATE_DOCTOR'] + '/1-1.facts', 'w').write({json.dumps(fact)!r})"
    observed = run(code + "; os._exit(5)")
    assert observed.ended_by_doctor
    assert observed.exit_code == 0


def test_what_the_caller_had_started_before_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as mine:
        run("import os; os._exit(3)")
        assert mine.poll() is None
        mine.communicate(b"end\n")
    assert mine.returncode == 0


def test_workers_worth_a_trial_go_up_to_twice_the_cores() -> None:
    assert launch.list_workers_to_try(0.5) == [1, 2]
    assert launch.list_workers_to_try(2) == [2, 1, 4]
    assert launch.list_workers_to_try(12) == [12, 6, 24]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_and_one_to_the_doctor_alone_reach_the_command_once_each(
    number: signal.Signals,
) -> None:
    with doctor_in_a_process(sys.executable, "-c", COUNTING) as doctor:
        assert read_line(doctor) == "ready"
        os.killpg(doctor.pid, number)
        assert read_line(doctor) == f"got {int(number)}"
        # The kernel keeps one signal of a kind at a time: wait until the doctor has taken the first.
        os.kill(doctor.pid, signal.SIGUSR2)
        assert read_line(doctor) == f"got {int(signal.SIGUSR2)}"
        os.kill(doctor.pid, number)
        assert read_line(doctor) == f"got {int(number)}"
        # Signals are passed on in turn: one that was passed on twice would be there by now.
        os.kill(doctor.pid, signal.SIGUSR1)
        assert read_line(doctor) == f"seen {int(number)} {int(signal.SIGUSR2)} {int(number)}"
        assert read_line(doctor) == "observed 7 None True"
        assert doctor.wait() == 7


def test_ctrl_c_on_a_real_terminal_reaches_the_command_once() -> None:
    words = [sys.executable, "-c", DOCTOR, sys.executable, "-c", COUNTING]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    with os.fdopen(terminal, "rb", buffering=0) as screen:

        def read_until(word: bytes) -> bytes:
            seen = b""
            while word not in seen:
                seen += os.read(screen.fileno(), 1)
            return seen

        read_until(b"ready\r\n")
        os.write(screen.fileno(), b"\x03")
        read_until(b"got 2\r\n")
        os.kill(pid, signal.SIGUSR1)
        assert read_until(b"True\r\n").splitlines() == [b"seen 2", b"observed 7 None True"]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_an_interrupt_ends_the_command_and_the_doctor_goes_on_to_its_report() -> None:
    code = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.05)"
    with doctor_in_a_process(sys.executable, "-c", code) as doctor:
        assert read_line(doctor) == "ready"
        os.killpg(doctor.pid, signal.SIGINT)
        assert read_line(doctor) == "observed 130 2 True"
        assert doctor.wait() == 130


def test_a_child_of_a_killed_command_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.05)
    observed = run(LEAVING, tmp_path / "child", "child", "kill")
    assert observed.signal == signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    assert read_stat(child) is None or read_stat(child).state == "Z"  # type: ignore[union-attr]


def test_a_child_that_a_command_forgot_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.05)
    said: list[str] = []
    command = [sys.executable, "-c", LEAVING, str(tmp_path / "child"), "child", "end"]
    with run_command(command, DoctorOptions(), watch=said.append):
        pass
    child = read_stat(int((tmp_path / "child").read_text()))
    assert child is None or child.state == "Z"
    assert said[-1] == "ended 1 process that the command left behind"


@pytest.mark.parametrize("how", ["end", "kill", "experiments"])
def test_a_daemon_goes_on_however_the_command_that_left_it_running_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.05)
    fact = {"kind": "end", "how": "experiments", "t_ns": 1, "exit": None}
    write = f"open(os.environ['FEEDRATE_DOCTOR'] + '/1-1.facts', 'w').write({json.dumps(fact)!r})"
    code = LEAVING.replace("os._exit(0)", f"sys.argv[3] == 'experiments' and {write}; os._exit(0)")
    observed = run(code, tmp_path / "child", "daemon", how)
    assert observed.ended_by_doctor == (how == "experiments")
    pid = int((tmp_path / "child").read_text())
    stat = read_stat(pid)
    assert stat is not None
    assert stat.state not in ("Z", "X")
    os.kill(pid, signal.SIGKILL)


def test_a_rank_in_a_session_of_its_own_is_ended_with_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.05)
    monkeypatch.setenv("LOCAL_RANK", "0")  # what its child has of a launcher
    run(LEAVING, tmp_path / "child", "daemon", "kill")
    child = read_stat(int((tmp_path / "child").read_text()))
    assert child is None or child.state == "Z"


def test_a_command_that_stands_still_is_ended_where_the_seconds_were_given() -> None:
    said: list[str] = []
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with run_command(command, DoctorOptions(seconds=1, ends_standstill=True), watch=said.append) as observed:
        assert (observed.exit_code, observed.signal, observed.ended_by_doctor) == (0, None, False)
        assert str(observed.standstill).startswith("the command stood still for 1.00 s, ")
        assert f"{observed.standstill}: it is ended (--seconds)" in said
        with pytest.raises(DoctorError, match=r"the command stood still .*; it was ended") as caught:
            check_seen(observed)
    assert caught.value.exit_code == 1


# Waits for a file; the second argument says how.
WAITING = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01) if sys.argv[2] == "idle" else None
"""


@pytest.mark.parametrize(
    ("options", "how"),
    [
        (DoctorOptions(seconds=1), "idle"),
        (DoctorOptions(seconds=0.3, passive=True, ends_standstill=True), "idle"),
        (DoctorOptions(seconds=0.3, passive=True), "busy"),
    ],
    ids=["no seconds given", "passive", "passive and busy"],
)
def test_what_a_command_is_waited_for_is_said_and_it_goes_on(
    tmp_path: Path, options: DoctorOptions, how: str
) -> None:
    said: list[str] = []

    def watch(text: str) -> None:
        said.append(text)
        (tmp_path / "go").touch()

    command = [sys.executable, "-c", WAITING, str(tmp_path / "go"), how]
    with run_command(command, options, watch=watch) as observed:
        assert (observed.exit_code, observed.standstill) == (0, None)
    assert said[0].startswith("no batch for ")
    assert said[0].endswith("; Ctrl-C ends it, and what was seen is judged")


@pytest.mark.parametrize("target", ["doctor", "group"])
def test_a_killed_doctor_leaves_no_process_and_no_folder(scratch: Path, target: str) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "while True: signal.pause()\n"
    )
    with doctor_in_a_process(sys.executable, "-c", code) as doctor:
        members = [(pid, read_stat(pid)) for pid in map(int, read_line(doctor).split())]
        assert len(list(scratch.iterdir())) == 1
        if target == "doctor":
            doctor.kill()
        else:
            os.killpg(doctor.pid, signal.SIGKILL)
        assert wait_until(lambda: list(scratch.iterdir()) == [])
        for pid, stat in members:
            assert stat is not None
            # One that has given its memory back is no member any more, and may still be on its way out.
            assert wait_until(lambda pid=pid, start=stat.start: not is_alive(pid, start))


def test_a_sampler_that_dies_does_not_stop_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    observed = launch_true()
    assert observed.exit_code == 0


def launch_true() -> Observed:
    with run_command(["true"], DoctorOptions()) as observed:
        return observed


def test_a_command_for_other_nodes_gets_its_folder_and_the_hook_where_they_can_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$FEEDRATE_DOCTOR"; echo "$PYTHONPATH"; ls "$FEEDRATE_DOCTOR/hook"\n')
    srun.chmod(0o755)
    with run_command([str(srun), "python"], DoctorOptions()) as observed:
        assert observed.is_shared
        assert observed.run_folder.parent == tmp_path
        assert observed.run_folder.name.startswith(".feedrate-doctor-")
    folder, path, *names = capfd.readouterr().out.splitlines()
    assert path.split(os.pathsep)[0] == f"{folder}/hook"
    assert {"feedrate_hook", "sitecustomize.py"} <= set(names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scratch", "srun"]
