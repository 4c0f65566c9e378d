# SPDX-License-Identifier: Apache-2.0
"""What `cached` and `feedrate warm` tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from feedrate.results.load import TierStats
from feedrate.units import format_bytes, format_count, format_percent


@dataclass(frozen=True, slots=True)
class CachedReport:
    """What a cached dataset keeps, and how often that was of use; `print` shows it in words.

    Attributes:
        samples: of the dataset.
        hits, misses: samples that were asked for by all processes so far, and were there or not.
        damaged: samples that were found to be not what was kept, and were made anew.
        returned_bytes: memory that was given back because the job ran short of it.
    """

    samples: int
    hits: int
    misses: int
    tiers: tuple[TierStats, ...]
    damaged: int
    returned_bytes: int

    @property
    def kept(self) -> int:
        """How many samples are kept."""
        return sum(tier.samples for tier in self.tiers)

    @property
    def kept_bytes(self) -> int:
        return sum(tier.size_bytes for tier in self.tiers)

    @property
    def kept_share(self) -> float:
        """The share of samples that are kept: with any shuffle, the share of hits in the next epoch."""
        return self.kept / self.samples if self.samples else 0.0

    @property
    def expansion(self) -> float | None:
        """K: bytes that are kept per byte that the dataset read from files; None: it read none."""
        source_bytes = sum(tier.source_bytes for tier in self.tiers)
        return self.kept_bytes / source_bytes if source_bytes else None

    def __str__(self) -> str:
        where = ", ".join(f"{format_bytes(tier.size_bytes)} in {tier.kind}" for tier in self.tiers)
        share = format_percent(self.kept_share)
        lines = [
            f"{self.kept:,} of {format_count(self.samples, 'sample')} kept ({share}): {where}",
            f"{format_count(self.hits, 'hit')}, {format_count(self.misses, 'miss', 'misses')}",
        ]
        if self.expansion is not None:
            lines.append(f"K = {self.expansion:.1f}: bytes kept per byte read from files")
        if self.returned_bytes:
            lines.append(
                f"{format_bytes(self.returned_bytes)} of memory given back, since the job ran short of it"
            )
        if self.damaged:
            lines.append(f"{format_count(self.damaged, 'sample')} damaged on the disk, made anew")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class WarmResult:
    """`feedrate warm`.

    Attributes:
        files: of the pack; `loaded_files` of them were read as a whole.
        limit_bytes: how much of it may be loaded; `limit_reason` says in words why.
        resident_before, resident_after: share of the pack in the page cache; None: unknown.
        left_out: files that did not fit, in the order of the pack; of the first, a part may have.
    """

    pack: str
    files: int
    size_bytes: int
    loaded_files: int
    loaded_bytes: int
    limit_bytes: int
    limit_reason: str
    resident_before: float | None
    resident_after: float | None
    left_out: tuple[str, ...]
    left_out_bytes: int
    seconds: float
