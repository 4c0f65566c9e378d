# SPDX-License-Identifier: Apache-2.0
"""What the sample cache tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStats:
    """What is in a tier of a cache.

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
