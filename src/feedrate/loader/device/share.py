# SPDX-License-Identifier: Apache-2.0
"""How much of each batch the GPU decodes with `decode="auto"`: `ShareController`.

It is told of the windows that `loader/threads.py` looks at, and of who waited in them:

```
the loop, for a batch    more on the GPU, as soon as there are no more threads to add: as much as the time
                         that the loop waited says
not the loop, or for     less, on trial: what the GPU decodes takes time from the training there; so where
a GPU that is busy       the loop waits and more was no help
```

Less is tried only where the cores could make up for it, by the CPU time that batches took with other shares:
with few cores such a trial would cost more than it could ever give.

Like a number of threads, another share is kept where the rate is no worse, else left again, and not tried for
a while. Pixels are the same whichever way a sample goes, so that the share may change with every batch.

    STEADY --a window that the loop waited in, or two that it did not--> TRIAL --at most two windows--> STEADY
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from feedrate.loader.threads import CLEAR, FIRST_PATIENCE_S, LONGEST_PATIENCE_S, SAME, Window, mean_window

PARTS = 8  # the share is so many eighths
# What a sample on the GPU saves of the CPU time that it would take: it is still read, checked and planned.
# Only how far the first step goes depends on it.
SAVED = 0.8
_NONE, _NEVER = -1, PARTS + 1


class _Trial(NamedTuple):
    origin: int
    before: Window


class ShareController:
    """Holds the share, and changes it; belongs to the thread that takes the batches.

    Attributes:
        changes: how often it changed.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.changes = 0
        self._clock, self._most_cpu_s = clock, math.inf
        self._parts, self._most = 0, PARTS
        self._trial: _Trial | None = None
        self._is_rising = False  # more was just tried, and gave clearly more
        self._cpu_s: dict[int, float] = {}  # of a batch, when it was last seen with so many parts on the GPU
        self.forget()

    @property
    def share(self) -> float:
        """How much of a batch the GPU should decode now, from 0 to 1."""
        return self._parts / PARTS

    @property
    def is_trying(self) -> bool:
        return self._trial is not None

    def forget(self) -> None:
        """The loop or the machine changed: what would not do before may do now."""
        self._too_little, self._too_much, self._expires = _NONE, _NEVER, math.inf
        self._patience_s = FIRST_PATIENCE_S

    def switch_off(self) -> None:
        """The GPU has no room for it: nothing is decoded there any more."""
        self._parts = self._most = 0
        self._trial = None

    def note(self, windows: list[Window], *, has_all_threads: bool, threads: int, cores: int) -> bool:
        """Look at the last windows of this share, two at the most; return whether it changed.

        Args:
            has_all_threads: there are no more to be added, which would cost the GPU nothing.
            threads: how many may decode.
            cores: how many there are, for decoding and for the loop.
        """
        window = windows[-1]
        self._cpu_s[self._parts] = window.needed / window.rate
        self._most_cpu_s = max(0.0, min(threads, cores - window.others)) / window.rate
        if self._trial is not None and not self._judge(self._trial, windows):
            return not self.is_trying
        return self._look(windows, has_all_threads=has_all_threads)

    def _look(self, windows: list[Window], *, has_all_threads: bool) -> bool:
        window, parts = windows[-1], self._parts
        if self._clock() >= self._expires:
            # The next share in either direction may be tried once more.
            self._too_little, self._too_much = (
                min(self._too_little, parts - 2),
                max(self._too_much, parts + 2),
            )
        # A loop that still waits after a step that helped gets the next one, though the GPU may be late too.
        if window.is_supply_bound or (self._is_rising and not window.is_loop_bound):
            parts = self._choose_more(window) if has_all_threads else parts
            if parts == self._parts and has_all_threads and len(windows) == 2:
                # More is not to be had, and a GPU that is busy may be late with what it decodes.
                parts = self._choose_less()
        elif len(windows) == 2 and not any(one.is_supply_bound for one in windows):
            parts = self._choose_less()
        if parts == self._parts:
            return False
        self._trial = _Trial(self._parts, mean_window(windows))
        self._move(parts)
        return True

    def _choose_more(self, window: Window) -> int:
        # So much of the CPU's time for a batch must go, that the loop need not wait.
        cost = (1 - SAVED * self.share) * (1 - window.waited)
        parts = max(self._parts + 1, math.ceil(PARTS * (1 - cost) / SAVED))
        if self._too_much <= PARTS:
            parts = min(parts, (self._parts + self._too_much) // 2)
        return min(parts, self._most)

    def _choose_less(self) -> int:
        if not self._parts:
            return 0
        parts = max(self._parts - max(1, self._parts // 4), (self._too_little + self._parts) // 2)
        is_possible = parts > self._too_little and self._estimate_cpu_s(parts) <= self._most_cpu_s
        return parts if is_possible else self._parts

    def _estimate_cpu_s(self, parts: int) -> float:
        """Return the CPU time of a batch with another share, as two that were seen say; 0: only one was."""
        least, most = min(self._cpu_s), max(self._cpu_s)
        if least == most:
            return 0.0
        slope = (self._cpu_s[most] - self._cpu_s[least]) / (most - least)
        return self._cpu_s[least] + slope * (parts - least)

    def _judge(self, trial: _Trial, windows: list[Window]) -> bool:
        """Keep the share that is tried, or go back; return whether it is kept."""
        seen, before = mean_window(windows), trial.before
        gain = seen.rate / before.rate - 1
        if len(windows) < 2 and abs(gain) < CLEAR:
            return False
        self._trial = None
        is_more = self._parts > trial.origin
        if is_more:
            keeps = gain > SAME or (gain > -SAME and seen.waited < before.waited - SAME)
        elif seen.is_supply_bound:
            keeps = gain > SAME
        else:
            # A loop that runs ahead of a GPU waits in any case: there the rate alone tells what is lost.
            is_as_idle = seen.is_loop_bound and seen.waited <= before.waited + SAME
            keeps = gain > -SAME or is_as_idle
        self._is_rising = is_more and keeps and gain > CLEAR
        if is_more:
            self._too_little, self._too_much = (
                (trial.origin, self._too_much) if keeps else (self._too_little, self._parts)
            )
        elif not keeps:
            self._too_little = self._parts
        elif seen.is_supply_bound:
            self._too_much = trial.origin
        if is_more or not keeps:
            self._expires = self._clock() + self._patience_s
            self._patience_s = min(2 * self._patience_s, LONGEST_PATIENCE_S)
        if not keeps:
            self._move(trial.origin)
        return keeps

    def _move(self, parts: int) -> None:
        self._parts = parts
        self.changes += 1
