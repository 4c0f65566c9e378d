# SPDX-License-Identifier: Apache-2.0
"""The doctor on the quickest script of the corpus; `tests/slow` has more, `benchmarks/doctor.py` has all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_corpus.cases import CASES, Case
from doctor_corpus.run_case import HERE, NOT_ALLOWED, PROGRESS, rate
from feedrate.doctor.findings.catalogue import CATALOGUE
from support.corpus_check import cases_of, check_first_finding
from support.images import read_tree


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.mark.parametrize("case", cases_of("fast"), ids=lambda case: case.name)
def test_the_reason_that_was_built_in_comes_first(case: Case, data: Path, tmp_path: Path) -> None:
    check_first_finding(case, data, tmp_path, ["--steps", "50"])


def test_every_cause_of_the_catalogue_has_a_script() -> None:
    assert {entry.code for entry in CATALOGUE} <= {case.expected for case in CASES}


def test_every_script_of_the_corpus_belongs_to_a_case() -> None:
    assert {path.name for path in (HERE / "scripts").glob("*.py")} == {case.script for case in CASES}


def test_progress_is_read_from_the_ways_in_which_scripts_print_it() -> None:
    lines = (
        "step 40/400 loss 2.1",
        "epoch 3 iter 40 loss",
        "[40] step=40 loss",
        "Train epoch: 0  iter: 40",
        "batch 40: x",
    )
    assert [int(found[1]) for line in lines if (found := PROGRESS.search(line))] == [40] * len(lines)


def test_the_rate_is_that_of_whole_periods() -> None:
    """A validation after every 20 steps costs 10 s; a window that ends before one would leave it out."""
    moments = [(20, 0.0), (30, 1.0), (40, 12.0), (50, 13.0), (60, 24.0), (70, 25.0)]
    assert rate(moments, period=20) == 40 / 24


def test_the_slow_file_system_shows_the_files_as_they_are(tmp_path: Path) -> None:
    source, mounted, copy = tmp_path / "source", tmp_path / "mounted", tmp_path / "copy"
    (source / "deeper").mkdir(parents=True)
    (source / "small.txt").write_bytes(b"some text")
    (source / "deeper" / "large.bin").write_bytes(os.urandom(700_000))
    done = subprocess.run(
        [
            sys.executable, str(HERE / "surroundings.py"),
            "--slow", str(source), str(mounted), "0", "0", "1000", "--", "cp", "-r", str(mounted), str(copy),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == NOT_ALLOWED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert read_tree(copy) == read_tree(source)
    assert not any(mounted.iterdir())
