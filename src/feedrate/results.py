# SPDX-License-Identifier: Apache-2.0
"""What passes between the layers: frozen dataclasses that commands return and `report` draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Where something was measured."""

    cpu_model: str
    usable_cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: Mapping[str, str]
    commit: str | None
    command_line: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One fresh process that loaded or trained: a discarded epoch, then timed ones.

    Attributes:
        images: of each timed epoch; `seconds` likewise, from one epoch's end to the next.
        wait_s: how long the consumer waited for batches in the timed epochs.
        cpu_s: of the process and its workers in the timed epochs.
        first_batch_s: from the making of the loader, imports done, to the first batch.
        peak_memory_bytes: of the process and its workers, shared pages counted once (PSS).
    """

    contestant: str
    round: int
    images: tuple[int, ...]
    seconds: tuple[float, ...]
    wait_s: float
    cpu_s: float
    first_batch_s: float
    peak_memory_bytes: int
    accuracy: float | None = None

    @property
    def images_per_s(self) -> float:
        return sum(self.images) / sum(self.seconds)

    @property
    def cpu_s_per_image(self) -> float:
        return self.cpu_s / sum(self.images)


@dataclass(frozen=True, slots=True)
class Standing:
    """The runs of one contestant: medians over the runs; `slow` and `fast` are quartiles over all epochs."""

    contestant: str
    images_per_s: float
    slow_images_per_s: float
    fast_images_per_s: float
    wait_s: float
    wait_share: float
    cpu_s_per_image: float
    first_batch_s: float
    peak_memory_bytes: int
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class PixelCheck:
    """The same crops through both decoders."""

    images: int
    lowest_psnr_db: float | None  # None: every pixel is equal
    largest_difference: int
    is_same: bool  # within what two exact decoders may differ by
    by_pillow: int  # of the images: left to Pillow by the kernel, so equal without proving anything


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`feedrate bench loader`: `after` is feedrate, `before` the loader that everybody starts with."""

    source: str
    dataset_images: int
    batch_size: int
    threads: int
    image_side: int
    before: Standing
    after: Standing
    ratio: float  # images/s, median over paired runs
    pixels: PixelCheck
    runs: tuple[BenchRun, ...]
    machine: Machine


@dataclass(frozen=True, slots=True)
class DemoResult:
    """`feedrate demo`: the same network trained on the same images, before and after packing."""

    images: int
    held_out_images: int
    image_bytes: int
    epochs: int
    threads: int
    pack_s: float
    before: Standing
    after: Standing
    ratio: float  # images/s, median over paired runs
    runs: tuple[BenchRun, ...]
    kept: str | None  # the folder, when it was kept
    machine: Machine


@dataclass(frozen=True, slots=True)
class Tick:
    """How far a long command is. `total` is 0 while it is not known yet."""

    stage: str  # "listing", "packing", "verifying", "unpacking"
    done: int
    total: int
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """An input that was left out, or deserves a look. Paths are relative to the source, made printable."""

    path: str
    field: str
    reason: str


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
    pixels: str = ""  # what packing did to them


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """One image, cropped, resized and flipped both ways. `box` is in pixels of the stored image."""

    name: str
    width: int
    height: int
    box: tuple[int, int, int, int]
    flip: bool
    psnr_db: float | None  # None: every pixel is equal
    largest_difference: int
    identical_share: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Many images both ways. A pixel differs by as much as its channel that differs most.

    Attributes:
        equal_images: those in which every pixel is equal; the mean PSNR is that of the others.
        level_shares: of all pixels, those that differ by 0, 1, 2 and more levels of 255.
        worst: a few of those that differ, lowest PSNR first.
        outside: images that differ by more than rounding.
        lossy: what the user asked for changes pixels, so that no limit holds.
    """

    images: int
    equal_images: int
    mean_psnr_db: float | None
    lowest_psnr_db: float | None
    largest_difference: int
    level_shares: tuple[float, float, float, float]
    worst: tuple[ImageDifference, ...]
    outside: int
    lossy: bool = False

    @property
    def is_good(self) -> bool:
        return self.lossy or not self.outside


@dataclass(frozen=True, slots=True)
class Fidelity:
    """`feedrate fidelity`: what the loader would feed, against Pillow on the same files.

    Attributes:
        pillow: None when no image was decoded by the kernel, so that nothing is proven.
        by_pillow: why images went through Pillow anyway -> how many; they are not in `pillow`.
        originals: against the files that a pack was made of; all images of the sample.
        settings: of a pack: those that change pixels.
        not_compared: files that Pillow does not decode, and we neither, or which are stored as no image file.
        refused: images that we cannot read or decode, though Pillow can, or though they were packed.
        missing: samples whose original is not there or is no image.
    """

    source: str
    dataset_images: int
    sampled: int
    seed: int
    image_side: int
    lowest_psnr_limit_db: float
    largest_difference_limit: int
    pillow: Comparison | None
    by_pillow: Mapping[str, int]
    originals: Comparison | None
    originals_folder: str | None
    settings: Mapping[str, object]
    not_compared: tuple[Rejection, ...]
    refused: tuple[Rejection, ...]
    missing: tuple[Rejection, ...]
    machine: Machine

    @property
    def is_good(self) -> bool:
        compared = [one for one in (self.pillow, self.originals) if one is not None]
        something = bool(compared or self.by_pillow)
        return something and not self.refused and all(one.is_good for one in compared)


@dataclass(frozen=True, slots=True)
class Picture:
    """What a page shows of an `ImageDifference`: PNG files of ours, of theirs, and of the difference."""

    difference: ImageDifference
    ours: bytes
    theirs: bytes
    amplified: bytes
    gain: int  # by which the difference was multiplied


@dataclass(frozen=True, slots=True)
class Pictures:
    """A few pairs of each comparison, the worst first; not part of a JSON document."""

    pillow: tuple[Picture, ...]
    originals: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class KernelStage:
    """A step of decoding: CPU time per image, and what exactly was timed."""

    name: str
    cpu_s_per_image: float
    what: str


@dataclass(frozen=True, slots=True)
class KernelStanding:
    """One decoder on one thread.

    Attributes:
        images_per_cpu_s: median over the rounds; `slow` and `fast` are quartiles.
        ratio: feedrate's images per CPU second over this one's, median over paired rounds.
        mean_psnr_db: against Pillow, over images that differ; None: every pixel is equal.
        cpu_s: of each round, all images once.
    """

    contestant: str
    images_per_cpu_s: float
    slow_images_per_cpu_s: float
    fast_images_per_cpu_s: float
    ratio: float
    mean_psnr_db: float | None
    lowest_psnr_db: float | None
    cpu_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One set of images. `left_out`: decoders that did not run, and why."""

    name: str
    images: int
    mean_megapixels: float
    mean_bytes: float
    by_pillow: Mapping[str, int]
    standings: tuple[KernelStanding, ...]
    stages: tuple[KernelStage, ...]
    left_out: Mapping[str, str]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class KernelResult:
    """`feedrate bench kernel`."""

    image_side: int
    rounds: int
    sets: tuple[KernelSet, ...]
    machine: Machine


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
