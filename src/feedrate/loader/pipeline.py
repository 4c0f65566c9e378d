# SPDX-License-Identifier: Apache-2.0
"""Threads that make batches ahead of the consumer, and hand them over in order; what each stage took.

A step:  WAITING --a maker, when fewer than `prefetch` steps are ahead--> MAKING
                 --that maker--> READY --the consumer--> TAKEN
A feed:  RESTING --begin()--> RUNNING --the last maker finds nothing to make--> RESTING
         either of them --stop()--> STOPPED

- Makers are Python threads; each makes whole batches, so while one is in the kernel the next batch is already
  queued there.
- begin() says how many steps are asked for, and how many behind them may be made ahead of the next begin().
  A maker that finds nothing to make ends, so that what was made ahead waits without a thread.
- An error is a READY step too: the consumer gets the batches before it, then the error. No step begins after
  it.
- What making a step counted is counted when it is taken (`when_taken`): a step that is thrown away was never
  there.
- stop() may be called by anyone, any number of times. It interrupts the makers and waits for them (unless a
  maker itself calls it), but not for long: who waits pressed Ctrl-C. A maker that hangs, in a function of the
  user's or on a disk that does not answer, is named and left behind; of all others nothing remains.
- Makers know the feed and what it makes from, never the loader or its iterator, so those can be garbage
  collected while makers run, and their finalisers stop the feed.
- In a forked child the makers do not exist: a feed knows its process, and stop() there touches nothing.

One condition variable guards all state; nobody polls and nobody sleeps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from feedrate.kernel import DecodeReport
from feedrate.loader.results import LoaderStats, StageStats

STAGES = (
    "order", "fetch", "index", "read and decode", "other fields", "transform", "collate", "finish",
    "transfer",
)  # fmt: skip
COUNTS = (
    "batches", "samples", "bad_samples", "empty_batches", "left_out", "bytes_read", "by_pillow", "by_gpu",
)  # fmt: skip


_NONE: Mapping[str, int] = {}
_making = threading.local()  # `notes`: what this thread's step has counted


def when_taken(count: Callable[[], None]) -> None:
    """Call `count` when the step is taken that this thread makes; at once where it makes none."""
    notes: list[Callable[[], None]] | None = getattr(_making, "notes", None)
    if notes is None:
        count()
    else:
        notes.append(count)


class Meter:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_left = False  # an image was left to the CPU
        self._busy_s = dict.fromkeys(STAGES, 0.0)
        self._batches = dict.fromkeys(STAGES, 0)
        self._waited_s = {"consumer": 0.0, "makers": 0.0, "makers for the device": 0.0}
        self._counts: Counter[str] = Counter()
        self._pillow_reasons: Counter[str] = Counter()
        self._cpu_reasons: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the body as one batch of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            when_taken(partial(self._add_stage, name, time.perf_counter() - began))

    def _add_stage(self, name: str, seconds: float) -> None:
        with self._lock:
            self._busy_s[name] += seconds
            self._batches[name] += 1

    def add_wait(self, who: str, seconds: float) -> None:
        with self._lock:
            self._waited_s[who] += seconds

    @contextmanager
    def wait(self, who: str) -> Iterator[None]:
        """Count the time of the body as waiting."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add_wait(who, time.perf_counter() - began)

    def waits(self) -> tuple[float, float]:
        """Return how many seconds the consumer has waited, and all makers together for the device."""
        with self._lock:
            return self._waited_s["consumer"], self._waited_s["makers for the device"]

    def count(self, **counts: int) -> None:
        """Add to some of `COUNTS`."""
        when_taken(partial(self._add, counts))

    def add_report(self, report: DecodeReport) -> None:
        counts = {"by_pillow": report.by_pillow, "bytes_read": report.bytes_read}
        when_taken(partial(self._add, counts, by_pillow=report.pillow_reasons))

    def add_gpu(self, decoded: int, left: Mapping[str, int]) -> bool:
        """Count images that the GPU decoded, and why others were left to the CPU; say if none was before."""
        when_taken(partial(self._add, {"by_gpu": decoded}, by_cpu=left))
        with self._lock:
            is_first, self._has_left = not self._has_left, self._has_left or bool(left)
        return is_first

    def _add(
        self,
        counts: Mapping[str, int],
        by_pillow: Mapping[str, int] = _NONE,
        by_cpu: Mapping[str, int] = _NONE,
    ) -> None:
        with self._lock:
            self._counts.update(counts)
            self._pillow_reasons.update(by_pillow)
            self._cpu_reasons.update(by_cpu)

    def read(self) -> LoaderStats:
        with self._lock:
            stages = tuple(StageStats(name, self._batches[name], self._busy_s[name]) for name in STAGES)
            counts: dict[str, Any] = {name: self._counts[name] for name in COUNTS}
            return LoaderStats(
                stages=stages,
                **counts,
                pillow_reasons=dict(self._pillow_reasons),
                consumer_waited_s=self._waited_s["consumer"],
                makers_waited_s=self._waited_s["makers"] + self._waited_s["makers for the device"],
                cpu_reasons=dict(self._cpu_reasons),
            )


T = TypeVar("T")

log = logging.getLogger("feedrate")

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
STOP_S = 2.0  # how long a maker may take to leave what it is doing

# Native thread pools of feeds that were alive at a fork. Their threads are not in this process, so they
# cannot be joined.
_ABANDONED: list[object] = []


class FeedStopped(Exception):
    """The feed was stopped while somebody waited for it."""


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    """The result of a step, or the error in its place; `notes` count what making it counted."""

    result: T | None
    error: BaseException | None
    notes: list[Callable[[], None]]


class Feed(Generic[T]):
    """Makes results with `make(step)`, at most `prefetch` ahead of `take()`.

    Attributes:
        process: the one it works in.
        steps: how many results were asked for so far.
        makers: how many threads make results, at the most.
    """

    def __init__(
        self, make: Callable[[int], T], *, prefetch: int, makers: int, meter: Meter,
        on_rest: Callable[[], None], interrupt: Callable[[], None],
        on_take: Callable[[], None] | None = None, cores: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        self.process = os.getpid()
        self.steps, self.makers = 0, min(makers, prefetch)
        self._make: Callable[[int], T] | None = make
        self._prefetch = prefetch
        self._meter = meter
        self._on_rest = on_rest  # called when no maker is left
        self._on_take = on_take  # called by the consumer, before it has its batch
        self._cores = cores  # where makers, and the threads that they start, are to run; None: anywhere
        self._interrupt = interrupt  # wakes makers that wait for something else than this feed
        self._changed = threading.Condition()
        self._most = 0  # steps that may be made
        self._next = 0
        self._taken = 0
        self._ready: dict[int, _Made[T]] = {}
        self._stopped = self._failed = False
        self._running = 0  # makers at work
        self._resting: threading.Thread | None = None  # the last maker, on its way out
        self._gave_up = False  # stop() has waited for a maker in vain
        self._makers: list[threading.Thread] = []

    @property
    def can_go_on(self) -> bool:
        """Whether all that was asked for is taken, and more would come."""
        return not self._stopped and not self._failed and self._taken >= self.steps

    def begin(self, steps: int, ahead: int = 0) -> None:
        """Ask for so many more results; `ahead` further ones may be made before they are asked for."""
        with self._changed:
            while self._resting is not None:
                self._changed.wait()
            self.steps += steps
            self._most = self.steps + ahead
            self._changed.notify_all()
            self._makers = [maker for maker in self._makers if maker.is_alive()]
            for _ in range(min(self.makers, self._most - self._next) - self._running):
                self._start_maker()

    def _start_maker(self) -> None:
        # Daemons: an interpreter that exits with a live iterator must not wait here; its finaliser does.
        maker = threading.Thread(target=self._run, name=f"feedrate-maker-{len(self._makers)}", daemon=True)
        maker.start()
        self._makers.append(maker)
        self._running += 1

    def take(self) -> T:
        """Return the next result, waiting for it; raises what making it raised.

        Raises:
            FeedStopped: there will be no further result.
        """
        began = time.perf_counter()
        with self._changed:
            while self._taken not in self._ready and not self._stopped and self._taken < self.steps:
                self._changed.wait()
            if self._taken not in self._ready or self._taken >= self.steps:
                raise FeedStopped
            made = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        self._meter.add_wait("consumer", time.perf_counter() - began)
        for count in made.notes:
            count()
        if self._on_take is not None:
            self._on_take()
        if made.error is not None:
            self.stop()
            raise made.error
        return made.result  # type: ignore[return-value]

    def leave(self, steps: int) -> None:
        """Stop, unless the first `steps` results are all taken: then what comes behind them is another's."""
        if os.getpid() != self.process or self._taken < steps:
            self.stop()

    def stop(self) -> None:
        if os.getpid() != self.process:
            _ABANDONED.append(self)
            return
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._let_go()
            self._changed.notify_all()
        # A second call does not wait once more for a maker that the first one gave up.
        deadline = time.monotonic() + (0.0 if self._gave_up else STOP_S)
        self._interrupt()
        # A garbage collection inside a maker may end the iterator: joining could wait for a lock held here.
        if threading.current_thread() in self._makers:
            return
        for maker in self._makers:
            maker.join(max(0.0, deadline - time.monotonic()))
        behind = [maker for maker in self._makers if maker.is_alive()]
        if behind and not self._gave_up:
            self._gave_up = True
            log.warning(_describe_left_behind(behind))

    def _run(self) -> None:
        if self._cores is not None:
            with contextlib.suppress(OSError):  # they may have been taken from the process since
                os.sched_setaffinity(0, self._cores)  # of this thread alone
        while (step := self._claim()) is not None:
            self._finish(step, self._try(step))
        if self._resting is threading.current_thread():
            self._rest()

    def _claim(self) -> int | None:
        """Return the next step to make; None: there is none for now, and this maker is no longer at work."""
        began = time.perf_counter()
        with self._changed:
            while not self._stopped and self._taken + self._prefetch <= self._next < self._most:
                self._changed.wait()
            if self._stopped or self._next >= self._most:
                self._running -= 1
                self._resting = None if self._running else threading.current_thread()
                return None
            step = self._next
            self._next += 1
        self._meter.add_wait("makers", time.perf_counter() - began)
        return step

    def _rest(self) -> None:
        try:
            self._on_rest()
        finally:
            with self._changed:
                self._resting = None
                self._let_go()
                self._changed.notify_all()

    def _let_go(self) -> None:
        """Drop what is made from, where nobody makes anything any more."""
        if self._stopped and not self._running and self._resting is None:
            self._make = None

    def _try(self, step: int) -> _Made[T]:
        notes: list[Callable[[], None]] = []
        make, _making.notes = self._make, notes
        assert make is not None
        try:
            return _Made(make(step), None, notes)
        except BaseException as error:
            # Whatever it is, it belongs to the consumer: a maker that died in silence would leave them
            # waiting.
            return _Made(None, error, notes)
        finally:
            del _making.notes

    def _finish(self, step: int, made: _Made[T]) -> None:
        with self._changed:
            if made.error is not None:
                self._failed, self._most = True, self._next
            if not self._stopped:
                self._ready[step] = made
                self._changed.notify_all()


def _describe_left_behind(makers: Sequence[threading.Thread]) -> str:
    """Say which threads are left behind, and what they are at."""
    frames, places = sys._current_frames(), []
    for maker in makers:
        innermost = frames.get(maker.ident or 0)
        stack = [] if innermost is None else [(f.f_code, line) for f, line in traceback.walk_stack(innermost)]
        # The user's function is the outermost one that is neither ours nor Python's way to start a thread.
        theirs = [at for at in stack if not at[0].co_filename.startswith((_OURS, threading.__file__))]
        places += [
            f"{code.co_name} ({code.co_filename}, line {line})" for code, line in theirs[-1:] or stack[:1]
        ]
    where = " and ".join(dict.fromkeys(places)) or "a call that does not return"
    count = f"{len(makers)} threads" if len(makers) > 1 else "a thread"
    return (
        f"the loader has ended and left {count} behind, still busy after {STOP_S:g} s in {where}; "
        "what does not return ends with the process"
    )
