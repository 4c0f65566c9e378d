# SPDX-License-Identifier: Apache-2.0
"""Where cached samples may lie, from the words of a user: `ram="auto"`, `ram="8GB"`, `disk="/scr:200GB"`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from feedrate.errors import UsageError
from feedrate.probe.storage import describe_storage
from feedrate.units import parse_bytes

TierKind = Literal["ram", "disk"]


@dataclass(frozen=True, slots=True)
class Tier:
    """Where samples may lie.

    Attributes:
        limit_bytes: None: as much as there is room for ("auto").
        folder: of a disk.
        keep: a name under which what lies there is found again by later jobs (kept.py).
    """

    kind: TierKind
    limit_bytes: int | None = None
    folder: str | None = None
    keep: str | None = None


def parse_tiers(
    ram: int | str = "auto", disk: str | os.PathLike[str] | None = None, *, is_needed: bool = True
) -> tuple[Tier, ...]:
    """Return the tiers that a user asked for, near to far.

    Args:
        ram: "auto", a size such as "8GB", a number of bytes; 0: none.
        disk: "FOLDER:SIZE", or a folder alone: as much as there is room for; None: none.
        is_needed: there must be one.

    Raises:
        UsageError: it is none of these, or the folder cannot be used; in words.
    """
    tiers = []
    if ram == "auto":
        tiers.append(Tier("ram"))
    elif limit := parse_size("ram", ram):
        tiers.append(Tier("ram", limit))
    if disk is not None:
        tiers.append(_parse_disk(disk))
    if not tiers and is_needed:
        raise UsageError(
            "a cache needs memory or a disk, got ram=0 and disk=None", hint='ram="auto", or disk="/scr:200GB"'
        )
    return tuple(tiers)


def parse_size(name: str, size: Any) -> int:
    """Return a number of bytes from a user's words: a size such as "8GB", a number; 0: none."""
    if isinstance(size, str) and size.strip() != "0":
        return parse_bytes(size)
    if isinstance(size, str):
        return 0
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
        raise UsageError(f'{name} must be "auto", a size such as "8GB" or a number of bytes, got {size!r}')
    return int(size)


def _parse_disk(disk: str | os.PathLike[str]) -> Tier:
    if not isinstance(disk, (str, os.PathLike)) or not os.fspath(disk):
        raise UsageError(f'disk must be a folder and a size such as "/scr:200GB", got {disk!r}')
    text = os.fspath(disk)
    folder, colon, size = text.rpartition(":")
    if not colon or os.path.isdir(text):
        folder, size = text, ""
    folder = os.path.abspath(os.path.expanduser(folder))
    limit = parse_bytes(size) if size else None
    if not os.path.isdir(folder):
        raise UsageError(
            f"the cache's disk {folder} is not a folder", hint='name one that is there: disk="/scr:200GB"'
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the cache's disk {folder} cannot be written to")
    storage = describe_storage(folder)
    if storage.is_memory:
        # Its pages count as the job's memory and nothing could give them back.
        raise UsageError(f"the cache's disk {folder} is memory ({storage.kind})", hint="use ram= for memory")
    return Tier("disk", limit, folder)
