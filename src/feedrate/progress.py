# SPDX-License-Identifier: Apache-2.0
"""What long commands say on their way: how far they are, and what they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tick:
    """How far a long command is. `total` is 0 while it is not known yet."""

    stage: str  # "listing", "packing", "verifying", "unpacking"
    done: int
    total: int
    done_bytes: int = 0
    total_bytes: int = 0
    unit: str = "sample"  # what `done` and `total` count


# Why an input was left out. Samples that are kept have further codes: see packing/check/quality.py.
RejectionCode = Literal[
    "missing", "unreadable", "empty", "truncated", "corrupt", "incomplete", "map-failed", "deep", "outside",
    "named-twice", "too-large",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rejection:
    """An input that was left out, or deserves a look. Paths are relative to the source, made printable."""

    path: str
    field: str
    reason: str
    code: RejectionCode = "corrupt"
