# SPDX-License-Identifier: Apache-2.0
"""The named parts of a fetch: each moment of it belongs to the innermost part that is open, or to none."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from .. import clock
from ..session import session
from ..wrapping import get_ident, install, unseen
from . import calls

_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8  # of a type's flags; the second came with Python 3.10


class Fetch:
    """The times of one probed fetch, by part. Belongs to the thread that fetches."""

    times_steps = True  # each transform of a Compose by its name, too
    __slots__ = (
        "_cpu",
        "_kinds",
        "_queue",
        "_rest",
        "_slack",
        "_stack",
        "_top",
        "_wall",
        "events",
        "io",
        "opened",
        "opening_ns",
        "times",
    )

    def __init__(self, start: clock.Reading, io: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._wall, self._cpu, self._queue = start
        self.io = io  # what had been read when it began
        self._slack = 0
        self._rest = [0, 0, 0, 0]
        self._top = self._rest
        self._stack: list[list[int]] = []
        self._kinds: list[str] = []
        self.times: dict[str, list[int]] = {}  # name -> wall, cpu, queue, calls
        self.events = 0
        self.opening_ns = 0  # what it took to get ready for it
        self.opened: list[str] = []

    def mark(self) -> None:
        """Give the time since the last mark to the part that was open."""
        wall = clock.wall_ns()
        cpu = clock.cpu_ns()
        top = self._top
        wall_spent = wall - self._wall
        cpu_spent = cpu - self._cpu
        top[0] += wall_spent
        top[1] += cpu_spent
        self._slack += wall_spent - cpu_spent
        if self._slack > clock.SLACK_NS:
            queue = clock.queue_ns(wall, cpu)
            top[2] += queue - self._queue
            self._queue = queue
            self._slack = 0
        self._wall = wall
        self._cpu = cpu
        self.events += 1

    def enter(self, kind: str, name: str) -> bool:
        """Open a part; False: it counts as part of the one around it, which is of its kind."""
        kinds = self._kinds
        if kinds and kinds[-1] == kind:
            return False
        self.mark()
        self._stack.append(self._top)
        kinds.append(kind)
        top = self.times.get(name)
        if top is None:
            top = self.times[name] = [0, 0, 0, 0]
        top[3] += 1
        self._top = top
        return True

    def leave(self) -> None:
        self.mark()
        self._kinds.pop()
        self._top = self._stack.pop()


# The probed fetches that are under way, by thread: mostly none, and a wrapper sees that at a glance.
open_fetches: dict[int, Fetch] = {}


class Here(threading.local):
    """What the calling thread is doing."""

    is_fetching = False
    is_saving = False
    is_pinning = False
    taking: Any = None  # the iterator that the hook takes a batch from, past its own wrapper


here = Here()


def timed(name: str, takes_path: bool = False, holds_parts: bool = False) -> Callable[[Any], Any]:
    """Return what makes a wrapper that times a function as a part of the fetch.

    `holds_parts`: parts of the same kind inside of it are timed by their own names.
    """
    kind = name if holds_parts else name.partition(":")[0]
    function = name.partition(":")[2]
    is_noted = function.startswith("PIL")

    def make(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            fetch = open_fetches.get(get_ident()) if open_fetches else None
            if fetch is None or not fetch.enter(kind, name):
                return original(*args, **kwargs)
            try:
                if is_noted and calls.Calls.is_open:
                    calls.note_call(function, args, kwargs)
                if takes_path and args and isinstance(args[0], str):
                    fetch.opened.append(args[0])
                return original(*args, **kwargs)
            finally:
                fetch.leave()

        return wrapper

    return make


def timed_generator(name: str) -> Callable[[Any], Any]:
    """Return what makes a wrapper that times each value which a generator makes, also in later fetches."""
    kind = name.partition(":")[0]

    def make(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            is_timed = here.is_fetching or get_ident() in open_fetches
            return _timed_values(made, kind, name) if is_timed and hasattr(made, "send") else made

        return wrapper

    return make


def _timed_values(made: Any, kind: str, name: str) -> Any:
    try:
        while True:
            fetch = open_fetches.get(get_ident()) if open_fetches else None
            is_timed = fetch is not None and fetch.enter(kind, name)
            try:
                value = next(made)
            except StopIteration as end:
                return end.value
            finally:
                if is_timed:
                    fetch.leave()  # type: ignore[union-attr]
            yield value
    finally:
        made.close()


def timed_resize(original: Any) -> Any:
    """Pillow's resize takes a box, too: it crops on the way, as RandomResizedCrop does."""

    def resize(*args: Any, **kwargs: Any) -> Any:
        fetch = open_fetches.get(get_ident()) if open_fetches else None
        if fetch is None:
            return original(*args, **kwargs)
        has_box = kwargs.get("box", args[3] if len(args) > 3 else None) is not None
        if not fetch.enter("transform", "transform:PIL.crop+resize" if has_box else "transform:PIL.resize"):
            return original(*args, **kwargs)
        try:
            if calls.Calls.is_open:
                calls.note_call("PIL.resize", args, kwargs)
            return original(*args, **kwargs)
        finally:
            fetch.leave()

    return resize


def timed_load(original: Any) -> Any:
    """Pillow decodes in load(), which it calls before each operation: only the first call has work to do."""

    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        fetch = open_fetches.get(get_ident()) if open_fetches else None
        if fetch is None or not getattr(self, "tile", True) or not fetch.enter("decode", "decode:PIL"):
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            fetch.leave()

    return load


def timed_by_class(original: Any) -> Any:
    """Time a method under the name of its object's class: `transform:RandomCrop`."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        fetch = open_fetches.get(get_ident()) if open_fetches else None
        if fetch is None or not fetch.enter("transform", f"transform:{type(self).__name__}"):
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            fetch.leave()

    return wrapper


class _Steps:
    """Stands in for a Compose while it runs: its transforms are timed, everything else is its own."""

    def __init__(self, compose: Any, fetch: Fetch) -> None:
        self._compose = compose
        self.transforms = [_time_step(step, fetch) for step in compose.transforms]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compose, name)


def _time_step(step: Any, fetch: Fetch) -> Any:
    if type(step).__name__ == "Compose":
        return step  # its own steps are timed
    name = f"transform:{getattr(step, '__name__', None) or type(step).__name__}"

    def call(*args: Any, **kwargs: Any) -> Any:
        if not fetch.enter("transform", name):
            return step(*args, **kwargs)
        try:
            return step(*args, **kwargs)
        finally:
            fetch.leave()

    return _unseen_step(call)


def _unseen_step(function: Any) -> Any:
    # Replacing a code object costs a microsecond or two; all of these share one.
    global _step_code
    if _step_code is None:
        _step_code = unseen(function).__code__
    function.__code__ = _step_code
    return function


_step_code: Any = None


def timed_steps(original: Any) -> Any:
    """Time each transform of a torchvision Compose: the original runs on a stand-in with timed transforms."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        fetch = open_fetches.get(get_ident()) if open_fetches else None
        if fetch is None or not fetch.times_steps:
            return original(self, *args, **kwargs)
        return original(_Steps(self, fetch), *args, **kwargs)

    return wrapper


class _Methods:
    """The wrapped methods, which are put back while no fetch is to be timed for long.

    Not so functions of modules: a dataset may hold one, and it is pickled as the name that leads to it.
    """

    found: ClassVar[list[tuple[type, str, Any, Any]]] = []  # class, name, original, wrapper
    are_wrapped = True


def wrap_methods(are_wrapped: bool) -> None:
    """Put the wrappers, or the original methods, in their place."""
    if _Methods.are_wrapped == are_wrapped:
        return
    _Methods.are_wrapped = are_wrapped
    for owner, name, original, wrapper in _Methods.found:
        present, wanted = (original, wrapper) if are_wrapped else (wrapper, original)
        if vars(owner).get(name) is present:  # else somebody has put in one of his own
            setattr(owner, name, wanted)


def patch_parts(module: Any, entries: list[tuple[str, Any]]) -> None:
    """Install a module's entries of the catalogue: (attribute, part name or maker of the wrapper)."""
    is_patched = False
    for path, part in entries:
        make = part if callable(part) else _timed_as(part)
        try:
            if _can_be_patched(module, path) and install(module, path, make):
                is_patched = True
                _note_method(module, path)
        except Exception as error:
            session.trouble(f"patch {module.__name__}.{path}", error)
    if is_patched:
        session.facts("patched", module=module.__name__)


def _timed_as(part: str) -> Callable[[Any], Any]:
    return timed(part.rstrip("@+"), takes_path=part.endswith("@"), holds_parts=part.endswith("+"))


def _can_be_patched(module: Any, path: str) -> bool:
    """Whether the owner of a name takes new attributes: classes that are compiled often do not."""
    owner = getattr(module, path.split(".")[0], None) if "." in path else module
    return not isinstance(owner, type) or bool(
        owner.__flags__ & _HEAP_TYPE and not owner.__flags__ & _IMMUTABLE
    )


def _note_method(module: Any, path: str) -> None:
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, module)
    wrapper = vars(owner)[name]
    original = wrapper.__wrapped__
    if isinstance(owner, type) and original.__qualname__ == f"{owner.__qualname__}.{name}":  # not inherited
        _Methods.found.append((owner, name, original, wrapper))
        if not _Methods.are_wrapped:
            setattr(owner, name, original)
