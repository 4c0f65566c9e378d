# SPDX-License-Identifier: Apache-2.0
"""Looks at the stack of the thread that trains (or, in a worker, fetches), some fifty times a second.

Every other time the thread asks for a sample to watch: the next one to begin notes the states of the global
random generators and wakes the thread, which looks after a random part of a usual sample's time. If it is
still being made, the states tell whether it has drawn random numbers by then (DRAWS_KNOWN, RANDOM_DRAWN).
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import time
from typing import Any, ClassVar

from . import clock, layout
from .session import session
from .wrapping import is_hook, is_internal, is_user

_MOST_FRAMES = 12
_DEEPEST = 48
_MOST_STACKS = 20_000
_SHORTEST_SAMPLE_NS = 200_000  # shorter ones are over before the thread is awake


class _Sample:
    """The sample that is being made. Written by the thread that fetches, read by the one that looks."""

    number = 0
    is_open = False
    start_ns = 0
    usual_ns = 0
    is_wanted = False  # the next sample to begin shall note the random states
    watched = -1  # the number of the sample that did
    states: Any = None


class _Looker:
    """The thread, and what it keeps between two looks."""

    alive = False
    stopping = False
    sleep: Any = None  # a held lock: waiting for it is a sleep that can be ended
    done: Any = None  # held while the thread lives
    names: ClassVar[dict[Any, int]] = {}
    cpu_file: Any = None
    cpu_thread = 0
    cpu_last = (0, 0)
    seed = 1


def begin_sample() -> None:
    """A sample begins: cheap, unless the looking thread asked for its random states."""
    now = clock.wall_ns()
    if _Sample.is_open:
        _end_sample(now)
    _Sample.number += 1
    _Sample.start_ns = now
    _Sample.is_open = True
    if _Sample.is_wanted:
        _Sample.is_wanted = False
        _Sample.states = random_states()
        _Sample.watched = _Sample.number
        _wake()


def end_sample() -> None:
    if _Sample.is_open:
        _end_sample(clock.wall_ns())


def _end_sample(now: int) -> None:
    _Sample.is_open = False
    spent = now - _Sample.start_ns
    _Sample.usual_ns += (spent - _Sample.usual_ns) >> 3 if _Sample.usual_ns else spent


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


def start() -> None:
    """Start the thread, unless it runs. No threading.Thread: programs that count theirs do not see it."""
    if _Looker.alive or float(session.settings.get("stack_hz") or 0) <= 0:
        return
    _Looker.alive = True
    _Looker.stopping = False
    _Looker.sleep = _thread.allocate_lock()
    _Looker.sleep.acquire()
    _Looker.done = _thread.allocate_lock()
    _Looker.done.acquire()
    try:
        _thread.start_new_thread(_run, (_Looker.done, 1.0 / float(session.settings["stack_hz"])))
    except RuntimeError:
        _Looker.alive = False


def stop() -> None:
    """End the thread and wait for it: a fork must not find it inside a lock of numpy or torch."""
    if _Looker.alive:
        _Looker.stopping = True
        _wake()
        if _Looker.done.acquire(timeout=1.0):
            _Looker.alive = False


def after_fork() -> None:
    _Looker.alive = False
    _Looker.names = {}
    _Looker.cpu_file = None
    _Looker.cpu_thread = 0
    _Sample.is_open = False
    _Sample.is_wanted = False
    _Sample.watched = -1


def _wake() -> None:
    with contextlib.suppress(RuntimeError):  # it is awake
        _Looker.sleep.release()


def _pause(seconds: float) -> bool:
    """Sleep; True when somebody ended it."""
    return bool(_Looker.sleep.acquire(timeout=max(seconds, 0.0)))


def _run(done: Any, period_s: float) -> None:
    try:
        turn = 0
        while not _Looker.stopping:
            turn += 1
            until = time.perf_counter() + period_s * (0.5 + _random())
            _Sample.is_wanted = bool(turn % 2) and session.probing and _Sample.usual_ns > _SHORTEST_SAMPLE_NS
            if _pause(until - time.perf_counter()):
                if not _Looker.stopping:
                    _look_inside_the_sample()
                    _pause(until - time.perf_counter())
            elif session.probing and session.thread:
                _look(known=False, drawn=False)
    except Exception as error:
        session.trouble("stacks", error)
    finally:
        done.release()


def _random() -> float:
    """Return a number in [0, 1): a generator of our own, since the user's must not move."""
    _Looker.seed = (_Looker.seed * 1103515245 + 12345) & 0x7FFFFFFF
    return _Looker.seed / 0x80000000


def _look_inside_the_sample() -> None:
    """Look at the sample that has just noted its random states, at a random moment of it."""
    watched = _Sample.watched
    _pause(_random() * _Sample.usual_ns * 1e-9)
    if _Looker.stopping or not _Sample.is_open or _Sample.number != watched:
        return
    states = random_states()
    # They tell about this sample only if it is still being made.
    if _Sample.is_open and _Sample.number == watched:
        _look(known=True, drawn=states != _Sample.states)


def _look(known: bool, drawn: bool) -> None:
    now = clock.wall_ns()
    frame = sys._current_frames().get(session.thread)
    if frame is None:
        return
    bits = (
        layout.ON_CPU * _is_on_cpu(now)
        | layout.IN_FETCH * session.fetching
        | layout.IN_WAIT * session.waiting
        | layout.RANDOM_DRAWN * drawn
        | layout.DRAWS_KNOWN * known
    )
    key: list[Any] = []
    while frame is not None and len(key) < _DEEPEST:
        code = frame.f_code
        if not is_hook(code.co_filename):
            key.append((code, frame.f_lineno, frame.f_lasti if not key else 0))
        frame = frame.f_back
    found = tuple(key)
    number = _Looker.names.get(found)
    if number is None:
        number = session.ring.name(_describe(found)) if len(_Looker.names) < _MOST_STACKS else 0
        _Looker.names[found] = number
    session.ring.write(layout.STACK, number, now, clock.wall_ns() - now, a=bits)


def _describe(found: tuple[Any, ...]) -> str:
    """Return the frames as text, without those of torch and ours at the outer end (the worker's loop)."""
    frames = list(found)
    while len(frames) > 1 and is_internal(frames[-1][0].co_filename):
        frames.pop()
    if len(frames) > _MOST_FRAMES and not any(is_user(f[0].co_filename) for f in frames[:_MOST_FRAMES]):
        # Deep inside libraries: the user's own line takes the last place.
        frames[_MOST_FRAMES - 1] = next(
            (f for f in frames if is_user(f[0].co_filename)), frames[_MOST_FRAMES - 1]
        )
    texts = []
    for number, (code, line, instruction) in enumerate(frames[:_MOST_FRAMES]):
        spot = f"@{instruction}" if number == 0 else ""
        name = getattr(code, "co_qualname", code.co_name).replace(" ", "").replace(";", "")
        texts.append(f"{code.co_filename.replace(';', '')}:{line}{spot} {name}")
    return ";".join(texts)


def _is_on_cpu(now: int) -> bool:
    """Whether the thread used more than half of the time since the last look."""
    looker = _Looker
    try:
        if looker.cpu_file is None or looker.cpu_thread != session.native_thread:
            looker.cpu_thread = session.native_thread
            looker.cpu_file = clock.KeptFile(f"/proc/self/task/{looker.cpu_thread}/schedstat")
            looker.cpu_last = (now, -1)
        cpu = int(looker.cpu_file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    before_ns, before = looker.cpu_last
    looker.cpu_last = (now, cpu)
    return before >= 0 and 2 * (cpu - before) > now - before_ns
