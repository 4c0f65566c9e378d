# SPDX-License-Identifier: Apache-2.0
"""How many cores may this process really use?"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path


def count_usable_cores() -> int:
    """Return the cores that affinity and the CPU quota leave; `os.cpu_count()` ignores both."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quota = read_cpu_quota()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def read_cpu_quota(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return the cores that the tightest cgroup above this process grants; None when none limits it."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += _quotas_upwards(root, path, _read_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_upwards(root / controllers, path, _read_v1)
    return min(quotas, default=None)


def _quotas_upwards(root: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    # The leaf often says "no limit" while a job's group above it has one.
    folder = root / path.lstrip("/")
    folders = [folder, *folder.parents]
    quotas = [read(f) for f in folders if f == root or root in f.parents]
    return [q for q in quotas if q is not None]


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
