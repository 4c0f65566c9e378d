# SPDX-License-Identifier: Apache-2.0
"""Looks at the stacks, counted: which lines of the user's own code the time falls on."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.records import Process

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOADER = "torch/utils/data/_utils/"
_LEAST_WATCHED = 10
# Installed packages, the standard library (in lib64, too, or zipped), code made up at run time, our hook.
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/(python|pypy)3[^/]*/|/python3\d+\.zip/"
    r"|^<(frozen|__array_function__|attrs|decorator)|feedrate_hook"
)


@dataclass(frozen=True, slots=True)
class HotPlace:
    """A function, with the line that most looks found it at.

    Attributes:
        share: of all looks of that kind.
        on_cpu: share of its looks in which the thread was computing, not waiting.
        is_python: the looks fall on many places of the function: it is interpreted, not one call in C.
        is_own: the user's code, which can be changed; else a library's, that none of it was on the stack of.
    """

    place: str
    function: str
    share: float
    on_cpu: float
    is_python: bool
    source: str
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Looks:
    """All looks of one kind (inside fetches, or in the training loop outside of waits).

    `undrawn`: share of the looks at watched samples before their first random number; None: none was watched.
    """

    count: int
    on_cpu: float
    undrawn: float | None
    places: tuple[HotPlace, ...]
    lines: Mapping[str, float]  # file:line -> share

    @property
    def own(self) -> tuple[HotPlace, ...]:
        """Return the places in the user's own code: advice is given about no others."""
        return tuple(place for place in self.places if place.is_own)


def count_looks(
    processes: Sequence[Process], *, in_fetch: bool, in_model: bool = True, phase: int = layout.REAL
) -> Looks:
    """Count the looks by the innermost function that is the user's own.

    Without those `in_model`, a line that calls the model has only the looks at what else it does.
    """
    tallies: dict[str, Tally] = defaultdict(Tally)
    watched = undrawn = 0
    for process in processes:
        for record in process.of(layout.STACK, phase=phase):
            bits = int(record["a"])
            if bool(bits & layout.IN_FETCH) != in_fetch or (not in_fetch and bits & layout.IN_WAIT):
                continue
            if bits & layout.IN_MODEL and not in_model:
                continue
            if bits & layout.DRAWS_KNOWN:
                # Taken inside of chosen samples: they say nothing of what happens between samples.
                watched += 1
                undrawn += not bits & layout.RANDOM_DRAWN
                continue
            frame, is_innermost = _own_frame(process.name(record["name"]).split(";"))
            place, _, function = frame.partition(" ")
            path = place.partition("@")[0].rpartition(":")[0]
            tallies[f"{path} {function}"].add(place, is_innermost, bits)
    total = sum(tally.looks for tally in tallies.values())
    ranked = sorted(tallies.items(), key=lambda item: -item[1].looks)[:12]
    return Looks(
        total,
        sum(tally.on_cpu for tally in tallies.values()) / total if total else 0.0,
        undrawn / watched if watched >= _LEAST_WATCHED else None,
        tuple(tally.describe(key.partition(" ")[2], total) for key, tally in ranked),
        {line: count / total for tally in tallies.values() for line, count in tally.lines.items()},
    )


class Tally:
    """The looks that fell on one function."""

    def __init__(self) -> None:
        self.looks = self.on_cpu = self.innermost = self.interpreted = 0
        self.lines: Counter[str] = Counter()
        self.spots: Counter[str] = Counter()

    def add(self, place: str, is_innermost: bool, bits: int) -> None:
        line, _, spot = place.partition("@")
        self.looks += 1
        self.lines[line] += 1
        self.innermost += is_innermost
        # A loop may call into Python of a library, too: random.gauss() is as interpreted as its caller.
        self.interpreted += bool(bits & layout.INTERPRETED)
        if is_innermost:
            self.spots[spot] += 1
        self.on_cpu += bool(bits & layout.ON_CPU)

    def describe(self, function: str, total: int) -> HotPlace:
        place = self.lines.most_common(1)[0][0]
        return HotPlace(
            place=place,
            function=function,
            share=self.looks / total,
            on_cpu=self.on_cpu / self.looks,
            is_python=self._is_interpreted(),
            source=source_of(place),
            is_own=not is_library(place),
        )

    def _is_interpreted(self) -> bool:
        """A loop in Python is met between its instructions, or at many of them; a long call in C at one."""
        if self.looks < 10:
            return False
        top = self.spots.most_common(1)
        is_spread = self.innermost > 0.6 * self.looks and top[0][1] < 0.6 * self.innermost
        if not is_spread and self.interpreted < 0.5 * self.looks:
            return False
        in_loops = [count for line, count in self.lines.items() if is_in_loop(line)]
        return sum(in_loops) > 0.5 * self.looks


def _own_frame(frames: Sequence[str]) -> tuple[str, bool]:
    """Return the innermost frame of the user's own code, and whether it is the innermost of all.

    A forked worker's stack goes on below the loader into the training script: what is found there is the
    loader's own (collating, say).
    """
    for number, frame in enumerate(frames):
        if _LOADER in frame:
            break
        if not is_library(frame):
            return frame, number == 0
    return frames[0], False


def is_library(place: str) -> bool:
    """Whether a frame's code is none of the user's."""
    return _LIBRARY.search(place) is not None


def is_in_loop(place: str) -> bool:
    """Whether a line stands in a loop or a comprehension; one that yields goes over samples, and is none."""
    path, _, line = place.rpartition(":")
    text = "".join(linecache.getlines(path))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    number = int(line) if line.isdigit() else 0
    return any(
        isinstance(node, _LOOPS)
        and node.lineno <= number <= (node.end_lineno or node.lineno)
        and not any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
        for node in ast.walk(tree)
    )


def source_of(place: str) -> str:
    path, _, line = place.rpartition(":")
    return linecache.getline(path, int(line)).strip() if line.isdigit() else ""
