# SPDX-License-Identifier: Apache-2.0
"""How far a long command is, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeVar

from feedrate.errors import clean_lines
from feedrate.progress import Tick
from feedrate.report.lines import count_columns, lay_out
from feedrate.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Bar = TypeVar("Bar", bound="ProgressBar")
_REDRAW_S = 0.1
_LINE_S = 15.0
_RATE_OVER_S = 10.0


class ProgressBar:
    """A context manager; give its `update` to a command as `watch`, and `say` as `say`."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._stage: str | None = None
        self._bar: Progress | None = None
        self._has_rich = True
        self._task: TaskID | None = None
        # What was done at which moment: what an earlier run did does not count for the rate.
        self._seen: deque[tuple[float, int]] = deque()
        self._began, self._drawn = clock(), 0.0
        self._lock = threading.Lock()  # threads of a command tell how far they are

    def __enter__(self: Bar) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._stage is not None and error is None:
            self._end()

    def say(self, sentence: str) -> None:
        sentence = clean_lines(sentence)
        if self._bar is not None:
            self._bar.console.print(sentence, markup=False, highlight=False)
        else:
            self._stream.write(lay_out(sentence.split("\n"), count_columns(self._stream)))
            self._stream.flush()

    def update(self, tick: Tick) -> None:
        with self._lock:
            self._update(tick)

    def _update(self, tick: Tick) -> None:
        now, is_first = self._clock(), tick.stage != self._stage
        is_terminal = self._has_rich and self._stream.isatty()
        if is_terminal and self._bar is None:
            is_terminal = self._start_bar()
        if not is_first and now - self._drawn < (_REDRAW_S if is_terminal else _LINE_S):
            return
        if not is_terminal and not tick.total:
            return
        self._drawn = now
        if is_first:
            self._stage = tick.stage
            self._seen.clear()
        self._seen.append((now, self._done(tick)[0]))
        while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_OVER_S:
            self._seen.popleft()
        if is_terminal:
            self._draw(tick, is_first)
        else:
            self._tell(tick, is_first)

    def describe(self, tick: Tick) -> str:
        """Return `120 of 1,000, 40 files/s, 1.2 MB/s, 22 s left`."""
        if not tick.total:
            return f"{tick.done:,}"
        rate = self._rate()
        words = f"{tick.done:,} of {tick.total:,}"
        if rate <= 0:
            return words
        bytes_per_s = format_bytes(rate * tick.total_bytes / tick.total)
        unit = "files" if tick.unit == "sample" else f"{tick.unit}s"
        return f"{words}, {format_rate(rate, unit)}, {bytes_per_s}/s, {self._left(tick, rate)}"

    def _done(self, tick: Tick) -> tuple[int, int]:
        """Return what the bar shows: how much is done, and of how much."""
        return tick.done, tick.total

    def _tell(self, tick: Tick, is_first: bool) -> None:
        if is_first:
            already = f", {tick.done:,} of them done before" if tick.done else ""
            size = format_bytes(tick.total_bytes)
            self.say(f"{tick.stage} {format_count(tick.total, tick.unit)} ({size}){already}")

    def _end(self) -> None:
        self.say(f"{self._stage}: done in {format_seconds(self._clock() - self._began)}")

    def _rate(self) -> float:
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - begin) if end > begin else 0.0

    def _left(self, tick: Tick, rate: float) -> str:
        done, total = self._done(tick)
        return f"{format_seconds(max(total - done, 0) / rate)} left"

    def _start_bar(self) -> bool:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
        except ModuleNotFoundError:  # without rich: lines now and then, as in a file
            self._has_rich = False
            return False
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}")
        self._bar = Progress(*columns, console=Console(file=self._stream), transient=True)
        self._bar.start()
        return True

    def _draw(self, tick: Tick, is_first: bool) -> None:
        assert self._bar is not None
        done, total = self._done(tick)
        if is_first or self._task is None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(tick.stage, total=total or None, words="")
        self._bar.update(self._task, completed=done, total=total or None, words=self.describe(tick))


class TransferBar(ProgressBar):
    """How many bytes of files have come."""

    def describe(self, tick: Tick) -> str:
        """Return `1.2 GB of 3.2 GB, 264 MB/s, 8 s left`."""
        rate = 0.0 if tick.done_bytes >= tick.total_bytes else self._rate()
        words = f"{format_bytes(tick.done_bytes)} of {format_bytes(tick.total_bytes)}"
        return words if rate <= 0 else f"{words}, {format_bytes(rate)}/s, {self._left(tick, rate)}"

    def _done(self, tick: Tick) -> tuple[int, int]:
        return tick.done_bytes, tick.total_bytes

    def _tell(self, tick: Tick, is_first: bool) -> None:
        if tick.done_bytes < tick.total_bytes:
            there = f", {format_bytes(tick.done_bytes)} of it there" if tick.done_bytes else ""
            whole = f"{format_count(tick.total, 'file')}, {format_bytes(tick.total_bytes)}{there}"
            self.say(whole if is_first else self.describe(tick))

    def _end(self) -> None:
        pass
