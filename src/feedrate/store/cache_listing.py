# SPDX-License-Identifier: Apache-2.0
"""The caches that `cached(..., key=...)` keeps on a scratch folder, for who looks at it and clears it."""

from __future__ import annotations

import os
from pathlib import Path

from feedrate.probe.process import find_openers
from feedrate.results.scratch import CacheInfo, Leftover
from feedrate.store.kept import NAMES, is_doomed, last_used, list_places, measure
from feedrate.store.leases import is_locked
from feedrate.store.shelf_table import ROW

_LOCK, _ROWS = NAMES[2], NAMES[1]


def list_caches(scratch: Path) -> list[CacheInfo]:
    """Return this user's caches on a scratch folder: others' cannot be looked at."""
    return [_describe(place) for place in list_places(str(scratch)) if not place.name.startswith(".")]


def list_doomed(scratch: Path) -> list[Leftover]:
    """Return caches that were being deleted when who did so ended."""
    doomed = [place for place in list_places(str(scratch)) if is_doomed(place.name)]
    return [Leftover(str(place), "a cache that was being deleted", measure(place)) for place in doomed]


def _describe(place: Path) -> CacheInfo:
    try:
        samples = os.stat(place / _ROWS).st_size // ROW.itemsize
    except OSError:
        samples = 0
    return CacheInfo(
        path=str(place),
        size_bytes=measure(place),
        samples=samples,
        used=last_used(place),
        users=tuple(find_openers(os.path.realpath(place))),
        is_being_filled=is_locked(place / _LOCK),
    )
