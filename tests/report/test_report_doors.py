# SPDX-License-Identifier: Apache-2.0
"""Names that strangers chose reach terminal and browser as text: no report prints a control character."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

import feedrate.report
from feedrate import PackOptions, pack
from feedrate.cli import main, say_error
from feedrate.cli.output import clean_values, show
from feedrate.errors import FeedrateError
from feedrate.format.index import Part
from feedrate.machine.results import Machine
from support import paths
from support.damage import edit_manifest, rewrite_index
from support.hostile import NAME, make_hostile

ROOT = paths.ROOT / "src" / "feedrate"


def list_reports() -> dict[str, Callable[..., Any]]:
    """Return every function that draws a command's result, whatever it draws it as."""
    found = {}
    for module in pkgutil.iter_modules(feedrate.report.__path__):
        for name, function in vars(importlib.import_module(f"feedrate.report.{module.name}")).items():
            if name.startswith("draw_") and inspect.isfunction(function):
                hints = typing.get_type_hints(function, {**vars(inspect.getmodule(function)), **_names()})
                kinds = [h for n, h in hints.items() if n != "return" and inspect.isclass(h)]
                if any(kind.__module__.endswith(".results") for kind in kinds):
                    found[f"{module.name}.{name}"] = function
    return found


def _names() -> dict[str, Any]:
    """Return the classes that reports import for the type checker alone."""
    names: dict[str, Any] = {"Machine": Machine, "Text": Text}
    for path in ROOT.glob("*/results.py"):
        names |= vars(importlib.import_module(f"feedrate.{path.parent.name}.results"))
    return names


def draw(function: Callable[..., Any], *, is_page: bool) -> str:
    hints = typing.get_type_hints(function, {**vars(inspect.getmodule(function)), **_names()})
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            continue  # how wide the report may be
        value = make_hostile(hints[name])
        arguments[name] = value if is_page else clean_values(value)
    return str(function(**arguments))


def assert_harmless(text: str) -> None:
    strange = sorted({c for c in text if not c.isprintable() and c != "\n"})
    assert strange == []
    assert not re.search("^forged", text, re.M)


REPORTS = list_reports()


def is_page(name: str) -> bool:
    return name.endswith("page")


def test_there_are_reports_to_test() -> None:
    assert {"check.draw_description", "check.draw_verify", "sheet.draw_sheet"} <= set(REPORTS)
    assert len(REPORTS) > 20


@pytest.mark.parametrize("name", [name for name in REPORTS if not is_page(name)])
def test_no_text_report_prints_a_control_character(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(draw(REPORTS[name], is_page=False))
    out = capsys.readouterr().out
    assert out
    assert_harmless(out)


@pytest.mark.parametrize("name", [name for name in REPORTS if is_page(name)])
def test_no_page_holds_what_a_stranger_wrote_as_more_than_text(name: str) -> None:
    page = draw(REPORTS[name], is_page=True)
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert_harmless(page)


def test_errors_and_hints_are_harmless_wherever_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    error = FeedrateError(f"no class '{NAME}'", hint=f"look at {NAME}")
    say_error(error.message, error.hint)
    written = capsys.readouterr().err
    assert_harmless(written)
    assert not [c for c in str(error) + repr(error.args) if not c.isprintable() and c != "\n"]


@pytest.fixture
def strange(jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of a stranger, in the current folder: hostile classes, keys, paths, settings and quality."""
    monkeypatch.chdir(tmp_path)
    pack(jpeg_folder, tmp_path / "p", PackOptions(workers=1))

    def spoil(part: Part) -> None:
        for column in ("key", "image.path"):
            texts = list(part.variable[column])
            texts[0] = b"a\x1b[2J\nforged\x07"
            part.variable[column] = texts  # type: ignore[index]

    rewrite_index(tmp_path / "p", spoil)

    def rename(document: dict[str, Any]) -> None:
        document["fields"]["label"]["classes"][0] = NAME
        document["settings"].update(map={"function": NAME, "source": NAME})

    edit_manifest(tmp_path / "p", rename)
    path = tmp_path / "p" / "quality.json"
    quality = json.loads(path.read_text())
    quality["classes"][0]["name"] = NAME
    quality["formats"][0]["name"] = NAME
    quality["short_sides"] = {NAME: 3}
    quality["oddities"] = [
        {"code": NAME, "done": {NAME: 2}, "examples": [{"path": NAME, "detail": NAME, "done": NAME}]}
    ]
    path.write_text(json.dumps(quality))
    return tmp_path / "p"


@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize(
    "command",
    [
        "ls p --samples 20", "ls p --quality --html page.html", "verify p --workers 1 --pixels 5",
        "unpack p out --workers 1", "split p a=0.5 b=0.5 --stratify", "append photos p --workers 1",
        "append p p --prefix again",
        "stage p --warm", "stage p --scratch scratch", "index p i",
    ],
)  # fmt: skip
def test_commands_on_a_strangers_pack_print_no_control_character(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scratch").mkdir()
    main(command.split())
    captured = capsys.readouterr()
    assert captured.out + captured.err
    assert_harmless(captured.out + captured.err)
    if (tmp_path / "page.html").exists():
        assert "<script" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("value", ["<b>", -1, 1.5, None])
def test_a_count_in_quality_json_that_is_none_is_damage(
    strange: Path, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((strange / "quality.json").read_text())
    document["smallest"] = {"path": "a", "width": value, "height": 1}
    (strange / "quality.json").write_text(json.dumps(document))
    assert main(["ls", "p", "--quality"]) == 1
    assert "quality.json is damaged: " in capsys.readouterr().err


def writes_to_terminal(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines")


def test_only_the_door_writes_to_the_terminal() -> None:
    # JSON and paths that programs read; the version; what is said inside of the user's process.
    doors = {"cli/output.py": 2, "cli/__init__.py": 1, "run/inside/loaders.py": 1}
    found = {}
    for path in sorted(p for p in ROOT.rglob("*.py") if "hook" not in p.parts):
        calls = sum(map(writes_to_terminal, ast.walk(ast.parse(path.read_text()))))
        if calls:
            found[str(path.relative_to(ROOT))] = calls
    assert found == doors
