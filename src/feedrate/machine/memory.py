# SPDX-License-Identifier: Apache-2.0
"""How much memory may this process use, and how much does a tree of processes use?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from feedrate.errors import need
from feedrate.machine.cgroup import PROC, ROOT, MemoryGroup, find_limited_groups, find_memory_group


def count_usable_memory_bytes() -> int:
    """Return the machine's memory, or what the tightest cgroup above this process leaves of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = read_memory_limit()
    return total if limit is None else min(total, limit)


def read_memory_limit(proc: Path = PROC, root: Path = ROOT) -> int | None:
    """Return the tightest memory limit of the cgroups above this process; None when none limits it."""
    group = find_memory_group(proc, root)
    return None if group is None else group.limit_bytes


def measure_tree_memory(pid: int) -> int:
    """Return the bytes that a process and its descendants use together, pages that they share counted once.

    That is the sum of their proportional set sizes (PSS); on systems that do not tell it, of their resident
    set sizes, which counts shared pages in every process.
    """
    psutil = need("psutil")

    try:
        root = psutil.Process(pid)
        tree = [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.Error:
        return 0
    return sum_memory(tree, read_pss)


def sum_memory(pids: Iterable[int], read: Callable[[int], int | None]) -> int:
    """Return the sum of `read(pid)`; processes that have ended meanwhile (None) count as nothing."""
    return sum(read(pid) or 0 for pid in pids)


def read_pss(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the proportional set size of one process in bytes; None when it has ended or is not ours."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except FileNotFoundError:
        return None if (proc / "self").exists() else _read_rss(pid)
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)


def _read_rss(pid: int) -> int | None:
    psutil = need("psutil")

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """What this process and those beside it may still take.

    Attributes:
        free_bytes: until the limit that is nearest now; page cache that can be dropped counts as free.
        unwritten_bytes: how much of that page cache must be written to a disk before it can be dropped.
        limit_bytes: that limit: of a control group, or the machine's memory.
    """

    free_bytes: int
    unwritten_bytes: int
    limit_bytes: int


class MemoryGauge:
    """Measures the least room that the control groups above this process, and the machine, leave.

    Quick enough to be asked many times a second: which groups have a limit is looked up once in a second.
    """

    def __init__(
        self, proc: Path = PROC, root: Path = ROOT, meminfo: Path = Path("/proc/meminfo"), keep_s: float = 1.0
    ) -> None:
        self._proc, self._root, self._meminfo, self._keep_s = proc, root, meminfo, keep_s
        self._groups: tuple[float, list[MemoryGroup]] | None = None

    def measure(self) -> MemoryRoom:
        rooms = [_measure_machine(self._meminfo)]
        for group in self._find_groups():
            used = group.read_used()
            if used is not None:
                droppable, unwritten = group.read_file_pages()
                rooms.append(MemoryRoom(group.limit_bytes - used + droppable, unwritten, group.limit_bytes))
        return min(rooms, key=lambda room: room.free_bytes)

    def _find_groups(self) -> list[MemoryGroup]:
        groups, now = self._groups, time.monotonic()
        if groups is None or now - groups[0] >= self._keep_s:
            groups = self._groups = now, find_limited_groups(self._proc, self._root)
        return groups[1]


def _measure_machine(meminfo: Path) -> MemoryRoom:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        psutil = need("psutil")

        memory = psutil.virtual_memory()
        return MemoryRoom(int(memory.available), 0, int(memory.total))
    found = dict(line.split(":", 1) for line in lines)
    total, free, *unwritten = (
        int(found.get(name, "0 kB").split()[0]) * 1024
        for name in ("MemTotal", "MemAvailable", "Dirty", "Writeback")
    )
    return MemoryRoom(free, sum(unwritten), total)
