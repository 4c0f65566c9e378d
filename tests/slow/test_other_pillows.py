# SPDX-License-Identifier: Apache-2.0
"""Pixels of recipes against versions of Pillow that resize in the older order, and the self-test there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("recipe_pixels.py")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["10.1.0", "10.4.0", "12.1.1", "12.3.0"])
def test_recipes_give_the_pixels_of_an_older_pillow(version: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    installed = subprocess.run(
        [*pip, "--target", tmp_path, f"pillow=={version}"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"Pillow {version} cannot be installed here: {installed.stderr.strip()[-300:]}")
    ran = subprocess.run(
        [sys.executable, SCRIPT, "1", "150"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout)
    assert found["version"] == version
    assert found["differed"] == []
    assert found["agreed"] > 1000
    assert found["subsamplings"] == ["4:2:0", "4:2:2", "4:4:0", "4:4:4", "gray"]
    assert found["modes"] == ["L", "RGB"]
    assert found["filters"] == [0, 1, 2, 3, 4, 5]
