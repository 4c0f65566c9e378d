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

    A global batch is `world * batch_size` consecutive slots, split over the ranks as evenly as possible. What
    remains at the end is one more; with fewer slots than ranks it and the full one before it are made two of
    about half the size (with `batch_size=1`: one, in which some ranks get two samples). How many slots remain
    decides everything, so an epoch that is resumed on as many ranks has the batches that were due.

    `pad` fills the last global batch up to a multiple of `world` with slots from the epoch's beginning,
    `drop_last` drops it when it is not full. `start` is the first slot, when an epoch is resumed.
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

    @property
    def remaining(self) -> int:
        return max(0, self.length - self.start)

    def _plan(self) -> tuple[int, tuple[int, ...]]:
        """Return how many global batches are full, and the sizes of those that follow."""
        full, rest = divmod(self.remaining, self.global_batch)
        if self.drop_last or not rest:
            return full, ()
        if self.pad or rest >= self.world:
            return full, (rest,)
        if not full:
            return 0, ()
        both = self.global_batch + rest
        return full - 1, (both,) if self.batch_size == 1 else (both - both // 2, both // 2)

    def __len__(self) -> int:
        full, last = self._plan()
        return full + len(last)

    @property
    def left_out(self) -> int:
        """How many slots no rank gets although nobody asked to drop them: fewer remain than ranks."""
        return 0 if self.drop_last or len(self) else self.remaining

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
        first = self.after(step - 1)
        full, last = self._plan()
        count = self.global_batch if step < full else last[step - full]
        if self.pad:
            count = -(-count // self.world) * self.world
        each, extra = divmod(count, self.world)
        begin = first + self.rank * each + min(self.rank, extra)
        slots = np.arange(begin, begin + each + (self.rank < extra), dtype=np.int64)
        return slots % self.length if self.pad else slots

    def after(self, step: int) -> int:
        """Return how many slots of the epoch all ranks together have used once batch `step` is given."""
        full, last = self._plan()
        return self.start + min(step + 1, full) * self.global_batch + sum(last[: max(0, step + 1 - full)])


def find_rank() -> tuple[int, int]:
    """Return (rank, world size) of torch.distributed when it is initialised, else (0, 1)."""
    # A process group can only be there if torch was imported; importing it here would cost a second.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
