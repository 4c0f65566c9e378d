# SPDX-License-Identifier: Apache-2.0
"""`feedrate watch` on a GPU: who is on it, and what that means."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.paths import ROOT

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]


def test_a_busy_a_starved_and_a_shared_gpu_are_told_apart() -> None:
    script = ROOT / "benchmarks" / "watch_gpu.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    busy, starved, shared = done.stdout.split("=== ")[1:]
    assert "(device-bound)" in busy
    assert "GPU 0 " in starved
    assert "(device-bound)" not in starved
    assert "(contended)" in shared
    assert "other: " in shared
