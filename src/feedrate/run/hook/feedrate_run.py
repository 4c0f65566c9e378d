# SPDX-License-Identifier: Apache-2.0
"""Begins `feedrate run` in a Python process of the user's: waits for torch's DataLoader, and serves feedrate.

The user's sys.path stays as it is: our site-packages would shadow the script's own numpy, Pillow and torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

VARIABLE = "FEEDRATE_RUN"  # of the environment: the run's folder, or "off"
OFF = "off"
SETTINGS = "settings.json"
_LOADERS = "torch.utils.data.dataloader"


class FeedrateFinder:
    """Last on sys.meta_path: finds feedrate, and no other package, where the launcher has it."""

    def __init__(self, package: str, native: str) -> None:
        self._files = {"feedrate": os.path.join(package, "__init__.py"), "feedrate._native": native}
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name not in self._files:
            return None
        folders = [self._package] if name == "feedrate" else None
        return importlib.util.spec_from_file_location(
            name, self._files[name], submodule_search_locations=folders
        )


def begin() -> None:
    """Wait for the DataLoader. Whatever goes wrong, the process runs bare."""
    folder = os.environ.get(VARIABLE, "")
    if folder in ("", OFF) or not os.path.isfile(os.path.join(folder, SETTINGS)):
        return
    with open(os.path.join(folder, SETTINGS), encoding="utf-8") as file:
        settings = json.load(file)

    # Beside us on the PYTHONPATH, and in no package that could be imported from here.
    watch: Any = importlib.import_module("feedrate_imports").watch

    def begin_loaders(module: Any) -> None:
        try:
            problem = _find_problem(settings)
            if problem:
                note(folder, {"kind": "bare", "why": problem})
                return
            loaders = importlib.import_module("feedrate.run.inside.loaders")
            loaders.install(module, folder, settings, watch)
        except Exception as error:
            note(folder, {"kind": "bare", "why": f"feedrate cannot be imported there: {error!r}"})

    watch.begin()
    watch.add(_LOADERS, begin_loaders)
    note(folder, {"kind": "process"})


def _find_problem(settings: dict[str, Any]) -> str:
    """Return why the kernel cannot work in this Python; empty: it can."""
    wanted = ".".join(map(str, settings["python"]))
    have = ".".join(map(str, sys.version_info[:2]))
    if have != wanted:
        return f"its Python is {have}, and feedrate was installed for {wanted}"
    if not any(isinstance(finder, FeedrateFinder) for finder in sys.meta_path):
        finder = FeedrateFinder(settings["package"], settings["native"])
        found = importlib.util.find_spec("feedrate")
        # A folder of that name beside the script, a clone of ours perhaps, is no package, but found as one.
        is_folder = found is not None and found.origin is None
        sys.meta_path.insert(0 if is_folder else len(sys.meta_path), finder)
    found = importlib.util.find_spec("feedrate")
    origin = os.path.dirname(str(getattr(found, "origin", "")))
    if os.path.realpath(origin) != os.path.realpath(settings["package"]):
        return f"it has a feedrate of its own ({origin}), which is not the one that runs it"
    return ""


def note(folder: str, fact: dict[str, Any]) -> None:
    """Add a line to this process's facts; the launcher reads them when the command has ended."""
    try:
        path = os.path.join(folder, f"facts-{os.uname().nodename}-{os.getpid()}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")
    except OSError:
        pass
