# SPDX-License-Identifier: Apache-2.0
"""The control groups above a process: where limits and counters of version 1 and 2 are found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


def walk_groups(controller: str, proc: Path = PROC, root: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of every group above a process, the leaf first.

    In a Slurm job the leaf says "unlimited"; the step or the job above it has the limit.
    """
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # Beside version 1, systemd mounts an empty version 2 in a folder of its own.
            for top in (root, root / "unified"):
                yield from ((2, folder) for folder in _upwards(top, path))
        elif controller in controllers.split(","):
            named = root / controllers
            top = named if named.is_dir() else root / controller
            yield from ((1, folder) for folder in _upwards(top, path))


def _upwards(root: Path, path: str) -> list[Path]:
    folder = root / path.lstrip("/")
    return [f for f in (folder, *folder.parents) if f == root or root in f.parents]


class MemoryUse(NamedTuple):
    """Of one group: what is used (page cache included), the limit, the page cache that can be given back."""

    used_bytes: int
    limit_bytes: int
    cache_bytes: int | None


class MemoryGroup(NamedTuple):
    """The group with the tightest limit; its files are read again and again."""

    version: int
    folder: Path
    limit_bytes: int

    def read(self) -> MemoryUse | None:
        used = self.read_used()
        return None if used is None else MemoryUse(used, self.limit_bytes, self._read_cache())

    def read_used(self) -> int | None:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None

    def read_file_pages(self) -> tuple[int, int]:
        """Return the page cache that can be dropped, and how much of it must be written to disk before that.

        Counted by the lists that it is reclaimed from: memory of /dev/shm and locked pages are on others.
        """
        pages = (
            ("inactive_file ", "active_file ")
            if self.version == 2
            else ("total_inactive_file ", "total_active_file ")
        )
        unwritten = (
            ("file_dirty ", "file_writeback ") if self.version == 2 else ("total_dirty ", "total_writeback ")
        )
        found = _read_numbers(self.folder / "memory.stat", (*pages, *unwritten))
        droppable = sum(found.get(name, 0) for name in pages)
        return droppable, min(droppable, sum(found.get(name, 0) for name in unwritten))

    def _read_cache(self) -> int | None:
        # Pages of /dev/shm count as "file" and as "cache" too, and cannot be given back.
        names = ("file ", "shmem ") if self.version == 2 else ("total_cache ", "total_shmem ")
        values = _read_numbers(self.folder / "memory.stat", names)
        cache, shared = values.get(names[0]), values.get(names[1])
        return None if cache is None else max(0, cache - (shared or 0))


def find_limited_groups(proc: Path = PROC, root: Path = ROOT) -> list[MemoryGroup]:
    """Return every group above a process that has a memory limit, the leaf first.

    A group above the tightest one may be shared with others, and be nearer to its limit.
    """
    groups = []
    for version, folder in walk_groups("memory", proc, root):
        # Past memory.high a group is slowed down and its memory reclaimed: a limit too.
        names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
        limit = min(_read_limit(folder / name) for name in names)
        if limit < NO_LIMIT_BYTES:
            groups.append(MemoryGroup(version, folder, limit))
    return groups


def find_memory_group(proc: Path = PROC, root: Path = ROOT) -> MemoryGroup | None:
    """Return the tightest memory limit above a process; None when nothing limits it."""
    best: MemoryGroup | None = None
    for version, folder in walk_groups("memory", proc, root):
        limit = _read_limit(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit < (NO_LIMIT_BYTES if best is None else best.limit_bytes):
            best = MemoryGroup(version, folder, limit)
    return best


def _read_limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return NO_LIMIT_BYTES
    return int(text) if text.isdigit() else NO_LIMIT_BYTES


class CpuThrottling(NamedTuple):
    """How often, and for how long in all, the CPU quota stopped a group."""

    times: int
    seconds: float


def find_throttled_folder(proc: Path = PROC, root: Path = ROOT) -> Path | None:
    """Return the group, counted from the leaf, that has a CPU quota and counts how often it bites."""
    for version, folder in walk_groups("cpu", proc, root):
        name = "cpu.max" if version == 2 else "cpu.cfs_quota_us"
        try:
            text = (folder / name).read_text().split()[0]
        except (OSError, IndexError):
            continue
        if text not in ("max", "-1") and read_throttling(folder) is not None:
            return folder
    return None


def read_throttling(folder: Path) -> CpuThrottling | None:
    values = _read_numbers(folder / "cpu.stat", ("nr_throttled ", "throttled_usec ", "throttled_time "))
    times = values.get("nr_throttled ")
    if times is None:
        return None
    microseconds = values.get("throttled_usec ", values.get("throttled_time ", 0) / 1000)
    return CpuThrottling(times, microseconds / 1e6)


def _read_numbers(path: Path, names: tuple[str, ...]) -> dict[str, int]:
    try:
        text = path.read_text()
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if f"{name} " in names:
            found[f"{name} "] = int(value)
    return found


def read_cpuset() -> frozenset[int]:
    """Return the cores that affinity (and with it every cpuset above) allows this process."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return frozenset(range(os.cpu_count() or 1))
