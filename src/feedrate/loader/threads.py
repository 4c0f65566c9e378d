# SPDX-License-Identifier: Apache-2.0
"""How many threads decode, and how much of each batch the GPU, where the user did not say.

`ThreadController` is asked when a batch is taken. It judges windows of some seconds, by the side that waited:

```
the loop, for a batch              supply-bound   more threads, at once
the loop; makers for the device    device-bound   as many as now: the loop runs ahead of a GPU, which is busy
not the loop                       device-bound   fewer, on trial, if their CPU time says that they could do:
                                                  threads that are not needed take cores from the loop
```

As in `stats().limit`, the loop as a whole is the device; which stage it waits for makes no difference here.

The share of time that the loop waits is lost for want of threads; it needs no comparison. The loss to threads
that take the loop's cores shows in the rate alone, so a number is tried, and left again when it gives less. A
number that would not do is not tried again for a while, which doubles every time; when the rate changes by
itself, because another job came or went, all that is forgotten.

    STEADY --two windows without waiting, or one supply-bound--> TRIAL --at most two windows--> STEADY

Where the GPU may decode a part of each batch, `ShareController` decides by the same windows how much: one of
the two changes at a time, and there are all threads while the GPU decodes anything.

```
the loop, for a batch    more on the GPU, as soon as there are no more threads to add: as much as the time
                         that the loop waited says
not the loop, or for     less, on trial: decoding on the GPU takes time from the training there; so where
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

WINDOW_S = 2.0
WINDOW_BATCHES = 8
FIRST_DELAY_S, LONGEST_DELAY_S = 16.0, 256.0  # before a number that would not do is tried again
SAME = 0.01  # rates, and shares of time, that differ by less are the same
CLEAR = 0.1  # one window is enough to tell rates that differ by more
SHARING = 1.3
# A loop that does something else for longer than both, as validating, is not slow.
PAUSE_S, PAUSE_STEPS = 0.5, 8
NONE, NEVER = -1, 2**30  # numbers that are never reached


class Window(NamedTuple):
    """Some seconds of loading.

    Attributes:
        rate: batches per second.
        waited: the share of time that the loop waited for a batch.
        held_back: the share of time that the makers waited for the device.
        needed: cores that decoding took.
        others: cores that the rest of the process took: the loop, mostly.
    """

    rate: float
    waited: float
    held_back: float
    needed: float
    others: float = 0.0

    @property
    def is_waited_for(self) -> bool:
        return self.waited <= 1.5 * SAME

    @property
    def is_supply_bound(self) -> bool:
        return not self.is_waited_for and self.held_back < 0.1


class Trial(NamedTuple):
    """A trial of another number: the number before, and its window."""

    origin: int
    before: Window


class _Bounds:
    """Numbers that would not do: not tried again for a while, which doubles every time.

    Attributes:
        low, high: numbers up to `low`, and from `high` on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """The loop or the machine changed: a number that would not do before may do now."""
        self.low, self.high, self._expires = NONE, NEVER, math.inf
        self._delay_s = FIRST_DELAY_S

    def rule_out(self, *, low: int | None = None, high: int | None = None) -> None:
        """Leave such numbers alone for a while, and for twice as long the next time."""
        self.low = self.low if low is None else low
        self.high = self.high if high is None else high
        self._expires = self._clock() + self._delay_s
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)

    def relax(self, number: int) -> None:
        """When the time is over, let the next number in either direction be tried once more."""
        if self._clock() >= self._expires:
            self.low, self.high = min(self.low, number - 2), max(self.high, number + 2)


class ThreadController:
    """Holds the number of threads, and changes it; belongs to the thread that takes the batches.

    Attributes:
        threads: how many should decode now.
        changes: how often that changed.
    """

    def __init__(
        self, cores: int, clock: Callable[[], float] = time.perf_counter, *, is_fixed: bool = False
    ) -> None:
        self.threads, self.changes = cores, 0
        self._cores, self._clock, self._is_fixed = cores, clock, is_fixed
        self._gpu_share: ShareController | None = None
        self._trial: Trial | None = None
        self._windows: list[Window] = []  # the last two of this number of threads
        self._usual_rate: float | None = None  # of this number, while nothing changes
        self._unusual = 0  # windows in a row that had another
        self._last: tuple[float, ...] | None = None
        self._settling = 0
        self._sums, self._batches = [0.0] * 5, 0  # of a window: seconds, and the sums of `measure`
        self._bounds = _Bounds(clock)

    def begin(
        self, cores: int, makers: int, prefetch: int, measure: Callable[[], tuple[float, ...]],
        gpu_share: ShareController | None = None, usable_cores: int | None = None,
    ) -> None:  # fmt: skip
        """Follow an iteration that begins.

        Args:
            cores: how many threads there may be.
            makers: how many threads make batches.
            prefetch: how many batches may be ready: so many say little about a new number of threads.
            measure: returns four sums, in seconds: how long the loop waited in this iteration, how long all
                makers together for the device, the CPU time of the threads, and that of the whole process.
            gpu_share: decides how much the GPU decodes; None: nothing, or as much as it was told.
            usable_cores: of this rank, for the threads and for the loop; None: `cores`.
        """
        self._gpu_share, self._usable_cores = gpu_share, usable_cores or cores
        if cores != self._cores:
            self._trial = None
            self._forget()
        self._cores, self._makers, self._prefetch, self._measure = cores, makers, prefetch, measure
        self._last = None  # the time between iterations is nobody's
        if self.threads > cores:
            self._move(cores)

    def note_batch(self) -> None:
        """Count a batch that the loop has taken, and see whether the number should change."""
        last, self._last = self._last, (self._clock(), *self._measure())
        if last is None:
            return
        if self._settling:
            self._settling -= 1
            return
        passed = [now - then for now, then in zip(self._last, last, strict=True)]
        own_s = passed[0] - passed[1]
        if self._batches and own_s > max(PAUSE_S, PAUSE_STEPS * self._sums[0] / self._batches):
            return
        self._sums = [so_far + more for so_far, more in zip(self._sums, passed, strict=True)]
        self._batches += 1
        seconds, waited_s, held_back_s, cpu_s, process_s = self._sums
        if seconds < WINDOW_S or self._batches < WINDOW_BATCHES:
            return
        shares = (waited_s / seconds, held_back_s / (self._makers * seconds), cpu_s / seconds)
        others = max(0.0, process_s - cpu_s) / seconds
        self._windows = [*self._windows[-1:], Window(self._batches / seconds, *shares, others)]
        self._begin_window()
        trial, gpu_share = self._trial, self._gpu_share
        if trial is not None:
            self._judge(trial)
        elif gpu_share is not None and gpu_share.note(
            self._windows,
            has_all_threads=self._choose_more() <= self.threads,
            threads=self._cores,
            cores=self._usable_cores,
        ):
            self._settle()
        elif gpu_share is None or not gpu_share.is_trying:
            self._try_another()

    def _begin_window(self) -> None:
        self._sums, self._batches = [0.0] * 5, 0

    def _try_another(self) -> None:
        window = self._windows[-1]
        self._notice_change(window.rate)
        self._bounds.relax(self.threads)
        number = self.threads
        if window.is_supply_bound:
            number = self._choose_more()
        elif (
            len(self._windows) == 2
            and all(one.is_waited_for for one in self._windows)
            and not (self._gpu_share is not None and self._gpu_share.share)
        ):
            number = self._choose_fewer(window)
        if number != self.threads and not self._is_fixed:
            self._trial = Trial(self.threads, mean_window(self._windows))
            self._move(number)

    def _choose_more(self) -> int:
        most = self._bounds.high
        return self._cores if most > self._cores else (self.threads + most) // 2

    def _choose_fewer(self, window: Window) -> int:
        # The threads of one core take more CPU time for the same work, by about so much.
        needed = math.ceil(window.needed / SHARING)
        number = min(self.threads - max(1, self.threads // 8), math.ceil(window.needed * SHARING))
        number = max(number, 1, self.threads // 2, needed, (self._bounds.low + self.threads) // 2)
        return number if number > self._bounds.low else self.threads

    def _judge(self, trial: Trial) -> None:
        seen, before = mean_window(self._windows), trial.before
        gain = seen.rate / before.rate - 1
        if len(self._windows) < 2 and abs(gain) < CLEAR:
            return
        self._trial = None
        is_more = self.threads > trial.origin
        if is_more:
            # A rate that falls while the loop still waits for batches fell for another reason.
            keeps = gain > -SAME or seen.is_supply_bound
        elif seen.is_supply_bound:
            keeps = gain > SAME
        else:
            keeps = gain > -SAME or seen.waited <= before.waited + SAME
        if keeps and not is_more:
            self._bounds.low = NONE  # still fewer may do
            if seen.is_supply_bound:
                self._bounds.rule_out(high=trial.origin)
        elif keeps or not is_more:
            self._bounds.rule_out(low=min(self.threads, trial.origin))
        else:
            self._bounds.rule_out(high=self.threads)
        if not keeps:
            self._move(trial.origin)
        self._usual_rate = seen.rate if keeps else before.rate

    def _notice_change(self, rate: float) -> None:
        usual = rate if self._usual_rate is None else self._usual_rate
        self._unusual = self._unusual + 1 if abs(rate / usual - 1) > CLEAR else 0
        self._usual_rate = usual if self._unusual else 0.8 * usual + 0.2 * rate
        # One window may hold a pause of the loop; two are another job, or another loop.
        if self._unusual == 2:
            self._forget()
            self._usual_rate, self._unusual = rate, 0

    def _forget(self) -> None:
        if self._gpu_share is not None:
            self._gpu_share.bounds.forget()
        self._bounds.forget()

    def _move(self, number: int) -> None:
        self.threads = number
        self.changes += 1
        self._settle()

    def _settle(self) -> None:
        """Something changed, and the batches that are made already say nothing about it."""
        self._windows, self._usual_rate, self._unusual = [], None, 0
        self._settling = self._prefetch
        self._begin_window()


def mean_window(windows: list[Window]) -> Window:
    """Return the mean of windows."""
    return Window(*(sum(values) / len(windows) for values in zip(*windows, strict=True)))


PARTS = 8  # the share is so many eighths
# A sample on the GPU saves so much of its CPU time: it is still read, checked and planned. Only how far the
# first step goes depends on it.
SAVED = 0.8


class ShareController:
    """Holds the share, and changes it; belongs to the thread that takes the batches.

    Attributes:
        changes: how often it changed.
        bounds: shares that would not do, in parts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.changes, self.bounds = 0, _Bounds(clock)
        self._most_cpu_s = math.inf
        self._parts, self._most = 0, PARTS
        self._trial: Trial | None = None
        self._is_rising = False  # more was just tried, and gave clearly more
        self._cpu_s: dict[int, float] = {}  # of a batch, when it was last seen with so many parts on the GPU

    @property
    def share(self) -> float:
        """How much of a batch the GPU should decode now, from 0 to 1."""
        return self._parts / PARTS

    @property
    def is_trying(self) -> bool:
        return self._trial is not None

    def switch_off(self) -> None:
        """The GPU has no room for it: nothing is decoded there any more."""
        self._parts = self._most = 0
        self._trial = None

    def note(self, windows: list[Window], *, has_all_threads: bool, threads: int, cores: int) -> bool:
        """Judge the last windows of this share, two at the most; return whether it changed.

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
        return self._try_another(windows, has_all_threads=has_all_threads)

    def _try_another(self, windows: list[Window], *, has_all_threads: bool) -> bool:
        window, parts = windows[-1], self._parts
        self.bounds.relax(parts)
        # A loop that still waits after a step that helped gets the next one, though the GPU may be late too.
        if window.is_supply_bound or (self._is_rising and not window.is_waited_for):
            parts = self._choose_more(window) if has_all_threads else parts
            if parts == self._parts and has_all_threads and len(windows) == 2:
                # More is not to be had, and a GPU that is busy may be late with what it decodes.
                parts = self._choose_less()
        elif len(windows) == 2 and not any(one.is_supply_bound for one in windows):
            parts = self._choose_less()
        if parts == self._parts:
            return False
        self._trial = Trial(self._parts, mean_window(windows))
        self._move(parts)
        return True

    def _choose_more(self, window: Window) -> int:
        # So much of the CPU's time for a batch must go, that the loop need not wait.
        cost = (1 - SAVED * self.share) * (1 - window.waited)
        parts = max(self._parts + 1, math.ceil(PARTS * (1 - cost) / SAVED))
        if self.bounds.high <= PARTS:
            parts = min(parts, (self._parts + self.bounds.high) // 2)
        return min(parts, self._most)

    def _choose_less(self) -> int:
        if not self._parts:
            return 0
        parts = max(self._parts - max(1, self._parts // 4), (self.bounds.low + self._parts) // 2)
        is_possible = parts > self.bounds.low and self._estimate_cpu_s(parts) <= self._most_cpu_s
        return parts if is_possible else self._parts

    def _estimate_cpu_s(self, parts: int) -> float:
        """Return the CPU time of a batch with another share, as two that were seen say; 0: only one was."""
        least, most = min(self._cpu_s), max(self._cpu_s)
        if least == most:
            return 0.0
        slope = (self._cpu_s[most] - self._cpu_s[least]) / (most - least)
        return self._cpu_s[least] + slope * (parts - least)

    def _judge(self, trial: Trial, windows: list[Window]) -> bool:
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
            # A loop that runs ahead of a GPU waits in any case: there the rate alone shows the loss.
            is_as_idle = seen.is_waited_for and seen.waited <= before.waited + SAME
            keeps = gain > -SAME or is_as_idle
        self._is_rising = is_more and keeps and gain > CLEAR
        if is_more and keeps:
            self.bounds.rule_out(low=trial.origin)
        elif is_more:
            self.bounds.rule_out(high=self._parts)
        elif not keeps:
            self.bounds.rule_out(low=self._parts)
        elif seen.is_supply_bound:
            self.bounds.high = trial.origin
        if not keeps:
            self._move(trial.origin)
        return keeps

    def _move(self, parts: int) -> None:
        self._parts = parts
        self.changes += 1
