# SPDX-License-Identifier: Apache-2.0
"""Finds the passes over a loader in which no optimizer stepped: validation, testing, inference."""

from __future__ import annotations

from . import layout
from .session import session

_MOST_OPEN = 16


class Pass:
    """One pass over a loader. `until_ns`: when the program turned to something else after the last batch."""

    def __init__(self, loader: int, start_ns: int) -> None:
        self.loader = loader
        self.start_ns = start_ns
        self.until_ns = 0
        self.last_ns = start_ns  # when its last batch was asked for
        self.batches = 0
        self.steps_before = session.optimizer_steps
        self.steps_when_left = -1  # optimizer steps when another loader was asked after this one; -1: not yet
        self.is_training = False
        self.has_grad = False
        self.is_over = False


class Passes:
    """The passes of this process that are under way."""

    def __init__(self) -> None:
        self._open: list[Pass] = []

    def begin(self, loader: int, start_ns: int) -> Pass:
        begun = Pass(loader, start_ns)
        self._open = [p for p in self._open if not p.is_over][-_MOST_OPEN:]
        self._open.append(begun)
        return begun

    def waited(self, current: Pass, start_ns: int, has_grad: bool) -> None:
        """A batch of `current` came."""
        steps = session.optimizer_steps
        current.is_training |= steps > current.steps_before
        current.has_grad |= has_grad
        current.batches += 1
        current.until_ns = 0
        current.last_ns = start_ns
        current.steps_when_left = -1
        for other in self._open:
            if other is not current and not other.is_over and other.batches:
                self._leave(other, start_ns, steps)

    def _leave(self, other: Pass, start_ns: int, steps: int) -> None:
        """Another loader was asked: twice, with an optimizer step in between, and the pass was left early."""
        other.until_ns = other.until_ns or start_ns
        if other.steps_when_left < 0:
            other.steps_when_left = steps
        elif steps > other.steps_when_left:
            other.is_over = True
            # A single batch with gradients is more likely one of a second training loader.
            if not other.is_training and not (other.has_grad and other.batches == 1):
                self._record(other, other.until_ns)

    def stepped(self, start_ns: int) -> None:
        """An optimizer stepped."""
        for other in self._open:
            if other.batches and not other.until_ns:
                other.until_ns = start_ns

    def ended(self, current: Pass, end_ns: int) -> None:
        """The loader had no more batches."""
        if current.batches and session.optimizer_steps == current.steps_before:
            self._record(current, end_ns)
        current.is_over = True

    def flush(self) -> None:
        """The program is over: its last pass may have been left before the loader's end."""
        for other in self._open:
            if not other.is_over and other.batches > 1 and session.optimizer_steps == other.steps_before:
                self._record(other, other.until_ns or other.last_ns)

    def _record(self, over: Pass, end_ns: int) -> None:
        session.ring.write(
            layout.VALIDATION, over.loader, over.start_ns, end_ns - over.start_ns, a=over.batches
        )
