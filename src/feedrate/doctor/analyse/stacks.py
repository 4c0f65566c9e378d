# SPDX-License-Identifier: Apache-2.0
"""Looks at the stacks, counted: which lines of the user's own code the time falls on."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from feedrate.doctor.analyse.records import Process, are_inside
from feedrate.doctor.hook.feedrate_hook import layout

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOADER = "torch/utils/data/_utils/"
_LEAST_WATCHED = 10  # looks: fewer tell nothing
_Span = tuple[int, int]  # from, to: lines of a source, or nanoseconds
# Installed packages, the standard library (in lib64, too, or zipped), code made up at run time, our hook.
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/(python|pypy)3[^/]*/|/python3\d+\.zip/"
    r"|^<(frozen|__array_function__|attrs|decorator)|feedrate_hook"
    r"|/src/feedrate/(loader|kernel|format|cache|remote|scratch|files)/"
)


@dataclass(frozen=True, slots=True)
class HotPlace:
    """A function, with the line that most looks found it at.

    Attributes:
        share: of all looks of that kind.
        is_python: the looks fall on many places of the function: it is interpreted, not one call in C.
        is_own: the user's code, which can be changed; else a library's, that none of it was on the stack of.
    """

    place: str
    function: str
    share: float
    is_python: bool
    source: str
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Looks:
    """All looks of one kind (inside fetches, or in the training loop outside of waits).

    `undrawn`: share of the looks at watched samples before their first random number; None: none was watched.
    """

    count: int
    undrawn: float | None
    places: tuple[HotPlace, ...]
    lines: Mapping[str, float]  # file:line -> share

    @property
    def own(self) -> tuple[HotPlace, ...]:
        """Return the places in the user's own code: advice is given about no others."""
        return tuple(place for place in self.places if place.is_own)


def count_looks(
    processes: Sequence[Process],
    *,
    in_fetch: bool,
    in_model: bool = True,
    unasked: bool = False,
    timed: Sequence[_Span] = (),
    asked_at: str = "",
) -> Looks:
    """Count the looks by the innermost function that is the user's own.

    Without those `in_model`, and without those at what was `timed` by itself, from one nanosecond to another,
    a line that calls the model or the optimizer has only the looks at what else it does. Batches are asked
    for at `asked_at`: a loop around that place is the training loop, and no hot one. `unasked`: only those
    before a loader was asked, which otherwise do not count.
    """
    found: dict[str, list[_Look]] = defaultdict(list)  # by file and function
    watched = undrawn = 0
    for process in processes:
        looks = process.of(layout.STACK, phase=layout.REAL)
        for record, is_timed in zip(looks, are_inside(looks["start"], timed), strict=True):
            bits = int(record["a"])
            if bool(bits & layout.IN_FETCH) != in_fetch or (not in_fetch and bits & layout.IN_WAIT):
                continue
            if (
                is_timed
                or (bits & layout.IN_MODEL and not in_model)
                or bool(bits & layout.UNASKED) != unasked
            ):
                continue
            if bits & layout.DRAWS_KNOWN:
                # Taken inside of chosen samples: they say nothing of what happens between samples.
                watched += 1
                undrawn += not bits & layout.RANDOM_DRAWN
                continue
            frames, is_innermost = _own_frames(process.name(record["name"]).split(";"))
            place, _, function = frames[0].partition(" ")
            path = place.partition("@")[0].rpartition(":")[0]
            # A function without a loop may be what a loop calls.
            in_loop = any(is_in_loop(line, asked_at) for line in _lines_inside(frames, asked_at))
            found[f"{path} {function}"].append(_Look(place, is_innermost, in_loop, bits))
    every = [look for looks in found.values() for look in looks]
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))[:12]
    lines = Counter(look.place.partition("@")[0] for look in every)
    return Looks(
        len(every),
        undrawn / watched if watched >= _LEAST_WATCHED else None,
        tuple(_describe(key.partition(" ")[2], looks, len(every)) for key, looks in ranked),
        {line: count / len(every) for line, count in lines.items()},
    )


class _Look(NamedTuple):
    place: str  # file:line, and the instruction behind an @ where it is innermost of all
    is_innermost: bool
    in_loop: bool
    bits: int


def _describe(function: str, looks: Sequence[_Look], total: int) -> HotPlace:
    ((place, _),) = Counter(look.place.partition("@")[0] for look in looks).most_common(1)
    return HotPlace(
        place=place,
        function=function,
        share=len(looks) / total,
        is_python=len(looks) >= _LEAST_WATCHED and _is_interpreted(looks),
        source=source_of(place),
        is_own=not is_library(place),
    )


def _is_interpreted(looks: Sequence[_Look]) -> bool:
    """A loop in Python is met between its instructions, or at many of them; a long call in C at one."""
    spots = Counter(look.place.partition("@")[2] for look in looks if look.is_innermost)
    most = max(spots.values(), default=0)
    is_spread = spots.total() > 0.6 * len(looks) and most < 0.6 * spots.total()
    # A loop may call into Python of a library, too: random.gauss() is as interpreted as its caller.
    if not is_spread and sum(bool(look.bits & layout.INTERPRETED) for look in looks) < 0.5 * len(looks):
        return False
    return sum(look.in_loop for look in looks) > 0.5 * len(looks)


def _own_frames(frames: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Return the frames of the user's own code, innermost first, and whether the first is innermost of all.

    A forked worker's stack goes on below the loader into the training script: what is found there is the
    loader's own (collating, say). Where none is the user's, the innermost stands alone.
    """
    loader = next((number for number, frame in enumerate(frames) if _LOADER in frame), len(frames))
    own = [frame for frame in frames[:loader] if not is_library(frame)]
    return (own, own[0] == frames[0]) if own else (frames[:1], False)


def is_library(place: str) -> bool:
    """Whether a frame's code is none of the user's."""
    return _LIBRARY.search(place) is not None


def _lines_inside(frames: Sequence[str], asked_at: str) -> list[str]:
    """Return the lines of what one batch or sample was used for: up to that of the training loop itself."""
    lines = [frame.partition(" ")[0].partition("@")[0] for frame in frames]
    if not asked_at:
        return lines
    last = next((n for n, line in enumerate(lines) if _shared_loops(line, asked_at)), 0)
    return lines[: last + 1]


def is_in_loop(line: str, asked_at: str = "") -> bool:
    """Whether a line stands in a loop or a comprehension, other than one over batches or samples.

    One that yields goes over samples; one around the place where batches are asked for, over batches.
    """
    return bool(_loops_around(line) - _shared_loops(line, asked_at))


def _shared_loops(line: str, asked_at: str) -> frozenset[_Span]:
    is_same_file = line.rpartition(":")[0] == asked_at.rpartition(":")[0]
    return _loops_around(line) & _loops_around(asked_at) if is_same_file else frozenset()


@lru_cache(maxsize=4096)
def _loops_around(place: str) -> frozenset[_Span]:
    path, _, line = place.rpartition(":")
    number = int(line) if line.isdigit() else 0
    spans = _loops_of("".join(linecache.getlines(path)))
    return frozenset(span for span in spans if span[0] <= number <= span[1])


@lru_cache(maxsize=64)
def _loops_of(text: str) -> tuple[_Span, ...]:
    """Return the first and last lines of a source's loops, those that yield left out."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, _LOOPS)
        and not any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
    )


def source_of(place: str) -> str:
    path, _, line = place.rpartition(":")
    return linecache.getline(path, int(line)).strip() if line.isdigit() else ""
