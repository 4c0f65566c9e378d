# SPDX-License-Identifier: Apache-2.0
"""What a loader and `cached` tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedrate.cache.results import CacheStats, TierStats
from feedrate.model import limits
from feedrate.remote.results import FetchStats
from feedrate.units import format_bytes, format_count, format_percent

# What it means that the loop waits for batches, and most of their time goes into this stage.
_LIMITS = {
    "fetch": limits.STORAGE, "read and decode": limits.DECODE, "transform": limits.TRANSFORM,
    "collate": limits.HANDOVER, "finish": limits.TRANSFORM, "transfer": limits.COPY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoaderTrial:
    """Some of the user's files, drained as a feedrate.Loader would.

    Attributes:
        images: how many files were held for it.
        threads: that one rank would decode with.
        images_per_s: for one rank, while all of them decode on all cores.
        busy_threads: of one rank, that had something to do at a time: small batches leave some without.
        cpu_s: CPU time of an image then, all threads; `alone_cpu_s`: with one thread at work.
        scan_s: CPU time of looking through a file, which packing does once.
        ranks: of the training on this machine, which share its cores.
    """

    images: int
    threads: int
    images_per_s: float
    busy_threads: float
    cpu_s: float
    alone_cpu_s: float
    scan_s: float = 0.0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class PixelCheck:
    """The same crops through both decoders."""

    images: int
    lowest_psnr_db: float | None  # None: every pixel is equal
    largest_difference: int
    is_same: bool  # within what two exact decoders may differ by
    by_pillow: int  # of the images: left to Pillow by the kernel, so equal without proving anything


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
        left_out: samples that no rank got, because fewer remained than ranks after a resume on more of them;
            counted on every rank.
        consumer_waited_s: how long the training loop waited for batches.
        makers_waited_s: how long the loader's threads waited because enough batches lay ready, or because the
            device was not yet through with those before.
        fetch: of a pack that is elsewhere; None: it is read where it is.
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
    def limit(self) -> str | None:
        """What limits the training, as a code that the doctor uses, too; None: nothing was loaded yet.

        "device-bound" is your loop as a whole: the device, or what the loop does besides. Reading from a disk
        and decoding are one stage, "decode-bound".
        """
        busiest = max(self.stages, key=lambda stage: stage.busy_s)
        if not self.batches or not busiest.busy_s:
            return None
        is_ahead = self.makers_waited_s > self.consumer_waited_s
        return limits.DEVICE if is_ahead else _LIMITS.get(busiest.name, limits.UNPACK)

    @property
    def slowest(self) -> str:
        """Say in words who waits for whom, and which stage takes longest."""
        busiest = max(self.stages, key=lambda stage: stage.busy_s)
        if self.limit is None:
            return "nothing was loaded yet"
        if self.limit == limits.DEVICE:
            return f"your loop: the loader waits for it (the loader's own slowest stage: {busiest.name})"
        return f"{busiest.name}: your loop waits for it"


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
