# SPDX-License-Identifier: Apache-2.0
"""How long a training step takes, from what its parts take: the queueing behind every prediction.

A batch is made serially inside one worker (read, decode, augment and collate do not overlap there), workers
run beside each other and beside the device, and all that uses the CPU shares the cores. A step lasts as long
as the slowest of the device, the workers and the cores, plus what happens between steps. A changed pipeline
against the present one, and against what was measured, gives a speed-up with an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Steps and batches vary, so two nearly equal parts delay each other. A p-norm says by how much: for two equal
# parts 2 ** (1/8) = 9 %, for 1 to 2 nothing.
SHARPNESS = 8.0
_OF_LOADER = {"fetch_cpu_s", "fetch_blocked_s", "handover_s", "workers", "cores"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One training loop; all times in seconds per step.

    Attributes:
        device_s: the step on batches that are there: copies, forward, backward, optimizer, the loop's Python.
        device_cpu_s: CPU time of the training process in it, all threads.
        fetch_cpu_s, fetch_blocked_s: making one batch, in the process that makes it.
        handover_s: what passing one batch from a worker to the training process holds up the latter.
        workers: 0: the training process makes its batches itself. Where several loaders feed a step: as
            many as would do the same for one.
        cores: that this job may use, less what others take.
        drag: what a second of making batches beside it adds to the training process's own step: memory that
            is shared and freed, caches, locks.
        between_s: validation, checkpoints, epoch starts, spread over the steps.
        loader_s: what the loader was seen to take for a batch when nobody trained; 0: it was not seen, or is
            another one now.
    """

    device_s: float
    device_cpu_s: float
    fetch_cpu_s: float
    fetch_blocked_s: float
    handover_s: float
    workers: float
    cores: float
    between_s: float = 0.0
    drag: float = 0.0
    loader_s: float = 0.0

    @property
    def fetch_s(self) -> float:
        return self.fetch_cpu_s + self.fetch_blocked_s

    @property
    def limits(self) -> dict[str, float]:
        """Return what the step would take if each part were alone, by name."""
        if self.workers == 0:
            return {"device": self.device_s, "workers": self.fetch_s, "cores": 0.0}
        return {
            "device": self.device_s + self.handover_s + self.drag * self.fetch_cpu_s,
            "workers": self.fetch_s / self.workers,
            "cores": (self.fetch_cpu_s + self.device_cpu_s + self.handover_s) / self.cores,
            "loader": self.loader_s,
        }

    @property
    def step_s(self) -> float:
        limits = self.limits
        if self.workers == 0:
            return sum(limits.values()) + self.between_s
        # The loader as it was seen and its workers by their parts are one thing, known in two ways.
        making = max(limits["workers"], limits["loader"])
        return soft_max(limits["device"], making, limits["cores"]) + self.between_s

    @property
    def slowest(self) -> str:
        """Return which part limits: device, workers, cores, loader, or between."""
        limits = {**self.limits, "between": self.between_s}
        return max(limits, key=lambda name: limits[name])

    def gain_of(self, then: Pipeline) -> float:
        """Return how many times as fast as this pipeline `then` is, which was made of it."""
        return self.like(then).step_s / then.step_s

    def like(self, then: Pipeline) -> Pipeline:
        """Return this pipeline as far as `then` is known: of a changed loader only its parts are."""
        return self if then.loader_s else replace(self, loader_s=0.0)

    def with_(self, **changes: float) -> Pipeline:
        if not _OF_LOADER.isdisjoint(changes):
            changes.setdefault("loader_s", 0.0)
        return replace(self, **changes)


def soft_max(*values: float) -> float:
    largest = max(values)
    if largest <= 0:
        return 0.0
    return float(largest * sum((max(v, 0.0) / largest) ** SHARPNESS for v in values) ** (1 / SHARPNESS))


def best_workers(pipeline: Pipeline, most: int, each: float = 1.0) -> int:
    """Return the smallest number of workers, each counting `each`, within 3 % of the best, up to `most`."""
    times = {n: pipeline.with_(workers=n * each).step_s for n in range(1, max(most, 1) + 1)}
    best = min(times.values())
    return min(n for n, seconds in times.items() if seconds <= best * 1.03)


# Half of an interval, as a factor: what predictions were seen to err by (benchmarks/README.md), whether they
# were modelled, counted, or tried for a few seconds. It keeps high / low below 1.5.
WIDTH = 1.224


@dataclass(frozen=True, slots=True)
class Prediction:
    """A factor on samples per second, with bounds."""

    speedup: float
    low: float
    high: float


def predict_change(now: Pipeline, then: Pipeline, measured_s: float) -> Prediction:
    """Predict what changing `now` into `then` gives, where a step of `now` was measured to take `measured_s`.

    The model is wrong by some factor today and by a like factor afterwards, so that their ratio is right; but
    the more the change takes away, the more the step is what was measured by itself: the absolute value
    then counts up to a third.
    """
    if then == now:
        return Prediction(1.0, 1.0, 1.0)
    ratio, error = now.gain_of(then), measured_s / now.like(then).step_s
    weight = min(abs(math.log(ratio)) / math.log(2), 1.0) / 3
    return around(ratio * error**weight)


def around(speedup: float) -> Prediction:
    """Return an interval around a speed-up, narrower near 1: where little changes, little can err."""
    # A remedy that takes nothing away cannot lose more than noise does.
    change = abs(math.log(max(speedup, 1e-6)))
    half = math.exp(min(math.log(WIDTH), 0.03 + change))
    return Prediction(speedup, speedup / half, speedup * half)


def without(share: float, *, kept: float = 0.0) -> float:
    """Return the speed-up from leaving out a share of the time, of which `kept` stays."""
    return 1.0 / max(1.0 - share * (1.0 - kept), 1e-3)
