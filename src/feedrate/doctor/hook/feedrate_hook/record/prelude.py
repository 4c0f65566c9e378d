# SPDX-License-Identifier: Apache-2.0
"""What the script's first thread reads and decodes before it asks for a batch: a dataset that loads all of
its samples when it is made keeps the training from beginning.

Parts are timed as those of a fetch are. There may be millions of them, so of each only the first calls are
all timed, and later ones now and then: their number says what the others took.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .. import clock
from ..session import session
from ..wrapping import caller
from .parts import Fetch, open_fetches

_ALL_OF = 2000  # calls that are all timed
_THEN_EVERY = 16
_MOST_PARTS = 20
_KINDS = ("read", "decode")


class Prelude(Fetch):
    """From the start of the program to its first loader's iterator."""

    times_steps = False
    __slots__ = ("_began", "_calls", "_inner", "_places", "_thread")

    def __init__(self) -> None:
        self._began = clock.read()
        super().__init__(self._began)
        self._thread = threading.get_ident()
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

    def begin(self) -> None:
        open_fetches[self._thread] = self

    def end(self) -> None:
        """The first loader is asked for its batches."""
        if open_fetches.get(self._thread) is self:
            del open_fetches[self._thread]
            wall, cpu, _ = clock.since(self._began)
            session.facts("before-loop", wall_ns=wall, cpu_ns=cpu, parts=self._parts())

    def forget(self) -> None:
        """This process does not train."""
        if open_fetches.get(self._thread) is self:
            del open_fetches[self._thread]

    def _parts(self) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for name, (wall, cpu, _, timed) in self.times.items():
            calls = self._calls[name] if name not in self._inner else timed
            scale = calls / timed
            parts.append(
                {
                    "name": name,
                    "wall_ns": round(wall * scale),
                    "cpu_ns": round(cpu * scale),
                    "calls": calls,
                    "place": self._places.get(name, ""),
                }
            )
        return sorted(parts, key=lambda part: -part["wall_ns"])[:_MOST_PARTS]


class Now:
    """The prelude of this process, while it lasts."""

    prelude: Any = None


def begin() -> None:
    Now.prelude = Prelude()
    Now.prelude.begin()


def end() -> None:
    """A loader's iterator is made, or asked."""
    prelude, Now.prelude = Now.prelude, None
    if prelude is not None:
        prelude.end()


def forget() -> None:
    """This is a worker: what it does before its first batch is not what the training waits for alone."""
    prelude, Now.prelude = Now.prelude, None
    if prelude is not None:
        prelude.forget()
