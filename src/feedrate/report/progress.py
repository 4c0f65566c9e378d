# SPDX-License-Identifier: Apache-2.0
"""How far a long command is, on standard error: a bar on a terminal, else a line at start and end."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from feedrate.results.pack import Tick
from feedrate.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REDRAW_S = 0.1


class ProgressBar:
    """A context manager; give its `update` to a command as `watch`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stage: str | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._began = self._drawn = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._stage is not None and error is None:
            self._stream.write(f"{self._stage}: done in {format_seconds(time.monotonic() - self._began)}\n")

    def update(self, tick: Tick) -> None:
        if self._stream.isatty():
            self._draw(tick)
        elif tick.total and tick.stage != self._stage:
            self._stage = tick.stage
            already = f", {tick.done:,} of them done before" if tick.done else ""
            size = format_bytes(tick.total_bytes)
            self._stream.write(f"{tick.stage} {format_count(tick.total, tick.unit)} ({size}){already}\n")
            self._stream.flush()

    def _draw(self, tick: Tick) -> None:
        now = time.monotonic()
        if tick.stage == self._stage and now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        if self._bar is None:
            self._bar = _make_bar(self._stream)
            self._bar.start()
        if tick.stage != self._stage or self._task is None:
            self._stage = tick.stage
            if self._task is not None:
                self._bar.remove_task(self._task)
            # Samples of an earlier run do not count for the rate, so the bar starts where they end.
            self._task = self._bar.add_task(
                tick.stage, total=tick.total or None, completed=tick.done, rate=""
            )
        task = self._bar.tasks[0]
        speed = task.speed or 0.0
        share = tick.total_bytes / tick.total if tick.total else 0.0
        unit = "files" if tick.unit == "sample" else f"{tick.unit}s"
        rate = f"{format_rate(speed, unit)}, {format_bytes(speed * share)}/s" if speed else ""
        self._bar.update(self._task, completed=tick.done, total=tick.total or None, rate=rate)


def _make_bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
