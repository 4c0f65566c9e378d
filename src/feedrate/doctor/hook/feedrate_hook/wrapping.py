# SPDX-License-Identifier: Apache-2.0
"""Puts a wrapper in a function's place so that warnings, pickles and signatures stay as they are."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

# The warnings module passes over frames whose file name holds both words when it counts stack levels, so a
# warning still names the user's line, not ours.
UNSEEN = "<feedrate importlib_bootstrap>"
_MARK = "_feedrate_wrapper"
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_HOOK = os.path.dirname(os.path.abspath(__file__)) + os.sep

get_ident = threading.get_ident


def unseen(function: Any) -> Any:
    """Take a wrapper's frames out of warnings' stack levels, and out of our own looks."""
    function.__code__ = function.__code__.replace(co_filename=UNSEEN)
    return function


def install(owner: Any, path: str, make: Callable[[Any], Any]) -> bool:
    """Replace `owner.path` by make(original); return False when it is not there or is ours already."""
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if owner is None:
        return False
    # A module may make attributes when it is asked for them; only what is there already is wrapped.
    original = getattr(owner, name, None) if isinstance(owner, type) else vars(owner).get(name)
    if isinstance(owner, type) and isinstance(vars(owner).get(name), (classmethod, staticmethod, property)):
        return False
    if original is None or isinstance(original, (property, type)):
        return False
    if getattr(original, _MARK, False):
        return False
    wrapper = unseen(make(original))
    functools.update_wrapper(wrapper, original)
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
    if not isinstance(owner, type):
        _keep_picklable(owner, name, original, wrapper)
    return True


def is_ours(function: Any) -> bool:
    return bool(getattr(function, _MARK, False))


def _keep_picklable(owner: Any, name: str, original: Any, wrapper: Any) -> None:
    """A function is pickled as the name of its module and its own; there the wrapper must be found."""
    home = sys.modules.get(getattr(wrapper, "__module__", None) or "")
    found = home
    for part in wrapper.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is wrapper:
        return
    if found is original and "." not in wrapper.__qualname__:
        setattr(home, wrapper.__qualname__, wrapper)
    else:
        wrapper.__module__ = owner.__name__
        wrapper.__qualname__ = name


_INTERNAL, _LIBRARY, _USER = 1, 2, 3
_kinds: dict[str, int] = {}


def _kind_of(filename: str) -> int:
    kind = _kinds.get(filename)
    if kind is None:
        if filename == UNSEEN or filename.startswith(("<frozen", _HOOK)) or "-packages/torch/" in filename:
            kind = _INTERNAL
        elif "-packages/" in filename or filename.startswith((_STANDARD_LIBRARY, "<__array_function__")):
            kind = _LIBRARY
        else:
            kind = _USER
        _kinds[filename] = kind
    return kind


def is_internal(filename: str) -> bool:
    return _kind_of(filename) == _INTERNAL


def is_user(filename: str) -> bool:
    return _kind_of(filename) == _USER


def is_hook(filename: str) -> bool:
    return filename == UNSEEN or filename.startswith(_HOOK)


def caller(depth: int = 2) -> str:
    """Return file:line of the innermost frame that is the user's own, else of the innermost outside torch."""
    frame = sys._getframe(depth)
    outside = ""
    while frame is not None:
        kind = _kind_of(frame.f_code.co_filename)
        if kind == _USER:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if kind == _LIBRARY and not outside:
            outside = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return outside


def name_of(thing: Any) -> str:
    """Return module.name of a function, or of an object's class."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    if not hasattr(thing, "__qualname__"):
        thing = type(thing)
    return f"{getattr(thing, '__module__', None) or '?'}.{thing.__qualname__}"


class ByIdentity:
    """What is known about an object, for as long as it lives; works for objects that cannot be hashed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def get(self, thing: Any) -> Any:
        known = self._known.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None

    def put(self, thing: Any, value: Any) -> None:
        number = id(thing)
        known = self._known

        def forget(reference: Any) -> None:
            # Another object may live at the same address by now.
            if number in known and known[number][0] is reference:
                del known[number]

        known[number] = (weakref.ref(thing, forget), value)
