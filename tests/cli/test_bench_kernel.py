# SPDX-License-Identifier: Apache-2.0
"""`feedrate bench kernel` on the command line: tables, JSON, and words for what is wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from feedrate.bench.results import KernelResult, KernelSet, KernelStage, KernelStanding
from feedrate.cli import main
from feedrate.progress import Rejection
from support.bench_results import MACHINE

OURS = KernelStanding("feedrate", 1900.0, 1880.0, 1920.0, 1.0, None, None, (0.05,))
PILLOW = KernelStanding("Pillow", 400.0, 390.0, 410.0, 4.75, None, None, (0.25,))
HALF = KernelStanding("OpenCV, reduced", 42.5, 40.0, 45.25, 44.7, 38.25, 31.0, (2.4,))
STAGES = (KernelStage("read, crc32c", 2e-5, "the file"), KernelStage("resize, flip", -1e-6, "less"))
RESULT = KernelResult(
    224, 10,
    (KernelSet("photographs", 100, 0.19, 103_000.0, {"progressive": 2}, (OURS, PILLOW, HALF), STAGES,
               {"a": "not installed", "b": "not installed"}, (Rejection("x.jpg", "image", "ends early"),)),),
    MACHINE,
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def fake(what: Any, options: Any, **_: Any) -> KernelResult:
        calls.append((what, options))
        return RESULT

    monkeypatch.setattr("feedrate.bench.kernel.bench_made", fake)
    monkeypatch.setattr("feedrate.bench.kernel.bench_source", fake)
    return calls


def test_the_tables_show_decoders_steps_and_exceptions(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernel"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "photographs: 100 images (0.2 megapixel, 103 KB), crops to 224 x 224, one thread"
    assert "images/CPU s quartiles feedrate is PSNR to Pillow" in lines
    assert "feedrate 1,900 1,880-1,920 equal" in lines
    assert "Pillow 400 390-410 4.75x" in lines
    assert "OpenCV, reduced 42.5 40.0-45.2 44.7x 38.2 dB" in lines
    assert "read, crc32c 20.0 µs the file" in lines
    assert "resize, flip -1.00 µs less" in lines
    assert "feedrate leaves 2 of them to Pillow (2 progressive)" in lines
    assert "left out: a; b: not installed" in lines
    assert "not decoded by anyone: 1 image, e.g. x.jpg: ends early" in lines
    assert all(len(line) <= 80 for line in out.splitlines())
    assert asked[0][0] == ("photographs", "camera", "png")


def test_a_source_or_single_sets_are_measured_alone(asked: list[Any]) -> None:
    assert main(["bench", "kernel", "photos", "--images", "7", "--size", "64", "--rounds", "3"]) == 0
    assert main(["bench", "kernel", "--set", "png"]) == 0
    (source, options), (sets, _) = asked
    assert source == "photos"
    assert (options.images, options.side, options.rounds) == (7, 64, 3)
    assert sets == ["png"]


def test_the_result_goes_to_standard_output_as_json(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernel", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "bench kernel"
    assert document["sets"][0]["standings"][0]["cpu_s"] == [0.05]
    assert document["machine"]["cpu_model"] == "Fast 9000"
    assert len(asked) == 1


def test_another_filter_is_asked_for_and_said_with_what_opencv_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(_: Any, options: Any, **__: Any) -> KernelResult:
        return dataclasses.replace(RESULT, interpolation=options.interpolation)

    monkeypatch.setattr("feedrate.bench.kernel.bench_made", fake)
    assert main(["bench", "kernel", "--interpolation", "bicubic"]) == 0
    out = capsys.readouterr().out
    assert "crops to 224 x 224 (bicubic), one thread" in " ".join(out.split())
    assert "OpenCV's bicubic does not antialias" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert main(["bench", "kernel", "--interpolation", "lanczos", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["interpolation"] == "lanczos"


def test_a_filter_that_is_none_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernel", "--interpolation", "bicubik"]) == 1
    assert capsys.readouterr().err == (
        "error: bench kernel: interpolation must be one of bilinear, bicubic, lanczos, box, hamming, "
        "nearest; got 'bicubik'\n\nhint: did you mean 'bicubic'?\n"
    )


def test_an_unknown_set_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "kernel", "--set", "cats"])
    assert caught.value.code == 2
    assert "invalid choice: 'cats'" in capsys.readouterr().err


def test_a_set_for_images_that_are_there_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernel", "photos", "--set", "png"]) == 1
    assert capsys.readouterr().err.startswith("error: --set makes images, and photos has its own")


def test_a_result_is_not_overwritten_without_force(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.json").write_text("mine")
    assert main(["bench", "kernel", "--json", str(tmp_path / "k.json")]) == 1
    assert "add --force" in capsys.readouterr().err
    assert asked == []


def test_a_source_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernel", "/no/such/folder"]) == 1
    assert capsys.readouterr().err.startswith("error: no folder, file or pack at /no/such/folder\n")


def test_a_set_without_steps_says_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = dataclasses.replace(RESULT, sets=(dataclasses.replace(RESULT.sets[0], stages=()),))
    monkeypatch.setattr("feedrate.bench.kernel.bench_made", lambda *_, **__: bare)
    assert main(["bench", "kernel"]) == 0
    assert "where feedrate's time goes" not in capsys.readouterr().out
