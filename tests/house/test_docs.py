# SPDX-License-Identifier: Apache-2.0
"""The documents say nothing that is not there."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedrate.cli import COMMANDS, make_parser
from support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_feedrate_command_shown_parses(page: Path) -> None:
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["feedrate"] and words[1:2] not in (["--help"], ["--version"]):
                make_parser().parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_make_target_shown_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^(?:\$ )?make ([a-z-]+)", page.read_text(), re.M)) <= targets


def test_every_command_has_a_page_that_shows_it() -> None:
    shown = "\n".join(page.read_text() for page in ROOT.glob("docs/*.md"))
    assert [c for c in COMMANDS if f"feedrate {c}" not in shown] == []


def test_no_open_end_is_left_in_the_sources() -> None:
    files = [
        p
        for folder in ("src", "native", "tests")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".py", ".cpp", ".h")
    ]
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")))
    assert [str(p.relative_to(ROOT)) for p in files if words.search(p.read_text())] == []


def find_imports(script: Path) -> Iterator[tuple[str, str]]:
    """Yield each module of feedrate and the name that a script takes from it."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "feedrate":
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    found = importlib.import_module(module)
    is_package = hasattr(found, "__path__")
    return hasattr(found, name) or (is_package and importlib.util.find_spec(f"{module}.{name}") is not None)


@pytest.mark.parametrize("script", sorted(ROOT.glob("benchmarks/*.py")), ids=lambda p: p.name)
def test_what_a_benchmark_imports_from_feedrate_is_there(script: Path) -> None:
    assert [one for one in find_imports(script) if not is_there(*one)] == []


def load_script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_charts_are_drawn_from_the_committed_results() -> None:
    charts = [one for one in load_script("chart").CHARTS if one[0].exists() or one[1].exists()]
    assert charts
    for result, chart, render in charts:
        assert chart.read_text() == render(json.loads(result.read_text()))


def test_the_plot_of_the_super_resolution_example_is_drawn_from_the_committed_results() -> None:
    plot = load_script("super_resolution")
    assert plot.CHART.read_text() == plot.render(json.loads(plot.RESULT.read_text()))


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_the_figures_of_a_page_are_those_of_the_committed_results(page: str) -> None:
    path = ROOT / page
    assert "<!-- figures: " in path.read_text()
    assert load_script("figures").render(path) == path.read_text()


def test_the_training_loops_of_the_overhead_scripts_are_found_by_what_edits_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    overhead = load_script("doctor_overhead")
    for case in overhead.OWN_CASES.values():
        edited = overhead.add_profiler(overhead.script_of(case).read_text(), case.model, "wait=1", "trace")
        assert "for x, y in loader:\n                prof.step()" in edited


@pytest.mark.parametrize(
    "page",
    [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "src" / "feedrate").rglob("README.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_modules_that_a_page_about_the_code_names_are_there(page: Path) -> None:
    package = ROOT / "src" / "feedrate"
    near = package if page.name == "ARCHITECTURE.md" else page.parent
    names = set(re.findall(r"[a-z_/0-9]+\.(?:py|h|cu)\b", page.read_text()))
    there = {
        name
        for name in names
        if any((folder / name).exists() for folder in (ROOT, package))
        or any(path.as_posix().endswith(f"/{name}") for path in near.rglob("*"))
    }
    assert names - there == set()
