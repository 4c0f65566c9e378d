# SPDX-License-Identifier: Apache-2.0
"""Loops without a loader, of torch and of JAX, are ended after --seconds with the line that has the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SLOW_BATCH = "    return [sum(float(value) * 2 for value in range(8192)) for _ in range(64)]"
JAX_LOOP = f"""
import jax

def make_batch():
{SLOW_BATCH}

while True:
    make_batch()
"""
TORCH_LOOP = f"""
import torch

def make_batch():
{SLOW_BATCH}

model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.tensor(make_batch())).sum().backward()
    optimizer.step()
"""
STEPS_BY_HAND = f"""
import torch

def make_batch():
{SLOW_BATCH}

weights = torch.zeros(64, 4)
while True:
    batch = torch.tensor([make_batch()])
    weights -= 1e-6 * batch.T @ (batch @ weights - 1)
"""


def diagnose(folder: Path, text: str, words: list[str], seconds: str = "4") -> str:
    """Return what the doctor says of a loop that ends only when it is ended."""
    (folder / "jax.py").write_text("__version__ = '0.7'")
    script = folder / "fit.py"
    script.write_text(text)
    doctor = [sys.executable, "-m", "feedrate", "doctor", "--seconds", seconds, "--"]
    done = subprocess.run(
        [*doctor, *words, sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "words", [[], ["sh", "-c", '"$@"; exit $?', "sh"]], ids=["python", "another program starts it"]
)
def test_a_loop_of_jax_is_ended_with_its_hottest_line(tmp_path: Path, words: list[str]) -> None:
    said = diagnose(tmp_path, JAX_LOOP, words)
    assert "error: the command uses JAX 0.7, and asked no DataLoader" in said
    assert f"of the looks at it are at {tmp_path}/fit.py:5 (make_batch" in said


def test_a_loop_of_torch_without_a_loader_is_ended_with_its_hottest_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = diagnose(tmp_path, TORCH_LOOP, [])
    assert "and asked no DataLoader or feedrate.Loader for a batch: forward" in said
    assert f"of the looks at it are at {tmp_path}/fit.py:5 (make_batch" in said


def test_a_loop_of_torch_without_optimizer_and_loader_is_ended_after_ten_times_the_seconds(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    said = diagnose(tmp_path, STEPS_BY_HAND, [], seconds="2")
    assert "the command ran for 20.0 s without a step of an optimizer, and asked no DataLoader" in said
    assert f"of the looks at it are at {tmp_path}/fit.py:5 (make_batch" in said
