# SPDX-License-Identifier: Apache-2.0
"""`feedrate run` on commands without a DataLoader: what passes through, what is said, what stays theirs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.run.merging import Merged
from support.waiting import wait_until

NOT_REACHED = "feedrate run: ran bare: none of its processes was a Python that can be reached: "


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give run folders and the cache places of their own; nothing may stay in the first."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield folder
    assert list(folder.iterdir()) == []


class Said:
    """What a run printed: the command's own lines, and those of feedrate."""

    def __init__(self, code: int, out: str, err: str) -> None:
        lines = err.splitlines()
        self.code, self.out = code, out
        self.ours = [line for line in lines if line.startswith("feedrate run: ")]
        self.err = [line for line in lines if line not in self.ours]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run_words(*words: object) -> Said:
        code = main(["run", *map(str, words)])
        captured = capfd.readouterr()
        return Said(code, captured.out, captured.err)

    return run_words


def python(code: str, *options: str) -> list[str]:
    return ["--", sys.executable, *options, "-c", code]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_the_commands_exit_code_is_what_a_shell_would_report(
    run: Callable[..., Said], code: str, exit_code: int
) -> None:
    said = run(*python(code))
    assert (said.code, said.out, said.err) == (exit_code, "", [])
    assert said.ours[0] == "feedrate run: ran bare: no torch DataLoader was asked for a batch"
    assert said.ours[1].startswith("feedrate run: took ")


def test_the_commands_streams_are_its_own(run: Callable[..., Said]) -> None:
    said = run(*python("import sys; print('out'); print('err', file=sys.stderr)"))
    assert (said.out, said.err) == ("out\n", ["err"])


def test_standard_input_reaches_the_command() -> None:
    command = [sys.executable, "-m", "feedrate", "run", *python("print(input()[::-1])")]
    assert subprocess.run(command, input="abc", capture_output=True, text=True, check=True).stdout == "cba\n"


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-S"], ["-IS"]])
def test_a_python_that_shuts_others_code_out_runs_bare_and_that_is_said(
    run: Callable[..., Said], options: list[str]
) -> None:
    said = run(*python("print('done')", *options))
    assert (said.code, said.out) == (0, "done\n")
    assert said.ours[0].startswith(NOT_REACHED)


def test_another_program_runs_bare_and_that_is_said(run: Callable[..., Said]) -> None:
    said = run("--", "echo", "--prove", "x")
    assert said.out == "--prove x\n"
    assert said.ours[0].startswith(NOT_REACHED)


def test_a_variable_switches_it_off(run: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDRATE_RUN", "off")
    code = "import os, sys; print(os.environ.get('PYTHONPATH'), 'sitecustomize' in sys.modules); sys.exit(5)"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = run(*python(code))
    assert (said.code, said.out) == (5, bare.stdout)
    assert said.ours[0] == "feedrate run: ran bare: FEEDRATE_RUN=off is set"


@pytest.mark.parametrize("value", ["off", "", "/no/such/folder"])
def test_a_script_may_switch_it_off_for_what_it_starts(run: Callable[..., Said], value: str) -> None:
    child = "import sys; print('feedrate_imports' in sys.modules)"
    code = (
        "import os, subprocess, sys; os.environ['FEEDRATE_RUN'] = sys.argv[1]; "
        f"sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    )
    said = run(*python(code), value)
    assert (said.code, said.out, said.err) == (0, "False\n", [])


def test_of_a_script_without_torch_nothing_changes_but_two_folders_of_its_path(
    run: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, sys; print(json.dumps([sys.path, sorted(sys.modules), "
        "[type(one).__name__ for one in sys.meta_path], sys.argv, "
        "sys.flags.isolated, sorted(vars(__import__('builtins')))]))"
    )
    monkeypatch.setenv("PYTHONPATH", "/mine")
    done = subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True, check=True)
    bare, under = json.loads(done.stdout), json.loads(run(*python(code), "x").out)
    paths = [path for path in under[0] if path not in bare[0]]
    assert [Path(path).name for path in paths] == ["startup", "hook"]
    assert [path for path in under[0] if path not in paths] == bare[0]
    # What a script may import from there are these, and nothing that it has itself.
    names = {path.stem for folder in paths for path in Path(folder).glob("*.py")} - {"__init__"}
    assert names == {"sitecustomize", "feedrate_imports", "feedrate_run"}
    assert not set(paths) & set(site.getsitepackages())
    new = set(under[1]) - set(bare[1])
    assert {name for name in new if name.startswith("feedrate")} == {"feedrate_imports", "feedrate_run"}
    assert {name.split(".")[0] for name in new} <= sys.stdlib_module_names | names
    assert under[2] == ["ImportWatch", *bare[2]]
    assert under[3:] == bare[3:]


def test_the_users_own_sitecustomize_runs(
    run: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('begun', __name__)\nvalue = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = run(*python("import sitecustomize as s; print(s.__file__, s.value)"))
    assert said.out == f"begun sitecustomize\n{tmp_path / 'sitecustomize.py'} 1\n"


def test_an_error_in_the_users_own_sitecustomize_is_reported_as_always(
    run: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = run(*python("print('done')"))
    assert said.out == "done\n"
    assert said.err[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "nothing to run", "feedrate run -- python train.py ..."),
        (["--"], "nothing to run", "feedrate run -- python train.py ..."),
        (["--", "--prove"], "'--prove' is not a command", "options first, then: feedrate run -- python"),
        (["--", "no-such-program"], "no program 'no-such-program'", ""),
        (["--", "python3", "no_such.py"], "no script at no_such.py", ""),
        (
            ["--cache", "file", "--", "true"],
            "file (--cache) is a file",
            "name a folder: it is made if missing",
        ),
        (["--prove", "0", "--", "true"], "argument --prove: ", ""),
        (["--json", "file", "--", "true"], "file is already there", "add --force to overwrite it"),
        (["--", "sbatch", "job.sh"], "sbatch only queues a job", "put 'feedrate run --' before the training"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    words: list[str], error: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with contextlib.suppress(SystemExit):
        assert main(["run", *words]) in (1, 2)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert error in captured.err
    assert hint in captured.err
    assert "Traceback" not in captured.err


def test_the_document_holds_what_was_said(run: Callable[..., Said], tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    said = run("--json", target, *python("raise SystemExit(3)"))
    document: dict[str, Any] = json.loads(target.read_text())
    assert (document["command"], document["exit_code"], said.code) == ("run", 3, 3)
    assert document["argv"] == [sys.executable, "-c", "raise SystemExit(3)"]
    assert document["bare"] == ["no torch DataLoader was asked for a batch"]
    assert (document["loaders"], document["processes"], document["seconds_bare"]) == ([], 1, None)
    assert run("--json", "-", *python("print('mine')")).out.startswith('mine\n{\n "command": "run"')


def test_what_was_replaced_is_named_when_it_is_asked_for(run: Callable[..., Said]) -> None:
    assert "feedrate run: replaced nothing" in run("--explain", *python("pass")).ours
    assert "feedrate run: replaced nothing" not in run(*python("pass")).ours


def test_a_name_of_the_command_cannot_write_to_the_terminal(run: Callable[..., Said], tmp_path: Path) -> None:
    said = run("--cache", tmp_path / "\x1b[31mred", "--", "true")
    assert "\x1b" not in "".join(said.ours)


# Reads its signals one by one; SIGTERM ends it.
READS = """
import signal
numbers = {signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
while (number := signal.sigwait(numbers)) != signal.SIGTERM:
    print(number.name, flush=True)
raise SystemExit(9)
"""


@pytest.fixture
def reader() -> Iterator[subprocess.Popen[str]]:
    """A command under run that tells its signals, in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "feedrate", "run", *python(READS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_each_signal_reaches_the_command_once_however_it_was_sent(reader: subprocess.Popen[str]) -> None:
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    for send in (os.killpg, os.kill):
        for number in (signal.SIGINT, signal.SIGUSR1):
            send(reader.pid, number)
            assert reader.stdout.readline() == f"{number.name}\n"
            # Passed on after the one before, of which nothing more came.
            os.kill(reader.pid, signal.SIGUSR2)
            assert reader.stdout.readline() == "SIGUSR2\n"
    os.kill(reader.pid, signal.SIGTERM)
    assert reader.stdout.read() == ""
    assert reader.wait() == 9


def test_a_command_that_ctrl_c_ends_ends_the_run() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-m", "feedrate", "run", *python(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert all(line.startswith("feedrate run: ") for line in err.splitlines())


def test_entry_points_are_merged_beside_the_command_and_signals_do_not_wait(
    run: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = tmp_path / "begun", threading.Event()
    calls: list[bool] = []

    def merge(_: Path, *, is_last: bool = True) -> Merged:
        calls.append(is_last)
        if not is_last:
            begun.touch()
            ended.wait()  # until the command has got the signal
        return Merged(problem="" if is_last else "the disk is full")

    monkeypatch.setattr("feedrate.run.launch.merge", merge)
    monkeypatch.setattr("feedrate.run.launch._MERGE_S", 0.0)
    code = f"""
import os, signal, time
def leave(*_):
    open({str(tmp_path / "heard")!r}, "w").close()
    os._exit(7)
signal.signal(signal.SIGTERM, leave)
while True:
    time.sleep(0.01)
    if os.path.exists({str(begun)!r}):
        os.kill(os.getppid(), signal.SIGTERM)
"""
    watcher = threading.Thread(target=lambda: (wait_until((tmp_path / "heard").exists), ended.set()))
    watcher.start()
    said = run(*python(code))
    watcher.join()
    assert (tmp_path / "heard").exists()
    assert said.code == 7
    assert calls[0] is False
    assert calls[-1] is True
    assert "feedrate run: the disk is full" in said.ours
