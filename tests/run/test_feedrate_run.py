# SPDX-License-Identifier: Apache-2.0
"""The hook of `feedrate run` in the user's Pythons: it serves feedrate and nothing else, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import feedrate
from feedrate.run.saved import Fact, read_facts
from support.run_scripts import environment, make_run_folder

# As much of torch as the hook replaces.
LOADERS = """
class _BaseDataLoaderIter:
    def __init__(self, loader): pass
    def __next__(self): pass
class _utils:
    class fetch:
        class _MapDatasetFetcher:
            def fetch(self, asked): pass
        class _IterableDatasetFetcher:
            def fetch(self, asked): pass
"""
SCRIPT = """
import importlib.util, json, sys
before = list(sys.path), importlib.util.find_spec("feedrate") is None
import torch.utils.data.dataloader
feedrate = sys.modules.get("feedrate")
print(json.dumps([*before, sys.path, feedrate and feedrate.__file__, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has numpy and Pillow, and no feedrate."""
    folder = tmp_path_factory.mktemp("venv")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    home = Path(os.path.realpath(sys.executable)).parent
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for name in ("numpy", "numpy.libs", "PIL", "pillow.libs"):
        installed = Path(torch.__file__).parent.parent / name
        if installed.exists():
            (packages / name).symlink_to(installed)
    return folder / "bin" / "python"


class Hooked:
    """A script that ended: what it printed, and the facts of its processes."""

    def __init__(self, tmp_path: Path, executable: Path, **settings: Any) -> None:
        module = tmp_path / "torch" / "utils" / "data" / "dataloader.py"
        module.parent.mkdir(parents=True)
        for folder in module.parents[:3]:
            (folder / "__init__.py").write_text("")
        module.write_text(LOADERS)
        (tmp_path / "script.py").write_text(SCRIPT)
        run = make_run_folder(tmp_path / "run", **settings)
        done = subprocess.run(
            [executable, "script.py"],
            env=environment(run),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        self.path, self.is_new, self.path_after, self.feedrate, self.modules = json.loads(done.stdout)
        self.facts: list[Fact] = read_facts(run)

    @property
    def kinds(self) -> list[str]:
        return [fact["kind"] for fact in self.facts]

    @property
    def why(self) -> str:
        (bare,) = [fact["why"] for fact in self.facts if fact["kind"] == "bare"]
        return str(bare)


def test_feedrate_is_served_without_the_packages_beside_it(tmp_path: Path, python: Path) -> None:
    hooked = Hooked(tmp_path, python)
    assert hooked.is_new
    assert hooked.path == hooked.path_after
    assert hooked.kinds == ["process", "patched"]
    assert Path(hooked.feedrate) == Path(feedrate.__file__)
    # What the launcher's Python has beside feedrate stays out of reach.
    assert not any("site-packages" in path and str(python.parent.parent) not in path for path in hooked.path)


def test_a_python_of_another_version_runs_bare(tmp_path: Path, python: Path) -> None:
    hooked = Hooked(tmp_path, python, python=[3, 7])
    have = ".".join(map(str, sys.version_info[:2]))
    assert hooked.why == f"its Python is {have}, and feedrate was installed for 3.7"
    assert hooked.feedrate is None


def test_a_feedrate_of_the_scripts_own_is_left_alone(tmp_path: Path, python: Path) -> None:
    (tmp_path / "feedrate").mkdir()
    (tmp_path / "feedrate" / "__init__.py").write_text("raise SystemExit('it was imported')")
    hooked = Hooked(tmp_path, python)
    assert hooked.why == (
        f"it has a feedrate of its own ({tmp_path / 'feedrate'}), which is not the one that runs it"
    )


def test_a_folder_that_only_has_the_name_is_no_package(tmp_path: Path, python: Path) -> None:
    (tmp_path / "feedrate" / "docs").mkdir(parents=True)
    hooked = Hooked(tmp_path, python)
    assert hooked.kinds == ["process", "patched"]
    assert hooked.feedrate is not None


def test_a_feedrate_that_cannot_be_imported_is_said_and_the_script_goes_on(
    tmp_path: Path, python: Path
) -> None:
    hooked = Hooked(tmp_path, python, package=str(tmp_path / "gone"))
    assert hooked.why.startswith("feedrate cannot be imported there: ")


def test_settings_that_lack_something_are_said_and_the_script_goes_on(tmp_path: Path, python: Path) -> None:
    assert Hooked(tmp_path, python, python=3).kinds == ["process", "bare"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_settings_that_are_damaged_leave_the_script_alone(tmp_path: Path, python: Path, text: str) -> None:
    run = make_run_folder(tmp_path / "run")
    (run / "settings.json").write_text(text)
    command = [python, "-c", "print('done')"]
    done = subprocess.run(command, env=environment(run), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
