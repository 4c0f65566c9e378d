# SPDX-License-Identifier: Apache-2.0
"""What a loader tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field


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
        left_out: samples that no rank got, because fewer remained than ranks after a resume on more of them;
            counted on every rank.
        consumer_waited_s: how long the training loop waited for batches.
        makers_waited_s: how long the loader's threads waited because enough batches lay ready, or because the
            device was not yet through with those before.
        fetch: of a pack that lies elsewhere; None: it is read where it lies.
        by_pillow: images that the kernel left to Pillow; `pillow_reasons` says why, and how many each.
        cache: what the cache did; None: there is none.
        empty_batches: batches that were left out, since no sample of theirs was good; part of `batches`.
        threads: how many threads decode now.
        thread_changes: how often that number was changed; 0 where `threads=` was given.
        gpu_share: how much of a batch is to be decoded on the GPU now, from 0 to 1.
        by_gpu: images that were decoded there.
        cpu_reasons: why images that were to be decoded there came from the CPU all the same, and how many.
    """

    stages: tuple[StageStats, ...]
    batches: int
    samples: int
    bad_samples: int
    left_out: int
    bytes_read: int
    by_pillow: int
    pillow_reasons: dict[str, int]
    consumer_waited_s: float
    makers_waited_s: float
    fetch: FetchStats | None = None
    cache: CacheStats | None = None
    empty_batches: int = 0
    threads: int = 0
    thread_changes: int = 0
    gpu_share: float = 0.0
    by_gpu: int = 0
    cpu_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def slowest(self) -> str:
        """Say in words who waits for whom, and which stage takes longest."""
        busiest = max(self.stages, key=lambda stage: stage.busy_s)
        if not self.batches or not busiest.busy_s:
            return "nothing was loaded yet"
        if self.makers_waited_s > self.consumer_waited_s:
            return f"your loop: the loader waits for it (the loader's own slowest stage: {busiest.name})"
        return f"{busiest.name}: your loop waits for it"


@dataclass(frozen=True, slots=True)
class TierStats:
    """What lies in a tier of a cache.

    Attributes:
        kind: "gpu", "ram" or "disk".
        samples: how many samples it holds; of a sample with several images, each of them.
        source_bytes: how many bytes they are made of where they come from.
        limit_bytes: None: as much as there is room for.
        hits: samples that were found there.
    """

    kind: str
    samples: int
    size_bytes: int
    source_bytes: int
    limit_bytes: int | None
    hits: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a loader's cache did.

    Attributes:
        samples: how many samples the loader could find there: its own, each of their images and masks.
        tiers: near to far, with what they hold of those. `hits` are those of this process, in the epoch
            that is being given or was given last.
        misses: samples of that epoch which were not there when they were asked for.
        damaged: samples that were no longer what was put there, and came from the pack again.
        returned_bytes: memory that was given back because the job ran short of it.
    """

    samples: int
    tiers: tuple[TierStats, ...]
    misses: int
    damaged: int
    returned_bytes: int

    @property
    def cached_share(self) -> float:
        """The share of the loader's samples that is cached now."""
        return sum(tier.samples for tier in self.tiers) / self.samples if self.samples else 0.0

    @property
    def hits(self) -> int:
        return sum(tier.hits for tier in self.tiers)

    @property
    def hit_rate(self) -> float:
        """The share of the epoch's samples that were cached; from the second epoch on: `cached_share`."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    @property
    def growth(self) -> float | None:
        """Bytes in the cache per byte in the pack ("K"), as measured; None: nothing is cached."""
        source_bytes = sum(tier.source_bytes for tier in self.tiers)
        return sum(tier.size_bytes for tier in self.tiers) / source_bytes if source_bytes else None
