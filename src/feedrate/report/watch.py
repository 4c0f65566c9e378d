# SPDX-License-Identifier: Apache-2.0
"""A watched job as rows that rich lays out, for a terminal of any size, a file or a pipe.

ASCII alone, readable without colour: over ssh, in any locale.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from feedrate.units import format_age, format_bytes, format_count, format_seconds, shell_quote
from feedrate.watch.results import GpuHolder, GpuUse, StoreUse, WatchedJob, WatchedProcess, WatchedUser

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

_NARROW, _WIDE = 60, 110
_TALL = 30  # lines of a screen that has room for all
_LEAST_TRAFFIC = 10e3  # bytes a second
_MOST_ROWS = 12  # of other jobs, disks, groups of threads: more are counted
_UNCUT = 10_000  # columns: of a file or a pipe, where a row is a line
_KEYS = "q: quit"


def draw_watched(
    seen: WatchedJob | WatchedUser, width: int | None = None, height: int | None = None
) -> Group:
    """Return a view of at most `width` cells; with a `height`, processes that do not fit are counted only."""
    from rich.console import Group

    cells = width or _UNCUT
    if isinstance(seen, WatchedUser):
        return Group(*_list_jobs(seen, height))
    above = [_head(seen), _label(_facts(seen, cells, is_short=height is not None and height < _TALL)), ""]
    notes = [f"not visible: {text}" for text in seen.not_visible]
    notes += [f"note: {text}" for text in seen.notes]
    foot = [_text(text, "dim") for text in [*notes, *_list_others(seen)]]
    if foot and height is None:
        foot.insert(0, _text(""))
    if height is not None:
        foot.append(_text(_KEYS, "dim"))
    room = None if height is None else max(height - _count_lines(Group(*above, *foot), cells), 2)
    return Group(*above, *_list_rows(seen, cells, room), *foot)


def _text(text: str, style: str = "", *, is_cut: bool = False) -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=is_cut, overflow="crop" if is_cut else "fold")


def _count_lines(drawn: RenderableType, cells: int) -> int:
    from rich.console import Console

    return len(Console(width=cells).render_lines(drawn))


def _table(*columns: str, title: str = "") -> Table:
    """Return a table without lines; a column whose title begins with a blank holds numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title=title or None)
    for name in columns:
        justify = "right" if name.startswith(" ") else "left"
        table.add_column(name.strip(), justify=justify, no_wrap=True, overflow="crop")  # type: ignore[arg-type]
    return table


def _head(job: WatchedJob) -> Table:
    from rich.table import Table

    head = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    head.add_column(no_wrap=True, overflow="crop", style="bold")
    head.add_column(no_wrap=True, overflow="crop")
    facts = ", ".join([job.user, format_age(job.age_s), *job.frameworks])
    head.add_row(_text(f"{job.pid}: {_word_command(job.command) or 'no command line'}"), _text(f"({facts})"))
    return head


def _label(rows: Iterable[tuple[str, str, str]]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text, style in rows:
        table.add_row(_text(label), _text(text), style=style)
    return table


def _facts(job: WatchedJob, cells: int, *, is_short: bool) -> Iterable[tuple[str, str, str]]:
    """Yield labels, texts and styles; on a short screen without what is zero."""
    verdict, memory = job.verdict, job.memory
    codes = f" ({' or '.join(verdict.codes)})" if verdict.codes else ""
    style = "bold green" if verdict.is_good else "bold red" if verdict.codes else "bold"
    yield "verdict", f"{verdict.title}{codes}", style
    for label, text in (("because", verdict.reason), ("helps", verdict.remedy), ("next", verdict.next)):
        if text:
            yield label, text, ""
    bar = 20 if cells >= _WIDE else 10 if cells >= _NARROW else 0
    for gpu in job.gpus:
        yield f"GPU {gpu.index}", _word_gpu(gpu, bar), ""
        if gpu.job or gpu.others:
            yield "", _word_holders(gpu), ""
    yield "cores", _word_cores(job, bar), ""
    yield "memory", _word_memory(job, bar), ""
    if memory.swap_used_bytes or not is_short:
        theirs = "unknown" if memory.job_swap_bytes is None else format_bytes(memory.job_swap_bytes)
        moved = f"{_rate(memory.swap_in_bytes_per_s)} in, {_rate(memory.swap_out_bytes_per_s)} out"
        whole = format_bytes(memory.swap_used_bytes)
        yield "swap", f"of this job {theirs}; of the machine {whole}, {moved}", ""
    for store in job.stores[:_MOST_ROWS]:
        yield "disk" if store.kind == "disk" else "mount", _word_store(store, bar), ""
    if job.received_bytes_per_s + job.sent_bytes_per_s > _LEAST_TRAFFIC or not is_short:
        yield "network", f"{_rate(job.received_bytes_per_s)} in, {_rate(job.sent_bytes_per_s)} out", ""
    yield "files", _word_files(job), ""
    if job.workers:
        doing = Counter(one.doing for one in job.workers)
        yield "workers", ", ".join(f"{count} {what}" for what, count in doing.most_common()), ""


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
    words = [f"{_bar(cores.job / max(cores.limit, 0.01), bar)}{cores.job:4.1f} of {cores.limit:g} by this job"]
    words[0] += f", {cores.others:.1f} by others, {cores.idle:.1f} idle"
    if cores.quota is not None:
        words.append(f"quota {cores.quota:g}")
    if cores.allowed < cores.machine:
        words.append(f"{cores.allowed} of {cores.machine} allowed")
    if cores.throttled_share:
        words.append(f"stopped by the quota {cores.throttled_share:.0%} of the time")
    if cores.biggest_other is not None and cores.biggest_other[2] >= 0.2:
        name, user, used = cores.biggest_other
        words.append(f"most by {name} of {user}: {used:.1f}")
    return "; ".join(words)


def _word_memory(job: WatchedJob, bar: int) -> str:
    memory = job.memory
    own = memory.used_bytes - memory.cache_bytes
    used = f"{format_bytes(own)} of {format_bytes(memory.limit_bytes)}"
    used += f" ({"the job's limit" if memory.is_group else "the machine's"})"
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
        words += [f"{_rate(store.read_bytes_per_s)} read", f"{_rate(store.written_bytes_per_s or 0.0)} written"]
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


def _list_rows(job: WatchedJob, cells: int, room: int | None) -> list[RenderableType]:
    """Return the processes, and below them the threads of a training without workers, in so many lines."""
    is_wide = cells >= _WIDE
    extra = (" threads", " reads") if is_wide else ()
    table = _table(
        "process", " pid", " cores", " compute", " storage", " queued", " idle", " memory", *extra, "doing"
    )
    fits = room is None or len(job.processes) + 2 <= room
    shown = job.processes if fits or room is None else job.processes[: max(room - 2, 1)]
    for one in shown:
        table.add_row(*_cells(one, is_wide))
    rows: list[RenderableType] = [table]
    left = len(job.processes) - len(shown)
    words = [f"{left} more processes"] if left else []
    words += [f"{format_count(job.helpers, 'helper')} (launchers, trackers)"] if job.helpers else []
    if words:
        rows.append(_text(f"and {', '.join(words)}", "dim", is_cut=True))
    most = _MOST_ROWS if room is None else min(room - len(shown) - len(rows) - 1, _MOST_ROWS)
    if job.threads and most > 0:
        rows.append(_list_threads(job, most))
    return rows


def _cells(one: WatchedProcess, is_wide: bool) -> list[str]:
    shares = (one.shares.computing, one.shares.storage, one.shares.queued, one.shares.idle)
    reads = "?" if one.read_bytes_per_s is None else _rate(one.read_bytes_per_s)
    extra = [str(one.threads), reads] if is_wide else []
    numbers = [str(one.pid), f"{one.cores:.2f}", *(f"{share:.0%}" for share in shares)]
    return [one.role, *numbers, format_bytes(one.resident_bytes), *extra, one.doing]


def _list_threads(job: WatchedJob, most: int) -> Table:
    table = _table("threads of the training", " number", " cores", " queued", "")
    for group in job.threads[:most]:
        blocked = f"{group.waiting_for_storage} waiting for storage" if group.waiting_for_storage else ""
        name = _text(f"  {group.name}")
        table.add_row(name, str(group.count), f"{group.cores:.2f}", f"{group.queued:.2f}", blocked)
    return table


def _list_others(job: WatchedJob) -> list[str]:
    rows = []
    for one in job.other_jobs[:3]:
        gpus = f", GPU {', '.join(map(str, one.gpus))}" if one.gpus else ""
        rows.append(f"also {one.pid}: {one.cores:.1f} cores{gpus}: {_word_command(one.command)}")
    left = len(job.other_jobs) - 3
    return [*rows, f"and {left} more: feedrate watch --user {job.user}"] if left > 0 else rows


def _list_jobs(watched: WatchedUser, height: int | None) -> list[RenderableType]:
    table = _table(" pid", " cores", " GPU", " memory", " workers", "verdict", "command")
    shown = watched.jobs if height is None else watched.jobs[: max(height - 4, 1)]
    for job in shown:
        busy = [gpu.utilisation for gpu in job.gpus if gpu.utilisation is not None]
        gpu = f"{len(job.gpus)} at {sum(busy) / len(busy):.0%}" if busy else "-" if not job.gpus else "?"
        verdict = job.verdict.codes[0] if job.verdict.codes else "cannot tell"
        memory, workers = format_bytes(job.memory.job_bytes), str(len(job.workers))
        row = (str(job.pid), f"{job.cores.job:.1f}", gpu, memory, workers, verdict)
        table.add_row(*row, _text(_word_command(job.command)))
    left = len(watched.jobs) - len(shown)
    foot = [_text(f"and {left} more", "dim")] if left else []
    foot += [_text(_KEYS, "dim")] if height is not None else []
    return [_text(f"jobs of {watched.user}: {len(watched.jobs)}", "bold"), table, *foot]


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(bytes_per_s)}/s"


def _bar(share: float | None, size: int) -> str:
    if not size:
        return ""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * size)
    return f"[{'#' * filled}{'.' * (size - filled)}]"


def _word_command(command: Sequence[str]) -> str:
    words = [os.path.basename(command[0]), *command[1:]] if command else []
    return " ".join(map(shell_quote, words))
