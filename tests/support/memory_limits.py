# SPDX-License-Identifier: Apache-2.0
"""Runs programs that may use only so much memory: in a control group made by hand, or as jobs of Slurm."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import TESTS
from support.slurm_cluster import cluster_or_skip, submit, wait_for_end

SURROUNDINGS = TESTS / "doctor_corpus" / "surroundings.py"
NOT_ALLOWED, KILLED = 77, 137
KINDS = ("control group", "slurm")


@dataclass(frozen=True)
class Ended:
    """How a program ended: "done", "failed" or "killed"; what it printed, and its complaints."""

    how: str
    output: str
    errors: str


Limiter = Callable[[Sequence[str], int], Ended]


@contextmanager
def open_limiter(kind: str) -> Iterator[Limiter]:
    """Yield what runs a command with so many bytes of memory; skips, in words, where that cannot be."""
    if kind == "control group":
        yield run_in_group
        return
    with cluster_or_skip(memory_limits=True) as environment, tempfile.TemporaryDirectory() as folder:
        yield lambda command, limit_bytes: _run_as_job(environment, Path(folder), command, limit_bytes)


def run_in_group(command: Sequence[str], limit_bytes: int) -> Ended:
    limited = [sys.executable, str(SURROUNDINGS), "--memory", str(limit_bytes), "--", *command]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    if done.returncode == NOT_ALLOWED:
        pytest.skip(f"no memory limit can be set here: {done.stderr.strip()}")
    how = {0: "done", KILLED: "killed"}.get(done.returncode, "failed")
    return Ended(how, done.stdout, done.stderr)


def _run_as_job(environment: dict[str, str], folder: Path, command: Sequence[str], limit_bytes: int) -> Ended:
    output, errors = folder / "output", folder / "errors"
    words = [f"--mem={limit_bytes // 1024}K", f"--output={output}", f"--error={errors}"]
    job = submit(environment, *words, f"--wrap=exec {shlex.join(command)}")
    (state,) = wait_for_end(environment, job)
    how = {"COMPLETED": "done", "OUT_OF_MEMORY": "killed"}.get(state, "failed")
    return Ended(how, output.read_text(), errors.read_text())
