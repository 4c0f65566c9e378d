# SPDX-License-Identifier: Apache-2.0
"""Looks at the stacks, counted: which lines of the user's own code the time falls on."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.records import Process

_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3", "<frozen", "feedrate_hook")


@dataclass(frozen=True, slots=True)
class HotPlace:
    """A function of the user's code, with the line that most looks found it at.

    Attributes:
        share: of all looks of that kind.
        on_cpu: share of its looks in which the thread was computing, not waiting.
        is_python: the looks fall on many places of the function: it is interpreted, not one call in C.
        undrawn: share of its looks before the sample's first random number; None: not known.
    """

    place: str
    function: str
    share: float
    on_cpu: float
    is_python: bool
    undrawn: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Looks:
    """All looks of one kind (inside fetches, or in the training loop outside of waits)."""

    count: int
    on_cpu: float
    undrawn: float | None
    places: tuple[HotPlace, ...]


def count_looks(processes: Sequence[Process], *, in_fetch: bool, phase: int = layout.REAL) -> Looks:
    """Count the looks by the innermost function that is the user's own."""
    looks: Counter[str] = Counter()
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    spots: dict[str, Counter[str]] = defaultdict(Counter)
    on_cpu: Counter[str] = Counter()
    undrawn: Counter[str] = Counter()
    known = 0
    for process in processes:
        for record in process.of(layout.STACK, phase=phase):
            bits = int(record["a"])
            if bool(bits & layout.IN_FETCH) != in_fetch or (not in_fetch and bits & layout.IN_WAIT):
                continue
            frames = process.name(record["name"]).split(";")
            frame = next((f for f in frames if f and not any(lib in f for lib in _LIBRARIES)), frames[-1])
            place, _, function = frame.partition(" ")
            place, _, spot = place.partition("@")
            key = f"{place.rpartition(':')[0]} {function}"
            looks[key] += 1
            lines[key][place] += 1
            # A look that ended inside a library is one spot, however deep it was.
            spots[key][spot if frame is frames[0] or frame == frames[0] else f"{place} call"] += 1
            on_cpu[key] += bool(bits & layout.ON_CPU)
            if bits & DRAWS_KNOWN:
                known += 1
                undrawn[key] += not bits & layout.RANDOM_DRAWN
    total = sum(looks.values())
    places = tuple(
        HotPlace(
            place=lines[key].most_common(1)[0][0],
            function=key.rpartition(" ")[2],
            share=count / total,
            on_cpu=on_cpu[key] / count,
            is_python=_is_interpreted(spots[key]),
            undrawn=undrawn[key] / count if known else None,
            source=_source(lines[key].most_common(1)[0][0]),
        )
        for key, count in looks.most_common(12)
    )
    return Looks(
        total,
        sum(on_cpu.values()) / total if total else 0.0,
        sum(undrawn.values()) / known if known else None,
        places,
    )


DRAWS_KNOWN = getattr(layout, "DRAWS_KNOWN", 0)


def _is_interpreted(spots: Counter[str]) -> bool:
    """A loop in Python is met at many of its instructions; a long call in C always at the same one."""
    total = sum(spots.values())
    return total >= 10 and spots.most_common(1)[0][1] / total < 0.6


def _source(place: str) -> str:
    path, _, line = place.rpartition(":")
    return linecache.getline(path, int(line)).strip() if line.isdigit() else ""
