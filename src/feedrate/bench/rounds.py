# SPDX-License-Identifier: Apache-2.0
"""Run contestants in turn, each time in a fresh process, and sum their runs up: for `bench` and `demo`.

Rates, waiting and CPU time are measured inside of the fresh process, by `measure`; it needs none of
feedrate's dependencies but psutil, so that loaders of other environments can be contestants, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, TypeVar

from feedrate.bench.results import BenchRun, Standing
from feedrate.errors import need
from feedrate.lab.child import RunFailed, run_in_process
from feedrate.stats import median, median_ratio, spread

Say = Callable[[str], None]
Runner = Callable[[str, Mapping[str, object]], tuple[dict[str, Any], int]]
Batch = TypeVar("Batch", covariant=True)
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A function `module:name` that returns `Readings`, and what to call it with."""

    name: str
    function: str
    arguments: Mapping[str, object]


def run_rounds(
    contestants: Sequence[Contestant], rounds: int, *, say: Say, runner: Runner = run_in_process
) -> tuple[BenchRun, ...]:
    """Run A B A B ...: neighbours in time see the same machine, so their ratio is steadier than their rates.

    Raises:
        RunFailed: a process ended without a result; names the contestant.
    """
    runs = []
    for number in range(rounds):
        for contestant in contestants:
            say(contestant.name + (f", round {number + 1} of {rounds}" if rounds > 1 else ""))
            try:
                readings, peak_bytes = runner(contestant.function, contestant.arguments)
            except RunFailed as error:
                raise RunFailed(f"{contestant.name}: {error.message}", hint=error.hint) from None
            readings = readings | {name: tuple(readings[name]) for name in ("images", "seconds")}
            runs.append(BenchRun(contestant.name, number, **readings, peak_memory_bytes=peak_bytes))
    return tuple(runs)


def sum_up(name: str, runs: Sequence[BenchRun]) -> Standing:
    mine = [run for run in runs if run.contestant == name]
    rates = [n / s for run in mine for n, s in zip(run.images, run.seconds, strict=True)]
    slow, fast = spread(rates)
    accuracies = [run.accuracy for run in mine if run.accuracy is not None]
    return Standing(
        contestant=name,
        images_per_s=median(run.images_per_s for run in mine),
        slow_images_per_s=slow,
        fast_images_per_s=fast,
        wait_s=median(run.wait_s for run in mine),
        wait_share=median(run.wait_s / sum(run.seconds) for run in mine),
        cpu_s_per_image=median(run.cpu_s_per_image for run in mine),
        first_batch_s=median(run.first_batch_s for run in mine),
        peak_memory_bytes=int(median(run.peak_memory_bytes for run in mine)),
        accuracy=median(accuracies) if accuracies else None,
    )


def compare(after: str, before: str, runs: Sequence[BenchRun]) -> float:
    """Return how many times as many images per second `after` gave as `before`, round by round."""
    return median_ratio(
        [run.images_per_s for run in runs if run.contestant == after],
        [run.images_per_s for run in runs if run.contestant == before],
    )


class Feed(Protocol[Batch]):
    """What gives batches: one iterator per epoch."""

    def epoch(self, number: int) -> Iterator[Batch]: ...


class Readings(TypedDict):
    """What a worker process sends back; see `BenchRun` for the meaning."""

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
