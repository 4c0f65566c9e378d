# SPDX-License-Identifier: Apache-2.0
"""The device's own clock: events at both ends of each wait, read when the device has passed them.

An event that is recorded when a wait begins is passed when the work queued before it is done; one that is
recorded when the wait ends is passed at that moment or later. Between the two the device had nothing to do.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .. import layout
from ..session import session

_MOST_PENDING = 64


class Device:
    """Events of this process's current device. Off until CUDA is in use, and again after any error."""

    def __init__(self) -> None:
        self._is_off = False
        self._of_parents: Any = None
        self._pool: list[Any] = []
        self._pending: deque[tuple[Any, ...]] = deque()
        self._entry: Any = None
        # The last probed batch's event; then the time its wait ended, its phase, its first forward.
        self.arrival: Any = None
        self._arrival_ns = 0
        self._arrival_phase = 0
        self._forward: Any = None
        self._forward_end: Any = None

    def after_fork(self) -> None:
        """Begin anew in a child, and keep the parent's events: to free one there would end the child."""
        events = (self._entry, self.arrival, self._forward, self._forward_end)
        kept = (self._pool, self._pending, events, self._of_parents)
        self.__init__()  # type: ignore[misc]
        self._of_parents = kept

    def is_used(self) -> bool:
        torch = session.torch
        return not self._is_off and torch is not None and torch.cuda.is_initialized()

    def wait_begins(self) -> None:
        self._entry = None
        if not self.is_used() or (not session.probing and self.arrival is None):
            return
        try:
            entry = self._record()
            if self.arrival is not None:
                step = (
                    layout.DEVICE,
                    self._arrival_phase,
                    self._arrival_ns,
                    self.arrival,
                    entry,
                    self._forward,
                    self._forward_end,
                )
                self._pending.append(step)
                self.arrival = self._forward = self._forward_end = None
            self._entry = entry
        except Exception as error:
            self._give_up(error)

    def wait_ends(self, start_ns: int, end_ns: int) -> None:
        if self._entry is None or not session.probing:
            return
        try:
            self.arrival = self._record()
            self._arrival_ns = end_ns
            self._arrival_phase = session.phase
            self._pending.append(
                (layout.EXPOSED, session.phase, start_ns, self._entry, self.arrival, None, None)
            )
            self._collect()
        except Exception as error:
            self._give_up(error)

    def forward_begins(self) -> None:
        if self.arrival is None or self._forward is not None:
            return
        try:
            if not session.torch.cuda.is_current_stream_capturing():
                self._forward = self._record()
        except Exception as error:
            self._give_up(error)

    def forward_ends(self) -> None:
        if self._forward is None or self._forward_end is not None:
            return
        try:
            if not session.torch.cuda.is_current_stream_capturing():
                self._forward_end = self._record()
        except Exception as error:
            self._give_up(error)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else session.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def collect(self) -> None:
        """Read the events that the device has passed."""
        if self.is_used():
            try:
                self._collect()
            except Exception as error:
                self._give_up(error)

    def _collect(self) -> None:
        pending = self._pending
        while pending and pending[0][4].query():
            kind, phase, start_ns, first, last, forward, forward_end = pending.popleft()
            wall = round(first.elapsed_time(last) * 1e6)
            before = round(first.elapsed_time(forward) * 1e6) if forward is not None else 0
            inside = round(forward.elapsed_time(forward_end) * 1e6) if forward_end is not None else 0
            idle = -1 if kind == layout.DEVICE else 0
            session.ring.write(kind, 0, start_ns, wall, a=before, b=idle, c=inside, phase=phase)
            # In this order nobody needs `first` any more: a wait's entry was the end of the step before it.
            self._pool += [event for event in (first, forward, forward_end) if event is not None]
        while len(pending) > _MOST_PENDING:
            pending.popleft()

    def _give_up(self, error: Exception) -> None:
        self._is_off = True
        self._pending.clear()
        session.trouble("device events", error)


device = Device()
