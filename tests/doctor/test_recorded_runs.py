# SPDX-License-Identifier: Apache-2.0
"""Runs of the doctor's corpus that were recorded once: the analysis still says of them what it said then.

`scripts/reference record` records runs anew, `scripts/reference make tests/data/reference --only runs` writes
what is found in them; both are for a change of the analysis that is meant to give other results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

EXPECTED: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "reference" / "runs.json").read_text())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    import_runs().unpack_runs(folder)
    return folder


def import_runs() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        from referring import runs
    return runs


def list_findings(document: Mapping[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def list_predictions(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the speed-up of every remedy, and its bounds, by finding and name."""
    offered = [
        (finding["code"], remedy) for finding in document["findings"] for remedy in finding["remedies"]
    ]
    offered += [("all", remedy) for remedy in document["remedies"]]
    return {
        f"{number} {code} {remedy['name']} {key}": remedy[key]
        for number, (code, remedy) in enumerate(offered)
        for key in ("predicted_speedup", "low", "high")
    }


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recorded_run_has_the_findings_and_predictions_that_it_had(name: str, kept: Path) -> None:
    expected, found = EXPECTED[name], import_runs().analyse(kept / name)
    assert found["verdict"] == expected["verdict"]
    assert list_findings(found) == list_findings(expected)
    assert list_predictions(found) == pytest.approx(list_predictions(expected), rel=1e-6)


def test_all_recorded_runs_are_compared(kept: Path) -> None:
    assert sorted(path.name for path in kept.iterdir()) == sorted(EXPECTED)
    assert len(EXPECTED) >= 15
