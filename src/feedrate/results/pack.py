# SPDX-License-Identifier: Apache-2.0
"""What `pack`, `index`, `unpack`, `verify` and `ls` return."""

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


@dataclass(frozen=True, slots=True)
class IndexResult:
    """`feedrate index`.

    Attributes:
        files: that hold the samples; None: each value is a file of its own.
        resumed_parts: how many of the index's `parts` an earlier, unfinished run had already made.
        rejected: not in the index, each with its reason; also in rejected.jsonl.
        left_out: fields that cannot be indexed -> why.
    """

    source: str
    target: str
    samples: int
    classes: int | None
    fields: Mapping[str, str]
    files: int | None
    parts: int
    resumed_parts: int
    index_bytes: int
    source_bytes: int
    seconds: float
    rejected: tuple[Rejection, ...]
    damaged: tuple[Rejection, ...]
    by_kernel: int
    by_pillow: Mapping[str, int]
    left_out: Mapping[str, str]
    ignored: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnpackResult:
    """`feedrate unpack`: `kept` files were already there with the same bytes."""

    pack: str
    target: str
    files: int
    kept: int
    size_bytes: int
    seconds: float
    pixels: str = ""  # what packing did to them, so that these are not the original files


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a pack. `key` and `offset` where they are known."""

    file: str
    text: str
    key: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`feedrate verify`: `problems` make it fail, `extra_files` are only named."""

    pack: str
    samples: int
    shards: int
    size_bytes: int
    seconds: float
    problems: tuple[Problem, ...]
    extra_files: tuple[str, ...]
    pixels: str = ""  # what packing did to them

    @property
    def is_good(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """What one field of a pack takes; `mean_*` and the shares are of images and masks only."""

    name: str
    kind: str
    dtype: str | None
    shape: tuple[int, ...] | None
    size_bytes: int
    mean_width: float | None = None
    mean_height: float | None = None
    kernel_share: float | None = None  # of the images: those that the kernel decodes
    coding: str = "file"


@dataclass(frozen=True, slots=True)
class SampleLine:
    key: str
    path: str
    number: int
    size_bytes: int
    label: str | None


@dataclass(frozen=True, slots=True)
class PackDescription:
    """`feedrate ls`. `class_counts` is empty when the labels are not classes."""

    pack: str
    samples: int
    fields: tuple[FieldSummary, ...]
    class_counts: Mapping[str, int]
    shards: int
    shard_bytes: int
    index_bytes: int
    rejected: int
    settings: Mapping[str, object]
    first_samples: tuple[SampleLine, ...]
    column_counts: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # of added columns of classes
    pixels: str = ""  # what packing did to them
    resident_share: float | None = None  # of its bytes, in the page cache; None: unknown
