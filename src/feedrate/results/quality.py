# SPDX-License-Identifier: Apache-2.0
"""What packing found out about a dataset: `quality.json` in a pack, and `feedrate quality`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
