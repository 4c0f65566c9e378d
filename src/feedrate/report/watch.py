# SPDX-License-Identifier: Apache-2.0
"""A watched job as rows that rich lays out, for a terminal of any size, a file or a pipe.

ASCII alone, readable without colour: over ssh, in any locale.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from feedrate.report.lines import Line, Number, lay_out, shorten
from feedrate.units import clamp, format_age, format_bytes, format_count, format_seconds, shell_quote
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

if TYPE_CHECKING:
    from rich.text import Text

_NARROW, _WIDE = 60, 110
_TALL = 30  # lines of a screen that has room for all
_LEAST_TRAFFIC = 10e3  # bytes a second
_MOST_ROWS = 12  # of other jobs, disks, groups of threads: more are counted
_SHORT = {STORAGE: "storage", QUEUED: "queued"}  # where there is no room for the words
_KEYS = "q: quit"


def draw_watched(seen: WatchedJob | WatchedUser, width: int | None = None, height: int | None = None) -> str:
    """Return a view of at most `width` cells; with a `height`, processes that do not fit are counted only."""
    keys: list[Line] = [] if height is None else [_KEYS]
    if isinstance(seen, WatchedUser):
        return lay_out([*_list_jobs(seen, width, height), *keys], width)
    is_short = height is not None and height < _TALL
    above: list[Line] = [_head(seen, width), *_label(seen, width, is_short=is_short), ""]
    foot: list[Line] = [f"not visible: {text}" for text in seen.not_visible]
    foot += [*(f"note: {text}" for text in seen.notes), *_list_others(seen, width)]
    foot = [*([""] if foot and height is None else []), *foot, *keys]
    room = None if height is None else max(height - lay_out([*above, *foot], width).count("\n"), 2)
    return lay_out([*above, *_list_rows(seen, width, room), *foot], width)


def paint_watched(seen: WatchedJob | WatchedUser, width: int, height: int) -> Text:
    """Return a view for a terminal, with its verdict and its first line set apart."""
    from rich.text import Text

    verdict = seen.verdict if isinstance(seen, WatchedJob) else None
    drawn = Text(draw_watched(seen, width, height), no_wrap=True, overflow="crop", end="")
    style = "green" if verdict and verdict.is_good else "red" if verdict and verdict.codes else ""
    drawn.highlight_regex(r"(?m)^ *verdict .*", f"bold {style}")
    drawn.highlight_regex(r"\A.*", "bold")
    drawn.highlight_regex(rf"(?m)^(?: +(?:process|pid|threads) .*|not visible.*|note: .*|{_KEYS})", "dim")
    return drawn


def _head(job: WatchedJob, width: int | None) -> str:
    facts = ", ".join([job.user, format_age(job.age_s), *job.frameworks])
    title = f"{job.pid}: {_word_command(job.command) or 'no command line'}"
    return f"{shorten(title, None if width is None else width - len(facts) - 4)}  ({facts})"


def _label(job: WatchedJob, width: int | None, *, is_short: bool) -> Iterable[Line]:
    """Yield labels and texts; on a short screen without what is zero."""
    verdict, memory = job.verdict, job.memory
    codes = f" ({' or '.join(verdict.codes)})" if verdict.codes else ""
    yield "verdict", f"{verdict.title}{codes}"
    for label, text in (("because", verdict.reason), ("helps", verdict.remedy), ("next", verdict.next)):
        if text:
            yield label, text
    bar = 20 if width is None or width >= _WIDE else 10 if width >= _NARROW else 0
    for gpu in job.gpus:
        yield f"GPU {gpu.index}", _word_gpu(gpu, bar)
        if gpu.job or gpu.others:
            yield "", _word_holders(gpu)
    yield "cores", _word_cores(job, bar)
    yield "memory", _word_memory(job, bar)
    if memory.swap_used_bytes or not is_short:
        theirs = "unknown" if memory.job_swap_bytes is None else format_bytes(memory.job_swap_bytes)
        moved = f"{_rate(memory.swap_in_bytes_per_s)} in, {_rate(memory.swap_out_bytes_per_s)} out"
        yield "swap", f"of this job {theirs}; of the machine {format_bytes(memory.swap_used_bytes)}, {moved}"
    for store in job.stores[:_MOST_ROWS]:
        yield "disk" if store.kind == "disk" else "mount", _word_store(store, bar)
    if job.received_bytes_per_s + job.sent_bytes_per_s > _LEAST_TRAFFIC or not is_short:
        yield "network", f"{_rate(job.received_bytes_per_s)} in, {_rate(job.sent_bytes_per_s)} out"
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
    used = f"{_bar(cores.job / max(cores.limit, 0.01), bar)}{cores.job:4.1f} of {cores.limit:g} by this job"
    words = [f"{used}, {cores.others:.1f} by others, {cores.idle:.1f} idle"]
    if cores.quota is not None:
        words.append(f"quota {cores.quota:g}")
    if cores.allowed < cores.machine:
        words.append(f"{cores.allowed} of {cores.machine} allowed")
    if cores.throttled_share:
        words.append(f"stopped by the quota {cores.throttled_share:.0%} of the time")
    if cores.biggest_other is not None and cores.biggest_other[2] >= 0.2:
        name, user, theirs = cores.biggest_other
        words.append(f"most by {name} of {user}: {theirs:.1f}")
    return "; ".join(words)


def _word_memory(job: WatchedJob, bar: int) -> str:
    memory = job.memory
    own = memory.used_bytes - memory.cache_bytes
    of = "the job's limit" if memory.is_group else "the machine's"
    used = f"{format_bytes(own)} of {format_bytes(memory.limit_bytes)} ({of})"
    share = own / memory.limit_bytes if memory.limit_bytes else None
    mine = f"this job's processes {format_bytes(memory.job_bytes)} at most"
    return f"{_bar(share, bar)} {used}, page cache {format_bytes(memory.cache_bytes)}; {mine}".lstrip()


def _word_store(store: StoreUse, bar: int) -> str:
    words = [f"{store.name} ({store.kind})" if store.kind != "disk" else store.name]
    if store.read_bytes_per_s is None:
        words.append("Linux counts nothing here")
    else:
        if store.busy is not None:
            words[0] = f"{_bar(store.busy, bar)}{store.busy:4.0%} busy {words[0]}"
        words += [
            f"{_rate(store.read_bytes_per_s)} read",
            f"{_rate(store.written_bytes_per_s or 0.0)} written",
        ]
    if store.operations_per_s is not None:
        each = "" if store.round_trip_s is None else f" of {format_seconds(store.round_trip_s)}"
        words.append(f"{store.operations_per_s:,.0f} requests/s{each}")
    if store.mount_points:
        where = f": {', '.join(store.mount_points[:3])}" if store.kind == "disk" else ""
        words.append(f"this job's files{where}")
    return ", ".join(words)


def _word_files(job: WatchedJob) -> str:
    if any(one.read_bytes_per_s is None for one in job.processes):
        return "what this job reads and writes is not visible"
    read, disk, written = (
        _rate(sum(getattr(one, name) or 0.0 for one in job.processes))
        for name in ("read_bytes_per_s", "disk_bytes_per_s", "written_bytes_per_s")
    )
    return f"this job reads {read} and writes {written}; from disks, swap included, come {disk}"


def _list_rows(job: WatchedJob, width: int | None, room: int | None) -> list[Line]:
    """Return the processes, and below them the threads of a training without workers, in so many lines."""
    is_wide = width is None or width >= _WIDE
    names = ("pid", "cores", "compute", "storage", "queued", "idle", "memory")
    extra = ("threads", "reads") if is_wide else ()
    rows: list[Line] = [("process", *map(Number, (*names, *extra)), "doing")]
    fits = room is None or len(job.processes) + 2 <= room
    shown = job.processes if fits or room is None else job.processes[: max(room - 2, 1)]
    rows += [_cells(one, is_wide) for one in shown]
    left = len(job.processes) - len(shown)
    words = [f"{left} more processes"] if left else []
    words += [f"{format_count(job.helpers, 'helper')} (launchers, trackers)"] if job.helpers else []
    rows += [f"  and {', '.join(words)}"] if words else []
    most = _MOST_ROWS if room is None else min(room - len(rows) - 1, _MOST_ROWS)
    if job.threads and most > 0:
        rows += ["", *_list_threads(job, most)]
    return rows


def _cells(one: WatchedProcess, is_wide: bool) -> tuple[str, ...]:
    shares = (one.shares.computing, one.shares.storage, one.shares.queued, one.shares.idle)
    reads = "?" if one.read_bytes_per_s is None else _rate(one.read_bytes_per_s)
    extra = [str(one.threads), reads] if is_wide else []
    numbers = [str(one.pid), f"{one.cores:.2f}", *(f"{share:.0%}" for share in shares)]
    numbers += [format_bytes(one.resident_bytes), *extra]
    return (one.role, *map(Number, numbers), one.doing if is_wide else _SHORT.get(one.doing, one.doing))


def _list_threads(job: WatchedJob, most: int) -> Iterable[Line]:
    yield "threads of the training", Number("number"), Number("cores"), Number("queued")
    for group in job.threads[:most]:
        blocked = f"{group.waiting_for_storage} waiting for storage" if group.waiting_for_storage else ""
        numbers = map(Number, (str(group.count), f"{group.cores:.2f}", f"{group.queued:.2f}"))
        yield (group.name, *numbers, blocked)


def _list_others(job: WatchedJob, width: int | None) -> list[str]:
    rows = []
    for one in job.other_jobs[:3]:
        gpus = f", GPU {', '.join(map(str, one.gpus))}" if one.gpus else ""
        text = f"also {one.pid}: {one.cores:.1f} cores{gpus}: {_word_command(one.command)}"
        rows.append(shorten(text, width))
    left = len(job.other_jobs) - 3
    return [*rows, f"and {left} more: feedrate watch --user {job.user}"] if left > 0 else rows


def _list_jobs(watched: WatchedUser, width: int | None, height: int | None) -> Iterable[Line]:
    yield f"jobs of {watched.user}: {len(watched.jobs)}"
    names = ("pid", "cores", "GPU", "memory", "workers")
    yield (*map(Number, names), "verdict", "command")
    shown = watched.jobs if height is None else watched.jobs[: max(height - 4, 1)]
    for job in shown:
        busy = [gpu.utilisation for gpu in job.gpus if gpu.utilisation is not None]
        gpu = f"{len(job.gpus)} at {sum(busy) / len(busy):.0%}" if busy else "-" if not job.gpus else "?"
        verdict = job.verdict.codes[0] if job.verdict.codes else "cannot tell"
        memory, workers = format_bytes(job.memory.job_bytes), str(len(job.workers))
        numbers = map(Number, (str(job.pid), f"{job.cores.job:.1f}", gpu, memory, workers))
        yield (*numbers, verdict, shorten(_word_command(job.command), None if width is None else width // 3))
    left = len(watched.jobs) - len(shown)
    if left:
        yield f"and {left} more"


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _bar(share: float | None, size: int) -> str:
    if not size:
        return ""
    filled = 0 if share is None else round(clamp(share) * size)
    return f"[{'#' * filled}{'.' * (size - filled)}]"


def _word_command(command: Sequence[str]) -> str:
    words = [os.path.basename(command[0]), *command[1:]] if command else []
    return " ".join(map(shell_quote, words))
