# SPDX-License-Identifier: Apache-2.0
"""Watches the real steps: which loader is the training one, which go along, and when enough was seen.

Ranks agree, through files in the run folder, when the experiments begin and how many steps each phase has: a
rank that made one step more than the others would wait in a collective for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import weakref
import zlib
from typing import Any

from ..record import describe, loader_clone, other_loaders
from ..session import session
from ..wrapping import ByIdentity, living

MARGIN = 8  # steps between the decision and the beginning: every rank has read it by then
# Several jobs, or a restarted one, may share a run folder.
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID",
)  # fmt: skip
LONGEST_WAIT_S = 120.0  # longer than a rank waits for those who write


class Ranks:
    """One rank's view. With one rank every answer is immediate."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self._folder = str(session.settings.get("run") or session.run)
        job = "|".join(os.environ.get(name, "") for name in JOB_VARIABLES)
        self._job = f"{zlib.crc32(job.encode()):08x}"
        self._agreed: dict[str, Any] | None = None

    def look(self) -> None:
        """Find out whether this process has others to keep step with, and tell them that it takes part.

        Variables of the environment do not tell: tasks beside each other need not train one model.
        """
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        if self.size > 1:
            self._write(f"rank-{self.rank}", {})

    def withdraw(self) -> None:
        """It does not any more."""
        if self.size > 1:
            with contextlib.suppress(OSError):
                os.unlink(self._path(f"rank-{self.rank}"))

    def count(self, what: str) -> int:
        """Of how many ranks that is there."""
        return sum(os.path.exists(self._path(f"{what}-{rank}")) for rank in range(self.size))

    def decide(self, plan: dict[str, Any]) -> None:
        self._write("begin", plan)
        self._agreed = plan

    def plan(self) -> dict[str, Any] | None:
        """What rank 0 decided; None: nothing yet. Cheap: it is asked at every step."""
        if self._agreed is None:
            self._agreed = self._read("begin")
        return self._agreed

    def gather(self, name: str, value: Any) -> list[Any] | None:
        """Every rank's value, when all are there. None: one of them did not come."""
        if self.size == 1:
            return [value]
        self._write(f"{name}-{self.rank}", value)
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline and not self.has_ended():
            values = [self._read(f"{name}-{rank}") for rank in range(self.size)]
            if all(value is not None for value in values):
                return values
            time.sleep(0.01)
        return None

    def has_ended(self) -> bool:
        """Some other rank is over: whoever waits for it in a collective waits in vain."""
        return self.count("ended") > os.path.exists(self._path(f"ended-{self.rank}"))

    def leave(self) -> None:
        """End together: a rank that goes first takes the others' connections down."""
        if self.size == 1:
            return
        self._write(f"ended-{self.rank}", {})
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline and self.count("ended") < self.size:
            time.sleep(0.01)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{self._job}-{name}")

    def _write(self, name: str, value: Any) -> None:
        path = self._path(name)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.rename(f"{path}.{os.getpid()}", path)

    def _read(self, name: str) -> Any:
        try:
            with open(self._path(name), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None


LEAST_STEPS = 20
ROOM = 60  # steps that a loop which counts its batches should still have before its epoch ends


class Seen:
    """What was seen of one loader, or of loaders that are made anew in every epoch."""

    def __init__(self) -> None:
        self.nexts = 0
        self.optimizer_steps = 0  # made after a next() of this loader and before any other
        self.beside = 0  # training steps in which it was asked too
        self.last_beside = -1
        self.first_s = time.monotonic()
        self.second_s = self.first_s  # the first step is over; workers started in it
        self.loader: Any = lambda: None  # the last one, if it is still there


class Watching:
    """Fed with every next() of the real run. Costs a few microseconds."""

    def __init__(self) -> None:
        settings = session.settings
        self._steps = int(settings.get("steps", 110))
        self._seconds = float(settings.get("seconds", 45.0))
        self._seen: dict[Any, Seen] = {}
        self._by_iterator = ByIdentity()
        self._last: Seen | None = None
        self._optimizer_steps = 0
        self._has_optimizer: bool | None = None
        self._due_since: float | None = None

    def seen_of(self, iterator: Any) -> Seen:
        seen: Seen | None = self._by_iterator.get(iterator)
        if seen is None:
            seen = self._seen.setdefault(session.loaders.name_of(iterator), Seen())
            seen.loader = weakref.ref(session.loaders.loader_of(iterator))
            self._by_iterator.put(iterator, seen)
        return seen

    def note(self, iterator: Any) -> Seen:
        """A next() of this iterator begins."""
        steps = session.optimizer_steps
        if steps > self._optimizer_steps and self._last is not None:
            self._last.optimizer_steps += steps - self._optimizer_steps
        self._optimizer_steps = steps
        seen = self.seen_of(iterator)
        seen.nexts += 1
        if seen.nexts == 2:
            seen.second_s = time.monotonic()
        self._last = seen
        if len(self._seen) > 1:
            training = max(self._seen.values(), key=lambda one: one.optimizer_steps)
            if seen is not training and seen.last_beside != training.nexts:
                seen.last_beside = training.nexts
                seen.beside += 1
        return seen

    def training(self) -> Seen | None:
        """The loader that the optimizer follows; without an optimizer, the one that is asked most."""
        best = max(self._seen.values(), key=lambda seen: (seen.optimizer_steps, seen.nexts), default=None)
        if best is None or best.optimizer_steps or best.nexts < self._least():
            return best
        return None if self._will_train() else best  # None: a validation before the training

    def _least(self) -> int:
        return min(LEAST_STEPS, self._steps)

    def _will_train(self) -> bool:
        """An optimizer exists, so its steps are to come. Looked for once: it takes a tenth of a second."""
        if self._has_optimizer is None:
            self._has_optimizer = bool(living(getattr(sys.modules.get("torch.optim"), "Optimizer", None)))
        return self._has_optimizer

    def is_due(self, seen: Seen, iterator: Any) -> bool:
        """Enough was seen of this loader, and its epoch leaves room for the experiments."""
        done = seen.nexts - 1
        if done < self._steps and (done < self._least() or time.monotonic() - seen.first_s < self._seconds):
            return False
        if self.training() is not seen:
            return False
        now = time.monotonic()
        left, needed = room_of(session.loaders.loader_of(iterator), iterator)
        if self._due_since is None:
            self._due_since = now
            if left < needed:
                session.facts("no-room", steps=done, left=left, needed=needed)
        is_late = now - self._due_since > self._seconds / 2
        return is_late or left >= needed

    def is_last_chance(self, seen: Seen) -> bool:
        """The epoch that left no room is over, and nothing is trained: there may be no other epoch.

        The loop asked for more than there is, so it does not count its batches, and needs no room.
        """
        return self._due_since is not None and self.training() is seen and not seen.optimizer_steps

    def leaves(self, seen: Seen, iterator: Any, seconds: float) -> bool:
        """Whether the rest of the epoch lasts so long, beyond what may be ready already."""
        loader = session.loaders.loader_of(iterator)
        if other_loaders.is_pack_loader(loader):
            return True  # further epochs of it follow without a pause for workers
        length = length_of(loader)
        if length is None:
            return True
        rest = length - int(getattr(iterator, "_num_yielded", 0)) - loader_clone.prefetched(loader)
        return rest > max(LEAST_STEPS, 2 * loader.num_workers) and rest * self.step_s(seen) > seconds

    def companions(self, training: Seen) -> list[Seen]:
        """Loaders that are asked in (nearly) every training step: those of labels, of a second view."""
        others = [seen for seen in self._seen.values() if seen is not training]
        return [seen for seen in others if seen.beside >= 0.8 * training.nexts]

    def step_s(self, seen: Seen) -> float:
        """Mean time of a step, waiting included."""
        return (time.monotonic() - seen.second_s) / max(1, seen.nexts - 2)


def length_of(loader: Any) -> int | None:
    """Batches in an epoch; None: not known, or asking would have an effect."""
    return None if loader_clone.is_iterable_style(loader) else describe.length_of(loader)


def room_of(loader: Any, iterator: Any) -> tuple[int, int]:
    """The steps that an epoch has left, and those that it should: a loop may count its batches.

    Of a short epoch nearly all, so that the experiments begin with one. (0, 0): it has no known end.
    """
    if other_loaders.is_pack_loader(loader):
        left = len(iterator)
        return left, min(ROOM, left + int(getattr(iterator, "_step", 0)) - 2)
    length = length_of(loader)
    if length is None:
        return 0, 0
    return length - int(getattr(iterator, "_num_yielded", 0)), min(ROOM, length - 2)
