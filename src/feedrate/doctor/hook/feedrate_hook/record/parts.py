# SPDX-License-Identifier: Apache-2.0
"""The named parts of a fetch: each moment of it belongs to the innermost part that is open, or to none.

So does each moment of the prelude, what the script's first thread reads and decodes before it asks for a
batch: a dataset that loads all of its samples when it is made keeps the training from beginning.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from .. import clock
from ..session import session
from ..wrapping import caller, get_ident, install, unseen
from . import samples

_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8  # of a type's flags; the second came with Python 3.10


class Fetch:
    """The times of one probed fetch, by part. Belongs to the thread that fetches."""

    times_steps = True  # each transform of a Compose by its name, too
    __slots__ = (
        "_cpu", "_kinds", "_queue", "_rest", "_slack", "_stack", "_top", "_wall",
        "events", "io", "opened", "opening_ns", "times",
    )  # fmt: skip

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
    taking: Any = None  # the iterator that the hook takes a batch from, past its own wrapper


here = Here()


def timed(
    name: str = "",
    choose: Callable[[Any, Any], str | None] | None = None,
    takes_path: bool = False,
    holds_parts: bool = False,
) -> Callable[[Any], Any]:
    """Return what makes a wrapper that times a function as a part of the fetch.

    `choose` names it by its arguments, where that depends on them; None: this call is not timed.
    `holds_parts`: parts of the same kind inside of it are timed by their own names.
    """
    kind = name if holds_parts else name.partition(":")[0]

    def make(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            fetch = open_fetches.get(get_ident()) if open_fetches else None
            if fetch is None:
                return original(*args, **kwargs)
            part = choose(args, kwargs) if choose is not None else name
            if part is None or not fetch.enter(kind or part.partition(":")[0], part):
                return original(*args, **kwargs)
            try:
                if samples.Calls.is_open and ":PIL." in part:
                    samples.note_call(part.partition(":")[2].replace("crop+", ""), args, kwargs)
                if takes_path and args and isinstance(args[0], str):
                    fetch.opened.append(args[0])
                return original(*args, **kwargs)
            finally:
                fetch.leave()

        return wrapper

    return make


def name_resize(args: Any, kwargs: Any) -> str:
    """Pillow's resize takes a box, too: it crops on the way, as RandomResizedCrop does."""
    has_box = kwargs.get("box", args[3] if len(args) > 3 else None) is not None
    return "transform:PIL.crop+resize" if has_box else "transform:PIL.resize"


def name_load(args: Any, _kwargs: Any) -> str | None:
    """Pillow decodes in load(), which it calls before each operation: only the first call has work to do."""
    return "decode:PIL" if getattr(args[0], "tile", True) else None


def name_chunked_read(args: Any, _kwargs: Any) -> str:
    """h5py unpacks in its reads; the first ones also tell what from."""
    if samples.Chunks.reads < samples.MOST_READS and here.is_fetching:
        samples.note_chunks(args[0], args[1] if len(args) > 1 else None)
    return "read:h5py"


def name_of_class(args: Any, _kwargs: Any) -> str:
    """Of a method, the name of its object's class: `transform:RandomCrop`."""
    return f"transform:{type(args[0]).__name__}"


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

    # Replacing a code object costs a microsecond or two; all of these share one.
    global _step_code
    if _step_code is None:
        _step_code = unseen(call).__code__
    call.__code__ = _step_code
    return call


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


def patch_parts(entries: list[tuple[str, Any]], module: Any) -> None:
    """Install a module's entries of the catalogue: (attribute, part name or maker of the wrapper)."""
    is_patched = False
    for path, part in entries:
        owner = getattr(module, path.split(".")[0], None) if "." in path else module
        if not takes_attributes(owner):
            continue
        make = part
        if not callable(part):
            make = timed(part.rstrip("@+"), takes_path=part.endswith("@"), holds_parts=part.endswith("+"))
        if install(module, path, make):
            is_patched = True
            _note_method(module, path)
    if is_patched:
        session.facts("patched", module=module.__name__)


def takes_attributes(owner: Any) -> bool:
    """Whether it takes new ones: classes that are compiled often do not."""
    if not isinstance(owner, type):
        return True
    return bool(owner.__flags__ & _HEAP_TYPE and not owner.__flags__ & _IMMUTABLE)


def _note_method(module: Any, path: str) -> None:
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, module)
    wrapper = vars(owner)[name]
    original = wrapper.__wrapped__
    if isinstance(owner, type) and original.__qualname__ == f"{owner.__qualname__}.{name}":  # not inherited
        _Methods.found.append((owner, name, original, wrapper))
        if not _Methods.are_wrapped:
            setattr(owner, name, original)


_ALL_OF = 2000  # calls that are all timed
_THEN_EVERY = 16
_MOST_PARTS = 20
_KINDS = ("read", "decode")


class Prelude(Fetch):
    """From the start of the program to its first loader's iterator.

    There may be millions of parts, so of each only the first calls are all timed, and later ones now and
    then: their number says what the others took.
    """

    times_steps = False
    __slots__ = ("_calls", "_inner", "_places", "began", "thread")

    def __init__(self) -> None:
        self.began = clock.read()
        super().__init__(self.began)
        self.thread = get_ident()
        self._calls: dict[str, int] = {}
        self._inner: set[str] = set()  # called by others of their kind, which have their time
        self._places: dict[str, str] = {}
        self.opened = deque(maxlen=1)  # type: ignore[assignment]  # which files these are is not asked

    def enter(self, kind: str, name: str) -> bool:
        if not name.startswith(_KINDS) or name in self._inner:
            return False
        calls = self._calls.get(name, 0) + 1
        self._calls[name] = calls
        if calls > _ALL_OF and calls % _THEN_EVERY:
            return False
        if not super().enter(kind, name):
            # Where the outer one is left untimed later, this one would be taken for another.
            self._inner.add(name)
            return False
        if calls == 1:
            self._places[name] = caller()
        return True

    def described_parts(self) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for name, (wall, _, _, timed) in self.times.items():
            calls = self._calls[name] if name not in self._inner else timed
            scale = calls / timed
            place = self._places.get(name, "")
            parts.append({"name": name, "wall_ns": round(wall * scale), "calls": calls, "place": place})
        return sorted(parts, key=lambda part: -part["wall_ns"])[:_MOST_PARTS]


class _Now:
    prelude: Prelude | None = None  # of this process, while it lasts


def begin_prelude() -> None:
    _Now.prelude = open_fetches[get_ident()] = Prelude()


def end_prelude(is_forgotten: bool = False) -> None:
    """A loader's iterator is made, or asked.

    `is_forgotten`: what a worker does before its first batch is not what the training waits for alone.
    """
    prelude, _Now.prelude = _Now.prelude, None
    if prelude is None or open_fetches.get(prelude.thread) is not prelude:
        return
    del open_fetches[prelude.thread]
    if not is_forgotten:
        wall, _, _ = clock.since(prelude.began)
        session.facts("before-loop", wall_ns=wall, parts=prelude.described_parts())
