# SPDX-License-Identifier: Apache-2.0
"""Puts a wrapper in a function's place so that warnings, pickles and signatures stay as they are; listens to
Python's audit events; tells the user's own frames from those of libraries and of the hook.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from .session import Noted

# One audit hook for all who listen: it is called at each event, several times a sample.
_listeners: dict[str, Callable[[Any], None]] = {}


def listen(event: str, listener: Callable[[Any], None]) -> None:
    """Call `listener` with the arguments of each such event, for the life of this process and its forks."""
    if not _listeners:
        sys.addaudithook(lambda event, args: _listeners[event](args) if event in _listeners else None)
    _listeners[event] = listener


# The warnings module passes over frames whose file name holds both words when it counts stack levels, so a
# warning still names the user's line, not ours.
UNSEEN = "<feedrate importlib_bootstrap>"
_MARK = "_feedrate_wrapper"
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_HOOK = os.path.dirname(os.path.abspath(__file__)) + os.sep

get_ident = threading.get_ident


def unseen(function: Any) -> Any:
    """Take a wrapper's frames out of warnings' stack levels, and out of our own looks."""
    code = function.__code__ = function.__code__.replace(co_filename=UNSEEN)
    if _Compiler.skip is None:
        _Compiler.waiting.append(code)
    else:
        _Compiler.skip(code)
    return function


class _Compiler:
    """torch.compile looks at every frame that runs while it is at work; it shall leave ours alone."""

    skip: Any = None
    waiting: ClassVar[list[Any]] = []


def hide_from_compiler(torch: Any) -> None:
    """torch has been imported: mark all code of the hook, and from now on each new wrapper."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        _Compiler.skip = frames.skip_code
    else:  # newer ones
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        _Compiler.skip = lambda code: frames.set_code_exec_strategy(code, skipped)
    for code in _Compiler.waiting:
        _Compiler.skip(code)
    _Compiler.waiting = []
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__}."):
            for code in _codes_of(module):
                _Compiler.skip(code)


def _codes_of(thing: Any, depth: int = 0) -> list[Any]:
    """Return the code of a module's, a class's or a function's own functions."""
    found = []
    for value in list(vars(thing).values()):
        if isinstance(value, type) and depth == 0 and value.__module__ == thing.__name__:
            found += _codes_of(value, depth + 1)
        code = getattr(value, "__code__", None)
        if code is not None:
            found += [code, *(c for c in code.co_consts if hasattr(c, "co_code"))]
    return found


def install(owner: Any, path: str, make: Callable[[Any], Any]) -> bool:
    """Replace `owner.path` by make(original); return False where it is not there, or ours already."""
    with Noted(f"patch {getattr(owner, '__name__', owner)}.{path}"):
        return _install(owner, path, make)
    return False


def _install(owner: Any, path: str, make: Callable[[Any], Any]) -> bool:
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    if owner is None:
        return False
    # A module may make attributes when it is asked for them; only what is there already is wrapped.
    original = getattr(owner, name, None) if isinstance(owner, type) else vars(owner).get(name)
    if isinstance(owner, type) and isinstance(vars(owner).get(name), (classmethod, staticmethod, property)):
        return False
    if original is None or isinstance(original, (property, type)) or getattr(original, _MARK, False):
        return False
    wrapper = unseen(make(original))
    functools.update_wrapper(wrapper, original)
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
    if not isinstance(owner, type):
        _keep_picklable(owner, name, original, wrapper)
    return True


def install_all(entries: list[tuple[str, Callable[[Any], Any]]], owner: Any) -> None:
    for path, make in entries:
        install(owner, path, make)


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
_LONGEST_TRAIL = 16
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


def trail(depth: int = 2) -> tuple[str, ...]:
    """Return file:line of the user's own frames, the innermost first: the way that the program took here."""
    frame: Any = sys._getframe(depth)
    places: list[str] = []
    while frame is not None and len(places) < _LONGEST_TRAIL:
        if _kind_of(frame.f_code.co_filename) == _USER:
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(places)


def name_of(thing: Any) -> str:
    """Return module.name of a function, or of an object's class."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    if not hasattr(thing, "__qualname__"):
        thing = type(thing)
    return f"{getattr(thing, '__module__', None) or '?'}.{thing.__qualname__}"


def living(kind: Any) -> list[Any]:
    """Return the objects of a class, and of those derived from it; none of None: nobody has imported it."""
    # type(), not isinstance(): lazy proxies answer __class__ by running code.
    return [] if kind is None else [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


class ByIdentity:
    """What is known about an object, for as long as it lives; works for objects that cannot be hashed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}
        self._last: tuple[Any, Any] | None = None  # what was asked for last: mostly it is asked for again

    def get(self, thing: Any) -> Any:
        known = self._last
        if known is None or known[0]() is not thing:
            known = self._last = self._known.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else None

    def alive(self) -> list[tuple[Any, Any]]:
        """Return the objects that still live, in the order in which they were put, with what is known."""
        found = [(reference(), value) for reference, value in list(self._known.values())]
        return [(thing, value) for thing, value in found if thing is not None]

    def put(self, thing: Any, value: Any) -> None:
        number = id(thing)
        known = self._known

        def forget(reference: Any) -> None:
            # Another object may live at the same address by now.
            if number in known and known[number][0] is reference:
                del known[number]
                self._last = None

        known[number] = (weakref.ref(thing, forget), value)
        self._last = None
