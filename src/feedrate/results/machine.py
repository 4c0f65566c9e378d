# SPDX-License-Identifier: Apache-2.0
"""Where something was measured."""

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
