# SPDX-License-Identifier: Apache-2.0
"""Datasets with gray images of more than 8 bits: a plan says so, and its code clips nothing unasked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feedrate.figures import Figure
from feedrate.lab.samples import Costs
from feedrate.plan import survey
from feedrate.plan.survey import survey_dataset
from feedrate.plan.ways import make_plan
from support.plans import make_node, make_survey


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    for n in range(12):
        values = np.random.default_rng(n).integers(0, 65536, (40, 48), dtype=np.uint16)
        path = tmp_path / "ab"[n % 2] / f"{n}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(values if n % 2 else (values >> 8).astype(np.uint8)).save(path)
    return tmp_path


def test_a_survey_counts_deep_images_and_says_the_choices(
    xrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = Figure.exactly(1e-3)
    monkeypatch.setattr(survey, "measure_costs", lambda *_, **__: Costs(each, each, 2.0, 2.0, each))
    found = survey_dataset(str(xrays), seconds=0.5, say=lambda _: None)
    assert found.deep_share == 0.5
    (note,) = (note for note in found.notes if "more than 8 bits" in note)
    assert note.startswith("6 of 12 images that were read are gray of more than 8 bits: choose depth=")


def test_the_code_of_a_plan_has_a_depth_and_names_the_choice() -> None:
    plan = make_plan(make_survey(deep_share=0.5), make_node())
    loaders = [line for way in plan.ways for line in way.commands if "feedrate.Loader(" in line]
    assert loaders
    for line in loaders:
        call, _, comment = line.partition("#")
        assert "depth=" in call
        assert "clip" not in call
        assert all(choice in comment for choice in ('"uint16"', "(low, high)", '"clip"'))
        if 'decode="gpu"' in call or "gpu=" in call:
            assert 'depth="uint16"' not in call


def test_the_code_of_other_plans_has_none() -> None:
    plan = make_plan(make_survey(), make_node())
    assert not [line for way in plan.ways for line in way.commands if "depth" in line]
