# SPDX-License-Identifier: Apache-2.0
"""What `index` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.results.progress import Rejection


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
