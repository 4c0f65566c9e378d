# SPDX-License-Identifier: Apache-2.0
"""Runs a patch when the module it belongs to has been imported: at once if that is the case already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .session import session

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class PatchFinder:
    """First on sys.meta_path. Answers only for names that have a patch, with what the next finders answer."""

    def __init__(self) -> None:
        self.patches: dict[str, list[Callable[[Any], None]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.patches:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Patch the module after the loader ran it. The loader stays what it is: others look at its type."""
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: Any) -> None:
            # The instance's attribute; the class's own shows again.
            loader.__dict__.pop("exec_module", None)
            execute(module)
            self.apply(name, module)

        # Python leaves lines of its import system out of tracebacks, up to the first that is not of it.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            session.trouble(f"import {name}", error)

    def apply(self, name: str, module: Any) -> None:
        for patch in self.patches.get(name, ()):
            try:
                patch(module)
            except Exception as error:
                session.trouble(f"patch {name}", error)

    def add(self, name: str, patch: Callable[[Any], None]) -> None:
        self.patches.setdefault(name, []).append(patch)
        module = sys.modules.get(name)
        # A module that is being imported at this moment is left alone.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            try:
                patch(module)
            except Exception as error:
                session.trouble(f"patch {name}", error)


finder = PatchFinder()


def install_finder() -> None:
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
