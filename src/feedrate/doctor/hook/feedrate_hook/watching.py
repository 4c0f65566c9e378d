# SPDX-License-Identifier: Apache-2.0
"""Watches the real steps: which loader is the training one, which go along, and when enough was seen."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import Any

LEAST_STEPS = 20
ROOM = 60  # steps that a loop which counts its batches should still have before its epoch ends


class Seen:
    """What was seen of one loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.nexts = 0
        self.optimizer_steps = 0  # made after a next() of this loader and before any other
        self.beside = 0  # training steps in which it was asked too
        self.last_beside = -1
        self.first_s = 0.0
        self.waited_s = 0.0
        self.without_grad = 0


class Watching:
    """Fed with every next() of the real run. Costs a microsecond or two."""

    def __init__(self, book: Any) -> None:
        settings = book.settings
        self._book = book
        self._steps = int(settings.get("steps", 110))
        self._seconds = float(settings.get("seconds", 45.0))
        self._seen: dict[int, Seen] = {}
        self._last: Seen | None = None
        self._optimizer_steps = 0
        self._has_optimizer: bool | None = None
        self._due_since: float | None = None

    def seen_of(self, loader: Any) -> Seen:
        seen = self._seen.get(id(loader))
        if seen is None or seen.loader() is not loader:
            seen = self._seen[id(loader)] = Seen(loader)
            seen.first_s = time.monotonic()
        return seen

    def note(self, loader: Any) -> Seen:
        """A next() of this loader begins."""
        steps = self._book.optimizer_steps
        if steps > self._optimizer_steps and self._last is not None:
            self._last.optimizer_steps += steps - self._optimizer_steps
        self._optimizer_steps = steps
        seen = self.seen_of(loader)
        seen.nexts += 1
        if not sys.modules["torch"].is_grad_enabled():
            seen.without_grad += 1
        self._last = seen
        self._note_beside(seen)
        return seen

    def training(self) -> Seen | None:
        """The loader that the optimizer follows; without an optimizer, the one that is asked most."""
        alive = [seen for seen in self._seen.values() if seen.loader() is not None]
        if not alive:
            return None
        best = max(alive, key=lambda seen: (seen.optimizer_steps, seen.nexts))
        if best.optimizer_steps == 0 and best.nexts >= self._least() and self._will_train():
            return None  # a validation before the training
        return best

    def _least(self) -> int:
        return min(LEAST_STEPS, self._steps)

    def _will_train(self) -> bool:
        """An optimizer exists, so its steps are to come. Looked for once: it takes a tenth of a second."""
        if self._has_optimizer is None:
            base = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
            self._has_optimizer = base is not None and any(
                issubclass(type(thing), base) for thing in gc.get_objects()
            )
        return self._has_optimizer

    def is_due(self, seen: Seen, iterator: Any) -> bool:
        """Enough was seen of this loader, and its epoch leaves room for the experiments."""
        done = seen.nexts - 1
        if done < self._steps and (done < self._least() or time.monotonic() - seen.first_s < self._seconds):
            return False
        if self.training() is not seen:
            return False
        now = time.monotonic()
        if self._due_since is None:
            self._due_since = now
        return now - self._due_since > self._seconds / 2 or has_room(seen.loader(), iterator)

    def companions(self, training: Seen) -> list[Any]:
        """Loaders that are asked in (nearly) every training step: those of labels, of a second view."""
        return [
            seen.loader()
            for seen in self._seen.values()
            if seen is not training and seen.beside >= 0.8 * training.nexts and seen.loader() is not None
        ]

    def _note_beside(self, seen: Seen) -> None:
        training = max(self._seen.values(), key=lambda one: one.optimizer_steps)
        if seen is not training and seen.last_beside != training.nexts:
            seen.last_beside = training.nexts
            seen.beside += 1

    def step_s(self, seen: Seen) -> float:
        """Mean time of a step, waiting included."""
        return (time.monotonic() - seen.first_s) / max(1, seen.nexts - 1)


def has_room(loader: Any, iterator: Any) -> bool:
    """Whether a loop that counts its batches still has some; of short epochs: whether one has just begun."""
    data = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, data.IterableDataset):
        return True
    try:
        length = len(loader)
    except Exception:
        return True
    yielded = int(getattr(iterator, "_num_yielded", 0))
    return length - yielded >= min(ROOM, length - 2)
