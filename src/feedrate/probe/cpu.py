# SPDX-License-Identifier: Apache-2.0
"""How many cores may this process really use?"""

from __future__ import annotations

import math
from pathlib import Path

from feedrate.probe.cgroup import PROC, ROOT, read_cpuset, walk_groups


def count_usable_cores() -> int:
    """Return the cores that affinity and the CPU quota leave; `os.cpu_count()` ignores both."""
    return max(1, math.ceil(measure_usable_cores()))


def measure_usable_cores() -> float:
    """Return the same as a number that need not be whole: a quota of 1.5 cores is 1.5."""
    cores = float(len(read_cpuset()))
    quota = read_cpu_quota()
    return cores if quota is None else min(cores, quota)


def read_cpu_quota(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """Return the cores that the tightest cgroup above this process grants; None when none limits it."""
    groups = walk_groups("cpu", proc, root)
    quotas = [_read_v2(folder) if version == 2 else _read_v1(folder) for version, folder in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


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
