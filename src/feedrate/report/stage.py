# SPDX-License-Identifier: Apache-2.0
"""How far `stage` is, with rate and time left, and what it did."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from feedrate.results import NodesResult, StageResult, Tick
from feedrate.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REDRAW_S = 0.1
_LINE_S = 15.0
_RATE_OVER_S = 10.0


class TransferBar:
    """A bar of bytes on a terminal, else a line now and then. Give `update` as `watch`, `say` as `say`."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._seen: deque[tuple[float, int]] = deque()
        self._drawn = 0.0

    def __enter__(self) -> TransferBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, sentence: str) -> None:
        if self._bar is not None:
            self._bar.console.print(sentence, markup=False, highlight=False)
        else:
            self._stream.write(sentence + "\n")
            self._stream.flush()

    def update(self, tick: Tick) -> None:
        now = self._clock()
        is_first = not self._seen
        if not is_first and now - self._drawn < (_REDRAW_S if self._stream.isatty() else _LINE_S):
            return
        self._drawn = now
        self._seen.append((now, tick.done_bytes))
        while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_OVER_S:
            self._seen.popleft()
        if self._stream.isatty():
            self._draw(tick)
        elif tick.done_bytes < tick.total_bytes:
            there = f", {format_bytes(tick.done_bytes)} of it there" if tick.done_bytes else ""
            files = format_count(tick.total, "file")
            whole = f"{files}, {format_bytes(tick.total_bytes)}{there}"
            self.say(whole if is_first else self.describe(tick))

    def describe(self, tick: Tick) -> str:
        """Return `1.2 GB of 3.2 GB, 264 MB/s, 8 s left`."""
        rate = 0.0 if tick.done_bytes >= tick.total_bytes else self._rate()
        words = f"{format_bytes(tick.done_bytes)} of {format_bytes(tick.total_bytes)}"
        if rate <= 0:
            return words
        left_s = max(tick.total_bytes - tick.done_bytes, 0) / rate
        return f"{words}, {format_bytes(rate)}/s, {format_seconds(left_s)} left"

    def _rate(self) -> float:
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - begin) if end > begin else 0.0

    def _draw(self, tick: Tick) -> None:
        if self._bar is None:
            self._bar = _make_bar(self._stream)
            self._bar.start()
            self._task = self._bar.add_task("staging", total=tick.total_bytes or None, words="")
        assert self._task is not None
        self._bar.update(self._task, completed=tick.done_bytes, words=self.describe(tick))


def _make_bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        console=Console(file=stream),
        transient=True,
    )


def draw_stage(result: StageResult) -> str:
    """Return what was done, in one line."""
    whole = f"{format_bytes(result.size_bytes)} in {format_count(result.files, 'file')}"
    if not result.copied_files:
        how = "another process copied it" if result.is_joined else "it was there already"
        return f"{whole}: {how} ({format_seconds(result.seconds)})"
    rate = f", {format_bytes(result.copied_bytes / result.seconds)}/s" if result.seconds else ""
    rest = ""
    if result.copied_files < result.files or result.resumed_bytes:
        rest = f"; {format_bytes(result.size_bytes - result.copied_bytes)} were there already"
    copied = f"copied {format_bytes(result.copied_bytes)} in {format_count(result.copied_files, 'file')}"
    return f"{copied} in {format_seconds(result.seconds)}{rate}{rest}"


def draw_nodes(result: NodesResult) -> str:
    lines = [f"{one.node}: {draw_stage(one)}" for one in result.nodes]
    lines += [f"{one.node}: no copy: {one.message}" for one in result.failures]
    count = len(result.nodes) + len(result.failures)
    seconds = format_seconds(result.seconds)
    lines.append(f"{len(result.nodes)} of {format_count(count, 'node')} have a copy after {seconds}")
    return "\n".join(lines)
