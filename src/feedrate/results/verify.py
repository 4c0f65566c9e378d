# SPDX-License-Identifier: Apache-2.0
"""What `verify` returns."""

from __future__ import annotations

from dataclasses import dataclass


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
    manifest_checked: bool = True  # False: pack.json has no digest of itself
    is_index: bool = False  # of files that lie where they were

    @property
    def is_good(self) -> bool:
        return not self.problems
