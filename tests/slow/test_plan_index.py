# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan` of a folder that has an index beside it, and of that index."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate import index
from feedrate.cli import main

pytestmark = pytest.mark.slow


def test_a_plan_for_the_folder_names_the_index_which_can_be_planned_for(
    jpeg_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = index(jpeg_folder, workers=1).target
    assert main(["plan", str(jpeg_folder), "--seconds", "0.5"]) == 0
    assert f"its index is {beside}: feedrate plan {beside}" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", beside, "--seconds", "0.5"]) == 0
    assert "(index): 16 samples" in capsys.readouterr().out
