# SPDX-License-Identifier: Apache-2.0
"""Rates of cores, memory, disks and network between two readings; each meter keeps the earlier one."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Sequence
from typing import Any

from feedrate.machine import cpu, process
from feedrate.machine.memory import find_memory_group
from feedrate.machine.process import ProcessStat
from feedrate.machine.process_tree import Other, Tree

Reading = dict[str, Any]


class CpuMeter:
    """Cores that a job may use: how busy, and by whom. `pid`: a process of that job; 0: this one."""

    def __init__(self, pid: int = 0) -> None:
        self._cores = sorted(cpu.read_cpuset(pid))
        self._before = process.read_core_times()
        self._tree_before: float | None = None
        self._own_before = time.process_time()
        self._throttled = cpu.find_throttled_folder(cpu.group_file(pid))

    def read(self, passed_s: float, members: dict[int, ProcessStat], other: Other | None) -> Reading:
        now = process.read_core_times()
        busy: list[float | None] = []
        iowait = steal = 0.0
        for core in self._cores:
            new, old = now.get(core), self._before.get(core)
            if new is None or old is None:
                busy.append(None)
                continue
            # The counters are only roughly in step with the clock: shares of their own sum stay below 1.
            grown = process.CoreTimes(*(max(0.0, n - o) for n, o in zip(new, old, strict=True)))
            total_s = sum(grown) or 1.0
            busy.append(round(grown.busy_s / total_s, 3))
            iowait += grown.iowait_s / total_s
            steal += grown.steal_s / total_s
        self._before = now
        ours = self._measure_tree(passed_s, members)
        own_s = time.process_time()
        sampler = (own_s - self._own_before) / passed_s
        self._own_before = own_s
        all_busy = sum(share for share in busy if share is not None)
        reading: Reading = {
            "cores": self._cores, "busy": busy, "iowait": round(iowait, 3), "steal": round(steal, 3),
            "ours": round(ours, 3), "others": round(max(0.0, all_busy - ours - sampler), 3),
        }  # fmt: skip
        if other is not None:
            reading["biggest_other"] = {
                "name": other.name, "user": name_user(other.user), "cores": round(other.cores, 3),
            }  # fmt: skip
        if self._throttled is not None:
            throttling = cpu.read_throttling(self._throttled)
            if throttling is not None:
                reading["throttled"] = {"times": throttling.times, "seconds": throttling.seconds}
        return reading

    def _measure_tree(self, passed_s: float, members: dict[int, ProcessStat]) -> float:
        # A child that ended goes on counting in its parent: the sum does not drop when workers come and go.
        total = sum(stat.cpu_s + stat.ended_children_s for stat in members.values())
        before, self._tree_before = self._tree_before, total
        return 0.0 if before is None else max(0.0, total - before) / passed_s


def name_user(user: int | None) -> str | None:
    try:
        return None if user is None else pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


class MemoryMeter:
    """Memory inside the group of a command (the machine's, where no group limits it), swap and pressure.

    Args:
        pid: a process of it; 0: this one.
    """

    def __init__(self, pid: int = 0) -> None:
        self._before = process.read_vmstat()
        self._pressure = _read_pressures()
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._group = find_memory_group(cpu.group_file(pid))
        self._asked: set[int] = set()

    def read(self, passed_s: float, members: dict[int, ProcessStat]) -> Reading:
        self._follow(members)
        machine, now = process.read_memory_info(), process.read_vmstat()
        total = machine.get("MemTotal", 0)
        use = None if self._group is None else self._group.read()
        cache = machine.get("Cached", 0) + machine.get("Buffers", 0) - machine.get("Shmem", 0)
        reading: Reading = {
            "used": total - machine.get("MemAvailable", 0) + cache if use is None else use.used_bytes,
            "limit": total if use is None else min(total, use.limit_bytes),
            "cache": cache if use is None else use.cache_bytes,
            "is_group": use is not None, "total": total,
            "swap_used": machine.get("SwapTotal", 0) - machine.get("SwapFree", 0),
        }  # fmt: skip
        swapped = self._page / passed_s
        for name, label, factor in (
            ("pswpin", "swap_in", swapped), ("pswpout", "swap_out", swapped),
            ("pgmajfault", "major_faults", 1 / passed_s),
        ):  # fmt: skip
            reading[f"{label}_per_s"] = round((now.get(name, 0) - self._before.get(name, 0)) * factor, 1)
        self._before = now
        return reading

    def _follow(self, members: dict[int, ProcessStat]) -> None:
        # A scheduler may put the command into another group than ours.
        for pid in members.keys() - self._asked:
            self._asked.add(pid)
            group = find_memory_group(cpu.group_file(pid))
            if group is not None and (self._group is None or group.limit_bytes < self._group.limit_bytes):
                self._group = group

    def read_pressure(self, passed_s: float) -> Reading | None:
        before, self._pressure = self._pressure, _read_pressures()
        shares = {
            kind: round(min(1.0, (total - before[kind]) / passed_s), 4)
            for kind, total in self._pressure.items()
            if kind in before
        }
        return shares or None


def _read_pressures() -> dict[str, float]:
    found = ((kind, process.read_pressure(kind)) for kind in ("cpu", "memory", "io"))
    return {kind: total for kind, total in found if total is not None}


class TrafficMeter:
    """Bytes per second of disks, network and NFS mounts."""

    def __init__(self) -> None:
        self._disks, self._network = process.read_disks(), process.read_network()
        self._nfs = process.read_nfs()

    def read_disks(self, passed_s: float) -> Reading:
        before, self._disks = self._disks, process.read_disks()
        reading = {}
        for name, new in self._disks.items():
            read, written, busy = _per_s(new, before.get(name, new), passed_s)
            busy = round(min(1.0, busy), 3)
            reading[name] = {"read_per_s": round(read), "write_per_s": round(written), "busy": busy}
        return reading

    def read_network(self, passed_s: float) -> Reading:
        before, self._network = self._network, process.read_network()
        received, sent = (max(0, round(rate)) for rate in _per_s(self._network, before, passed_s))
        return {"received_per_s": received, "sent_per_s": sent}

    def read_nfs(self, passed_s: float) -> Reading | None:
        if not self._nfs:
            return None
        before, self._nfs = self._nfs, process.read_nfs()
        reading = {}
        for point, new in self._nfs.items():
            operations, read, written, trips = _per_s(new, before.get(point, new), passed_s)
            reading[point] = {
                "operations_per_s": round(operations, 1),
                "read_per_s": round(read), "write_per_s": round(written),
                "round_trip_s": round(trips / operations, 6) if operations > 0 else None,
            }  # fmt: skip
        return reading


def _per_s(new: Sequence[float], old: Sequence[float], passed_s: float) -> list[float]:
    return [(n - o) / passed_s for n, o in zip(new, old, strict=True)]


class JobMeter:
    """A job, and the machine around it, between two readings of the doctor's sampler or of `watch`.

    Args:
        root: the process that the job is, or below which it is.
        ignored, is_marked: see `Tree`.
        group: a process in the control group that limits the job; 0: this one.
    """

    def __init__(
        self, root: int, ignored: set[int], is_marked: Callable[[int], bool] = lambda _: False, group: int = 0
    ) -> None:
        self.tree = Tree(root, ignored, is_marked)
        self._cpu, self._memory, self._traffic = CpuMeter(group), MemoryMeter(group), TrafficMeter()

    def list_parts(
        self, passed_s: float, members: dict[int, ProcessStat]
    ) -> dict[str, Callable[[], Reading | None]]:
        """Return the function that reads each part of a sample."""
        return {
            "cpu": lambda: self._cpu.read(passed_s, members, self.tree.biggest_other),
            "memory": lambda: self._memory.read(passed_s, members),
            "pressure": lambda: self._memory.read_pressure(passed_s),
            "disks": lambda: self._traffic.read_disks(passed_s),
            "network": lambda: self._traffic.read_network(passed_s),
            "nfs": lambda: self._traffic.read_nfs(passed_s),
        }
