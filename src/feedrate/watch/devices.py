# SPDX-License-Identifier: Apache-2.0
"""GPUs and the processes on them, and the disks and mounts where a job has its data files."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from feedrate.machine.disk import Mount, find_disk, find_mount, is_network, parse_mountinfo
from feedrate.machine.gpu import GpuReader
from feedrate.machine.process import read_file, read_stat, read_user
from feedrate.machine.rates import name_user
from feedrate.machine.results import Gpu, GpuProcess
from feedrate.watch.results import GpuHolder, GpuUse, StoreUse

_PROCESSES_EVERY_S = 10.0  # lists of processes cost milliseconds, and a lock of the driver
_MOUNTS_EVERY_S = 30.0
_LEAST_TRAFFIC = 100e3  # bytes a second: less is not worth a line
_LEAST_BUSY = 0.02
_GPU_FILE = re.compile(r"/dev/nvidia(\d+)")
_NO_DATA = ("/dev/", "/proc/", "/sys/", "/run/", "/memfd:")


class Gpus:
    """The GPUs since the last `refresh`, for all jobs that are watched."""

    def __init__(self, reader: GpuReader | None = None) -> None:
        self._reader = GpuReader() if reader is None else reader
        self._glances: list[tuple[float | None, ...]] = []
        self._listed_s = float("-inf")
        self._gpus: tuple[Gpu, ...] = ()
        self._shares: dict[tuple[int, int], float] = {}
        self.processes: tuple[GpuProcess, ...] = ()

    def __len__(self) -> int:
        return len(self._reader)

    def glance(self) -> None:
        """Ask how busy they are: the driver tells of the last fraction of a second only."""
        if len(self._reader):
            self._glances.append(self._reader.read_utilisation())

    def refresh(self) -> None:
        if not len(self._reader):
            return
        now_s = time.monotonic()
        gpus = self._reader.read()
        seen = zip(*self._glances, [gpu.utilisation for gpu in gpus], strict=True)
        self._gpus = tuple(replace(g, utilisation=_mean(v)) for g, v in zip(gpus, seen, strict=True))
        self._glances = []
        if now_s - self._listed_s >= _PROCESSES_EVERY_S:
            self.processes, self._listed_s = self._reader.read_processes(), now_s
        is_shared = len({one.gpu for one in self.processes}) < len(self.processes)
        self._shares = self._reader.read_shares() if is_shared else {}

    def of(self, members: set[int], open_files: Iterable[str] = ()) -> tuple[GpuUse, ...]:
        """Return the GPUs that a job uses: where it holds memory, else whose files it has open.

        In a container the driver may name processes by the numbers that they have outside, or none at all.
        """
        used = {one.gpu for one in self.processes if one.pid in members}
        if not used and self._gpus:
            matches = (_GPU_FILE.fullmatch(path) for path in open_files)
            minors = {int(match.group(1)) for match in matches if match is not None}
            used = {index for index, minor in enumerate(self._reader.read_minors()) if minor in minors}
        return tuple(self._describe(gpu, members) for gpu in self._gpus if gpu.index in used)

    def list_free(self) -> tuple[int, ...]:
        """Return the GPUs that no process has memory of."""
        taken = {one.gpu for one in self.processes}
        return tuple(gpu.index for gpu in self._gpus if gpu.index not in taken)

    def _describe(self, gpu: Gpu, members: set[int]) -> GpuUse:
        held = [self._name(one) for one in self.processes if one.gpu == gpu.index]
        job = tuple(one for one in held if one.pid in members)
        # Where the driver names none of the job's own, nobody can tell which of these are others.
        others = tuple(one for one in held if one.pid not in members) if job else ()
        shares = [one.share for one in others if one.share is not None]
        share = min(1.0, sum(shares)) if shares else None
        return GpuUse(**asdict(gpu), job=job, others=others, others_share=share)

    def _name(self, one: GpuProcess) -> GpuHolder:
        stat = read_stat(one.pid)
        user = None if stat is None else name_user(read_user(one.pid))
        share = self._shares.get((one.gpu, one.pid))
        return GpuHolder(one.pid, None if stat is None else stat.name, user, one.memory_bytes, share)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@functools.lru_cache(maxsize=1)
def _read_mounts(_: int) -> list[Mount]:
    """Return the table of mounts in one period of time: with automounts and containers it is long."""
    return parse_mountinfo((read_file("/proc/self/mountinfo") or b"").decode(errors="surrogateescape"))


def _list_mounts() -> list[Mount]:
    return _read_mounts(int(time.monotonic() / _MOUNTS_EVERY_S))


def find_data_mounts(open_files: Iterable[str]) -> set[str]:
    """Return the mount points of files. By names alone: a file system that hangs is not asked."""
    points = set()
    for path in open_files:
        if not path.startswith(_NO_DATA) and not path.endswith((".so", ".py", " (deleted)")):
            mount = find_mount(path, _list_mounts())
            points |= set() if mount is None else {mount.mount_point}
    return points


def list_open(pid: int) -> Iterable[str]:
    """Yield the files that a process has open, standard streams aside; none: it has ended, or is not ours."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        if name in ("0", "1", "2"):
            continue
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if path.startswith("/"):
            yield path


def list_stores(
    disks: Mapping[str, Mapping[str, Any]], nfs: Mapping[str, Mapping[str, Any]], points: Collection[str]
) -> tuple[StoreUse, ...]:
    """Return the stores that hold the job's open files, and those that are busy.

    Args:
        disks, nfs: rates as `TrafficMeter` gives them, by disk and by mount point.
        points: the mount points of the job's files.
    """
    mounts = {mount.mount_point: mount for mount in _list_mounts()}
    on_disk: dict[str, list[str]] = {}
    found: list[StoreUse] = []
    for point in sorted(points):
        mount = mounts.get(point)
        disk = None if mount is None else _find_disk_name(mount)
        if disk in disks and disk is not None:
            on_disk.setdefault(disk, []).append(point)
        elif mount is not None and point not in nfs and is_network(mount.kind):
            found.append(StoreUse(point, mount.kind, (point,)))
    for point, rates in nfs.items():
        if point in points or rates["operations_per_s"] >= 1:
            kind = mounts[point].kind if point in mounts else "nfs"
            mine: tuple[str, ...] = (point,) if point in points else ()
            counts = rates["operations_per_s"], rates["round_trip_s"]
            found.append(
                StoreUse(point, kind, mine, rates["read_per_s"], rates["write_per_s"], None, *counts)
            )
    for name, rates in disks.items():
        read, written, busy = rates["read_per_s"], rates["write_per_s"], rates["busy"]
        if name in on_disk or read + written >= _LEAST_TRAFFIC or busy >= _LEAST_BUSY:
            mine = tuple(on_disk.get(name, ()))
            found.append(StoreUse(name, "disk", mine, read, written, busy))
    return tuple(sorted(found, key=lambda store: (not store.mount_points, store.name)))


def _find_disk_name(mount: Mount) -> str | None:
    number = mount.device
    if number.startswith("0:") and mount.source.startswith("/dev/"):  # btrfs has numbers of its own
        try:
            device = os.stat(mount.source).st_rdev
        except OSError:
            return None
        number = f"{os.major(device)}:{os.minor(device)}"
    disk: Path | None = find_disk(number)
    return None if disk is None else disk.name
