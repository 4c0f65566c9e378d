# SPDX-License-Identifier: Apache-2.0
"""What commands return: `pack`, `index`, `append`, `add-column`, `split`, `ls`, `stage --warm`,
`unpack`, `verify`, and what packing found out about a dataset (`ls --quality`, `quality.json` in a pack).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from feedrate.progress import Rejection
from feedrate.scratch.results import StageResult


@dataclass(frozen=True, slots=True)
class WarmResult:
    """`feedrate stage --warm`.

    Attributes:
        files: of the pack; `loaded_files` of them were read as a whole.
        limit_bytes: how much of it may be loaded; `limit_reason` says in words why.
        resident_before, resident_after: share of the pack in the page cache; None: unknown.
        left_out: files that did not fit, in the order of the pack; of the first, a part may have.
        staged: the copy that was made first; None: the pack was loaded where it lies.
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
    staged: StageResult | None = None


@dataclass(frozen=True, slots=True)
class OddSample:
    """One of the samples that a finding is about. `done`: kept, rejected, normalised or mapped."""

    path: str
    detail: str
    done: str


@dataclass(frozen=True, slots=True)
class Oddity:
    """Samples of one kind that deserve a look.

    Attributes:
        code: a stable word: missing, unreadable, empty, truncated, corrupt, duplicate, rotated, ...
        done: what became of them -> how many.
        examples: the first few of them.
    """

    code: str
    done: Mapping[str, int]
    examples: tuple[OddSample, ...]

    @property
    def samples(self) -> int:
        return sum(self.done.values())


@dataclass(frozen=True, slots=True)
class FormatSize:
    name: str  # "JPEG": what the kernel takes; "progressive JPEG", "PNG", ...
    images: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ClassSize:
    name: str
    samples: int
    size_bytes: int  # as stored


@dataclass(frozen=True, slots=True)
class ImageSize:
    path: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Samples with the bytes of another one.

    Attributes:
        groups: of samples that are equal; `copies` are those beyond the first of each, of `size_bytes`.
        conflicting: groups whose samples do not all have the same label.
    """

    groups: int = 0
    copies: int = 0
    size_bytes: int = 0
    conflicting: int = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """All of it. Sizes in pixels are those of the source; empty where the pack has no images or classes.

    Attributes:
        rejected: inputs that were left out; `left_out` samples were left out by the user's map.
        short_sides, long_sides: "64 to 127" -> images.
        median_cost_us: estimated time to decode the image in the middle.
        oddities: most urgent first.
    """

    samples: int
    rejected: int
    left_out: int
    formats: tuple[FormatSize, ...]
    short_sides: Mapping[str, int]
    long_sides: Mapping[str, int]
    smallest: ImageSize | None
    largest: ImageSize | None
    classes: tuple[ClassSize, ...]
    duplicates: Duplicates
    median_cost_us: float | None
    oddities: tuple[Oddity, ...]

    @property
    def imbalance(self) -> float | None:
        """Return how many times larger the largest class is than the smallest; None: there are none."""
        counts = [one.samples for one in self.classes]
        return max(counts) / max(1, min(counts)) if counts else None


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """`feedrate add-column`.

    Attributes:
        defaults: samples that the table has no value for, and that got the default.
        unused: rows of the table that are about no sample of the pack.
        class_counts: of a column of classes: how many samples each has.
        replaced: there was a column or field of this name before.
    """

    pack: str
    table: str
    name: str
    kind: str
    dtype: str | None
    samples: int
    defaults: int
    unused: int
    class_counts: Mapping[str, int]
    size_bytes: int
    replaced: bool


@dataclass(frozen=True, slots=True)
class ClassShare:
    """Where whole groups leave a split least even: a class's share of a part, and of all samples.

    `absent`: part -> how many classes have no sample in it; only parts that lack some.
    """

    part: str
    name: str
    share: float
    share_of_all: float
    absent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """`feedrate split`.

    Attributes:
        parts: name -> samples in it.
        groups: name -> groups in it; empty: samples were split one by one.
        class_counts: name -> class -> samples, where the pack has labels that are classes.
        least_even: of groups that were stratified; None: they were not.
    """

    pack: str
    name: str
    samples: int
    parts: Mapping[str, int]
    groups: Mapping[str, int]
    class_counts: Mapping[str, Mapping[str, int]]
    size_bytes: int
    replaced: bool
    least_even: ClassShare | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """`feedrate append`.

    Attributes:
        skipped: files that the pack has already, and that were to be passed over.
        new_classes: names that came to the class list, at its end.
        rejected: left out, each with its reason; also in rejected.jsonl, where samples were added.
        unassigned: columns in which the new samples have no value yet, such as a split.
        refers: the source is a pack, whose files stay where they are.
    """

    source: str
    pack: str
    samples: int
    added: int
    skipped: int
    shards: int
    size_bytes: int
    seconds: float
    new_classes: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    unassigned: tuple[str, ...]
    refers: bool = False


@dataclass(frozen=True, slots=True)
class EntriesResult:
    """`feedrate index PACK --entries N`.

    Attributes:
        entries: bytes of JPEG data from one entry point to the next.
        entries_before: what its parts had before; none where it has no shards.
        changed_parts: how many of the index's `parts` were written anew.
        shard_bytes: what holds the samples.
        old_parts: index parts that were replaced, now or earlier, and are still there.
        removed_parts: such parts that were deleted.
    """

    pack: str
    entries: int
    entries_before: tuple[int, ...]
    samples: int
    parts: int
    changed_parts: int
    index_bytes: int
    index_bytes_before: int
    shard_bytes: int
    old_parts: tuple[str, ...]
    removed_parts: tuple[str, ...]
    seconds: float


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
    entries: tuple[int, ...] = ()  # bytes from one entry point to the next; several where packs were joined
    resident_share: float | None = None  # of its bytes, in the page cache; None: unknown
    quality: Quality | None = None  # of `--quality`


@dataclass(frozen=True, slots=True)
class Picture:
    """A small picture of an image, as JPEG; b"" where it cannot be loaded. `code`: what is odd, ""."""

    name: str
    class_name: str
    code: str
    detail: str
    jpeg: bytes


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a page shows of a pack's images, odd ones first; `drawn` were looked at beside those."""

    pictures: tuple[Picture, ...]
    drawn: int


@dataclass(frozen=True, slots=True)
class IndexResult:
    """`feedrate index`.

    Attributes:
        files: that hold the samples; None: each value is a file of its own.
        resumed_parts: how many of the index's `parts` an earlier, unfinished run had already made.
        rejected: not in the index, each with its reason; also in rejected.jsonl.
        left_out: fields that cannot be indexed -> why.
        deep_images: gray of more than 8 bits, which loading does not take without `depth`.
        to_allow: what readers of the index have to type, and why; "": nothing.
        split: where the dataset has parts, the one that is trained on, as `split=` takes it.
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
    deep_images: int = 0
    to_allow: str = ""
    split: str = ""


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
    is_mapped: bool = False  # by a function of the user's, which may have changed more than pixels


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a pack. `key` and `offset` where they are known."""

    file: str
    text: str
    key: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class PixelComparison:
    """What the loader's decoder made of some samples, against Pillow.

    Attributes:
        asked: samples that were drawn; `images` of them were decoded by the kernel and by Pillow.
        mean_psnr_db, lowest_psnr_db, worst: of those that are not equal in every pixel; None: all are.
        largest_difference: in levels of 255, of any channel.
        level_shares: of the pixels, those that differ by 0, 1, 2 and more levels.
        by_pillow: why images went through Pillow in both ways -> how many, which proves nothing.
        outside: images that differ by more than rounding; also among the problems.
    """

    asked: int
    images: int
    equal_images: int
    mean_psnr_db: float | None
    lowest_psnr_db: float | None
    worst: str
    largest_difference: int
    level_shares: tuple[float, float, float, float]
    by_pillow: Mapping[str, int]
    outside: int


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
    is_mapped: bool = False  # by a function of the user's, which may have changed more than pixels
    manifest_checked: bool = True  # False: pack.json has no digest of itself
    is_index: bool = False  # of files that are where they were
    comparison: PixelComparison | None = None  # of `--pixels`, where no other problem was found

    @property
    def is_good(self) -> bool:
        return not self.problems


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
        deep_images: gray of more than 8 bits, which loading does not take without `depth`.
        ignored: suffix -> files that are no images.
        unlisted: images that no row of the table names.
        label_columns: columns of the table that became the labels.
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
    label_columns: tuple[str, ...] = ()
    recoded: Recoded | None = None
    mapped: Mapped | None = None
    quality: Quality | None = None
    deep_images: int = 0
