# SPDX-License-Identifier: Apache-2.0
"""A loop that trains on a GPU, its loader, and who decodes: in time that is only counted.

Makers prepare batches in Python, the pool decodes them, or kernels beside the training, or both; the loop
launches its steps and runs as far ahead of the GPU as `Transfer.wait` lets it. They share the cores, the
interpreter's lock and the GPU; times vary from batch to batch, and others take cores.

`H200` is ResNet-18's training as it was measured, `INFER` its inference: 16 cores decode 25,000 images a
second, the GPU's way gets 96 and 90 % of the ceiling with them, and 12,600 and 14,600 images with two; shares
in between get 73 % in inference, since both ways' Python is in the way of the loop's.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from feedrate.loader.threads import ShareController, ThreadController

SLICE_S = 0.25  # so long other work of the machine stays as it is


@dataclass(frozen=True)
class Job:
    """What a batch takes, in seconds, and what there is.

    Attributes:
        cpu_s, planned_s: of a core, for a batch that the CPU decodes, and for one that the GPU does.
        kernels_s: of the GPU, to decode one.
        step_s, launch_s: of the GPU, and of the interpreter, for a step of the loop.
        python_s, there_s: of the interpreter, for a batch of the CPU's, and for one of the GPU's.
        others: returns how many cores other processes take at a time.
        epoch: batches of an epoch; none of the next is made before the last one is taken.
        slow: returns by how much the steps of the loop are slower at a time.
    """

    cores: int
    cpu_s: float
    planned_s: float
    kernels_s: float
    step_s: float
    launch_s: float
    python_s: float = 0.002
    there_s: float = 0.0033
    makers: int = 3
    prefetch: int = 4
    epoch: int = 1_000_000
    is_synchronous: bool = False
    noise: float = 0.05
    others: Callable[[float], float] = field(default=lambda _: 0.0)
    slow: Callable[[float], float] = field(default=lambda _: 1.0)


class Work:
    """Something that takes seconds of a core, of the lock or of the GPU; `done` follows."""

    def __init__(self, seconds: float, done: Callable[[], None]) -> None:
        self.left, self.done = seconds, done


class Simulation:
    """One loader and its loop.

    Attributes:
        now: the time.
        trained: when the GPU was through with each step.
        shares: when the share changed, and to what.
    """

    def __init__(
        self, job: Job, *, share: float | None = None, seed: int = 0, is_fixed: bool = False
    ) -> None:
        """Begin; `share`: a fixed one; `is_fixed`: the number of threads was given."""
        self.job, self.fixed = job, share
        self._random = random.Random(seed)
        self.now = self.waited = self.held_back = self.pool_s = self.process_s = 0.0
        self.trained: list[float] = []
        self.shares: list[tuple[float, float]] = []
        self._lock: list[Work] = []
        self._pool: deque[Work] = deque()
        self._steps: deque[Work] = deque()
        self._kernels: deque[Work] = deque()
        self._claimed = self._taken = 0
        self._ready: set[int] = set()
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._other_cores, self._until = 0.0, 0.0
        self.share = ShareController(lambda: self.now)
        self.controller = ThreadController(job.cores, lambda: self.now, is_fixed=is_fixed)
        self.begin()
        for _ in range(min(job.makers, job.prefetch)):
            self._start(self._make())
        self._start(self._loop())

    def begin(self) -> None:
        """Begin an epoch."""
        job = self.job
        self._end = self._taken + job.epoch
        self.controller.begin(
            job.cores, job.makers, job.prefetch,
            lambda: (self.waited, self.held_back, self.pool_s, self.process_s), self.share, job.cores,
        )  # fmt: skip

    def now_share(self) -> float:
        return self.share.share if self.fixed is None else self.fixed

    def _vary(self, seconds: float) -> float:
        return seconds * math.exp(self._random.gauss(0, self.job.noise))

    def _start(self, thread: Generator[Any, None, None]) -> None:
        """Run a thread until it asks for something; it is resumed when it has it."""
        try:
            asked = next(thread)
        except StopIteration:
            return
        resume = lambda: self._start(thread)  # noqa: E731
        if callable(asked):
            self._waiting.append((asked, resume))
        else:
            queue, seconds = asked
            queue.append(Work(max(1e-9, self._vary(seconds)), resume))

    def _make(self) -> Generator[Any, None, None]:
        job = self.job
        while True:
            yield lambda: self._claimed < min(self._taken + job.prefetch, self._end)
            step, share = self._claimed, self.now_share()
            self._claimed += 1
            if share:
                yield from self._wait_for_gpu(step)
                yield self._lock, job.there_s
                yield self._pool, share * job.planned_s
                event = self._queue(self._kernels, share * job.kernels_s)
            if share < 1:
                yield self._lock, job.python_s
                yield self._pool, (1 - share) * job.cpu_s
            if not share:
                yield from self._wait_for_gpu(step)
                event = self._queue(self._kernels, 1e-5)
            else:
                yield lambda event=event: bool(event)
            self._ready.add(step)

    def _wait_for_gpu(self, step: int) -> Generator[Any, None, None]:
        began, before = self.now, step - self.job.prefetch - 2
        yield lambda: len(self.trained) >= before
        self.held_back += self.now - began

    def _queue(self, queue: deque[Work], seconds: float) -> list[int]:
        event: list[int] = []
        queue.append(Work(max(1e-9, self._vary(seconds)), lambda: event.append(1)))
        return event

    def _loop(self) -> Generator[Any, None, None]:
        job, step, last = self.job, 0, self.now_share()
        while True:
            if step == self._end:
                self.begin()
            began = self.now
            yield lambda: step in self._ready  # noqa: B023
            self._ready.remove(step)
            self.waited += self.now - began
            self._taken = step = step + 1
            self.controller.note_batch()
            if self.now_share() != last:
                last = self.now_share()
                self.shares.append((self.now, last))
            yield self._lock, job.launch_s
            self._steps.append(
                Work(self._vary(job.step_s * job.slow(self.now)), lambda: self.trained.append(self.now))
            )
            if job.is_synchronous:
                yield lambda: len(self.trained) >= step  # noqa: B023

    def _wake(self) -> None:
        is_any = True
        while is_any:
            is_any = False
            for one in list(self._waiting):
                if one in self._waiting and one[0]():
                    self._waiting.remove(one)
                    one[1]()
                    is_any = True

    def _rates(self) -> list[tuple[Work, float]]:
        """Return how fast each work goes that is under way."""
        free = max(0.1 * self.job.cores, self.job.cores - self._other_cores)
        python = min(1.0, 0.9 * free)
        found = [(one, python / len(self._lock)) for one in self._lock]
        if self._pool:
            left = free - (python if self._lock else 0.0)
            found.append((self._pool[0], min(self.controller.threads, max(left, 0.1 * free))))
        gpu = [queue[0] for queue in (self._steps, self._kernels) if queue]
        return found + [(one, 1 / len(gpu)) for one in gpu]

    def run(self, seconds: float) -> float:
        """Return how many batches a second the GPU trained on in the next `seconds`."""
        end, before = self.now + seconds, len(self.trained)
        began = self.now
        while self.now < end:
            self._wake()
            if self.now >= self._until:
                self._until = self.now + SLICE_S
                self._other_cores = self.job.others(self.now) * math.exp(self._random.gauss(0, 0.2))
            rates = self._rates()
            passed = min([one.left / rate for one, rate in rates] + [self._until - self.now + 1e-9])
            self.now += passed
            for one, rate in rates:
                one.left -= rate * passed
                if self._pool and one is self._pool[0]:
                    self.pool_s += rate * passed
                    self.process_s += rate * passed
                elif one in self._lock:
                    self.process_s += rate * passed
            for one, _ in rates:
                if one.left <= 1e-12:
                    for queue in (self._lock, self._pool, self._steps, self._kernels):
                        if one in queue:
                            queue.remove(one)
                    one.done()
        return (len(self.trained) - before) / (self.now - began)


H200 = Job(
    cores=16, cpu_s=0.16, planned_s=0.028, kernels_s=0.0008, step_s=0.0195, launch_s=0.0085,
)  # fmt: skip
INFER = replace(H200, step_s=0.00655, launch_s=0.0037)
