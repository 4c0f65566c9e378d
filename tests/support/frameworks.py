# SPDX-License-Identifier: Apache-2.0
"""Run scripts where a framework is installed: here, or in an environment of its own."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import feedrate

# An environment with TensorFlow and JAX; they are too large for that of the tests.
VARIABLE = "FEEDRATE_TENSORFLOW_PYTHON"
# One with Lightning, Accelerate, transformers and torchdata, and with the torch of the tests.
LOOPS_VARIABLE = "FEEDRATE_LOOPS_PYTHON"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def run_with(module: str, script: str, *arguments: str | Path) -> str:
    """Run a script in a Python that has `module` and can import feedrate; return its output. Skip without."""
    python = find_python(module)
    if python is None:
        pytest.skip(f"{module} is not installed; {VARIABLE} may name a Python that has it")
    done = subprocess.run(
        [python, "-c", script, *map(str, arguments)],
        env=make_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@functools.cache
def find_python(module: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    python = os.environ.get(VARIABLE)
    if not python:
        return None
    probe = f"import {module}, feedrate.kernel"
    done = subprocess.run([python, "-c", probe], env=make_environ(), capture_output=True, check=False)
    return python if done.returncode == 0 else None


def find_loops_python(module: str) -> str:
    """Return a Python that has a framework of training loops; skip without."""
    python = _find_loops_python(module)
    if python is None:
        pytest.skip(f"{module} is not installed; {LOOPS_VARIABLE} may name a Python that has it")
    return python


@functools.cache
def _find_loops_python(module: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    python = os.environ.get(LOOPS_VARIABLE)
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if not python or subprocess.run([python, "-c", probe], check=False).returncode:
        return None
    return python


def make_environ() -> dict[str, str]:
    """Return variables for a Python of another environment that is to import feedrate."""
    return {**os.environ, **QUIET, "PYTHONPATH": _joined_package().name}


@functools.cache
def _joined_package() -> tempfile.TemporaryDirectory[str]:
    """A package that any Python finds: where feedrate is installed for editing, its kernel lies elsewhere."""
    folder = tempfile.TemporaryDirectory(prefix="feedrate-joined-")
    package = Path(folder.name) / "feedrate"
    package.mkdir()
    for path in feedrate.__path__:
        for entry in Path(path).iterdir():
            if not (package / entry.name).exists():
                (package / entry.name).symlink_to(entry)
    return folder
