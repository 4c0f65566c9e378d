# SPDX-License-Identifier: Apache-2.0
"""Recipes against versions of Pillow that resize in the older order: pixels, self-test, whole programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
VERSIONS = pytest.mark.parametrize("version", ["10.1.0", "10.4.0", "12.1.1", "12.3.0"])


def run_with(version: str, folder: Path, script: str, *args: str) -> Any:
    """Return what a script of this folder says, with this version of Pillow."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    installed = subprocess.run(
        [*pip, "--target", folder, f"pillow=={version}"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"Pillow {version} cannot be installed here: {installed.stderr.strip()[-300:]}")
    ran = subprocess.run(
        [sys.executable, FOLDER / script, *args],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


@pytest.mark.slow
@VERSIONS
def test_programs_see_what_they_see_with_an_older_bare_pillow(version: str, tmp_path: Path) -> None:
    found = run_with(version, tmp_path, "recipe_programs.py", "0", "600")
    assert found["version"] == version
    assert found["differed"] == []
    assert found["agreed"] == 600
    assert found["taken"] > 300


@pytest.mark.slow
@VERSIONS
def test_recipes_give_the_pixels_of_an_older_pillow(version: str, tmp_path: Path) -> None:
    found = run_with(version, tmp_path, "recipe_pixels.py", "1", "150")
    assert found["version"] == version
    assert found["differed"] == []
    assert found["agreed"] > 1000
    assert found["subsamplings"] == ["4:2:0", "4:2:2", "4:4:0", "4:4:4", "gray"]
    assert found["modes"] == ["L", "RGB"]
    assert found["filters"] == [0, 1, 2, 3, 4, 5]
