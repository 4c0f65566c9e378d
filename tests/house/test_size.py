# SPDX-License-Identifier: Apache-2.0
"""scripts/size on a small tree: what it counts, and when `--check` fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "size"
HEAD = "# SPDX\n\nimport os\n\n\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    source = tmp_path / "src" / "feedrate"
    (source / "pack").mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "pack" / "__init__.py").write_text("")
    (source / "pack" / "small.py").write_text(f"{HEAD}def f():\n    return os\n")
    (source / "pack" / "user.py").write_text(
        "from feedrate.pack.small import f\n\n\ndef g():\n    return f()\n"
    )
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, project / "scripts" / "size", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def allow(project: Path, lines: int, **budgets: int) -> None:
    tokens = {"modules": 0, "pack": 26} | budgets
    (project / "pyproject.toml").write_text(
        f"[tool.feedrate.size]\nsrc_lines = {lines}\nsrc_tokens = 26\n[tool.feedrate.size.tokens]\n"
        + "".join(f"{name} = {number}\n" for name, number in tokens.items())
    )


def test_lines_and_files_are_counted_per_package(project: Path) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in run(project).stdout.splitlines() if line.strip()}
    assert rows["src/feedrate"][:2] == ["12", "4"]
    assert rows["pack"][:2] == ["12", "3"]
    assert rows["pack"][3] == "66.7%"  # 5 and 3 lines stand before the first definitions


def test_a_small_module_that_one_other_imports_is_named_with_that_other(project: Path) -> None:
    assert "pack/small.py (7), by pack/user.py" in run(project).stdout


def test_a_plug_in_may_be_small_and_alone(project: Path) -> None:
    (project / "src" / "feedrate" / "pack").rename(project / "src" / "feedrate" / "cli")
    assert "cli/small.py" not in run(project).stdout


@pytest.mark.parametrize(("allowed", "status"), [(12, 0), (11, 1)])
def test_more_lines_than_the_budget_fail(project: Path, allowed: int, status: int) -> None:
    allow(project, allowed)
    done = run(project, "--check")
    assert done.returncode == status
    assert ("has 12 lines" in done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ({"pack": 25}, "pack has 26 tokens, 1 more than its budget"),
        ({"modules": 5}, "the budgets of the packages are 31 tokens together; src_tokens allows 26"),
    ],
)
def test_a_package_over_its_budget_is_named_and_raising_one_takes_lowering_another(
    project: Path, budgets: dict[str, int], said: str
) -> None:
    allow(project, 12, **budgets)
    done = run(project, "--check")
    assert done.returncode == 1
    assert said in done.stderr


def test_a_package_without_a_budget_fails(project: Path) -> None:
    (project / "src" / "feedrate" / "new").mkdir()
    (project / "src" / "feedrate" / "new" / "one.py").write_text("x = 1\n")
    allow(project, 99)
    assert "new has no budget: 3 tokens" in run(project, "--check").stderr


def test_a_project_without_a_budget_is_told_so(project: Path) -> None:
    (project / "pyproject.toml").write_text("")
    assert "no src_lines" in run(project, "--check").stderr


def test_a_reader_that_has_seen_enough_ends_it_without_a_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -u {SCRIPT} | head -1"], capture_output=True, text=True, check=False
    )
    assert "lines" in done.stdout
    assert done.stderr == ""
