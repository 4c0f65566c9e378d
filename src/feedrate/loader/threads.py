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

Where the GPU may decode a part of each batch, `ShareController` searches how much, by shorter windows. Two
sides make a batch, and the slower one gives the rate:

```
cores    the CPU time of a batch, less with every part on the GPU, by the cores that there are for it
loop     its own time for a batch, more with every part: decoding on the GPU takes time from the training
```

A search tries all on the GPU, then what the lines between the shares that it has seen promise, and keeps the
least share that gave the most. What was measured counts, not what was expected: Python's lock, for one, is a
third side. The first search begins when the loop waits and there are no more threads to add; the next ones
after pauses, each thrice as long as the one before. There are all threads while the GPU decodes anything.
Pixels are the same whichever way a sample goes, so that the share may change with every batch.

    STEADY --the loop waits, or the GPU decodes; the pause is over--> SEARCH --at most four shares--> STEADY
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

WINDOW_S, SHARE_WINDOW_S = 2.0, 0.4
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


class _Sums:
    """Adds up what passed from batch to batch, until it is a window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self.clear()

    def clear(self) -> None:
        self._sums, self._batches = [0.0] * 5, 0

    def is_pause(self, own_s: float) -> bool:
        """Return whether a loop that took so long from batch to batch did something else."""
        return self._batches > 0 and own_s > max(PAUSE_S, PAUSE_STEPS * self._sums[0] / self._batches)

    def add(self, passed: Sequence[float], makers: int) -> Window | None:
        """Count a batch; return the window that is over with it."""
        self._sums = [so_far + more for so_far, more in zip(self._sums, passed, strict=True)]
        self._batches += 1
        seconds, waited_s, held_back_s, cpu_s, process_s = self._sums
        if seconds < self._window_s or seconds * self._batches < self._window_s * WINDOW_BATCHES:
            return None
        shares = (waited_s / seconds, held_back_s / (makers * seconds), cpu_s / seconds)
        window = Window(self._batches / seconds, *shares, max(0.0, process_s - cpu_s) / seconds)
        self.clear()
        return window


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
        self._share_windows: list[Window] = []  # the last two, short ones, of this share as well
        self._usual_rate: float | None = None  # of this number, while nothing changes
        self._unusual = 0  # windows in a row that had another
        self._last: tuple[float, ...] | None = None
        self._settling: int | None = None  # so many batches more; None: nothing was loaded yet
        self._sums, self._share_sums = _Sums(WINDOW_S), _Sums(SHARE_WINDOW_S)
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
        if self._settling is None:
            self._settling = prefetch
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
        if self._sums.is_pause(passed[0] - passed[1]) or self._note_share(passed):
            return
        window = self._sums.add(passed, self._makers)
        if window is None:
            return
        self._windows = [*self._windows[-1:], window]
        if self._trial is not None:
            self._judge(self._trial)
        elif self._gpu_share is None or not self._gpu_share.is_trying:
            self._try_another()

    def _note_share(self, passed: Sequence[float]) -> bool:
        """Count a batch for the GPU's share; return whether that changed."""
        window = self._share_sums.add(passed, self._makers)
        if self._gpu_share is None or self._trial is not None or window is None:
            return False
        self._share_windows = [*self._share_windows[-1:], window]
        if not self._gpu_share.note(
            self._share_windows,
            has_all_threads=self._choose_more() <= self.threads,
            threads=self._cores,
            cores=self._usable_cores,
        ):
            return False
        self._settle()
        # Until a loop that runs ahead of its GPU is as far ahead as it may be, its rate says nothing.
        self._settling = 2 * self._prefetch + 2
        return True

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
            self._gpu_share.forget()
        self._bounds.forget()

    def _move(self, number: int) -> None:
        self.threads = number
        self.changes += 1
        self._settle()

    def _settle(self) -> None:
        """Something changed, and the batches that are made already say nothing about it."""
        self._windows, self._share_windows, self._usual_rate, self._unusual = [], [], None, 0
        self._settling = self._prefetch
        for sums in (self._sums, self._share_sums):
            sums.clear()


def mean_window(windows: list[Window]) -> Window:
    """Return the mean of windows."""
    return Window(*(sum(values) / len(windows) for values in zip(*windows, strict=True)))


PARTS = 8  # the share is so many eighths
UNCLEAR = 0.05  # of rates that differ by less, one window says too little
# A sample on the GPU saves so much of its CPU time: it is still read, checked and planned. And so much of a
# loop's time might be won by leaving the GPU to it. Both only until another share was seen.
SAVED, HOPED = 0.8, 0.1
FIRST_PAUSE_S = 6.0  # after a search, until the next; thrice as long every time
MOST_TRIED = 4  # shares in a search


class ShareController:
    """Holds the share, and changes it; belongs to the thread that takes the batches."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._parts, self._is_off = clock, 0, False
        self._seen: dict[int, Window] = {}  # in this search, or the last one, by parts on the GPU
        self._cpu_s: dict[int, float] = {}  # of a batch, as it was last seen
        self._untried = 0  # what is left of a search; 0: there is none
        self.forget()

    @property
    def share(self) -> float:
        """How much of a batch the GPU should decode now, from 0 to 1."""
        return self._parts / PARTS

    @property
    def is_trying(self) -> bool:
        return self._untried > 0

    def forget(self) -> None:
        """The loop or the machine changed: search again."""
        self._pause_s, self._retry_at = FIRST_PAUSE_S, -math.inf

    def switch_off(self) -> None:
        """The GPU has no room for it: nothing is decoded there any more."""
        self._parts, self._untried, self._is_off = 0, 0, True

    def note(self, windows: list[Window], *, has_all_threads: bool, threads: int, cores: int) -> bool:
        """Judge the last windows of this share, two at the most; return whether it changed.

        Args:
            has_all_threads: there are no more to be added, which would cost the GPU nothing.
            threads: how many may decode.
            cores: how many there are, for decoding and for the loop.
        """
        seen = mean_window(windows)
        if not self._untried:
            is_sure = len(windows) == 2 or seen.waited > CLEAR
            if not (is_sure and has_all_threads and self._is_due(seen)):
                return False
            self._seen, self._untried = {}, MOST_TRIED + 1
        elif len(windows) < 2 and abs(seen.rate / self._seen[self._best].rate - 1) < UNCLEAR:
            return False
        self._seen[self._parts], self._cpu_s[self._parts] = seen, seen.needed / seen.rate
        return self._go_on(min(threads, cores - seen.others))

    def _is_due(self, seen: Window) -> bool:
        if self._is_off or not (self._parts or seen.is_supply_bound):
            return False
        found = self._seen.get(self._parts, seen)
        # A loop that did not wait with this share does now: it became faster, or another job takes cores.
        if seen.is_supply_bound and seen.waited > found.waited + CLEAR and self._parts < PARTS:
            self.forget()
        return self._clock() >= self._retry_at

    def _go_on(self, cores: float) -> bool:
        """Try the next share, or keep the best; return whether it changed."""
        parts = self._choose(cores) if self._untried > 1 else self._best
        self._untried -= 1
        if parts in self._seen:
            self._untried = 0
            self._retry_at = self._clock() + self._pause_s
            self._pause_s = min(3 * self._pause_s, LONGEST_DELAY_S)
        before, self._parts = self._parts, parts
        return parts != before

    @property
    def _best(self) -> int:
        """The least share that gave as much as any."""
        most = max(one.rate for one in self._seen.values())
        return min(parts for parts, one in self._seen.items() if one.rate >= (1 - SAME) * most)

    def _choose(self, cores: float) -> int:
        """Return what to try next, else the best; first all on the GPU, so that both ends are known."""
        best = self._best
        fastest = self._seen[best].rate
        there = self._seen.get(PARTS)
        is_new = best == next(reversed(self._seen))
        # So much more than just before, with all on the GPU: the loop itself may have become faster.
        if there is None or (is_new and fastest > (1 + CLEAR) * there.rate):
            self._seen.pop(PARTS, None)
            return PARTS
        # Where less was no help to a loop that waits, it had all the cores that there are.
        limits = [one.needed for parts, one in self._seen.items() if parts < best and one.is_supply_bound]
        cores = max(0.1, min([cores, *limits]))  # a window may be too short for any to be counted
        expected = {parts: self._expect(parts, cores) for parts in range(PARTS) if parts not in self._seen}
        parts = min(expected, key=lambda parts: expected[parts], default=best)
        return parts if parts != best and expected[parts] * fastest < 1 - 2 * SAME else best

    def _expect(self, parts: int, cores: float) -> float:
        """Return the seconds of a batch with another share, by the slower side: the cores, or the loop."""
        # A GPU with more to decode that gave less was late with it, whoever waited.
        own = {
            at: (1 - one.waited * (one.is_supply_bound and at <= self._best)) / one.rate
            for at, one in self._seen.items()
        }
        least, first = min(self._cpu_s), min(own)
        cpu_s = _draw(parts, self._cpu_s, self._cpu_s[least] / (1 - SAVED * least / PARTS))
        return max(cpu_s / cores, _draw(parts, own, own[first] * (1 - HOPED * first / PARTS)))


def _draw(parts: int, seen: dict[int, float], at_none: float) -> float:
    """Return a value on the line through those that were seen; it begins `at_none`, if that was not seen."""
    known = {0: at_none} | seen
    return float(np.interp(parts, sorted(known), [known[at] for at in sorted(known)]))
