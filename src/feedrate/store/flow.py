# SPDX-License-Identifier: Apache-2.0
"""In which order the shards of a pack flow to scratch; who trains meanwhile reads them in the same order."""

from __future__ import annotations

import numpy as np

from feedrate.draws import I64, Purpose, make_key, permute

# Shards that flow side by side: the first batches of an epoch come from so many of them.
GROUP = 16


def order_shards(shards: int) -> I64:
    """Return the order in which shards flow: mixed, and the same for all jobs, whatever their seeds."""
    numbers = np.arange(shards, dtype=np.int64)
    return permute(numbers, shards, make_key(shards, Purpose.STAGE)) if shards else numbers
