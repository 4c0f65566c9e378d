# SPDX-License-Identifier: Apache-2.0
"""A dataset with parts is planned for by the part that is trained on; what is packed is all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from feedrate import PackOptions, index, pack
from feedrate.cli import main
from feedrate.figures import GIVEN, Figure
from feedrate.lab import samples
from feedrate.plan import survey
from feedrate.plan.results import Plan, Survey, Way
from feedrate.plan.survey import survey_dataset
from feedrate.plan.ways import make_plan
from feedrate.report.plan import draw_plan
from support.images import save_image
from support.plans import make_node, make_survey, near

COSTS = samples.Costs(Figure.exactly(2e-3), Figure.exactly(4e-4), 3.5, 3.9, Figure.exactly(6e-4))


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(survey, "measure_costs", lambda *_, **__: COSTS)
    return lambda dataset: survey_dataset(str(dataset), seconds=0.5, say=lambda _: None)


def write_parts(top: Path, **counts: int) -> Path:
    for part, count in counts.items():
        for number in range(count):
            save_image(top / part / ("cat" if number % 2 else "dog") / f"{number}.jpg", number)
    return top


def count_parts(found: Survey) -> dict[str, float]:
    return {name: figure.value for name, figure in found.parts.items()}


def test_the_parts_of_a_folder_are_counted_each(look, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = look(write_parts(tmp_path / "photos", train=8, val=4))
    assert (count_parts(found), found.trained, found.samples.value) == ({"train": 8, "val": 4}, "train", 12)


def test_class_folders_are_no_parts(look, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = look(write_parts(tmp_path / "photos", red=4, blue=4))
    assert (count_parts(found), found.trained) == ({}, "")


@pytest.mark.parametrize("make", [pack, index])
def test_the_parts_of_a_pack_and_of_an_index_are_counted_each(look, make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = write_parts(tmp_path / "photos", training=8, val=4)
    options = (PackOptions(workers=1),) if make is pack else ()
    make(source, tmp_path / "made", *options)
    found = look(tmp_path / "made")
    assert (count_parts(found), found.trained) == ({"training": 8, "val": 4}, "training")


def test_parts_none_of_which_is_for_training_are_all_counted_and_that_is_said(  # type: ignore[no-untyped-def]
    look, tmp_path: Path
) -> None:
    pack(write_parts(tmp_path / "photos", red=9), tmp_path / "p", PackOptions(workers=1))
    assert main(["split", str(tmp_path / "p"), "fold0=34%", "fold1=33%", "fold2=33%"]) == 0
    found = look(tmp_path / "p")
    assert (list(found.parts), found.trained) == (["fold0", "fold1", "fold2"], "")
    note = "none of its parts (fold0, fold1, fold2) is called train: an epoch is counted over all of them"
    assert note in found.notes


def test_folds_in_a_table_are_all_counted_and_that_is_said(look, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_parts(tmp_path / "photos", red=4)
    rows = [f"red/{'cat' if n % 2 else 'dog'}/{n}.jpg,{n % 2},{n % 2}\n" for n in range(4)]
    (tmp_path / "photos" / "labels.csv").write_text("path,label,fold\n" + "".join(rows))
    found = look(tmp_path / "photos" / "labels.csv")
    assert found.samples.value == 4
    assert "its table has a column 'fold': an epoch is counted over all rows" in found.notes


def with_parts(**counts: int) -> Survey:
    found = make_survey()
    return replace(
        found, samples=Figure.exactly(sum(counts.values())), trained="train",
        parts={name: Figure.exactly(count) for name, count in counts.items()},
    )  # fmt: skip


def way(plan: Plan, code: str) -> Way:
    return next(way for way in plan.ways if way.code == code)


def test_an_epoch_is_the_training_part_and_a_pack_is_all_of_it() -> None:
    node = make_node(model_rate=near(4700, GIVEN))
    half = make_plan(with_parts(train=600_000, val=600_000), node)
    whole = make_plan(with_parts(train=1_200_000, val=0), node)
    for code in ("in-place", "pack"):
        assert way(half, code).later_epoch_s.value < 0.6 * way(whole, code).later_epoch_s.value
    assert way(half, "pack").before_s.value == pytest.approx(way(whole, "pack").before_s.value)
    assert way(half, "pack").disk_bytes.value == way(whole, "pack").disk_bytes.value


def test_the_parts_and_their_counts_are_drawn_and_the_code_has_the_split() -> None:
    plan = make_plan(with_parts(train=900_000, val=300_000), make_node(model_rate=near(4700, GIVEN)))
    assert "\n  parts      train: 900,000, val: 300,000; an epoch is train\n" in draw_plan(plan)
    assert ', split="train", ' in way(plan, "pack").commands[-1]


def test_the_code_for_parts_none_of_which_is_for_training_names_all() -> None:
    found = replace(with_parts(fold0=600_000, fold1=600_000), trained="")
    plan = make_plan(found, make_node(model_rate=near(4700, GIVEN)))
    assert ', split="all", ' in way(plan, "pack").commands[-1]


def test_the_line_behind_an_index_names_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_parts(tmp_path / "photos", train=4, val=2)
    assert main(["index", str(source), "--workers", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"""in Python feedrate.Loader('{source}.index', split="train")""")
