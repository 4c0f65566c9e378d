# SPDX-License-Identifier: Apache-2.0
"""What `pack` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from feedrate.results.progress import Rejection
from feedrate.results.quality import Quality


@dataclass(frozen=True, slots=True)
class Recoded:
    """What a pack's choice of size, quality or raw pixels did to its images.

    Attributes:
        words: the choice: "lossy: shorter side 256, quality 90".
        images: stored as something else than their file; `kept` are stored as they were.
        resized: of `images`: those that lost pixels. `masks` were resized too.
        before_bytes, after_bytes: of those `images`.
        mean_psnr_db: of the stored images against what was encoded, on `psnr_images` of them.
    """

    words: str
    images: int
    resized: int
    masks: int
    kept: int
    before_bytes: int
    after_bytes: int
    mean_psnr_db: float | None
    psnr_images: int
    lossless: int = 0  # of `images`: the same coefficients, only written in another way
    rewritten: Mapping[str, int] = field(default_factory=dict)  # normalised without loss: kind -> images
    encoded: Mapping[str, int] = field(default_factory=dict)  # normalised by encoding anew: kind -> images


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a user's map did, once, that training no longer does in every epoch.

    Attributes:
        samples, seconds: that it ran over while this was measured, and how long: time of one core.
        packed: samples of the whole pack; `left_out` were not wanted by the map.
    """

    function: str
    samples: int
    seconds: float
    packed: int
    left_out: int

    @property
    def seconds_per_epoch(self) -> float | None:
        """Return the time that an epoch no longer takes; None: nothing was measured."""
        return self.seconds / self.samples * self.packed if self.samples else None


@dataclass(frozen=True, slots=True)
class PackResult:
    """`feedrate pack`.

    Attributes:
        resumed_shards: how many of `shards` an earlier, unfinished run had already made.
        rejected: left out of the pack, each with its reason; also in rejected.jsonl.
        damaged: kept, since Pillow decodes them, although the kernel finds them damaged.
        by_pillow: why images are not for the kernel -> how many.
        ignored: suffix -> files that are no images.
        unlisted: images that no row of the table names.
        recoded: what changed pixels or files on request; None: nothing was asked for.
        quality: what was found out about the dataset; also in quality.json.
    """

    source: str
    target: str
    samples: int
    classes: int | None  # None: no classes
    fields: Mapping[str, str]  # name -> kind
    shards: int
    resumed_shards: int
    size_bytes: int
    source_bytes: int
    seconds: float
    rejected: tuple[Rejection, ...]
    damaged: tuple[Rejection, ...]
    by_kernel: int
    by_pillow: Mapping[str, int]
    ignored: Mapping[str, int]
    unlisted: int
    recoded: Recoded | None = None
    mapped: Mapped | None = None
    quality: Quality | None = None
