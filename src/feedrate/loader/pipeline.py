# SPDX-License-Identifier: Apache-2.0
"""Threads that make batches ahead of the consumer, and hand them over in order; what each stage took.

A step:  WAITING --a maker, when fewer than `prefetch` steps are ahead--> MAKING
                 --that maker--> READY --the consumer--> TAKEN
A feed:  NEW --start()--> RUNNING --stop()--> STOPPED

- Makers are Python threads; each makes whole batches, so while one is in the kernel the next batch is already
  queued there.
- An error is a READY step too: the consumer gets the batches before it, then the error. No step begins after
  it.
- stop() may be called by anyone, any number of times. It interrupts the makers and waits for them (unless a
  maker itself calls it), but not for long: who waits pressed Ctrl-C. A maker that hangs, in a function of the
  user's or on a disk that does not answer, is named and left behind; of all others nothing remains. The last
  maker to end then does what stop() would have done.
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


class Meter:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            seconds = time.perf_counter() - began
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
        with self._lock:
            self._counts.update(counts)

    def add_report(self, report: DecodeReport) -> None:
        with self._lock:
            self._counts.update(by_pillow=report.by_pillow, bytes_read=report.bytes_read)
            self._pillow_reasons.update(report.pillow_reasons)

    def add_gpu(self, decoded: int, left: Mapping[str, int]) -> bool:
        """Count images that the GPU decoded, and why others were left to the CPU; say if none was before."""
        with self._lock:
            is_first = not self._cpu_reasons
            self._counts["by_gpu"] += decoded
            self._cpu_reasons.update(left)
        return is_first

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


class Feed(Generic[T]):
    """Makes `steps` results with `make(step)`, at most `prefetch` ahead of `take()`."""

    def __init__(
        self, make: Callable[[int], T], steps: int, *, prefetch: int, makers: int, meter: Meter,
        on_stop: Callable[[], None] | None = None, interrupt: Callable[[], None] | None = None,
        on_take: Callable[[], None] | None = None, cores: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        self.process = os.getpid()
        self.steps = steps
        self._make: Callable[[int], T] | None = make
        self._prefetch = prefetch
        self._meter = meter
        self._on_stop = on_stop
        self._on_take = on_take  # called by the consumer, before it has its batch
        self._cores = cores  # where makers, and the threads that they start, are to run; None: anywhere
        self._interrupt = interrupt  # wakes makers that wait for something else than this feed
        self._changed = threading.Condition()
        self._next = 0
        self._taken = 0
        self._ready: dict[int, tuple[T | None, BaseException | None]] = {}
        self._stopped = False
        self._running = 0  # makers at work
        self._is_left = False  # stop() is over, and makers that still run are on their own
        self._gave_up = False  # stop() has waited for a maker in vain
        self._makers = [
            # Daemons: an interpreter that exits with a live iterator must not wait here; the iterator's
            # finaliser does.
            threading.Thread(target=self._run, name=f"feedrate-maker-{i}", daemon=True)
            for i in range(min(makers, prefetch, steps))
        ]

    @property
    def makers(self) -> int:
        """How many threads make batches."""
        return len(self._makers)

    def start(self) -> None:
        for maker in self._makers:
            maker.start()

    def take(self) -> T:
        """Return the next result, waiting for it; raises what making it raised.

        Raises:
            FeedStopped: there will be no further result.
        """
        began = time.perf_counter()
        with self._changed:
            while self._taken not in self._ready and not self._stopped and self._taken < self.steps:
                self._changed.wait()
            if self._taken not in self._ready:
                raise FeedStopped
            result, error = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        self._meter.add_wait("consumer", time.perf_counter() - began)
        if self._on_take is not None:
            self._on_take()
        if error is not None:
            self.stop()
            raise error
        return result  # type: ignore[return-value]

    def stop(self) -> None:
        if os.getpid() != self.process:
            _ABANDONED.append(self)
            return
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()
        # A second call does not wait once more for a maker that the first one gave up.
        deadline = time.monotonic() + (0.0 if self._gave_up else STOP_S)
        if self._interrupt is not None:
            self._interrupt()
        # A garbage collection inside a maker may end the iterator: joining could wait for a lock held here.
        if threading.current_thread() not in self._makers:
            for maker in self._makers:
                if maker.ident is not None:
                    maker.join(max(0.0, deadline - time.monotonic()))
            behind = [maker for maker in self._makers if maker.is_alive()]
            if behind and not self._gave_up:
                self._gave_up = True
                log.warning(_describe_left_behind(behind))
        with self._changed:
            self._is_left = True
            is_over = not self._running
        if is_over:
            self._release()

    def _release(self) -> None:
        self._make = None
        on_stop, self._on_stop = self._on_stop, None
        if on_stop is not None:
            on_stop()

    def _run(self) -> None:
        if self._cores is not None:
            with contextlib.suppress(OSError):  # they may have been taken from the process since
                os.sched_setaffinity(0, self._cores)  # of this thread alone
        with self._changed:
            self._running += 1
        try:
            while (step := self._claim()) is not None:
                self._finish(step, *self._try(step))
        finally:
            with self._changed:
                self._running -= 1
                is_last = self._is_left and not self._running
            if is_last:
                self._release()

    def _claim(self) -> int | None:
        began = time.perf_counter()
        with self._changed:
            while (
                not self._stopped and self._next < self.steps and self._next >= self._taken + self._prefetch
            ):
                self._changed.wait()
            if self._stopped or self._next >= self.steps:
                return None
            step = self._next
            self._next += 1
        self._meter.add_wait("makers", time.perf_counter() - began)
        return step

    def _try(self, step: int) -> tuple[T | None, BaseException | None]:
        make = self._make
        assert make is not None
        try:
            return make(step), None
        except BaseException as error:
            # Whatever it is, it belongs to the consumer: a maker that died in silence would leave them
            # waiting.
            return None, error

    def _finish(self, step: int, result: T | None, error: BaseException | None) -> None:
        with self._changed:
            if error is not None:
                self._next = self.steps
            if not self._stopped:
                self._ready[step] = (result, error)
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
