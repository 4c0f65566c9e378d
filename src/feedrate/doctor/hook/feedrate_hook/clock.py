# SPDX-License-Identifier: Apache-2.0
"""The clocks of the calling thread, and what the process read. What the machine does not tell counts as 0."""

from __future__ import annotations

import os
import threading
import time
from typing import Optional, Tuple  # noqa: UP035 - aliases below are evaluated, in Python 3.8 as well

try:
    import resource

    _WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
except ImportError:
    resource = None  # type: ignore[assignment]

wall_ns = time.perf_counter_ns
cpu_ns = getattr(time, "thread_time_ns", time.process_time_ns)
process_cpu_ns = time.process_time_ns

Reading = Tuple[int, int, int]  # noqa: UP006 - wall, cpu, queue
Beginning = Tuple[int, int]  # noqa: UP006 - wall, cpu

# The run-queue clock is a file to read. It cannot have moved by more than wall minus cpu, so it is read only
# when that is something since it was last read, and not again at once.
SLACK_NS = 20_000
_FRESH_NS = 100_000


class KeptFile:
    """A file of /proc that is read again and again from its start."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._inode = os.fstat(self._fd).st_ino
        except OSError:
            pass

    def read(self) -> bytes:
        # A program may close all descriptors and get this number for its own file: pread does not move in it.
        return os.pread(self._fd, 512, 0) if self._fd >= 0 else b""

    def __del__(self) -> None:
        try:
            if self._fd >= 0 and os.fstat(self._fd).st_ino == self._inode:
                os.close(self._fd)
        except Exception:
            pass


class _OfThread(threading.local):
    schedstat: Optional[KeptFile] = None  # noqa: UP045
    last_queue_ns = -1
    read_ns = -_FRESH_NS  # when that was read, and how long the thread had not been computing by then
    idle_ns = -SLACK_NS


class _OfProcess:
    thread = _OfThread()
    io: Optional[KeptFile] = None  # noqa: UP045


def forget_files() -> None:
    """After a fork the open files still tell about the parent."""
    _OfProcess.thread = _OfThread()
    _OfProcess.io = None


def queue_ns(wall: int, cpu: int) -> int:
    """Return how long this thread was ready to run without a core, by the time of these two clocks."""
    thread = _OfProcess.thread
    idle = wall - cpu
    if idle - thread.idle_ns < SLACK_NS or wall - thread.read_ns < _FRESH_NS:
        return thread.last_queue_ns
    if thread.schedstat is None:
        thread.schedstat = KeptFile("/proc/thread-self/schedstat")
    try:
        thread.last_queue_ns = int(thread.schedstat.read().split()[1])
    except (OSError, ValueError, IndexError):
        thread.last_queue_ns = 0
    thread.read_ns = wall
    thread.idle_ns = idle
    return thread.last_queue_ns


def read() -> Reading:
    """Return the three clocks."""
    cpu = cpu_ns()
    wall = wall_ns()
    return wall, cpu, queue_ns(wall, cpu)


def between(start: Reading, end: Reading) -> Reading:
    """Return what was spent between two readings. To lose the core while reading is not counted."""
    wall = end[0] - start[0]
    cpu = min(end[1] - start[1], wall)
    return wall, cpu, min(end[2] - start[2], wall - cpu)


def since(start: Reading) -> Reading:
    return between(start, read())


def begin() -> Beginning:
    return wall_ns(), cpu_ns()


def spent(start: Beginning) -> Reading:
    """Return what was spent since a beginning. Cheap: its run-queue time may hold some from just before."""
    end = wall_ns()
    end_cpu = cpu_ns()
    wall, cpu = end - start[0], end_cpu - start[1]
    slack = wall - cpu
    if slack < SLACK_NS:
        return wall, cpu, 0
    before = _OfProcess.thread.last_queue_ns
    queue = queue_ns(end, end_cpu)
    return wall, cpu, min(queue - before, slack) if before >= 0 else 0


def read_io() -> tuple[int, int, int]:
    """Return bytes read by system calls, bytes read from block devices, and major faults of this thread."""
    if _OfProcess.io is None:
        _OfProcess.io = KeptFile("/proc/self/io")
    called = device = faults = 0
    try:
        fields = _OfProcess.io.read().split()
        called, device = int(fields[1]), int(fields[9])
    except (OSError, ValueError, IndexError):
        pass
    if resource is not None:
        faults = resource.getrusage(_WHOSE).ru_majflt
    return called, device, faults
