# SPDX-License-Identifier: Apache-2.0
"""`feedrate speedtest` on the command line: the screen, the JSON, the mistakes."""

from __future__ import annotations

import json
import signal
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.demo.results import SpeedtestResult
from feedrate.doctor.results import Fact, load_diagnosis
from feedrate.errors import DoctorError
from feedrate.report.bench import draw_speedtest
from support.diagnoses import make_decode_bound
from support.paths import ROOT

pytest.importorskip("torch", reason="torch is not installed")


def make_result() -> SpeedtestResult:
    diagnosis = make_decode_bound()
    facts = (*diagnosis.facts, Fact("GPU utilisation", "34%"), Fact("GPU power", "210 W"))
    return SpeedtestResult("photos", "densenet121", 34.3, 542.0, 11.7, replace(diagnosis, facts=facts))


def run(monkeypatch: pytest.MonkeyPatch, test: object, *words: str) -> int:
    monkeypatch.setattr("feedrate.demo.speedtest.run_speedtest", test)
    return main(["speedtest", *words])


def test_totals_and_power_stand_above_the_doctors_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, lambda *_, **__: make_result(), "photos") == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:11] == [
        "device NVIDIA H200",
        "model densenet121",
        "images photos",
        "batch float32 256x3x224x224, int64 256",
        "in the page cache 100%",
        "GPU utilisation 34%",
        "GPU power 210 W",
        "device time in total 11.7 s of 34.3 s in 110 steps",
        "CPU time in total 9 min 02 s, all processes together",
        "device alone 2,710 images/s",
        "loader alone 824 images/s",
    ]
    assert lines[12].startswith("decode-bound: the device stands idle for 66% of the time")
    assert "$ feedrate pack /data/imagenet/train PACK" in lines


def test_without_a_gpu_nothing_is_said_of_its_power_and_the_cpu_is_named() -> None:
    result, diagnosis = make_result(), make_decode_bound()
    on_cpu = replace(diagnosis, run=replace(diagnosis.run, device="cpu"))
    out = draw_speedtest(replace(result, source=None, cpu_s=None, diagnosis=on_cpu), width=80)
    head = out.split("\n\n")[0]
    assert head.splitlines()[0].split() == ["device", "Fast", "9000"]
    assert "GPU" not in head
    assert "CPU time" not in head
    assert "made here" in head
    assert max(map(len, head.splitlines())) <= 80


def test_what_the_user_says_goes_on_to_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def test(source: str | None, options: object, **_: object) -> SpeedtestResult:
        seen.extend((source, options))
        return make_result()

    words = [
        "--model",
        "resnet18",
        "--batch-size",
        "4",
        "--size",
        "32",
        "--device",
        "cpu",
        "--workers",
        "1",
        "--quick",
    ]
    assert run(monkeypatch, test, *words) == 0
    source, options = seen
    assert source is None
    assert (options.model, options.batch_size, options.side) == ("resnet18", 4, 32)
    assert (options.device, options.workers, options.is_quick) == ("cpu", 1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet51"], "error: there is no model 'resnet51'"),
        (["--device", "gpu"], "error: --device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["/no/such/folder"], "error: no dataset at /no/such/folder"),
    ],
)
def test_mistakes_are_a_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speedtest", *words]) == 1
    assert message in capsys.readouterr().err


def test_an_option_that_is_gone_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speedtest", "--seconds", "30"])
    assert capsys.readouterr().err.startswith("error: 'feedrate speedtest --seconds' is gone")


def test_a_temporary_folder_that_cannot_be_made_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    assert main(["speedtest"]) == 1
    assert "hint: set TMPDIR to a folder that you may write to" in capsys.readouterr().err


def test_without_torch_the_line_to_type_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["speedtest"]) == 1
    assert capsys.readouterr().err == (
        "error: the speed test trains a model, so it needs torch, which is not installed\n"
        "\nhint: pip install 'feedrate[torch]'\n"
    )


def test_a_training_that_ends_too_soon_gives_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise DoctorError("the command ended with exit code 7 before its first batch", exit_code=7)

    assert run(monkeypatch, end) == 7
    assert "error: the command ended with exit code 7" in capsys.readouterr().err


def test_what_was_seen_until_the_user_ended_it_is_drawn_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = make_result()
    ended = replace(result.diagnosis, run=replace(result.diagnosis.run, mode="ended", exit_code=130))
    assert run(monkeypatch, lambda *_, **__: replace(result, diagnosis=ended)) == 130
    assert "decode-bound" in capsys.readouterr().out


@pytest.mark.usefixtures("hears_sighup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_or_a_closing_terminal_leaves_nothing(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("feedrate.demo.speedtest.examine", lambda *_, **__: signal.raise_signal(number))
    monkeypatch.setattr("feedrate.demo.speedtest.IMAGES", 10)
    with pytest.raises(SystemExit) as caught:
        main(["speedtest"])
    assert caught.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_the_result_goes_to_standard_output_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, lambda *_, **__: make_result(), "photos", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "speedtest"
    assert document["cpu_s"] == 542.0
    assert document["diagnosis"]["findings"][0]["code"] == "decode-bound"


def test_the_example_in_the_documents_is_drawn_from_the_committed_result() -> None:
    document = json.loads((ROOT / "benchmarks" / "results" / "speedtest-cpu.json").read_text())
    told = {**document["diagnosis"], "argv": document["diagnosis"]["command"], "command": "doctor"}
    names = {one.name for one in fields(SpeedtestResult)} - {"diagnosis"}
    result = SpeedtestResult(
        **{name: document[name] for name in names}, diagnosis=load_diagnosis({**told, "schema_version": 1})
    )
    drawn = draw_speedtest(result, width=100)
    assert f"```text\n{drawn}```" in (ROOT / "docs" / "speedtest.md").read_text()
