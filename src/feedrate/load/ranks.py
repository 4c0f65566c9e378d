# SPDX-License-Identifier: Apache-2.0
"""Which slots of an epoch go to which batch of which rank. Every rank makes the same number of batches."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from feedrate.draws import I64
from feedrate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shares:
    """One rank's batches of one epoch.

    A global batch is `world * batch_size` consecutive slots. The last one may be incomplete: it is split as
    evenly as possible; with fewer slots than ranks it is dropped. `pad` fills it up to a multiple of `world`
    with slots from the epoch's beginning, `drop_last` drops it. `start` is the first slot, when an epoch is
    resumed.
    """

    length: int
    batch_size: int
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    pad: bool = False
    start: int = 0

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world

    def __len__(self) -> int:
        full, rest = divmod(max(0, self.length - self.start), self.global_batch)
        has_last = rest > 0 and not self.drop_last and (self.pad or rest >= self.world)
        return full + has_last

    def check_not_empty(self) -> None:
        """Raise a UsageError when all samples are dropped: an epoch of nothing would pass unnoticed."""
        if not self.length or len(self):
            return
        if self.drop_last:
            need = (
                f"{self.batch_size} on each of {self.world} ranks" if self.world > 1 else f"{self.batch_size}"
            )
            raise UsageError(
                f"no batch would come: drop_last needs {need}, and {self.length} samples are there",
                hint="lower batch_size, or leave drop_last out",
            )
        raise UsageError(
            f"no batch would come: {self.length} samples are there for {self.world} ranks",
            hint="pad=True fills the batch up",
        )

    def slots(self, step: int) -> I64:
        """Return the slots of this rank's batch number `step`, counted from `start`."""
        first = self.start + step * self.global_batch
        count = min(self.global_batch, self.length - first)
        if self.pad:
            count = -(-count // self.world) * self.world
        each, extra = divmod(count, self.world)
        begin = first + self.rank * each + min(self.rank, extra)
        slots = np.arange(begin, begin + each + (self.rank < extra), dtype=np.int64)
        return slots % self.length if self.pad else slots

    def after(self, step: int) -> int:
        """Return how many slots of the epoch all ranks together have used once batch `step` is given."""
        return min(self.length, self.start + (step + 1) * self.global_batch)


def find_rank() -> tuple[int, int]:
    """Return (rank, world size) of torch.distributed when it is initialised, else (0, 1)."""
    # A process group can only be there if torch was imported; importing it here would cost a second.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
