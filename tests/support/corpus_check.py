# SPDX-License-Identifier: Apache-2.0
"""Puts a case of the corpus before the doctor, for the tests of both tiers."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from doctor_corpus.cases import CASES, Case, Tier
from doctor_corpus.run_case import CannotRun, Place, diagnose, foreign_cpu_s, why_not
from support.paths import TESTS

BUSY_CORES = 0.4


def cases_of(tier: Tier) -> list[Case]:
    return [case for case in CASES if case.tier == tier]


def check_first_finding(case: Case, data: Path, scratch: Path, options: Sequence[str] = ()) -> None:
    """Assert that the doctor names the case's reason, first or next to first."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if "cv2" in script_text(case) and importlib.util.find_spec("cv2") is None:
        pytest.skip("OpenCV is not installed")
    if reason := why_not(case):
        pytest.skip(reason)
    others, start = foreign_cpu_s(), time.perf_counter()
    try:
        report = diagnose(case, Place(data, scratch), options)
    except CannotRun as error:
        pytest.skip(str(error))
    busy = (foreign_cpu_s() - others) / (time.perf_counter() - start)
    codes = [finding["code"] for finding in report["findings"]]
    if codes[:1] != [case.expected] and busy > BUSY_CORES:
        pytest.skip(f"other processes used {busy:.1f} cores: that is another reason")
    # Machines differ; on one of them a second cause may weigh as much. The benchmark counts firsts.
    assert case.expected in codes[:2], f"{case.reason}; found {codes}: {report['verdict']}"


def script_text(case: Case) -> str:
    return (TESTS / "doctor_corpus" / "scripts" / case.script).read_text()
