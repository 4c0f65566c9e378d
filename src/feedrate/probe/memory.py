# SPDX-License-Identifier: Apache-2.0
"""How much memory may this process use, and how much does a tree of processes use?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from feedrate.probe.cgroup import PROC, ROOT, find_memory_group


def count_usable_memory_bytes() -> int:
    """Return the machine's memory, or what the tightest cgroup above this process leaves of it."""
    import psutil

    total = int(psutil.virtual_memory().total)
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
    import psutil

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


def read_private(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the bytes that only this process uses: what would be free again if it ended."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _read_rss(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
