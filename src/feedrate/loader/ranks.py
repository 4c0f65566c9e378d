# SPDX-License-Identifier: Apache-2.0
"""Which slots of an epoch go to which batch of which rank. Every rank makes the same number of batches."""

from __future__ import annotations

import functools
import logging
import os
import sys
from dataclasses import dataclass

import numpy as np

from feedrate.arrays import I64
from feedrate.errors import UsageError

Rank = tuple[int, int]  # this process, and how many there are
ALONE: Rank = (0, 1)

log = logging.getLogger("feedrate")


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

    def check_not_empty(self, epoch: int = 0) -> None:
        """Raise a UsageError when there are no samples: an epoch of nothing would pass unnoticed."""
        if len(self):
            return
        if not self.length:
            raise UsageError(f"no batch would come: the order of epoch {epoch} holds no samples")
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


@dataclass(slots=True)
class Ranks:
    """Which rank this process is, and of how many.

    What arguments, a process group or RANK and WORLD_SIZE say holds for good. Where nobody says anything, the
    process is alone from its first use on; until then a process group may still appear.
    """

    given: Rank | None
    _taken: Rank | None = None

    def look(self) -> Rank:
        """Return (rank, world size), without deciding that this process is alone."""
        if self.given is not None:
            return self.given
        if self._taken is None:
            self._taken = _ask_torch()
            if self._taken is not None:
                _tell(*self._taken, "the process group says")
            else:
                self._taken = _ask_environment()
        elif (group := _ask_torch()) is not None:
            self._check(group, "torch.distributed")
        return self._taken or ALONE

    def use(self) -> Rank:
        """Return (rank, world size), from now on for good.

        Raises:
            UsageError: a process group appeared, and contradicts what was used before.
        """
        rank = self.look()
        self._taken = rank
        return rank

    def adopt(self, found: Rank | None, who: str) -> None:
        """Take the numbers of a framework, unless arguments said them; None: it knows nothing of others."""
        if found is not None and self.given is None:
            self._check(found, who)
            self._taken = found

    def _check(self, found: Rank, who: str) -> None:
        if self._taken not in (None, found):
            rank, world = self._taken or ALONE
            raise UsageError(
                f"this loader took itself for rank {rank} of {world}, and {who} says rank {found[0]} of "
                f"{found[1]}: make the loader after that is known, or give it rank= and world_size="
            )


def _ask_torch() -> Rank | None:
    # A process group can only be there if torch was imported; importing it here would cost a second.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _ask_environment() -> Rank | None:
    said = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if said[0] is not None and said[1] is not None:
        try:
            rank, world = int(said[0]), int(said[1])
        except ValueError:
            rank, world = 0, 0
        if not 0 <= rank < world:
            raise UsageError(
                f"this process has RANK={said[0]!r} and WORLD_SIZE={said[1]!r}, which name no rank: correct "
                "them, or give the loader rank= and world_size="
            )
        _tell(rank, world, "RANK and WORLD_SIZE say (there is no process group)")
        return rank, world
    # Only srun sets it, for the tasks of a step; a batch script has no more than SLURM_NTASKS, and is alone.
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        raise UsageError(
            f"this is task {os.environ.get('SLURM_PROCID')} of {tasks} of a Slurm step, and nothing says "
            "whether they train together. Initialise torch.distributed before the loader is made, or add to "
            "Loader(...)\n"
            '  one training on all tasks:  rank=int(os.environ["SLURM_PROCID"]), '
            'world_size=int(os.environ["SLURM_STEP_NUM_TASKS"])\n'
            "  each task on its own:       rank=0, world_size=1"
        )
    return None


@functools.cache
def _tell(rank: int, world: int, who: str) -> None:
    if world > 1:
        words = (
            "this process loads as rank %d of %d, as %s, and gets its part of the samples: a loader that one "
            "rank alone goes through, as for validation, gets all of them by world_size=1"
        )
        log.warning(words, rank, world, who)
