# SPDX-License-Identifier: Apache-2.0
"""What a copy on scratch was found not to have as it should: that is read from the source from then on."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from feedrate.kernel import I32, I64, Status
from feedrate.store.patience import log

# What a copy that was deleted, cut short or overwritten looks like to the kernel.
_LOST = (Status.UNREADABLE, Status.CUT_SHORT)
SPOILT = (*_LOST, Status.CRC_MISMATCH, Status.BAD_ENTRIES)


class Doubts:
    """Shards that are gone, and samples that are not what the index says. Safe to use from any thread.

    Attributes:
        count: how many samples there was a doubt about.
        lost_shards: of each shard, whether it is gone.
    """

    def __init__(self, name: str, shards: int) -> None:
        self.count = 0
        self._name = name
        self._lock = threading.Lock()
        self.lost_shards = np.zeros(shards, np.bool_)
        self._distrusted: set[int] = set()

    def add(self, shards: I64, positions: I64, statuses: I32) -> None:
        """Note samples that could not be read; the first time, say so."""
        with self._lock:
            if not self.count:
                log.warning(
                    "%s: the copy on scratch is damaged or gone (%s); those samples are read from the source",
                    self._name, Status(int(statuses[0])).name.lower().replace("_", " "),
                )  # fmt: skip
            self.count += len(positions)
            lost = np.isin(statuses, _LOST)
            self.lost_shards[shards[lost]] = True
            self._distrusted.update(positions[~lost].tolist())

    def distrusts(self, positions: I64) -> npt.NDArray[np.bool_]:
        """Return which samples are not what the index says."""
        return np.isin(positions, list(self._distrusted))
