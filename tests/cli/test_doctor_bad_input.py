# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor` on real commands without anything to examine: a sentence each, and their exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from feedrate.cli import main


def run(*words: str) -> int:
    return main(["doctor", "--", *words])


def last_error(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err.partition("error: ")[2].partition("\n")[0]


def test_a_command_that_is_not_python(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("true") == 1
    assert last_error(capfd) == "no Python process of this command loaded the hook, so nothing was seen"


def test_an_interpreter_that_ignores_the_environment(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(sys.executable, "-I", "-c", "pass") == 1
    assert "hint: Python started with -I ignores it" in capfd.readouterr().err


def test_a_script_without_torch(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(sys.executable, "-c", "print('mine')") == 1
    captured = capfd.readouterr()
    assert captured.out == "mine\n"
    assert "error: the command never imported torch, so there was no data loading to watch\n" in captured.err


def test_a_script_of_another_framework(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """TensorFlow is not installed where tests run: a module of its name stands in for it."""
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.20.0'\n")
    script = tmp_path / "train.py"
    script.write_text("import tensorflow\nprint('mine')\n")
    assert run(sys.executable, str(script)) == 1
    captured = capfd.readouterr()
    assert captured.out == "mine\n"
    assert (
        "error: the command uses TensorFlow 2.20.0, and asked no DataLoader or feedrate.Loader"
        in captured.err
    )
    assert "feedrate.tensorflow.dataset(PACK)" in captured.err


def test_a_script_that_crashes_before_the_first_batch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("settings = {}\nprint(settings['root'])\n")
    assert run(sys.executable, str(script)) == 1
    captured = capfd.readouterr()
    assert captured.err.count("Traceback") == 1
    assert captured.err.count("line 2, in <module>") == 1
    assert (
        "error: the command ended with exit code 1 before its first batch: KeyError: 'root'\n" in captured.err
    )


def test_a_script_that_exits_with_a_code_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(sys.executable, "-c", "import sys; sys.exit(4)") == 4
    assert last_error(capfd) == "the command ended with exit code 4 before its first batch"


@pytest.mark.slow
def test_a_script_that_makes_no_loader(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run(sys.executable, "-c", "import torch; print(torch.ones(2).sum().item())") == 1
    captured = capfd.readouterr()
    assert captured.out == "2.0\n"
    assert "error: the command never made a DataLoader or feedrate.Loader, so there was" in captured.err
