# SPDX-License-Identifier: Apache-2.0
"""How many cores this process may really use, and which: by affinity, control groups and ranks of a node."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


def group_file(pid: int = 0) -> Path:
    """Return the file that names the groups of a process; 0: of this one."""
    return Path(f"/proc/{pid}/cgroup") if pid else PROC


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


class CpuThrottling(NamedTuple):
    """How often, and for how long in all, the CPU quota stopped a group."""

    times: int
    seconds: float


def find_throttled_folder(proc: Path = PROC, root: Path = ROOT) -> Path | None:
    """Return the group, counted from the leaf, that has a CPU quota and counts how often it bites."""
    for version, folder in walk_groups("cpu", proc, root):
        if _read_quota(version, folder) is not None and read_throttling(folder) is not None:
            return folder
    return None


def read_throttling(folder: Path) -> CpuThrottling | None:
    times, microseconds, nanoseconds = read_numbers(
        folder / "cpu.stat", ("nr_throttled", "throttled_usec", "throttled_time")
    )
    if times is None:
        return None
    seconds = (nanoseconds or 0) / 1e9 if microseconds is None else microseconds / 1e6
    return CpuThrottling(times, seconds)


def read_numbers(path: Path, names: tuple[str, ...]) -> list[int | None]:
    """Return the numbers behind some names in a file of lines "NAME NUMBER"; None: it has not this name."""
    try:
        pairs = dict(line.partition(" ")[::2] for line in path.read_text().splitlines())
    except OSError:
        return [None] * len(names)
    return [int(pairs[name]) if name in pairs else None for name in names]


def read_cpuset(pid: int = 0) -> frozenset[int]:
    """Return the cores that affinity (and with it every cpuset above) allows a process; 0: this one."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:  # the process has just ended, or may not be asked
        return frozenset(range(os.cpu_count() or 1))


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
    quotas = [_read_quota(version, folder) for version, folder in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_quota(version: int, folder: Path) -> float | None:
    names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        quota, period = (int(word) for name in names for word in (folder / name).read_text().split())
    except (OSError, ValueError):  # "max" is no number
        return None
    return None if quota <= 0 else quota / period


SYSFS = Path("/sys")

# Open MPI; MPICH and Intel MPI. Each rank has them, and no other user.
_MPI_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def count_rank_cores(world: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many cores a rank may keep busy, at least one; `world` is how many ranks there are."""
    ranks = count_local_ranks(world, environ)
    if ranks == 1:
        return count_usable_cores()
    own = len(read_cpuset())
    return share_cores(own, max(own, _count_launcher_cores(environ)), read_cpu_quota(), ranks)


def share_cores(own: int, of_launcher: int, quota: float | None, ranks: int) -> int:
    """Return one rank's part of the cores that were given to all `ranks` of a node.

    Args:
        own: cores that this rank may run on.
        of_launcher: cores that all ranks together may run on. Ranks that are not bound have these as their
            own; ranks that are bound to cores apart have a part of them each, which is not divided again.
        quota: cores that the control group grants to all ranks together; None: there is no limit.
        ranks: how many ranks the node has.
    """
    parts = [own, of_launcher / ranks, *([] if quota is None else [quota / ranks])]
    return max(1, int(min(parts)))


def count_local_ranks(world: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks this node has, as their launcher says; one where it says nothing.

    torchrun says how many processes it started here, which holds for a loader with ranks of its own, too. A
    task of MPI or Slurm may be a training by itself, so these are asked where there is more than one rank.
    """
    names = ("LOCAL_WORLD_SIZE", *(_MPI_VARIABLES if world > 1 else ()))
    for name in names:
        if (said := environ.get(name, "")).isdecimal() and int(said) > 0:
            return int(said)
    return _count_slurm_tasks(environ) if world > 1 else 1


def _count_slurm_tasks(environ: Mapping[str, str]) -> int:
    # SLURM_TASKS_PER_NODE may be of the job, whose batch script is one process whatever it says; this one is
    # of a step: "4(x2),3" are two nodes with four tasks and one with three.
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = environ.get("SLURM_NODEID", "")
    last = 0
    for tasks, nodes in runs:
        last += int(nodes or 1)
        if node.isdecimal() and int(node) < last:
            return max(1, int(tasks))
    return 1


def _count_launcher_cores(environ: Mapping[str, str]) -> int:
    if _count_slurm_tasks(environ) > 1:
        # srun may have bound the shell that started this process, so a parent would tell nothing.
        said = environ.get("SLURM_CPUS_ON_NODE", "")
        return int(said) if said.isdecimal() else 0
    try:
        return len(os.sched_getaffinity(os.getppid()))
    except OSError:  # a container may hide the parent
        return 0


def find_near_cores(
    pci_address: str, threads: int, usable: frozenset[int] | None = None, sysfs: Path | None = None
) -> frozenset[int] | None:
    """Return the usable cores of the NUMA node that a GPU is attached to.

    Memory of the other socket is slower to write, and slower to copy from. None: the machine does not say
    where the GPU is, all usable cores are near, or fewer than `threads` are; more cores then gain more.
    """
    device = (sysfs or SYSFS) / "bus" / "pci" / "devices" / pci_address
    try:
        node, listed = int((device / "numa_node").read_text()), (device / "local_cpulist").read_text()
    except (OSError, ValueError):
        return None
    if node < 0:  # the firmware does not say, or there is one node; the list then holds all cores
        return None
    usable = read_cpuset() if usable is None else usable
    near = usable & parse_cores(listed)
    return near if threads <= len(near) < len(usable) else None


def parse_cores(listed: str) -> frozenset[int]:
    """Return the cores of a list as the kernel writes it: "0-15,32-47"."""
    runs = re.findall(r"(\d+)(?:-(\d+))?", listed)
    return frozenset(core for first, last in runs for core in range(int(first), int(last or first) + 1))
