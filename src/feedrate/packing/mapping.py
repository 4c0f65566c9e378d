# SPDX-License-Identifier: Apache-2.0
"""The user's function for what is the same in every epoch: found by name, in any process, with the same code.

What goes into it and comes out of it is the business of build/mapper.py.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from feedrate.errors import UsageError

Function = Callable[[dict[str, Any]], Mapping[str, Any] | None]
Modules = tuple[tuple[str, str], ...]  # names and digests, sorted

# Folders that packages are installed to.
_INSTALLED = ("site-packages", "dist-packages")
# What this process has found already; scripts that are being run are not imported a second time.
_found: dict[tuple[str, str, Modules | None], Function] = {}
# Of the code that was imported: what the files say later is another matter.
_digests: dict[str, tuple[ModuleType, str, Modules]] = {}


class Map(NamedTuple):
    """A function that any process can find.

    Attributes:
        name: module and function: `maps:shrink`.
        folder: where the module is looked for first.
        digest: of the source of the whole module: helpers that the function calls count too.
        function: itself, where no other process could import it (a lambda, a notebook's).
        modules: of the user's own modules that the module imports, and that those import. None: not
            looked at, as for packs of earlier versions.
    """

    name: str
    folder: str
    digest: str
    function: Function | None = None
    modules: Modules | None = None

    def settings(self) -> dict[str, Any]:
        """Return what pack.json says about it."""
        modules = {} if self.modules is None else {"modules": dict(self.modules)}
        return {"function": self.name, "source": self.digest, **modules}

    def as_in(self, made_with: object) -> Map:
        """Return it with the digests that a pack's settings have of theirs."""
        is_earlier = isinstance(made_with, dict) and "modules" not in made_with
        return self._replace(modules=None) if is_earlier else self

    def find_change(self, made_with: Mapping[str, Any]) -> str | None:
        """Return the name of a module whose code is not what a pack's settings say; None: all are."""
        if self.digest != made_with.get("source"):
            return self.name.partition(":")[0]
        before, now = made_with.get("modules"), dict(self.modules or ())
        if not isinstance(before, dict):
            return None
        return next((n for n in sorted({*before, *now}) if before.get(n) != now.get(n)), None)

    def load(self) -> Function:
        """Return the function, imported if need be.

        Raises:
            UsageError: it is not there, or no longer what it was when packing began.
        """
        if self.function is not None:
            return self.function
        known = _found.get((self.name, self.digest, self.modules))
        if known is not None:
            return known
        module = _import(self.name, self.folder)
        digest, modules = _digest_module(module, self.name)
        changed = self._replace(digest=digest, modules=modules).find_change(self.settings())
        if changed is not None:
            raise UsageError(
                f"the code of {self.name} has changed since packing began: {changed} is another",
                hint="delete the unfinished pack and begin again, or undo the change",
            )
        function = _look_up(module, self.name)
        _found[self.name, self.digest, self.modules] = function
        return function


def find_map(wanted: str | Function) -> Map:
    """Find a function, given as itself or as `module:function` of the current folder.

    Raises:
        UsageError: there is no such function.
    """
    if not isinstance(wanted, str):
        return _describe_function(wanted)
    folder = os.getcwd()
    module_name, colon, function_name = wanted.partition(":")
    if not colon or not module_name or not function_name or os.sep in module_name:
        raise UsageError(
            f"'{wanted}' does not name a function",
            hint="write it like maps:shrink, for the function shrink in maps.py of the current folder",
        )
    if module_name.endswith(".py"):
        raise UsageError(
            f"'{module_name}' is a file; a module has no suffix",
            hint=f"write {module_name.removesuffix('.py')}:{function_name}",
        )
    module = _import(wanted, folder)
    function, (digest, modules) = _look_up(module, wanted), _digest_module(module, wanted)
    _found[wanted, digest, modules] = function
    return Map(wanted, folder, digest, modules=modules)


def check_findable(wanted: Map, *, workers: int | None) -> None:
    """Refuse a function that only this process has, where others are to call it."""
    if wanted.function is not None and workers != 1:
        raise UsageError(
            f"the map {wanted.name} cannot be imported by the processes that pack",
            hint="write it as a function at the top of a file, or pack with workers=1",
        )


def _describe_function(function: Function) -> Map:
    if not callable(function):
        raise UsageError(f"map must be a function or 'module:function', got {function!r}")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    qualified = getattr(function, "__qualname__", type(function).__name__)
    file = getattr(module, "__file__", None)
    is_found = module is not None and _resolve(module, qualified) is function
    if module is None or file is None or not is_found:
        return Map(
            f"{getattr(module, '__name__', '?')}:{qualified}", "", _digest_function(function), function
        )
    module_name, folder = module.__name__, os.path.dirname(os.path.abspath(file))
    if module_name == "__main__":
        # Other processes know the script by its file.
        module_name = os.path.splitext(os.path.basename(file))[0]
    else:
        is_package = os.path.basename(file).startswith("__init__.")
        for _ in range(module_name.count(".") + is_package):
            folder = os.path.dirname(folder)
    name = f"{module_name}:{qualified}"
    digest, modules = _digest_module(module, name)
    _found[name, digest, modules] = function
    return Map(name, folder, digest, modules=modules)


def _import(name: str, folder: str) -> ModuleType:
    module_name = name.partition(":")[0]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise UsageError(f"{module_name} cannot be imported: {error}") from error
        raise UsageError(
            f"there is no module '{module_name}' in {folder}, nor among the installed ones",
            hint=f"run the command in the folder of {module_name.partition('.')[0]}.py",
        ) from error
    except Exception as error:
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error


def _look_up(module: ModuleType, name: str) -> Function:
    wanted = name.partition(":")[2]
    found = _resolve(module, wanted)
    if found is None:
        import difflib

        near = difflib.get_close_matches(wanted, [n for n in vars(module) if not n.startswith("_")], n=1)
        raise UsageError(
            f"{module.__name__} has no function '{wanted}'",
            hint=f"did you mean '{near[0]}'?" if near else None,
        )
    if not callable(found):
        raise UsageError(f"{name} is not a function: {type(found).__name__}")
    function: Function = found
    return function


def _resolve(module: ModuleType, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        return None


def _digest_module(module: ModuleType, name: str) -> tuple[str, Modules]:
    """Return the digest of a module's source, and those of the user's own modules that it imports."""
    known = _digests.get(module.__name__)
    if known is None or known[0] is not module:
        try:
            source = inspect.getsource(module)
        except (OSError, TypeError):
            # Compiled code: its name has to do.
            source = name
        own = _digest_imports(source, name.partition(":")[0], module.__package__ or "")
        known = _digests[module.__name__] = module, _digest(source), own
    return known[1:]


def _digest_imports(source: str, root: str, package: str) -> Modules:
    """Return the digests of modules that a module's code imports, and that theirs does.

    By what the code says, so that an import inside of a function counts, and nothing is imported for it.
    Installed packages are left out: nobody edits them between two runs, and there are thousands of files.
    """
    specs: dict[str, ModuleSpec | None] = {}
    found: dict[str, str] = {}
    waiting = [*_parents(root), *_imported_names(source, package)]
    seen = {root}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = _find_own(name, specs)
        if spec is None or spec.origin is None:
            continue  # not the user's, or a folder without code
        try:
            with open(spec.origin, "rb") as file:
                data = file.read()
        except OSError:
            continue
        found[name] = hashlib.sha256(data).hexdigest()[:16]
        if spec.origin.endswith(".py"):
            inner = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            waiting += _imported_names(data, inner)
    return tuple(sorted(found.items()))


def _imported_names(source: str | bytes, package: str) -> Iterator[str]:
    """Yield the modules that code names in its imports; some may be functions instead."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (*_parents(alias.name), alias.name)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # one that leads out of its package
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield from (*_parents(base), base, *(f"{base}.{alias.name}" for alias in node.names))


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _find_own(name: str, specs: dict[str, ModuleSpec | None]) -> ModuleSpec | None:
    """Return where a module of the user's own is; None: there is none of that name that is."""
    if name not in specs:
        parent, _, _ = name.rpartition(".")
        spec = None
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            if not parent:
                spec = importlib.util.find_spec(name) if name != "feedrate" else None
            elif (above := _find_own(parent, specs)) is not None:
                places = above.submodule_search_locations
                spec = None if places is None else PathFinder.find_spec(name, list(places))
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        specs[name] = None if any(map(_is_installed, places)) else spec
    return specs[name]


def _is_installed(place: str) -> bool:
    """Say whether a module's file, or a package's folder, belongs to Python or to an installed package."""
    is_pythons = place in ("built-in", "frozen") or Path(place).is_relative_to(sysconfig.get_path("stdlib"))
    return is_pythons or any(folder in Path(place).parts for folder in _INSTALLED)


def _digest_function(function: Function) -> str:
    try:
        return _digest(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return _digest(repr((code.co_code, code.co_names, code.co_consts) if code else type(function)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
