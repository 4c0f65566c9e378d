# SPDX-License-Identifier: Apache-2.0
"""Samples the machine twice a second while a command runs: `python -m feedrate.doctor.run.sampler RUN PID`.

A process of its own, so that it costs the command nothing but its share of a core (under 1 %); it imports
neither numpy nor torch. One JSON line per sample goes to RUN/machine.jsonl.

    sampling --"stop" on standard input--> waiting --end of input--> gone
        \\------- end of input, or PID or RUN gone ----> cleaning up --> gone

Standard input is a pipe that only the doctor holds: its end says that the doctor is gone, however it went.
Then what is left of the command is ended and the run folder removed, unless the doctor had done so.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedrate.doctor.facts import MACHINE_FILE
from feedrate.doctor.run.processes import SharedNames, clean_up, make_meter
from feedrate.hooking.launch import SIGNALS
from feedrate.machine.gpu import GpuReader
from feedrate.machine.process import (
    ProcessStat,
    is_alive,
    read_anonymous,
    read_rollup,
    read_shared_memory,
    read_stat,
)
from feedrate.machine.process_tree import list_tree
from feedrate.machine.rates import Reading

INTERVAL_S = 0.5
_GLANCE_S = 0.2  # about as often as the driver measures how busy a GPU was
STOP = b"s"  # from the doctor: take a last sample
STOPPED = 255  # to the doctor: it is written
READY = 0  # to the doctor: sampling has begun
_ROLL_CALL_S = 2.0
_SLOWEST_S = 10.0
_SHARE = 0.008  # of one core
_ROLLUP_EVERY_S = 3.0
_ROLLUP_SHARE = 0.002  # of one core, at most
_PCIE_EVERY_S = 2.0


class ProcessMeter:
    """One entry per member of the tree."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], float] = {}  # when each was asked for its pages
        self._free_at_s = 0.0

    def read(self, members: dict[int, ProcessStat]) -> list[Reading]:
        readings: dict[tuple[int, int], Reading] = {
            (stat.pid, stat.start): {
                "pid": stat.pid, "start": stat.start, "parent": stat.parent, "cpu_s": round(stat.cpu_s, 2),
                "anonymous": read_anonymous(stat.pid),
            }
            for stat in members.values()
            if not stat.is_over
        }  # fmt: skip
        self._add_private(readings)
        return list(readings.values())

    def _add_private(self, readings: dict[tuple[int, int], Reading]) -> None:
        """Add the private memory to some of the readings, those asked longest ago first.

        The kernel walks all pages of a process for it: as many are asked as cost little.
        """
        self._asked = {key: self._asked.get(key, -math.inf) for key in readings}
        now = time.monotonic()
        for key in sorted(readings, key=lambda key: self._asked[key]):
            if now < self._free_at_s or now - self._asked[key] < _ROLLUP_EVERY_S:
                return
            began = time.thread_time()
            found = read_rollup(key[0])
            self._asked[key] = now
            self._free_at_s = max(self._free_at_s, now - 1.0) + (time.thread_time() - began) / _ROLLUP_SHARE
            if found is not None:
                _, readings[key]["private"] = found


class GpuMeter:
    """What the GPUs do. The driver tells of the last fraction of a second: `glance` asks between samples."""

    def __init__(self) -> None:
        self._reader = GpuReader()
        self._pcie_due_s = 0.0
        self._glances: list[tuple[int, tuple[float | None, ...]]] = []
        self._others: set[int] = set()

    def __len__(self) -> int:
        return len(self._reader)

    def glance(self) -> None:
        self._glances.append((time.perf_counter_ns(), self._reader.read_utilisation()))

    def take_glances(self) -> list[tuple[int, tuple[float | None, ...]]]:
        taken, self._glances = self._glances, []
        return taken

    def read(self) -> list[Reading]:
        if not len(self._reader):
            return []
        began = time.monotonic()
        with_pcie = began >= self._pcie_due_s
        gpus = self._reader.read(with_pcie=with_pcie)
        if with_pcie:
            self._pcie_due_s = began + max(_PCIE_EVERY_S, 10 * (time.monotonic() - began))
        others = self._read_others()
        return [
            {
                "name": gpu.name, "uuid": gpu.uuid, "utilisation": gpu.utilisation,
                "others": others.get(gpu.index),
                "memory_used": gpu.memory_used_bytes,
                "memory": gpu.memory_bytes, "power_w": gpu.power_w, "power_limit_w": gpu.power_limit_w,
                "to_device_per_s": gpu.pcie_to_device_bytes_per_s,
            }
            for gpu in gpus
        ]  # fmt: skip

    def read_processes(self, members: set[int]) -> list[Reading]:
        """Return the other processes that hold memory: before the command starts, and after its end."""
        found = [process for process in self._reader.read_processes() if process.pid not in members]
        self._others |= {process.pid for process in found}
        return [{"gpu": p.gpu, "pid": p.pid} for p in found]

    def _read_others(self) -> dict[int, float]:
        """Return what those who were there before the command have of each GPU; nobody: nothing is asked.

        In a container the driver may know the command's own processes by other numbers: whoever was there
        before is none of them.
        """
        shares: dict[int, float] = {}
        for (gpu, pid), share in self._reader.read_shares().items() if self._others else ():
            if pid in self._others:
                shares[gpu] = shares.get(gpu, 0.0) + share
        return {gpu: min(share, 1.0) for gpu, share in shares.items()}


class Sampler:
    """Takes samples; `take` returns one as it goes to the file."""

    def __init__(self, run: Path, root: int, *, ignored: set[int]) -> None:
        self._job = make_meter(root, str(run), ignored)
        self.tree = self._job.tree
        self._processes, self._gpu = ProcessMeter(), GpuMeter()
        self.shared = SharedNames()
        self._before_ns = time.perf_counter_ns()
        self._unread: dict[str, str] = {}
        self._is_first = True

    def take(self, *, is_last: bool = False) -> Reading:
        now_ns = time.perf_counter_ns()
        passed_s = max(1e-3, (now_ns - self._before_ns) / 1e9)
        self._before_ns = now_ns
        members = self.tree.look()
        sample: Reading = {"t_ns": now_ns, "passed_s": round(passed_s, 4)}
        parts: dict[str, Callable[[], Any]] = {
            **self._job.list_parts(passed_s, members),
            "processes": lambda: self._processes.read(members),
            "gpus": self._gpu.read,
            "shared_memory": read_shared_memory,
            "shared_names": lambda: self.shared.look(members),
        }
        if len(self._gpu):
            parts["gpu_glances"] = self._gpu.take_glances
        if self._is_first or is_last:
            parts["gpu_processes"] = lambda: self._gpu.read_processes(set(self.tree.known()))
        self._is_first = False
        for name, read in parts.items():
            if name not in self._unread:
                sample[name] = self._read(name, read)
        if self._unread:
            sample["unread"] = self._unread
        return sample

    def listen(self, until: float) -> bytes | None:
        """Wait for a word of the doctor's, and look at the GPUs meanwhile."""
        while len(self._gpu) and (left := until - time.monotonic()) > _GLANCE_S:
            word = _listen(min(left, _GLANCE_S))
            if word is not None:
                return word
            self._read("gpu_glances", self._gpu.glance)
        return _listen(max(0.0, until - time.monotonic()))

    def _read(self, name: str, read: Callable[[], Any]) -> Any:
        # A kernel may answer in a way that nobody has seen: that part is then unknown, and the rest goes on.
        try:
            return read()
        except Exception as error:
            self._unread[name] = f"{type(error).__name__}: {error}"
            return None


def main(
    words: list[str], *, ignored: frozenset[int] = frozenset(), tell: Callable[[int], None] | None = None
) -> int:
    """Sample until told to stop or left alone. `tell` passes READY and STOPPED on."""
    run, root = Path(words[0]), int(words[1])
    stat = read_stat(root)
    # What the doctor's process had started before the command is its own affair.
    sampler = Sampler(run, root, ignored={os.getpid(), *ignored, *(one.pid for one in list_tree(root))})
    if tell is not None:
        tell(READY)
    is_told_to_stop = _sample_until_the_end(sampler, run, root, 0 if stat is None else stat.start)
    if is_told_to_stop:
        if tell is not None:
            tell(STOPPED)
        while run.is_dir() and _listen(_ROLL_CALL_S) != b"":
            pass
    session = os.getsid(0) if stat is None else stat.session
    clean_up(run, sampler.tree.known(), sampler.shared.names, session=session)
    return 0


def _sample_until_the_end(sampler: Sampler, run: Path, root: int, start: int) -> bool:
    try:
        descriptor = os.open(run / MACHINE_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        descriptor = -1
    began = time.monotonic()
    due = began + INTERVAL_S
    try:
        while True:
            word = sampler.listen(due)
            is_over = word == b"" or not is_alive(root, start) or not run.is_dir()
            if is_over and word != STOP:
                return False
            cost_s = time.thread_time()
            # The disk may be full: without samples then, but the command goes on, and so does the watch for
            # its end.
            with contextlib.suppress(OSError):
                line = json.dumps(sampler.take(is_last=word == STOP), separators=(",", ":"))
                os.write(descriptor, line.encode() + b"\n")
            if word == STOP:
                return True
            # After a pause (a stopped machine, a suspended job) go on from now, without catching up.
            now = time.monotonic()
            due = max(due + pace(now - began, time.thread_time() - cost_s), now + INTERVAL_S / 2)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def pace(elapsed_s: float, cost_s: float) -> float:
    """Return the seconds to the next sample: half of one, if neither time nor cost speaks against it.

    A run that is watched for a day must not fill the disk, and hundreds of processes take time to read.
    """
    return min(_SLOWEST_S, max(INTERVAL_S, elapsed_s / 1200, cost_s / _SHARE))


def _listen(timeout_s: float) -> bytes | None:
    """Return what came on standard input: b"" at its end, None when nothing came in time."""
    try:
        ready, _, _ = select.select([0], [], [], timeout_s)
        return os.read(0, 1) if ready else None
    except OSError:
        return b""


def relay() -> int:
    """Start the sampler, and tell the doctor which signals its whole process group got.

    Ctrl-C goes from the terminal to the doctor, to the command and to this process alike; `kill PID` reaches
    the doctor alone, which then has to pass it on. Only a third process of the group can tell the two apart.
    The sampler itself runs in a session of its own: it must survive when the group is killed, to clean up.

    Bytes on standard output: READY and STOPPED of the sampler; any other is the number of a signal.
    """
    os.set_blocking(1, False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(1, warn_on_full_buffer=False)
    group_member = os.getpid()
    child = os.fork()
    if child:
        os.close(0)
        os.waitpid(child, 0)
        return 0
    signal.set_wakeup_fd(-1)
    os.setsid()

    def tell(byte: int) -> None:
        try:
            os.write(1, bytes([byte]))
        except OSError:
            return

    os._exit(main(sys.argv[1:], ignored=frozenset({group_member}), tell=tell))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
