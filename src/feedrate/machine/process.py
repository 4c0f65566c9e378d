# SPDX-License-Identifier: Apache-2.0
"""Counters of single processes and of the whole machine, from /proc; a rate takes two readings.

Standard library only, and few calls: this is read twice a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """/proc/PID/stat. A process is named by `pid` and `start`: numbers are used again, with another start.

    Attributes:
        cpu_s: user and system time; `ended_children_s`: that of children that ended and were waited for.
        core: where it ran last.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    major_faults: int
    cpu_s: float
    ended_children_s: float
    threads: int
    start: int
    rss_bytes: int
    core: int

    @property
    def is_over(self) -> bool:
        """Whether it has ended; a zombie has, and only its exit code is left."""
        return self.state in ("Z", "X")


def list_processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def read_stat(pid: int) -> ProcessStat | None:
    """Return None when the process has ended."""
    text = read_file(f"/proc/{pid}/stat")
    return None if not text else parse_stat(text)


def parse_stat(text: bytes) -> ProcessStat | None:
    # The name stands in brackets and may hold blanks and brackets of its own.
    left, right = text.find(b"("), text.rfind(b")")
    fields = text[right + 2 :].split()
    if left < 0 or len(fields) < 37:
        return None
    return ProcessStat(
        pid=int(text[:left]),
        name=text[left + 1 : right].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        ended_children_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        threads=int(fields[17]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        core=int(fields[36]),
    )


def is_alive(pid: int, start: int) -> bool:
    """Return whether this very process still runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and stat.start == start and not stat.is_over


def is_pending(pid: int, number: int) -> bool:
    """Return whether a signal was sent to a process and has not arrived in it yet."""
    for line in (read_file(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith((b"ShdPnd:", b"SigPnd:")) and int(line.split()[1], 16) >> (number - 1) & 1:
            return True
    return False


def list_threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def read_schedule(pid: int, thread: int | None = None) -> tuple[float, float] | None:
    """Return the seconds of a process's main thread, or another, on a core and ready without one."""
    below = "" if thread is None else f"/task/{thread}"
    fields = (read_file(f"/proc/{pid}{below}/schedstat") or b"").split()
    return (int(fields[0]) * 1e-9, int(fields[1]) * 1e-9) if len(fields) > 1 else None


def read_queued_s(pid: int) -> float:
    """Return how long the threads that a process has now were ready to run and had no core; 0: unknown."""
    found = (read_schedule(pid, thread) for thread in list_threads(pid))
    return sum(schedule[1] for schedule in found if schedule is not None)


def read_io(pid: int) -> dict[str, int] | None:
    """Return rchar, wchar, read_bytes, write_bytes ...; None when the process has ended or is not ours.

    `rchar` counts reads from the page cache, too; `read_bytes` is exact only on block devices.
    """
    text = read_file(f"/proc/{pid}/io")
    if not text:
        return None
    pairs = (line.split(b": ") for line in text.splitlines())
    return {pair[0].decode(): int(pair[1]) for pair in pairs if len(pair) == 2}


def read_anonymous(pid: int) -> int | None:
    """Return the resident bytes that are neither of files nor of shared memory."""
    text = read_file(f"/proc/{pid}/statm")
    if not text:
        return None
    fields = text.split()
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def read_rollup(pid: int) -> tuple[int, int] | None:
    """Return the proportional set size and the private bytes; costs milliseconds per GB."""
    text = read_file(f"/proc/{pid}/smaps_rollup")
    if not text:
        return None
    pss = private = 0
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            pss = int(line.split()[1]) * 1024
        elif line.startswith(b"Private_"):
            private += int(line.split()[1]) * 1024
    return pss, private


def read_environ(pid: int, name: str) -> str | None:
    """Return a variable of the environment that a process was started with; None: not set, or not ours."""
    text = read_file(f"/proc/{pid}/environ")
    key = name.encode() + b"="
    values = (entry[len(key) :] for entry in (text or b"").split(b"\0") if entry.startswith(key))
    found = next(values, None)
    return None if found is None else os.fsdecode(found)


def read_command_line(pid: int) -> tuple[str, ...]:
    text = read_file(f"/proc/{pid}/cmdline") or b""
    return tuple(os.fsdecode(word) for word in text.split(b"\0") if word)


def read_user(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def find_openers(folder: str) -> Iterator[int]:
    """Yield processes that have a file below a folder open or mapped, or stand in it; of those we may see."""
    below = os.fsencode(folder.rstrip("/")) + b"/"
    for pid in list_processes():
        if _has_open(pid, below) or below in (read_file(f"/proc/{pid}/maps") or b""):
            yield pid


def _has_open(pid: int, below: bytes) -> bool:
    try:
        links = [f"/proc/{pid}/cwd", *(f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))]
    except OSError:
        return False
    for link in links:
        try:
            target = os.readlink(os.fsencode(link))
        except OSError:
            continue
        if (target + b"/").startswith(below):
            return True
    return False


def read_file(path: str) -> bytes | None:
    # Plain system calls: three times as fast as open(), and /proc is read a hundred times a second.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


_SECTOR_BYTES = 512  # of /proc/diskstats, for disks with larger sectors as well


class CoreTimes(NamedTuple):
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
        if name != "cpu":
            ticks = [int(field) / _TICKS_PER_S for field in [*fields, *["0"] * 8][:8]]
            user, nice, system, idle, iowait, irq, softirq, steal = ticks
            cores[int(name[3:])] = CoreTimes(user + nice + system + irq + softirq, idle, iowait, steal)
    return cores


def read_memory_info(path: str = "/proc/meminfo") -> dict[str, int]:
    """Return the lines of meminfo, in bytes."""
    pairs = (line.split() for line in _text(path).splitlines())
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


class DiskCounters(NamedTuple):
    read_bytes: int
    written_bytes: int
    busy_s: float


def read_disks() -> dict[str, DiskCounters]:
    """Return the counters of whole disks: a partition's work is its disk's; no loop or RAM disks."""
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
        # Traffic over the bridge of a container or a virtual machine was counted at the real interface.
        if len(fields) >= 9 and not name.strip().startswith(("lo", "veth", "docker", "br-", "virbr", "ifb")):
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


class NfsCounters(NamedTuple):
    """One NFS mount. `round_trip_s`: of all operations together."""

    operations: int
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
    operations = read_bytes = written_bytes = 0
    round_trip_s, is_operations = 0.0, False
    for line in lines:
        name, _, rest = line.strip().partition(":")
        fields = rest.split()
        if name == "bytes" and len(fields) >= 6:
            read_bytes, written_bytes = int(fields[4]), int(fields[5])  # from and to the server
        is_operations = is_operations or name == "per-op statistics"
        if is_operations and len(fields) >= 8 and name.isupper():
            operations += int(fields[0])
            round_trip_s += int(fields[6]) / 1e3
    return NfsCounters(operations, read_bytes, written_bytes, round_trip_s)


def read_shared_memory() -> tuple[int, int] | None:
    """Return the size and the used bytes of /dev/shm."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return room.f_blocks * room.f_frsize, (room.f_blocks - room.f_bfree) * room.f_frsize


def _text(path: str) -> str:
    return (read_file(path) or b"").decode(errors="replace")
