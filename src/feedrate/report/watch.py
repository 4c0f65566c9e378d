# SPDX-License-Identifier: Apache-2.0
"""A watched job as text of any width, and the terminal that it is drawn on again and again.

ASCII alone, readable without colour: over ssh, in any locale.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, TextIO

from feedrate.errors import clean
from feedrate.report.lines import count_cells, cut, wrap
from feedrate.units import format_age, format_bytes, format_count, format_seconds, shell_quote
from feedrate.watch.results import (
    QUEUED,
    STORAGE,
    GpuHolder,
    GpuUse,
    StoreUse,
    WatchedJob,
    WatchedProcess,
    WatchedUser,
)

_LABEL = 9  # cells of the first column
_NARROW, _WIDE = 60, 110
_WIDEST = 200
_TALL = 30  # lines of a screen that has room for all
_LEAST_TRAFFIC = 10e3  # bytes a second
_MOST_ROWS = 12  # of other jobs, disks, groups of threads: more are counted
_UNCUT = 100_000
_SHORT = {STORAGE: "storage", QUEUED: "queued"}  # where there is no room for the words


class Row(NamedTuple):
    """A line. `style`: of its label, or of all of it where it has none: good, bad, strong, faint or empty."""

    text: str
    style: str = ""


def draw_watched(seen: WatchedJob | WatchedUser, width: int | None = None) -> str:
    return "".join(f"{row.text}\n" for row in list_rows(seen, width))


def list_rows(
    seen: WatchedJob | WatchedUser, width: int | None = None, height: int | None = None
) -> list[Row]:
    """Return a view of at most `width` cells; with a `height`, processes that do not fit are counted only."""
    cells = _UNCUT if width is None else min(width, _WIDEST)
    return (
        _list_jobs(seen, cells, height) if isinstance(seen, WatchedUser) else _list_job(seen, cells, height)
    )


def _list_job(job: WatchedJob, cells: int, height: int | None) -> list[Row]:
    rows = [*_head(job, cells), *_verdict(job, cells)]
    for label, text in _resources(job, cells, is_short=height is not None and height < _TALL):
        rows += _label(label, text, cells)
    rows.append(Row(""))
    foot = [Row(f"not visible: {text}", "faint") for text in job.not_visible]
    foot += [Row(f"note: {text}", "faint") for text in job.notes]
    foot += _list_others(job)
    foot = [Row(line, one.style) for one in foot for line in _fit(one.text, cells)]
    room = None if height is None else max(height - len(rows) - len(foot), 2)
    rows += _list_threads(job, cells, room) if job.threads else _list_processes(job, cells, room)
    return [*rows, *([Row(""), *foot] if foot and height is None else foot)]


def _head(job: WatchedJob, cells: int) -> list[Row]:
    facts = ", ".join([job.user, format_age(job.age_s), *job.frameworks])
    title = f"{job.pid}: {_word_command(job.command) or 'no command line'}"
    if cells == _UNCUT:
        return [Row(f"{title}  ({facts})", "strong")]
    room = cells - count_cells(facts) - 2
    if room < 20:
        return [Row(_shorten(title, cells), "strong"), Row(_shorten(facts, cells))]
    title = _shorten(title, room)
    return [Row(title + " " * (cells - count_cells(title) - count_cells(facts)) + facts, "strong")]


def _verdict(job: WatchedJob, cells: int) -> list[Row]:
    verdict = job.verdict
    style = "good" if verdict.is_good else "bad" if verdict.codes else "strong"
    codes = f" ({' or '.join(verdict.codes)})" if verdict.codes else ""
    rows = _label("verdict", f"{verdict.title}{codes}", cells, style)
    rows += _label("because", verdict.reason, cells)
    rows += _label("helps", verdict.remedy, cells) if verdict.remedy else []
    rows += _label("next", verdict.next, cells) if verdict.next else []
    return rows


def _resources(job: WatchedJob, cells: int, *, is_short: bool) -> Iterable[tuple[str, str]]:
    """Yield labels and texts; on a short screen without what is zero."""
    bar = 20 if cells >= _WIDE else 10 if cells >= _NARROW else 0
    for gpu in job.gpus:
        yield f"GPU {gpu.index}", _word_gpu(gpu, bar)
        if gpu.job or gpu.others:
            yield "", _word_holders(gpu)
    yield "cores", _word_cores(job, bar)
    yield "memory", _word_memory(job, bar)
    memory = job.memory
    theirs = "unknown" if memory.job_swap_bytes is None else format_bytes(memory.job_swap_bytes)
    rates = (
        f"{format_bytes(memory.swap_in_bytes_per_s)}/s in, {format_bytes(memory.swap_out_bytes_per_s)}/s out"
    )
    if memory.swap_used_bytes or not is_short:
        yield "swap", f"of this job {theirs}; of the machine {format_bytes(memory.swap_used_bytes)}, {rates}"
    for store in job.stores[:_MOST_ROWS]:
        yield "disk" if store.kind == "disk" else "mount", _word_store(store, bar)
    received, sent = format_bytes(job.received_bytes_per_s), format_bytes(job.sent_bytes_per_s)
    if job.received_bytes_per_s + job.sent_bytes_per_s > _LEAST_TRAFFIC or not is_short:
        yield "network", f"{received}/s in, {sent}/s out"
    yield "files", _word_files(job)
    if job.workers:
        doing = Counter(one.doing for one in job.workers)
        yield "workers", ", ".join(f"{count} {what}" for what, count in doing.most_common())


def _word_gpu(gpu: GpuUse, bar: int) -> str:
    busy = "?" if gpu.utilisation is None else f"{gpu.utilisation:.0%}"
    words = [f"{_bar(gpu.utilisation, bar)}{busy:>4} busy"]
    if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
        words.append(f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(gpu.memory_bytes)}")
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
        words.append(f"{gpu.power_w:.0f}{limit} W")
    return ", ".join([*words, gpu.name])


def _word_holders(gpu: GpuUse) -> str:
    words = [f"this job {_word_held(gpu.job)}"] if gpu.job else []
    for one in gpu.others[:3]:
        share = "" if one.share is None else f", {one.share:.0%} of its time"
        name = "unknown" if one.name is None else f"{one.name} of {one.user or 'unknown'}"
        words.append(f"other: {one.pid} {name}, {_word_held([one])}{share}")
    if len(gpu.others) > 3:
        words.append(f"{len(gpu.others) - 3} more")
    return "; ".join(words)


def _word_held(holders: Sequence[GpuHolder]) -> str:
    known = [one.memory_bytes for one in holders if one.memory_bytes is not None]
    return format_bytes(sum(known)) if known else "memory unknown"


def _word_cores(job: WatchedJob, bar: int) -> str:
    cores = job.cores
    words = f"{_bar(cores.job / max(cores.limit, 0.01), bar)}{cores.job:4.1f} of {cores.limit:g} by this job"
    words += f", {cores.others:.1f} by others, {cores.idle:.1f} idle"
    limits = []
    if cores.quota is not None:
        limits.append(f"quota {cores.quota:g}")
    if cores.allowed < cores.machine:
        limits.append(f"{cores.allowed} of {cores.machine} allowed")
    if cores.throttled_share:
        limits.append(f"stopped by the quota {cores.throttled_share:.0%} of the time")
    if cores.biggest_other is not None and cores.biggest_other[2] >= 0.2:
        name, user, used = cores.biggest_other
        limits.append(f"most by {name} of {user}: {used:.1f}")
    return "; ".join([words, *limits])


def _word_memory(job: WatchedJob, bar: int) -> str:
    memory = job.memory
    own = memory.used_bytes - memory.cache_bytes
    of = "the job's limit" if memory.is_group else "the machine's"
    used = f"{format_bytes(own)} of {format_bytes(memory.limit_bytes)} ({of})"
    share = own / memory.limit_bytes if memory.limit_bytes else None
    cache = f"page cache {format_bytes(memory.cache_bytes)}"
    return (
        f"{_bar(share, bar)} {used}, {cache}; this job's processes {format_bytes(memory.job_bytes)} at most"
    )


def _word_store(store: StoreUse, bar: int) -> str:
    words = [f"{store.name} ({store.kind})" if store.kind != "disk" else store.name]
    if store.read_bytes_per_s is None:
        words.append("the kernel counts nothing here")
    else:
        if store.busy is not None:
            words[0] = f"{_bar(store.busy, bar)}{store.busy:4.0%} busy {words[0]}"
        words.append(f"{format_bytes(store.read_bytes_per_s)}/s read")
        words.append(f"{format_bytes(store.written_bytes_per_s or 0.0)}/s written")
    if store.operations_per_s is not None:
        each = "" if store.round_trip_s is None else f" of {format_seconds(store.round_trip_s)}"
        words.append(f"{store.operations_per_s:,.0f} requests/s{each}")
    if store.mount_points and store.kind == "disk":
        words.append(f"this job's files: {', '.join(store.mount_points[:3])}")
    elif store.mount_points:
        words.append("this job's files")
    return ", ".join(words)


def _word_files(job: WatchedJob) -> str:
    if any(one.read_bytes_per_s is None for one in job.processes):
        return "what this job reads and writes is not visible"
    read, disk, written = (
        format_bytes(sum(getattr(one, name) or 0.0 for one in job.processes))
        for name in ("read_bytes_per_s", "disk_bytes_per_s", "written_bytes_per_s")
    )
    return f"this job reads {read}/s and writes {written}/s; from disks, swap included, come {disk}/s"


def _list_processes(job: WatchedJob, cells: int, room: int | None) -> list[Row]:
    is_wide = cells >= _WIDE
    head = f"{'process':<9}{'pid':>8}{'cores':>7}  {'compute':>7} {'storage':>7} {'queued':>6} {'idle':>5}"
    head += f"{'memory':>10}" + (f"{'threads':>9}{'reads':>12}" if is_wide else "") + "  doing"
    rows = [Row(_shorten(head, cells), "faint")]
    fits = room is None or len(job.processes) + (2 if job.helpers and is_wide else 1) <= room
    shown = job.processes if fits or room is None else job.processes[: max(room - 2, 1)]
    rows += [Row(_shorten(_word_process(one, is_wide), cells)) for one in shown]
    left = len(job.processes) - len(shown)
    words = [f"{left} more processes"] if left else []
    words += (
        [f"{format_count(job.helpers, 'helper')} (launchers, trackers)"] if job.helpers and is_wide else []
    )
    return [*rows, *([Row(_shorten(f"and {', '.join(words)}", cells), "faint")] if words else [])]


def _word_process(one: WatchedProcess, is_wide: bool) -> str:
    shares = one.shares
    text = f"{one.role:<9}{one.pid:>8}{one.cores:>7.2f}  {shares.computing:>7.0%} {shares.storage:>7.0%}"
    text += f" {shares.queued:>6.0%} {shares.idle:>5.0%}{format_bytes(one.resident_bytes):>10}"
    if is_wide:
        reads = "?" if one.read_bytes_per_s is None else f"{format_bytes(one.read_bytes_per_s)}/s"
        text += f"{one.threads:>9}{reads:>12}"
    return f"{text}  {one.doing if is_wide else _SHORT.get(one.doing, one.doing)}"


def _list_threads(job: WatchedJob, cells: int, room: int | None) -> list[Row]:
    rows = _list_processes(job, cells, None if room is None else min(room, len(job.processes) + 2))
    left = _MOST_ROWS if room is None else max(min(room - len(rows) - 1, _MOST_ROWS), 0)
    if not left:
        return rows
    rows.append(
        Row(
            _shorten(f"{'threads of the training':<26}{'number':>7}{'cores':>7}{'queued':>8}", cells), "faint"
        )
    )
    for group in job.threads[:left]:
        blocked = f"  {group.waiting_for_storage} waiting for storage" if group.waiting_for_storage else ""
        name = _shorten(group.name, 22)
        text = f"  {name:<24}{group.count:>7}{group.cores:>7.2f}{group.queued:>8.2f}{blocked}"
        rows.append(Row(_shorten(text, cells)))
    return rows


def _list_others(job: WatchedJob) -> list[Row]:
    rows = []
    for one in job.other_jobs[:3]:
        gpus = f", GPU {', '.join(map(str, one.gpus))}" if one.gpus else ""
        rows.append(
            Row(f"also {one.pid}: {one.cores:.1f} cores{gpus}: {_word_command(one.command)}", "faint")
        )
    left = len(job.other_jobs) - 3
    return [*rows, Row(f"and {left} more: feedrate watch --user {job.user}", "faint")] if left > 0 else rows


def _list_jobs(watched: WatchedUser, cells: int, height: int | None) -> list[Row]:
    rows = [Row(_shorten(f"jobs of {watched.user}: {len(watched.jobs)}", cells), "strong")]
    head = f"{'pid':>8}{'cores':>7}{'GPU':>10}{'memory':>10}{'workers':>9}  {'verdict':<24}  command"
    rows.append(Row(_shorten(head, cells), "faint"))
    shown = watched.jobs if height is None else watched.jobs[: max(height - 3, 1)]
    for job in shown:
        busy = [gpu.utilisation for gpu in job.gpus if gpu.utilisation is not None]
        gpu = f"{len(job.gpus)} at {sum(busy) / len(busy):.0%}" if busy else "-" if not job.gpus else "?"
        verdict = job.verdict.codes[0] if job.verdict.codes else "cannot tell"
        text = f"{job.pid:>8}{job.cores.job:>7.1f}{gpu:>10}{format_bytes(job.memory.job_bytes):>10}"
        text += f"{len(job.workers):>9}  {verdict:<24}  {_word_command(job.command)}"
        rows.append(Row(_shorten(text, cells)))
    left = len(watched.jobs) - len(shown)
    return [*rows, Row(f"and {left} more", "faint")] if left else rows


def _label(label: str, text: str, cells: int, style: str = "") -> list[Row]:
    first, *rest = _fit(text, cells - _LABEL)
    lines = [f"{label:<{_LABEL}}{first}", *(" " * _LABEL + line for line in rest)]
    return [Row(line, style) for line in lines]


def _fit(text: str, cells: int) -> list[str]:
    return [text] if cells > _UNCUT // 2 else wrap(text.strip(), max(cells, 10), cuts=True)


def _bar(share: float | None, size: int) -> str:
    if not size:
        return ""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * size)
    return f"[{'#' * filled}{'.' * (size - filled)}]"


def _word_command(command: Sequence[str]) -> str:
    words = [os.path.basename(command[0]), *command[1:]] if command else []
    return " ".join(map(shell_quote, words))


def _shorten(text: str, cells: int) -> str:
    return text if count_cells(text) <= cells else cut(text, max(cells - 3, 1))[0] + "..."


_STYLES = {"good": "\x1b[1;32m", "bad": "\x1b[1;31m", "strong": "\x1b[1m", "faint": "\x1b[2m"}
_RESET = "\x1b[0m"
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class Screen:
    """A terminal's second screen, drawn on line by line; what was there before comes back, however we end.

    Every text passes through `clean` here: process names and command lines are whatever strangers chose.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_colour = not os.environ.get("NO_COLOR")
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._mode: list[object] | None = None

    def __enter__(self) -> Screen:
        try:
            if self._keys is not None:
                self._mode = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys)
                mode = termios.tcgetattr(self._keys)
                for key in (termios.VSUSP, termios.VQUIT):  # would leave the second screen to the shell
                    mode[6][key] = b"\0"
                termios.tcsetattr(self._keys, termios.TCSANOW, mode)
            self._write(_OPEN)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            try:
                self._write(_RESET + _CLOSE)
            finally:
                if self._keys is not None and self._mode is not None:
                    termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)  # type: ignore[arg-type]

    @property
    def keys(self) -> int | None:
        """The descriptor that keys come from; None: standard input is no terminal."""
        return self._keys

    def measure(self) -> tuple[int, int]:
        """Return the columns and lines, as they are now."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return 80, 24
        return max(size.columns or 80, 20), max(size.lines or 24, 4)

    def draw(self, rows: Sequence[Row], foot: str) -> None:
        columns, lines = self.measure()
        shown = [*rows[: lines - 1], *[Row("")] * (lines - 1 - len(rows)), Row(foot, "faint")]
        # Not a character in the last column: terminals differ in what they do then.
        text = "\r\n".join(self._paint(row, columns - 1) + "\x1b[K" for row in shown)
        self._write(f"\x1b[H{text}\x1b[J")

    def _paint(self, row: Row, columns: int) -> str:
        text = cut(clean(row.text), columns)[0]
        if not row.style or not self._has_colour:
            return text
        return f"{_STYLES[row.style]}{text}{_RESET}"

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, errors="replace").decode(encoding))
        self._stream.flush()
