# SPDX-License-Identifier: Apache-2.0
"""No module of the working folder runs in commands that measure, which take a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.traps import Traps

pytestmark = pytest.mark.slow


def test_estimate_runs_no_module_of_the_working_folder(jpeg_folder: Path, tmp_path: Path) -> None:
    traps = Traps(tmp_path)
    traps.run("estimate", "epoch", jpeg_folder)
    assert traps.what_ran() == ""


def test_bench_loader_runs_no_module_of_the_working_folder(jpeg_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    traps = Traps(tmp_path)
    traps.run("bench", "loader", jpeg_folder, "--rounds", "1", "--epochs", "1", timeout_s=300)
    assert traps.what_ran() == ""


def test_the_demo_runs_no_module_of_the_working_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    traps = Traps(tmp_path)
    traps.run("demo", "--images", "40", "--epochs", "1", timeout_s=300)
    assert traps.what_ran() == ""
