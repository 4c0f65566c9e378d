# SPDX-License-Identifier: Apache-2.0
"""Functions that wait for an import: each is called once, and the import stays what it would have been."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from feedrate.hooking.startup.feedrate_imports import ImportWatch

Write = Callable[[str, str], None]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportWatch]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    made = ImportWatch()
    made.begin()
    return made


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Makes modules that can be imported until the test ends."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(name: str, body: str) -> None:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
        importlib.invalidate_caches()

    yield write_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_is_called_once_when_its_module_is_whole(watch: ImportWatch, write: Write) -> None:
    write("awaited", "first = 1\nlast = 2\n")
    seen: list[int] = []
    watch.add("awaited", lambda module: seen.append(module.last))
    assert seen == []
    import awaited  # type: ignore[import-not-found]

    assert seen == [2]
    importlib.import_module("awaited")
    assert seen == [2]
    assert awaited.first == 1


def test_a_module_that_is_there_already_is_told_at_once(watch: ImportWatch, write: Write) -> None:
    write("early", "")
    module = importlib.import_module("early")
    seen: list[ModuleType] = []
    watch.add("early", seen.append)
    assert seen == [module]


def test_nothing_is_imported_for_the_one_who_waits(watch: ImportWatch, write: Write) -> None:
    write("lonely", "raise SystemExit('nobody asked for it')")
    watch.add("lonely", lambda _: None)
    assert "lonely" not in sys.modules
    assert watch.find_spec("another") is None


def test_a_module_that_is_being_imported_is_left_alone(watch: ImportWatch, write: Write) -> None:
    seen: list[ModuleType] = []
    write("halfway", "import sys\nsys.modules['watching'].ask()\nvalue = 1\n")
    asking = ModuleType("watching")
    asking.ask = lambda: watch.add("halfway", seen.append)  # type: ignore[attr-defined]
    sys.modules["watching"] = asking
    importlib.import_module("halfway")
    assert seen == []


def test_modules_of_packages_and_all_who_wait_for_them_are_told(watch: ImportWatch, write: Write) -> None:
    write("outer.__init__", "")
    write("outer.inner", "value = 1\n")
    seen: list[str] = []
    for name in ("outer", "outer.inner", "outer.inner"):
        watch.add(name, lambda module: seen.append(module.__name__))
    importlib.import_module("outer.inner")
    assert seen == ["outer", "outer.inner", "outer.inner"]


def test_a_module_stays_as_it_would_have_been(watch: ImportWatch, write: Write) -> None:
    body = "def function():\n    return 1\n"
    write("watched", body)
    write("plain", body)
    watch.add("watched", lambda _: None)
    watched, plain = importlib.import_module("watched"), importlib.import_module("plain")
    for part in ("__loader__", "__spec__", "function"):
        assert type(getattr(watched, part)) is type(getattr(plain, part))
    assert vars(watched).keys() == vars(plain).keys()
    assert vars(watched.__loader__).keys() == vars(plain.__loader__).keys()
    assert inspect.getsource(watched.function) == body


def _explain(name: str) -> list[str]:
    try:
        exec(f"import {name}")  # Python shortens tracebacks of the statement alone
    except Exception:
        return traceback.format_exc().replace(name, "module").splitlines()
    raise AssertionError(f"{name} was imported")


@pytest.mark.parametrize("body", ["1 / 0\n", "import not_there\n", "def broken(:\n", "import deeper\n"])
def test_a_traceback_has_no_line_of_ours(watch: ImportWatch, write: Write, body: str) -> None:
    write("deeper", "raise ImportError('deeper down')\n")
    write("fails_a", body)
    write("fails_b", body)
    seen: list[ModuleType] = []
    watch.add("fails_b", seen.append)
    assert _explain("fails_b") == _explain("fails_a")
    assert seen == []


def test_a_module_that_failed_is_told_when_it_comes(watch: ImportWatch, write: Write) -> None:
    seen: list[ModuleType] = []
    watch.add("second_time", seen.append)
    with pytest.raises(ModuleNotFoundError, match="No module named 'second_time'"):
        importlib.import_module("second_time")
    write("second_time", "raise ValueError('not yet')\n")
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module("second_time")
    write("second_time", "value = 10\n")
    assert seen == [importlib.import_module("second_time")]


def test_two_who_watch_are_both_told_once(watch: ImportWatch, write: Write) -> None:
    write("shared", "")
    other = ImportWatch()
    other.begin()
    other.begin()
    assert sys.meta_path.count(other) == 1
    seen: list[str] = []
    watch.add("shared", lambda _: seen.append("first"))
    other.add("shared", lambda _: seen.append("second"))
    importlib.import_module("shared")
    assert sorted(seen) == ["first", "second"]


def test_a_look_without_an_import_tells_nobody(watch: ImportWatch, write: Write) -> None:
    write("looked_at", "")
    seen: list[ModuleType] = []
    watch.add("looked_at", seen.append)
    assert importlib.util.find_spec("looked_at") is not None
    assert seen == []
    importlib.import_module("looked_at")
    assert len(seen) == 1


def test_one_loader_of_many_modules_tells_of_the_one_that_is_waited_for(
    watch: ImportWatch, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del write  # it removes the modules
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("zipped.py", "")
        archive.writestr("beside.py", "")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    seen: list[str] = []
    watch.add("zipped", lambda module: seen.append(module.__name__))
    importlib.util.find_spec("zipped")
    importlib.import_module("beside")
    assert seen == []
    importlib.import_module("zipped")
    assert seen == ["zipped"]
