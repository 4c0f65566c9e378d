# SPDX-License-Identifier: Apache-2.0
"""Entry points as a forger writes them: whole, with the right checksums, at places where none may stand."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from feedrate import kernel

HEAD = 12  # version, components, step, checksum of the file, checksum of the rest


def forge(data: bytes, points: Sequence[int], *, step: int, components: int) -> bytes:
    """Return entry points at these bits of the entropy-coded data; all predictors are zero."""
    distances = np.diff([0, *points]).astype(np.int64).astype("<u4")
    tail = bytes([32, *[0] * components]) + bytes(2 * components) + distances.tobytes()
    return tie(data, struct.pack("<BBHII", 1, components, step, 0, 0) + tail)


def tie(data: bytes, entries: bytes) -> bytes:
    """Return entry points with the checksums that make them those of a file."""
    if len(entries) < HEAD:
        return entries
    head = entries[:4] + kernel.crc32c(data).to_bytes(4, "little")
    return head + kernel.crc32c(entries[HEAD:], kernel.crc32c(head)).to_bytes(4, "little") + entries[HEAD:]


def find_traps(scan: bytes) -> list[int]:
    """Return the bytes at which no entry point may stand: stuffed zeros, markers, and what is beside them."""
    marks = [at for at, value in enumerate(scan[:-1]) if value == 0xFF]
    return [at + beside for at in marks for beside in (0, 1, 2)]


def draw_points(rng: np.random.Generator, scan: bytes, count: int) -> list[int]:
    """Return so many bits, most at traps, that begin at 0; one time in eight they are in the wrong order."""
    most = 8 * len(scan)
    traps = [8 * at for at in find_traps(scan) if at < len(scan)]
    drawn: Iterable[int] = rng.integers(1, max(most, 2), count)
    if traps and rng.integers(4):
        drawn = rng.choice(traps, count) + rng.integers(0, 8, count) * rng.integers(0, 2, count)
    if rng.integers(4) == 0:  # crowded: little room, and what is due lies far behind
        drawn = int(rng.integers(1, max(most - count, 2))) + np.arange(count)
    points = _spread(sorted(map(int, drawn))) if rng.integers(8) else [int(point) for point in drawn]
    return [0, *points[1:]]


def _spread(points: list[int]) -> list[int]:
    """Return rising numbers: two at the same bit are none."""
    risen: list[int] = []
    for point in points:
        risen.append(max(point, risen[-1] + 1 if risen else 1))
    return risen
