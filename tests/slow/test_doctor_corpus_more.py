# SPDX-License-Identifier: Apache-2.0
"""The doctor on scripts of the corpus that take longer, or need a machine that is worse than this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_corpus.cases import Case
from support.corpus_check import cases_of, check_first_finding

pytestmark = pytest.mark.slow

SHORT = ("python-heatmaps",)  # its steps are alike, so that a few of them show it


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.mark.parametrize("case", cases_of("slow"), ids=lambda case: case.name)
def test_the_reason_that_was_built_in_comes_first(case: Case, data: Path, tmp_path: Path) -> None:
    check_first_finding(case, data, tmp_path, ["--steps", "50"] if case.name in SHORT else [])
