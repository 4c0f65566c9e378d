# SPDX-License-Identifier: Apache-2.0
"""Looks at the stack of the thread that trains (or, in a worker, fetches), some fifty times a second.
Later, in short steps, a quarter as often: it has to give way each time, also in a step that is not probed.

Every other time (later: seldom) the thread asks for a sample to watch: the next one to begin notes the states
of the global random generators and wakes the thread, which looks after a random part of a usual sample's
time. If it is still being made, the states tell whether it has drawn random numbers by then (DRAWS_KNOWN,
RANDOM_DRAWN). Where several samples on end drew nothing at all, every look inside a sample knows that.

A program that may never ask a loader is looked at, too (UNASKED), once it is some seconds old, ten times as
many where it has imported torch: nothing else is known of a plain loop.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import os
import sys
import threading
import time
from typing import Any, ClassVar

from .. import clock, layout
from ..session import session
from ..wrapping import is_hook, is_internal, is_user
from .samples import Sample, random_states
from .training import training

_GIVES_WAY_AFTER_S = 0.001
_MOST_FRAMES = 12
_LOADER = "torch/utils/data/_utils/"
_DEEPEST = 48
_MOST_STACKS = 20_000
_ENOUGH_UNDRAWN = 3
# Every second look is one inside a sample that notes its random states; later, when that is known, few are.
_OFTEN, _SELDOM = 2, 16
_MANY_LOOKS = 500
_LONGER_PAUSE = 4
_PLAIN_AFTER_S = 5.0  # most programs that use torch have imported it by then
_PLAIN_AFTER = 0.25  # of --seconds, where that is less
_TORCH_WAITS = 9.0  # times as long again: models are compiled and folders listed before the first batch


class _Looker:
    """The thread, and what it keeps between two looks."""

    alive = False
    stopping = False
    is_unasked = False  # it looks at a program that has asked no loader so far
    is_delayed = False  # it begins later, or at the first batch
    turn = 0
    sleep: Any = None  # a held lock: waiting for it is a sleep that can be ended
    done: Any = None  # held while the thread lives
    stacks: ClassVar[dict[Any, tuple[int, int]]] = {}  # frames -> their name, and bits
    cpu_file: Any = None
    cpu_thread = 0
    cpu_last = (0, 0)
    seed = 1


def start(is_unasked: bool = False) -> None:
    """Start the thread, unless it runs. No threading.Thread: programs that count theirs do not see it.

    `is_unasked`: in a training that asks no loader.
    """
    _Looker.is_unasked = _Looker.is_unasked or is_unasked
    if _Looker.is_delayed:
        _Looker.is_delayed = False
        _wake()
    _start(0.0)


def start_plain() -> None:
    """Start it in a program that may be a loop without torch and loader."""
    if not session.is_passive:
        after_s = min(_PLAIN_AFTER_S, _PLAIN_AFTER * float(session.settings.get("seconds") or 0))
        _start(after_s)


def _start(after_s: float) -> None:
    if _Looker.alive or float(session.settings.get("stack_hz") or 0) <= 0:
        return
    _Looker.alive = True
    _Looker.is_delayed = after_s > 0
    _Looker.stopping = False
    _Looker.sleep = _thread.allocate_lock()
    _Looker.sleep.acquire()
    _Looker.done = _thread.allocate_lock()
    _Looker.done.acquire()
    Sample.wake = _wake
    try:
        period_s = 1.0 / float(session.settings["stack_hz"])
        _thread.start_new_thread(_run, (_Looker.done, period_s, after_s))
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
    _Looker.alive = _Looker.is_unasked = _Looker.is_delayed = False
    _Looker.turn = 0
    _Looker.stacks = {}
    _Looker.cpu_file = None
    _Looker.cpu_thread = 0


def _wake() -> None:
    with contextlib.suppress(RuntimeError):  # it is awake
        _Looker.sleep.release()


def _pause(seconds: float) -> bool:
    """Sleep; True when somebody ended it."""
    return bool(_Looker.sleep.acquire(timeout=max(seconds, 0.0)))


def _run(done: Any, period_s: float, after_s: float) -> None:
    try:
        if after_s > 0 and not _is_needed(after_s):
            _Looker.alive = False
            return
        # Busy Python gives way to us after this long; before that, only where it waits for a file anyway, and
        # looks would fall there too often.
        sys.setswitchinterval(min(sys.getswitchinterval(), _GIVES_WAY_AFTER_S))
        while not _Looker.stopping:
            _Looker.turn += 1
            is_later = _Looker.turn > _MANY_LOOKS
            pause_s = period_s * (_LONGER_PAUSE if is_later and session.schedule.are_short else 1)
            until = time.perf_counter() + pause_s * (0.5 + _random())
            if _Looker.turn % (_SELDOM if is_later else _OFTEN) == 1 and session.probing:
                Sample.is_wanted = True  # until a sample begins
            if _pause(until - time.perf_counter()):
                if not _Looker.stopping:
                    _look_inside_the_sample()
                    _pause(until - time.perf_counter())
            elif session.thread and (session.probing or (_Looker.is_unasked and session.role == "other")):
                _look()
    except Exception as error:
        session.note_error("stacks", error)
    finally:
        done.release()


def _is_needed(after_s: float) -> bool:
    """Wait; return whether a batch came meanwhile, or the program is a plain loop: its first thread is then
    the one to look at."""
    for seconds in (after_s, _TORCH_WAITS * after_s):
        _pause(seconds)
        if not _Looker.is_delayed or _Looker.stopping:
            return True
        if "torch" not in sys.modules:  # it may still be on its way in
            break
    _Looker.is_delayed = False
    if session.role != "other":
        return False
    first = threading.main_thread()
    session.thread, session.native_thread = first.ident or 0, first.native_id or 0
    _Looker.is_unasked = True
    session.facts("plain", pid=os.getpid(), torch="torch" in sys.modules)
    return True


def _random() -> float:
    """Return a number in [0, 1): a generator of our own, since the user's must not move."""
    _Looker.seed = (_Looker.seed * 1103515245 + 12345) & 0x7FFFFFFF
    return _Looker.seed / 0x80000000


def _look_inside_the_sample() -> None:
    """Look at the sample that has just noted its random states, at a random moment of it."""
    watched = Sample.watched
    # To get here took a while already, if the sample's thread is busy with Python.
    chosen = Sample.start_ns + int(_random() * Sample.usual_ns)
    if chosen > clock.wall_ns():
        _pause((chosen - clock.wall_ns()) * 1e-9)
    if _Looker.stopping or not Sample.is_open or Sample.number != watched:
        return
    before = random_states()
    seen = _frames()
    # They tell about these frames only if nothing was drawn in between, and it is the same sample still.
    if random_states() == before and Sample.is_open and Sample.number == watched:
        _record(seen, layout.DRAWS_KNOWN | layout.RANDOM_DRAWN * (before != Sample.states))


def _look() -> None:
    seen = _frames()
    # While the frames are walked no other user runs; a sample that is open now was open then.
    is_undrawn = Sample.is_open and Sample.undrawn >= _ENOUGH_UNDRAWN
    _record(seen, layout.DRAWS_KNOWN * is_undrawn)


def _frames() -> tuple[Any, ...]:
    """Return the thread's frames, innermost first, and what it does. Calls nothing that lets it run on."""
    frame = sys._current_frames().get(session.thread)
    frames: list[Any] = []
    while frame is not None and len(frames) < _DEEPEST:
        code = frame.f_code
        if not is_hook(code.co_filename):
            frames.append((code, frame.f_lineno, frame.f_lasti if not frames else 0))
        frame = frame.f_back
    doing = layout.IN_FETCH * session.fetching | layout.IN_WAIT * session.waiting
    return tuple(frames), doing | layout.IN_MODEL * training.is_busy


def _record(seen: tuple[Any, ...], bits: int) -> None:
    frames, doing = seen
    now = clock.wall_ns()
    if not frames:
        return
    described = _Looker.stacks.get(frames)
    if described is None:
        if len(_Looker.stacks) >= _MOST_STACKS:
            return
        described = session.ring.name(_describe(frames)), layout.INTERPRETED * _is_interpreted(frames)
        _Looker.stacks[frames] = described
    bits |= doing | described[1] | layout.ON_CPU * _is_on_cpu(now)
    bits |= layout.UNASKED * (session.role == "other")
    session.ring.write(layout.STACK, described[0], now, clock.wall_ns() - now, a=bits)


def _describe(found: tuple[Any, ...]) -> str:
    """Return the frames as text, without those of torch and ours at the outer end (the worker's loop).

    A forked worker's stack goes on into the training loop that it was forked from, which is not its own.
    """
    outer = next((n for n, f in enumerate(found) if _LOADER in f[0].co_filename), len(found))
    frames = list(found[: outer + 1])
    while len(frames) > 1 and is_internal(frames[-1][0].co_filename):
        frames.pop()
    own = next((number for number, f in enumerate(frames) if is_user(f[0].co_filename)), 0)
    if own >= _MOST_FRAMES:  # deep inside libraries: the user's own line takes the last place
        frames[_MOST_FRAMES - 1] = frames[own]
    texts = []
    for number, (code, line, instruction) in enumerate(frames[:_MOST_FRAMES]):
        spot = f"@{instruction}" if number == 0 else ""
        if line is None:
            line = _line_before(code, instruction)
        name = getattr(code, "co_qualname", code.co_name).replace(" ", "").replace(";", "")
        texts.append(f"{code.co_filename.replace(';', '')}:{line}{spot} {name}")
    return ";".join(texts)


def _line_before(code: Any, instruction: int) -> int:
    """Return the line of the last instruction that has one: the jump at the end of a loop has none."""
    last: int = code.co_firstlineno
    for start, _, line in code.co_lines():
        if start > instruction:
            break
        last = line or last
    return last


def _is_interpreted(found: tuple[Any, ...]) -> bool:
    """Whether the thread was met between two instructions of Python, not inside a call to something else.

    The looker's turn comes at a few instructions only (a jump backwards, the start of a function), or inside
    a call that lets others run: a loop in Python is met at its jump, a long call in C at the call.
    """
    code, _, instruction = found[0]
    name = dis.opname[code.co_code[instruction]] if 0 <= instruction < len(code.co_code) else ""
    return "JUMP" in name or name == "RESUME" or name.startswith(("LOAD_", "STORE_"))


def _is_on_cpu(now: int) -> bool:
    """Whether the thread used a core, or was ready to, for more than half of the time since the last look."""
    looker = _Looker
    try:
        if looker.cpu_file is None or looker.cpu_thread != session.native_thread:
            looker.cpu_thread = session.native_thread
            looker.cpu_file = clock.KeptFile(f"/proc/self/task/{looker.cpu_thread}/schedstat")
            looker.cpu_last = (now, -1)
        cpu = sum(map(int, looker.cpu_file.read().split()[:2]))
    except (OSError, ValueError, IndexError):
        return False
    before_ns, before = looker.cpu_last
    looker.cpu_last = (now, cpu)
    return before >= 0 and 2 * (cpu - before) > now - before_ns
