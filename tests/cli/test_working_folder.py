# SPDX-License-Identifier: Apache-2.0
"""No module of the working folder runs because it has the name of one that a command needs (more: slow/)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.images import read_tree, save_image
from support.traps import Traps


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path)


def test_plan_runs_no_module_of_the_working_folder(jpeg_folder: Path, traps: Traps) -> None:
    said = traps.run("plan", jpeg_folder)
    assert traps.what_ran() == ""
    assert "not measured" not in said


def test_pack_with_several_workers_runs_no_module_of_the_working_folder(
    jpeg_folder: Path, tmp_path: Path, traps: Traps
) -> None:
    traps.run("pack", jpeg_folder, tmp_path / "pack", "--workers", "2", "--shard-size", "20KB")
    assert traps.what_ran() == ""
    assert (tmp_path / "pack" / "pack.json").exists()


def test_the_map_of_the_working_folder_runs_in_every_worker(tmp_path: Path) -> None:
    source, work = tmp_path / "photos", tmp_path / "work"
    for number in range(4):
        save_image(source / "cat" / f"{number}.jpg", number)
    work.mkdir()
    (work / "maps.py").write_text("def keep(sample):\n    import sizes\n    return {'side': sizes.SIDE}\n")
    (work / "sizes.py").write_text("SIDE = 7\n")
    start = Traps(tmp_path)
    for workers in ("1", "2"):
        start.run(
            "pack", source, tmp_path / workers, "--map", "maps:keep", "--workers", workers,
            "--shard-size", "1KB", folder=work,
        )  # fmt: skip
    assert read_tree(tmp_path / "1") == read_tree(tmp_path / "2")


def test_python_m_feedrate_takes_none_of_its_modules_from_the_working_folder(traps: Traps) -> None:
    for name in ("feedrate", "importlib", "runpy"):  # Python itself needs these before feedrate begins
        shutil.rmtree(traps.folder / name)
    words = [sys.executable, "-m", "feedrate", "--version"]
    subprocess.run(words, cwd=traps.folder, env=traps.environ, check=False, capture_output=True)
    assert traps.what_ran() == ""
