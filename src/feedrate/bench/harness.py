# SPDX-License-Identifier: Apache-2.0
"""Run contestants in turn, each time in a fresh process, and sum their runs up. Serves `bench` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedrate.bench.process import RunFailed, run_in_process
from feedrate.bench.results import BenchRun, Standing
from feedrate.stats import median, median_ratio, spread

Say = Callable[[str], None]
Runner = Callable[[str, Mapping[str, object]], tuple[dict[str, Any], int]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A function `module:name` that returns `meter.Readings`, and what to call it with."""

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
            runs.append(
                BenchRun(
                    contestant=contestant.name,
                    round=number,
                    images=tuple(readings["images"]),
                    seconds=tuple(readings["seconds"]),
                    wait_s=readings["wait_s"],
                    cpu_s=readings["cpu_s"],
                    first_batch_s=readings["first_batch_s"],
                    peak_memory_bytes=peak_bytes,
                    accuracy=readings.get("accuracy"),
                )
            )
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
