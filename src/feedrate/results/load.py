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
class FetchStats:
    """What a loader fetched from a source elsewhere.

    Attributes:
        bytes_fetched: also those that went to scratch.
        most_in_flight: requests at a time.
        values_from_scratch: images and other values that were read from whole files on scratch.
        values_from_source: the others: fetched, or read from a file that was still on its way to scratch.
        spoilt_on_scratch: values that were damaged or gone there, and read from the source instead.
        landed_bytes: shards that lie on scratch now.
    """

    requests: int
    bytes_fetched: int
    retries: int
    most_in_flight: int
    values_from_scratch: int
    values_from_source: int
    spoilt_on_scratch: int
    landed_bytes: int


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader did since it was made.

    Attributes:
        consumer_waited_s: how long the training loop waited for batches.
        makers_waited_s: how long the loader's threads waited because enough batches lay ready.
        fetch: of a pack that lies elsewhere; None: it is read where it lies.
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
    fetch: FetchStats | None = None

    @property
    def slowest(self) -> str:
        """Say in words who waits for whom, and which stage takes longest."""
        busiest = max(self.stages, key=lambda stage: stage.busy_s)
        if not self.batches or not busiest.busy_s:
            return "nothing was loaded yet"
        if self.makers_waited_s > self.consumer_waited_s:
            return f"your loop: the loader waits for it (the loader's own slowest stage: {busiest.name})"
        return f"{busiest.name}: your loop waits for it"
