# SPDX-License-Identifier: Apache-2.0
"""`feedrate plan` and `feedrate estimate` on the command line: what reaches the plan, and typing mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import main
from feedrate.cli.output import show
from feedrate.machine.results import Gpu
from feedrate.plan import estimate, node, survey, what_if
from support.plans import make_node, make_survey

Output = pytest.CaptureFixture[str]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the commands asked for; nothing is looked at, what is found is made up."""
    asked: dict[str, Any] = {}

    def survey_dataset(dataset: str, **options: Any) -> Any:
        asked.update(dataset=dataset, **options)
        return make_survey(dataset=dataset, crop=options.get("crop") or 224)

    def describe_node(dataset: str, **options: Any) -> Any:
        asked.update(beside=dataset, **options)
        rate = {} if options.get("model_rate") is None else {"model": ""}
        return make_node(**rate)

    for module in (survey, estimate):
        monkeypatch.setattr(module, "survey_dataset", survey_dataset)
    monkeypatch.setattr(estimate, "measure_sizes", survey_dataset)
    for module in (node, estimate):
        monkeypatch.setattr(module, "describe_node", describe_node)
    return asked


def test_a_plan_is_drawn_and_one_way_recommended(looked_at: dict[str, Any], capsys: Output) -> None:
    assert main(["plan", "/data/imagenet", "--seconds", "3", "--scratch", "/"]) == 0
    assert "\nRecommended: " in capsys.readouterr().out
    assert (looked_at["dataset"], looked_at["seconds"], looked_at["scratch"]) == ("/data/imagenet", 3, "/")
    assert (looked_at["model"], looked_at["model_rate"]) == ("resnet50", None)


def test_epochs_and_workers_are_those_of_the_plan(looked_at: dict[str, Any], capsys: Output) -> None:
    assert main(["plan", "/data", "--epochs", "7", "--workers", "2", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["epochs"], document["workers"]) == ("plan", 7, 2)
    assert looked_at


@pytest.mark.usefixtures("looked_at")
def test_the_code_to_type_has_the_batch_size_of_the_script(capsys: Output) -> None:
    assert main(["plan", "/data", "--batch-size", "64", "--json", "-"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    commands = next(way["commands"] for way in ways if way["code"] == "pack")
    assert "batch_size=64" in commands[-1]


def test_a_rate_stands_for_a_model(looked_at: dict[str, Any]) -> None:
    assert main(["plan", "/data", "--model-rate", "900"]) == 0
    assert (looked_at["model"], looked_at["model_rate"]) == ("", 900.0)


@pytest.mark.usefixtures("looked_at")
def test_the_page_of_a_plan_is_written(tmp_path: Path, capsys: Output) -> None:
    assert main(["plan", "/data", "--html", str(tmp_path / "plan.html")]) == 0
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")
    assert f"wrote {tmp_path}/plan.html" in capsys.readouterr().err


def test_a_gpu_of_unknown_rate_is_refused_before_anything_is_looked_at(
    looked_at: dict[str, Any], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "describe_gpus", tuple)
    for gpu in ("4xZ9000", "L4", "8"):
        assert main(["plan", "/data", "--what-if", f"gpu={gpu}"]) == 1
        assert "no rate of resnet50 is known" in capsys.readouterr().err
    assert not looked_at
    assert main(["plan", "/data", "--what-if", "gpu=L4", "model-rate=400"]) == 0


def test_a_gpu_of_this_node_is_looked_at_since_its_rates_may_be_stored(
    looked_at: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(0, "NVIDIA L4")
    monkeypatch.setattr(what_if, "describe_gpus", lambda: (gpu,))
    main(["plan", "/data", "--what-if", "gpu=4xL4"])
    assert looked_at


@pytest.mark.usefixtures("looked_at")
def test_what_if_changes_the_node_and_may_stand_before_the_dataset(capsys: Output) -> None:
    assert main(["plan", "--json", "-", "--what-if", "cores=32", "mem=500G", "/data"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["survey"]["dataset"] == "/data"
    assert document["node"]["cores"]["value"] == 32
    assert document["node"]["cores"]["origin"] == "given"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "error: no dataset is named\n"),
        (["plan", "--what-if", "cores=2"], "error: no dataset is named\n"),
        (["plan", "/d", "--model", "resnet5"], "error: there is no model 'resnet5'\n\nhint: did you mean "
         "'resnet50'? known: resnet18, resnet50, densenet121, vit_b_16; of another model give what it "
         "trains: --model-rate"),
        (["estimate", "epoch", "/d", "--model", "gpt"], "error: there is no model 'gpt'\n\nhint: known: res"),
        (["plan", "/d", "--scratch", "/no/such"], "error: there is no folder /no/such\n\nhint: "),
        (["plan", "/d", "--what-if", "core=2"], "cores"),
    ],
)  # fmt: skip
def test_mistakes_are_said_before_anything_is_looked_at(
    words: list[str], message: str, looked_at: dict[str, Any], capsys: Output
) -> None:
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert looked_at == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet50", "--model-rate", "3"], "--model-rate: not allowed with argument --model"),
        (["--model-rate", "0"], "must be from 0.001 to 10,000,000, got 0"),
        (["--model-rate", "fast"], "'fast' is not a number"),
        (["--epochs", "0"], "must be from 1 to 1,000,000, got 0"),
        (["--seconds", "nan"], "must be from 0.5 to 3,600, got nan"),
        (["--seconds", "0.001"], "must be from 0.5 to 3,600, got 0.001"),
        (["--epochs", "9" * 400], "must be from 1 to 1,000,000, got 999"),
        (["--workers", "100000000"], "must be from 0 to 1,024, got 100000000"),
        (["--batch-size", "9" * 400], "must be from 1 to 1,000,000, got 999"),
        (["--model-rate", "1e-300"], "must be from 0.001 to 10,000,000, got 1e-300"),
        (["--crop", "0"], "must be from 1 to 10,000, got 0"),
        (["--epoch", "3", "--what"], "--what-if"),
    ],
)
def test_a_wrong_value_is_wrong_usage(words: list[str], message: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "/data", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["epoch", "/data"], "an epoch of /data:\n"),
        (["memory", "/data", "--decoded"], "/data in memory, decoded: 721 GB ("),
        (["pack", "/data"], "packing /data: "),
    ],
)
@pytest.mark.usefixtures("looked_at")
def test_estimates_are_a_line_and_what_it_is_made_of(words: list[str], start: str, capsys: Output) -> None:
    assert main(["estimate", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith(start)
    assert "measured" in out


@pytest.mark.usefixtures("looked_at")
def test_an_estimate_as_json_has_its_answers_and_figures(capsys: Output) -> None:
    assert main(["estimate", "memory", "/data", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["answers"][""]["value"] == 138e9
    assert document["figures"]["samples"][0]["origin"] == "measured"


def test_marks_and_signs_have_plain_forms_where_the_encoding_lacks_them(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        show("4m10s ±9%° é\n", stream)
    assert (tmp_path / "out").read_text() == "4m10s ~9%^ ?\n"


def test_the_largest_numbers_that_are_taken_are_reckoned_with(
    looked_at: dict[str, Any], capsys: Output
) -> None:
    words = ["--epochs", "1000000", "--workers", "1024", "--batch-size", "1000000", "--model-rate", "0.001"]
    assert main(["plan", "/data", *words, "--scratch", "/"]) == 0
    assert "\n1,000,000 epochs; as it is, with 1,024 workers:\n" in capsys.readouterr().out
    assert main(["plan", "/data", *words, "--scratch", "/", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    for way in document["ways"]:
        before, first, later, total = (
            way[name]["value"] for name in ("before_s", "first_epoch_s", "later_epoch_s", "total_s")
        )
        assert total == pytest.approx(before + first + 999_999 * later)
        assert later > 0
    commands = next(way["commands"] for way in document["ways"] if way["code"] == "pack")
    assert "batch_size=1000000," in commands[-1]
    assert looked_at["model_rate"] == 0.001


@pytest.mark.usefixtures("looked_at")
def test_the_code_to_type_has_the_crop_of_the_script(capsys: Output) -> None:
    assert main(["plan", "/data", "--crop", "160", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    commands = next(way["commands"] for way in document["ways"] if way["code"] == "pack")
    assert "RandomResizedCrop(160)" in commands[-1]
