# SPDX-License-Identifier: Apache-2.0
"""Whether samples draw random numbers: the states of the global generators, noted when a sample begins.

A sample notes them when stacks.py asks for it, which looks at the stack somewhere inside that sample.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from .. import clock
from ..session import session

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
        states = random_states()
        Sample.undrawn = Sample.undrawn + 1 if states == Sample.states else 0
        if _Twister.address and states[_NUMPY] != Sample.states[_NUMPY]:
            _Twister.address = 0
    spent = now - Sample.start_ns
    Sample.usual_ns += (spent - Sample.usual_ns) >> 3 if Sample.usual_ns else spent


_NUMPY = 1  # its place among the states


def random_states() -> tuple[Any, ...]:
    """Return what tells whether the global generators of random, numpy and torch have been used."""
    states: list[Any] = [None, None, None]
    module = sys.modules.get("random")
    if module is not None:
        _, words, gauss = module.getstate()
        states[0] = words[0], words[-1], gauss
    module = sys.modules.get("numpy.random.mtrand")
    if module is not None:
        states[_NUMPY] = _numpy_state(module)
    if session.torch is not None:
        states[2] = bytes(session.torch.default_generator.get_state().numpy())
    return tuple(states)


class _Twister:
    """numpy's global generator, read in place: numpy itself takes 50 microseconds to tell its state.

    Only until a sample draws from it: of two normal numbers the second is what the first left over, and that
    is kept elsewhere.
    """

    bits: Any = None  # held, so that its state stays where it is
    address = 0  # 0: numpy is asked
    words = 624
    size = 4 * words + 4  # and the place among the words


def _numpy_state(module: Any) -> Any:
    bits = getattr(getattr(module, "_rand", None), "_bit_generator", None)
    if bits is not _Twister.bits:
        _Twister.bits = bits
        _Twister.address = _address_of(bits, module.get_state(legacy=False)["state"])
    if _Twister.address:
        return ctypes.string_at(_Twister.address, _Twister.size)
    state = module.get_state(legacy=False)
    inner = state["state"]
    return inner.get("pos"), int(inner["key"][0]) if "key" in inner else str(inner), state.get("gauss")


def _address_of(bits: Any, told: Any) -> int:
    """Return where the state lies, or 0 where it is not the one that numpy tells."""
    try:
        expected = told["key"].tobytes() + int(told["pos"]).to_bytes(4, sys.byteorder)
        address = int(bits.ctypes.state_address)
        if len(expected) == _Twister.size and ctypes.string_at(address, _Twister.size) == expected:
            return address
    except Exception:  # another generator, or another numpy
        pass
    return 0


def after_fork() -> None:
    Sample.is_open = False
    Sample.is_wanted = False
    Sample.watched = -1
    Sample.undrawn = 0
    Sample.usual_ns = 0
