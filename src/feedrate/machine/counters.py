# SPDX-License-Identifier: Apache-2.0
"""Counters of the whole machine in /proc, as they stand; who wants a rate reads twice."""

from __future__ import annotations

import os
from dataclasses import dataclass

from feedrate.machine.process import read_file

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own sectors are


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Seconds since the machine started. `busy`: neither idle, nor waiting for a disk, nor stolen."""

    busy_s: float
    idle_s: float
    iowait_s: float
    steal_s: float


def read_core_times() -> dict[int, CoreTimes]:
    return parse_core_times(_text("/proc/stat"))


def parse_core_times(text: str) -> dict[int, CoreTimes]:
    cores = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break
        name, *fields = line.split()
        if name == "cpu":
            continue
        ticks = [int(field) / _TICKS_PER_S for field in fields[:8]]
        ticks += [0.0] * (8 - len(ticks))
        user, nice, system, idle, iowait, irq, softirq, steal = ticks
        cores[int(name[3:])] = CoreTimes(user + nice + system + irq + softirq, idle, iowait, steal)
    return cores


def read_memory_info() -> dict[str, int]:
    """Return /proc/meminfo in bytes."""
    pairs = (line.split() for line in _text("/proc/meminfo").splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) * 1024 for pair in pairs if len(pair) >= 2}


def read_vmstat() -> dict[str, int]:
    """Return pages swapped in and out, and major faults, since the machine started."""
    names = {"pswpin", "pswpout", "pgmajfault"}
    pairs = (line.split() for line in _text("/proc/vmstat").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if pair[0] in names}


def read_pressure(kind: str) -> float | None:
    """Return the seconds in which some task waited for `cpu`, `memory` or `io`; None: not told."""
    return parse_pressure(_text(f"/proc/pressure/{kind}"))


def parse_pressure(text: str) -> float | None:
    for line in text.splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / 1e6 if total.isdigit() else None
    return None


@dataclass(frozen=True, slots=True)
class DiskCounters:
    read_bytes: int
    written_bytes: int
    busy_s: float


def read_disks() -> dict[str, DiskCounters]:
    """Return what whole disks did: no partitions, whose work is their disk's, and no loop or RAM disks."""
    disks = parse_diskstats(_text("/proc/diskstats"))
    return {name: disk for name, disk in disks.items() if os.path.isdir(f"/sys/block/{name}")}


def parse_diskstats(text: str) -> dict[str, DiskCounters]:
    disks = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 13 and not fields[2].startswith(("loop", "ram", "zram", "sr", "fd")):
            disks[fields[2]] = DiskCounters(
                int(fields[5]) * _SECTOR_BYTES, int(fields[9]) * _SECTOR_BYTES, int(fields[12]) / 1e3
            )
    return disks


def read_network() -> tuple[int, int]:
    """Return the bytes received and sent by all interfaces but the loopback."""
    return parse_network(_text("/proc/net/dev"))


def parse_network(text: str) -> tuple[int, int]:
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        # What a container's or a virtual machine's bridge passes on was counted at the real interface.
        if len(fields) >= 9 and not name.strip().startswith(("lo", "veth", "docker", "br-", "virbr", "ifb")):
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


@dataclass(frozen=True, slots=True)
class NfsCounters:
    """One NFS mount. `round_trip_s`: of all operations together; `operations` includes the reads."""

    operations: int
    read_operations: int
    read_bytes: int
    written_bytes: int
    round_trip_s: float


def read_nfs() -> dict[str, NfsCounters]:
    return parse_mountstats(_text("/proc/self/mountstats"))


def parse_mountstats(text: str) -> dict[str, NfsCounters]:
    """Return the counters of NFS mounts by mount point; of other file systems the kernel tells none."""
    mounts = {}
    for block in text.split("\ndevice "):
        lines = block.splitlines()
        head = lines[0].removeprefix("device ") if lines else ""
        if " with fstype nfs" not in head:
            continue
        point = head.partition(" mounted on ")[2].rpartition(" with fstype ")[0]
        mounts[point] = _sum_nfs(lines[1:])
    return mounts


def _sum_nfs(lines: list[str]) -> NfsCounters:
    operations = reads = read_bytes = written_bytes = 0
    round_trip_s, is_operations = 0.0, False
    for line in lines:
        name, _, rest = line.strip().partition(":")
        fields = rest.split()
        if name == "bytes" and len(fields) >= 6:
            read_bytes, written_bytes = int(fields[4]), int(fields[5])  # from and to the server
        is_operations = is_operations or name == "per-op statistics"
        if is_operations and len(fields) >= 8 and name.isupper():
            operations += int(fields[0])
            reads += int(fields[0]) if name == "READ" else 0
            round_trip_s += int(fields[6]) / 1e3
    return NfsCounters(operations, reads, read_bytes, written_bytes, round_trip_s)


def read_shared_memory() -> tuple[int, int] | None:
    """Return the size and the used bytes of /dev/shm."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return room.f_blocks * room.f_frsize, (room.f_blocks - room.f_bfree) * room.f_frsize


def _text(path: str) -> str:
    return (read_file(path) or b"").decode(errors="replace")
