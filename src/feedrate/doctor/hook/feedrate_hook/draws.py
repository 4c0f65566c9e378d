# SPDX-License-Identifier: Apache-2.0
"""Whether samples draw random numbers: the states of the global generators, noted when a sample begins.

A sample notes them when stacks.py asks for it, which looks at the stack somewhere inside that sample.
"""

from __future__ import annotations

import sys
from typing import Any

from . import clock
from .session import session

_SHORTEST_SAMPLE_NS = 200_000  # shorter ones are over before the looking thread is awake


class Sample:
    """The sample that is being made. Written by the thread that fetches, read by the one that looks."""

    number = 0
    is_open = False
    start_ns = 0
    usual_ns = 0
    is_wanted = False  # the next sample to begin shall note the random states
    watched = -1  # the number of the sample that did
    states: Any = None
    undrawn = 0  # watched samples on end that drew nothing
    wake: Any = None  # wakes the thread that looks


def begin_sample() -> None:
    """A sample begins: cheap, unless the looking thread asked for its random states."""
    now = clock.wall_ns()
    if Sample.is_open:
        _end_sample(now)
    Sample.number += 1
    Sample.start_ns = now
    Sample.is_open = True
    if Sample.is_wanted:
        Sample.is_wanted = False
        Sample.states = random_states()
        Sample.watched = Sample.number
        if Sample.usual_ns > _SHORTEST_SAMPLE_NS and Sample.wake is not None:
            Sample.wake()


def end_sample() -> None:
    if Sample.is_open:
        _end_sample(clock.wall_ns())


def _end_sample(now: int) -> None:
    Sample.is_open = False
    if Sample.number == Sample.watched:
        Sample.watched = -1
        Sample.undrawn = Sample.undrawn + 1 if random_states() == Sample.states else 0
    spent = now - Sample.start_ns
    Sample.usual_ns += (spent - Sample.usual_ns) >> 3 if Sample.usual_ns else spent


def random_states() -> tuple[Any, ...]:
    """Return what tells whether the global generators of random, numpy and torch have been used."""
    states: list[Any] = []
    module = sys.modules.get("random")
    if module is not None:
        _, words, gauss = module.getstate()
        states.append((words[0], words[-1], gauss))
    module = sys.modules.get("numpy.random.mtrand")
    if module is not None:
        state = module.get_state(legacy=False)
        inner = state["state"]
        states.append(
            (inner.get("pos"), int(inner["key"][0]) if "key" in inner else str(inner), state.get("gauss"))
        )
    if session.torch is not None:
        states.append(bytes(session.torch.default_generator.get_state().numpy()))
    return tuple(states)


def after_fork() -> None:
    Sample.is_open = False
    Sample.is_wanted = False
    Sample.watched = -1
    Sample.undrawn = 0
    Sample.usual_ns = 0
