# SPDX-License-Identifier: Apache-2.0
"""What CI does with a test that fails: it is run once more, alone, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

TIER = ROOT / ".ci" / "tier"
MAKEFILE = "test-slow:\n\t.venv/bin/python -m pytest -q -m slow\n"
OPTIONS = "[pytest]\nmarkers = slow: slow\n"
HEAD = "import pathlib, pytest\npytestmark = pytest.mark.slow\n"
GOOD = "def test_good():\n    with open('runs', 'a') as runs:\n        runs.write('good ')\n"
FLAKY = """
def test_flaky():
    first = pathlib.Path("was-run")
    if not first.exists():
        first.touch()
        raise AssertionError("the port was taken")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(TIER, tmp_path / ".ci")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pytest.ini").write_text(OPTIONS)
    return tmp_path


def run(checkout: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (checkout / "test_slow.py").write_text(HEAD + tests)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, checkout / ".ci" / "tier", "test-slow"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def test_a_slow_test_that_passes_alone_is_listed_as_flaky_with_its_first_failure(checkout: Path) -> None:
    ran = run(checkout, GOOD + FLAKY)
    assert ran.returncode == 0
    ending = ran.stdout[ran.stdout.index("FLAKY:") :]
    assert "FLAKY test_slow.py::test_flaky" in ending
    assert "AssertionError: the port was taken" in ending
    assert (checkout / "runs").read_text() == "good "


def test_a_slow_test_that_fails_twice_fails_the_run(checkout: Path) -> None:
    ran = run(checkout, GOOD + FLAKY + "def test_broken():\n    raise AssertionError\n")
    assert ran.returncode == 1
    assert "FLAKY" not in ran.stdout


def test_a_run_with_many_failures_fails_without_a_second_try(checkout: Path) -> None:
    ran = run(checkout, "".join(f"def test_{n}():\n    raise AssertionError\n" for n in range(6)))
    assert ran.returncode != 0
    assert "once more" not in ran.stdout


def test_a_slow_tier_that_cannot_be_collected_fails_the_run(checkout: Path) -> None:
    ran = run(checkout, "import no_such_module\n")
    assert ran.returncode != 0
    assert "once more" not in ran.stdout


# After a test that would pass alone: Ctrl-C, and an error of pytest's own. What comes behind it is not run.
BREAKS = {
    "interrupt": "def test_breaks():\n    raise KeyboardInterrupt\n",
    "internal error": """
class Broken:
    def pytest_runtest_logreport(self, report):
        raise RuntimeError


def test_breaks(request):
    request.config.pluginmanager.register(Broken())

""",
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_slow_tier_that_breaks_off_fails_the_run(checkout: Path, how: str) -> None:
    ran = run(checkout, FLAKY + BREAKS[how] + GOOD)
    assert not (checkout / "runs").exists()
    assert ran.returncode != 0
    assert "once more" not in ran.stdout


def test_a_slow_tier_that_passes_is_run_once(checkout: Path) -> None:
    assert run(checkout, GOOD).returncode == 0
    assert (checkout / "runs").read_text() == "good "
