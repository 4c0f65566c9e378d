# SPDX-License-Identifier: Apache-2.0
"""How long a training step takes, from what its parts take: the queueing behind every prediction.

A batch is made serially inside one worker (read, decode, augment and collate do not overlap there), workers
run beside each other and beside the device, and all that uses the CPU shares the cores. A step lasts as long
as the slowest of the device, the workers and the cores, plus what happens between steps.
"""

from __future__ import annotations

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
