# SPDX-License-Identifier: Apache-2.0
"""What `fidelity` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.machine.results import Machine
from feedrate.progress import Rejection


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
    interpolation: str = "bilinear"

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
