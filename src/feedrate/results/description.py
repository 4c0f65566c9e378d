# SPDX-License-Identifier: Apache-2.0
"""What `ls` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    entries: tuple[int, ...] = ()  # bytes from one entry point to the next; several where packs were merged
    resident_share: float | None = None  # of its bytes, in the page cache; None: unknown
