# SPDX-License-Identifier: Apache-2.0
"""The words for limits: the doctor's, and everybody else's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from feedrate.doctor.findings.catalogue import CATALOGUE
from feedrate.model.limits import LIMITS
from support import paths

SOURCES = paths.ROOT / "src" / "feedrate"


def test_the_doctor_looks_for_every_limit_that_has_a_name_and_for_no_other() -> None:
    assert sorted(entry.code for entry in CATALOGUE) == sorted(LIMITS)


@pytest.mark.parametrize("path", [SOURCES / "watch" / "verdict.py"], ids=lambda path: str(path.name))
def test_who_names_a_limit_takes_the_words_from_there(path: Path) -> None:
    constants = [
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    ]
    words = {one for one in constants if isinstance(one, str)}
    assert words.isdisjoint(LIMITS)
    assert words.isdisjoint(limit.title for limit in LIMITS.values())
    assert not [one for one in words if re.fullmatch("[a-z-]+-bound", one)]
