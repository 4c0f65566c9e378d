# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedrate.cli import main


@pytest.fixture
def packed(jpeg_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["pack", str(jpeg_folder), str(tmp_path / "p"), "--workers", "1"]) == 0
    capsys.readouterr()
    return tmp_path / "p"


def test_unpack_says_what_it_restored(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["unpack", str(packed), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(rf"restored 16 files \([\d.]+ KB\) in {tmp_path}/out, in [\d.]+ (ms|s)\n", out)
    assert (tmp_path / "out" / "cat" / "0.jpg").exists()


def test_unpack_as_json(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unpack", str(packed), str(tmp_path / "out"), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["files"], document["kept"]) == ("unpack", 16, 0)


def test_file_in_the_way_is_a_sentence_with_a_hint(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "cat").mkdir(parents=True)
    (tmp_path / "out" / "cat" / "0.jpg").write_text("mine")
    assert main(["unpack", str(packed), str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert "error: 'cat/0.jpg' is already in" in err
    assert err.endswith("\n\nhint: unpack into a new folder\n")
