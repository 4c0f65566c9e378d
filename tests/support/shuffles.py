# SPDX-License-Identifier: Apache-2.0
"""How well an order is shuffled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from feedrate.kernel import I64


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How well an order is shuffled; a full permutation has 1, 1 and 0 (give or take chance).

    Attributes:
        displacement: how far samples move from where they are stored, relative to a full permutation.
        batch_spread: how widely a batch draws from the dataset (standard deviation of its positions),
            likewise.
        neighbours: share of consecutive samples that are also stored next to each other.
    """

    displacement: float
    batch_spread: float
    neighbours: float


def measure_shuffle(positions: I64, batch_size: int = 256) -> ShuffleQuality:
    """Measure the shuffle quality of one epoch's order."""
    n = len(positions)
    batches = positions[: n // batch_size * batch_size].reshape(-1, batch_size)
    return ShuffleQuality(
        displacement=float(np.abs(positions - np.arange(n)).mean() / (n / 3)),
        batch_spread=float(batches.std(axis=1).mean() / (n / math.sqrt(12))),
        neighbours=float((np.abs(np.diff(positions)) == 1).mean()),
    )
