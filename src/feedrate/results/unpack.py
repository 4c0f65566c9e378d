# SPDX-License-Identifier: Apache-2.0
"""What `unpack` returns."""

from __future__ import annotations

from dataclasses import dataclass


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
