# SPDX-License-Identifier: Apache-2.0
"""The hook at the start of a process: it is there, silent, and leaves others' start-up code alone."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feedrate.doctor.analyse.records import read_run
from feedrate.doctor.hook.feedrate_hook import layout, start
from support.hooked import environment, make_run_folder, run_script
from support.torch_forks import HOOK, STARTUP


def test_a_process_without_torch_is_noted_and_runs_as_before(tmp_path: Path) -> None:
    run = run_script(tmp_path, "import sys, json\nprint(json.loads('[1]'), sys.argv[1:])", "a", "b")
    assert (run.code, run.stdout, run.stderr) == (0, "[1] ['a', 'b']\n", "")
    (process,) = run.recording.processes
    assert process.last("process")["role"] == "other"
    assert process.last("end")["how"] == "script"


def test_without_the_variable_nothing_is_loaded(tmp_path: Path) -> None:
    code = "import sys; print([m for m in sys.modules if 'feedrate' in m], len(sys.meta_path))"
    with_hook = environment(tmp_path)
    del with_hook[layout.ENVIRONMENT]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
        for env in (with_hook, environment(None))
    ]
    assert outputs[0] == outputs[1]


def test_a_run_folder_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path / "gone")
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"], env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not (tmp_path / "gone").exists()


def test_the_sitecustomize_that_others_have_put_on_the_path_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.from_elsewhere = __file__")
    folder = make_run_folder(tmp_path)
    env = environment(folder)
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    code = (
        "import sys, sitecustomize as s; print(from_elsewhere == s.__file__, 'feedrate_hook' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_an_error_in_the_sitecustomize_of_others_is_reported_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')")
    env = environment(make_run_folder(tmp_path))
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
    assert "ValueError: theirs" in done.stderr


def test_an_exception_that_ends_the_script_is_noted_and_printed_once(tmp_path: Path) -> None:
    run = run_script(tmp_path, "raise KeyError('lost')")
    bare = run_script(tmp_path, "raise KeyError('lost')", is_hooked=False)
    assert (run.code, run.stderr) == (bare.code, bare.stderr)
    assert run.facts("end")[0]["how"] == "exception"
    assert run.facts("end")[0]["error"] == "KeyError: 'lost'"


def test_a_process_killed_without_notice_leaves_what_it_wrote(tmp_path: Path) -> None:
    body = """
    import os, signal
    from feedrate_hook.session import session
    for number in range(5):
        session.ring.write(4, session.ring.name("here"), number, 7)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run = run_script(tmp_path, body)
    assert run.code == -signal.SIGKILL
    (process,) = run.recording.processes
    assert list(process.records["start"]) == [0, 1, 2, 3, 4]
    assert {process.name(number) for number in process.records["name"]} == {"here"}


def test_a_forked_child_writes_to_files_of_its_own(tmp_path: Path) -> None:
    body = """
    import os
    from feedrate_hook.session import session
    session.ring.write(4, 0, 1, 0)
    if os.fork() == 0:
        session.ring.write(4, 0, 2, 0)
        os._exit(0)
    os.wait()
    session.ring.write(4, 0, 3, 0)
    """
    run = run_script(tmp_path, body)
    assert sorted(list(p.records["start"]) for p in run.recording.processes) == [[1, 3], [2]]


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        ("/env/bin/python /env/bin/torchrun --nproc-per-node 2 train.py", {}, True),
        ("python -m torch.distributed.run train.py", {}, True),
        ("python -u -W ignore -m torch.distributed.launch train.py", {}, True),
        ("python /env/bin/accelerate launch train.py", {}, True),
        ("python /env/bin/accelerate config", {}, False),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", {}, True),
        ("python -c from multiprocessing.forkserver import main", {}, False),
        ("python train.py --with torchrun", {}, False),
        ("python -m torch.distributed.run train.py", {"LOCAL_RANK": "0"}, False),
        ("python -u train.py", {"LOCAL_RANK": "1"}, False),
        ("python", {}, False),
    ],
)
def test_programs_that_only_start_others_are_told_from_those_that_train(
    command: str, environ: dict[str, str], expected: bool
) -> None:
    words = command.split(" ")
    if "-c" in words:
        words = [*words[: words.index("-c") + 1], " ".join(words[words.index("-c") + 1 :])]
    assert start.is_launcher(words, environ) is expected


def test_a_supervisor_stays_alone_and_its_children_do_not(tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    script.write_text(
        "import subprocess, sys, os\n"
        "print('feedrate_hook.patches' in sys.modules)\n"
        "child = [sys.executable, '-c', 'import sys; print(\"feedrate_hook.patches\" in sys.modules)']\n"
        "subprocess.run(child, env={**os.environ, 'LOCAL_RANK': '1', 'RANK': '3'}, check=True)\n"
    )
    folder = make_run_folder(tmp_path)
    hooked_process = subprocess.run(
        [sys.executable, "-u", str(script)],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert hooked_process.stdout == "False\nTrue\n"
    (process,) = read_run(folder).processes
    assert process.rank == 3


def find_python(version: str) -> str:
    """Return an interpreter of a version that works, or skip."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in [*sorted(root.glob(f"{version}*/bin/python")), shutil.which(f"python{version}")]:
        if found and subprocess.run([str(found), "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(found)
    pytest.skip(f"Python {version} is not installed")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_the_hook_starts_in_other_pythons_without_torch(tmp_path: Path, version: str) -> None:
    python = find_python(version)
    run = run_script(
        tmp_path, "import zipfile, pickle\nprint(pickle.loads(pickle.dumps(pickle.load)))", python=python
    )
    assert (run.code, run.stderr) == (0, "")
    assert run.stdout.startswith("<function load at")
    assert run.facts("hook-error") == []
    assert run.facts("process")[0]["python"].startswith(version)


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_pythons_too_old_for_the_hook_start_in_silence(tmp_path: Path, version: str) -> None:
    python = find_python(version)
    run = run_script(tmp_path, "print(1)", python=python)
    assert (run.code, run.stdout, run.stderr) == (0, "1\n", "")
    assert run.recording.processes == ()


@pytest.mark.parametrize("path", sorted([*HOOK.rglob("*.py"), *STARTUP.glob("*.py")]), ids=lambda p: p.name)
def test_the_hook_keeps_to_the_grammar_and_the_library_of_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module).split(".")[0]]
        else:
            continue
        assert set(names) <= set(sys.stdlib_module_names), f"{path.name} imports {names}"
