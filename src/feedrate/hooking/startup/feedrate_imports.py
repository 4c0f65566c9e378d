# SPDX-License-Identifier: Apache-2.0
"""Calls a function when a module of the user's has been imported: at once if that is the case already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class ImportWatch:
    """First on sys.meta_path. Answers for names that are waited for, with what the next finders answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[Any], None]]] = {}
        self._asking: set[str] = set()

    def begin(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def add(self, name: str, then: Callable[[Any], None]) -> None:
        """Call `then(module)` once the module has been imported. It must not raise."""
        self._waiting.setdefault(name, []).append(then)
        module = sys.modules.get(name)
        # A module that is being imported at this moment is left alone.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            then(module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._waiting or name in self._asking:
            return None
        self._asking.add(name)  # another finder like this one may ask all finders, too
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    self._watch(name, spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Go on after the loader ran the module. The loader stays what it is: others look at its type."""
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: Any) -> None:
            # The instance's attribute; the class's own shows again.
            getattr(loader, "__dict__", {}).pop("exec_module", None)
            execute(module)
            if getattr(module, "__name__", name) != name:
                return  # another one that the same loader loads, as an archive's does
            for then in self._waiting[name]:
                then(module)

        # Python leaves lines of its import system out of tracebacks, up to the first that is not of it.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # built into Python: nobody waits for such a module


watch = ImportWatch()
