# SPDX-License-Identifier: Apache-2.0
"""What `make` says where something is missing, before any download, and what makes it build anew."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

SETUP = ROOT / "scripts" / "setup"
MAKE = shutil.which("make")
BUILT_FROM = (
    "pyproject.toml", "CMakeLists.txt", "scripts/setup", "scripts/*.txt", "native/*.cpp", "native/*.h",
    "native/hot/*.h", "src/feedrate/kernel/cuda/*.h",
)  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that holds the script alone, so that nothing can be built by mistake."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SETUP, tmp_path / "scripts" / "setup")
    return tmp_path


def run_setup(checkout: Path, **environ: str) -> str:
    environ = {"PATH": "/usr/bin:/bin", **environ}
    command = [checkout / "scripts" / "setup", "run"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert not (checkout / ".venv").exists()
    return ran.stderr


def fake_python(checkout: Path, failing: str) -> str:
    """A Python that fails at whatever it is asked that holds the word `failing`."""
    path = checkout / "python"
    path.write_text(f'#!/bin/sh\ncase "$*" in *"{failing}"*) exit 1 ;; esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_machine_without_python_is_told_what_to_install(checkout: Path) -> None:
    assert "sudo apt install python3 " in run_setup(checkout, PYTHON="no-such-python")


def test_an_old_python_is_named_with_the_limit(checkout: Path) -> None:
    error = run_setup(checkout, PYTHON=fake_python(checkout, "version_info"))
    assert "is too old: feedrate needs Python 3.10 or newer" in error


def test_a_python_without_venv_is_told_what_to_install(checkout: Path) -> None:
    error = run_setup(checkout, PYTHON=fake_python(checkout, "ensurepip"))
    assert "hint: sudo apt install python3-venv" in error


def test_missing_headers_are_told_with_the_package(checkout: Path) -> None:
    error = run_setup(checkout, PYTHON=fake_python(checkout, "Python.h"))
    assert "hint: sudo apt install python3-dev" in error


def test_a_missing_compiler_is_told_with_the_package(checkout: Path) -> None:
    error = run_setup(checkout, PYTHON=sys.executable, CXX="no-such-compiler")
    assert "hint: sudo apt install g++" in error


@pytest.mark.skipif(MAKE is None, reason="needs make")
def test_an_edit_of_anything_that_the_kernel_is_built_from_makes_make_test_rebuild(tmp_path: Path) -> None:
    assert MAKE is not None
    names = [path.relative_to(ROOT) for pattern in BUILT_FROM for path in ROOT.glob(pattern)]
    for name in [Path("Makefile"), *names]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "ready-to-test").touch()

    def is_rebuilt(*what_if: str | Path) -> bool:
        command = [MAKE, "-n", "-C", tmp_path, *what_if, "test"]
        return (
            "scripts/setup test" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )

    assert not is_rebuilt()
    assert [str(name) for name in names if not is_rebuilt("-W", name)] == []
