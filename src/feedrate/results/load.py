# SPDX-License-Identifier: Apache-2.0
"""What a loader tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStats:
    """One stage of a loader: seconds are summed over threads, so two at once count twice."""

    name: str
    batches: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader did since it was made.

    Attributes:
        consumer_waited_s: how long the training loop waited for batches.
        makers_waited_s: how long the loader's threads waited because enough batches lay ready.
        by_pillow: images that the kernel left to Pillow; `pillow_reasons` says why, and how many each.
    """

    stages: tuple[StageStats, ...]
    batches: int
    samples: int
    bad_samples: int
    bytes_read: int
    by_pillow: int
    pillow_reasons: dict[str, int]
    consumer_waited_s: float
    makers_waited_s: float

    @property
    def slowest(self) -> str:
        """Say in words who waits for whom, and which stage takes longest."""
        busiest = max(self.stages, key=lambda stage: stage.busy_s)
        if not self.batches or not busiest.busy_s:
            return "nothing was loaded yet"
        if self.makers_waited_s > self.consumer_waited_s:
            return f"your loop: the loader waits for it (the loader's own slowest stage: {busiest.name})"
        return f"{busiest.name}: your loop waits for it"
