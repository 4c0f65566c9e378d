# SPDX-License-Identifier: Apache-2.0
"""The user's function for what is the same in every epoch: found by name, in any process, with the same code.

What goes into it and comes out of it is `mapped.py`'s business.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from feedrate.errors import UsageError

Function = Callable[[dict[str, Any]], Mapping[str, Any] | None]

# What this process has found already; scripts that are being run are not imported a second time.
_found: dict[tuple[str, str], Function] = {}
# Of the code that was imported: what the file says later is another matter.
_digests: dict[str, tuple[ModuleType, str]] = {}


class Map(NamedTuple):
    """A function that any process can find.

    Attributes:
        name: module and function: `maps:shrink`.
        folder: where the module is looked for first.
        digest: of the source of the whole module: helpers that the function calls count too.
        function: itself, where no other process could import it (a lambda, a notebook's).
    """

    name: str
    folder: str
    digest: str
    function: Function | None = None

    def settings(self) -> dict[str, str]:
        """Return what pack.json says about it."""
        return {"function": self.name, "source": self.digest}

    def load(self) -> Function:
        """Return the function, imported if need be.

        Raises:
            UsageError: it is not there, or no longer what it was when packing began.
        """
        if self.function is not None:
            return self.function
        known = _found.get((self.name, self.digest))
        if known is not None:
            return known
        module = _import(self.name, self.folder)
        if _digest_module(module, self.name) != self.digest:
            raise UsageError(
                f"the code of {self.name} has changed since packing began",
                hint="delete the unfinished pack and begin again, or undo the change",
            )
        function = _look_up(module, self.name)
        _found[self.name, self.digest] = function
        return function


def find_map(wanted: str | Function, *, folder: str | None = None) -> Map:
    """Find a function, given as itself or as `module:function`.

    Raises:
        UsageError: there is no such function.
    """
    if not isinstance(wanted, str):
        return _describe_function(wanted)
    folder = os.path.abspath(folder or os.getcwd())
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
    function, digest = _look_up(module, wanted), _digest_module(module, wanted)
    _found[wanted, digest] = function
    return Map(wanted, folder, digest)


def refuse_unfindable(wanted: Map, *, workers: int | None) -> None:
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
    digest = _digest_module(module, name)
    _found[name, digest] = function
    return Map(name, folder, digest)


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


def _digest_module(module: ModuleType, name: str) -> str:
    known = _digests.get(module.__name__)
    if known is None or known[0] is not module:
        try:
            source = inspect.getsource(module)
        except (OSError, TypeError):
            # Compiled code: its name has to do.
            source = name
        known = _digests[module.__name__] = module, _digest(source)
    return known[1]


def _digest_function(function: Function) -> str:
    try:
        return _digest(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return _digest(repr((code.co_code, code.co_names, code.co_consts) if code else type(function)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
