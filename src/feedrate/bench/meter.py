# SPDX-License-Identifier: Apache-2.0
"""Measure one loader from inside its own process: rate, waiting, CPU time of the whole tree, first batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypedDict, TypeVar

from feedrate.errors import need

Batch = TypeVar("Batch", covariant=True)
Clock = Callable[[], float]


class Feed(Protocol[Batch]):
    """What gives batches: one iterator per epoch."""

    def epoch(self, number: int) -> Iterator[Batch]: ...


class Readings(TypedDict):
    """What a worker process sends back; see `results.BenchRun` for the meaning."""

    images: list[int]
    seconds: list[float]
    wait_s: float
    cpu_s: float
    first_batch_s: float
    accuracy: float | None


def measure(
    make_feed: Callable[[], Feed[Batch]],
    consume: Callable[[Batch], int],
    *,
    epochs: int,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> Readings:
    """Run one discarded and `epochs` timed epochs; `consume` takes a batch and returns its number of images.

    Epochs run back to back and an epoch's time is the distance between two epoch ends: a loader that fetches
    ahead over the boundary gains nothing, one that starts anew every epoch pays for it.
    """
    cpu_clock = cpu_clock or measure_tree_cpu
    made_at = clock()
    feed = make_feed()
    first_batch_s = wait_s = cpu_before = ended = 0.0
    images: list[int] = []
    seconds: list[float] = []
    for number in range(1 + epochs):
        count, waited = 0, 0.0
        batches = feed.epoch(number)
        while True:
            asked = clock()
            try:
                batch = next(batches)
            except StopIteration:
                break
            got = clock()
            waited += got - asked
            if number == 0 and count == 0:
                first_batch_s = got - made_at
            count += consume(batch)
        now = clock()
        if number == 0:
            # The discarded epoch ends here; asking for CPU time takes a moment, which belongs to nobody.
            cpu_before = cpu_clock()
            ended = clock()
            continue
        images.append(count)
        seconds.append(now - ended)
        wait_s += waited
        ended = now
    return Readings(
        images=images, seconds=seconds, wait_s=wait_s, cpu_s=cpu_clock() - cpu_before,
        first_batch_s=first_batch_s, accuracy=None,
    )  # fmt: skip


def measure_tree_cpu() -> float:
    """Return the CPU seconds of this process, of its live descendants, and of those that have ended."""
    psutil = need("psutil")

    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended just now: its parent counts it
        total += times.user + times.system + times.children_user + times.children_system
    return float(total)
