# SPDX-License-Identifier: Apache-2.0
"""`feedrate demo` on the command line: the table, the JSON, the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from support.bench_results import make_demo_result


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedrate.demo.run.run_demo", lambda *_, **__: make_demo_result())


@pytest.mark.usefixtures("_no_work")
def test_the_table_shows_before_after_and_ratio_and_what_to_type_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "DataLoader + Pillow feedrate ratio" in lines
    assert "images per second 400 1,600 4.00x" in lines
    assert "waited for data 9.00 s (90%) 1.00 s (40%) 0.11x" in lines
    assert "CPU time per image 4.00 ms 1.00 ms 0.25x" in lines
    assert "peak memory 600 MB 300 MB 0.50x" in lines
    assert "accuracy, held out 75.0% 76.0% within chance" in lines
    assert "feedrate gives 4.00x the images per second of DataLoader + Pillow." in lines
    assert any(line.startswith("feedrate bench loader FOLDER") for line in lines)


@pytest.mark.usefixtures("_no_work")
def test_json_goes_to_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "demo"
    assert document["ratio"] == 4.0
    assert document["runs"][0]["contestant"] == "DataLoader + Pillow"


@pytest.mark.usefixtures("_no_work")
def test_a_json_file_is_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "demo.json"
    target.write_text("precious")
    assert main(["demo", "--json", str(target)]) == 1
    assert "is already there" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main(["demo", "--json", str(target), "--force"]) == 0
    assert json.loads(target.read_text())["images"] == 1200


def test_too_few_images_are_an_error_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--images", "3"]) == 1
    assert capsys.readouterr().err == "error: --images must be at least 10 (one of each class), got 3\n"


def test_a_count_that_is_no_number_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--epochs", "many"])
    assert caught.value.code == 2


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("feedrate.demo.run.run_demo", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
