# SPDX-License-Identifier: Apache-2.0
"""Reads a job twice and compares; never touches it, and reads only files that the rights allow.

Counters give the time that a process computed, and was queued for a core. How the rest divides into waiting
for storage and waiting for others is sampled: `glance` looks at the states a few times between two readings.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedrate.errors import NotFound
from feedrate.machine import cpu
from feedrate.machine.process import (
    ProcessStat,
    list_threads,
    parse_stat,
    read_anonymous,
    read_command_line,
    read_file,
    read_io,
    read_schedule,
    read_stat,
    read_user,
)
from feedrate.machine.rates import JobMeter, Reading, name_user
from feedrate.watch.devices import Gpus, find_data_mounts, list_open, list_stores
from feedrate.watch.results import (
    HELPER,
    MAIN_THREAD,
    TRAINER,
    WORKER,
    CoreUse,
    GpuUse,
    JobSummary,
    MemoryUse,
    Shares,
    ThreadGroup,
    Verdict,
    WatchedJob,
    WatchedProcess,
    WatchedUser,
)
from feedrate.watch.targets import (
    WORKER_NAME,
    JobFinder,
    Member,
    assign_roles,
    choose_training,
    find_doctor,
    find_frameworks,
    is_spawned,
    promote_ranks,
)
from feedrate.watch.verdict import judge, settle

# Kernel functions in which a process that sleeps waits for data: FUSE and some network file systems let a
# signal interrupt that, so the state is S as for any other sleep. And a plain socket's read.
_STORAGE_WAITS = (
    b"request_wait_answer", b"fuse_", b"nfs", b"rpc_", b"folio_wait", b"wait_on_page", b"io_schedule",
    b"ptlrpc", b"cl_", b"ll_", b"ceph", b"cifs", b"smb", b"p9_", b"v9fs", b"cxiWait", b"sk_wait_data",
    b"tcp_recvmsg",
)  # fmt: skip
_MOST_THREADS = 256
_LOOK_FOR_FRAMEWORKS = 12  # readings: imports take a while
_FIND_EVERY_S = 10.0
_MOST_JOBS = 40
_LEAST_CORES = 0.1  # a training process uses this much, or has workers, or a GPU
_LEAST_FED = 0.02  # of a core: a parent that uses less takes no batches from its children
# Threads of torch that run a part of the training loop (backward) while the main thread waits for them.
_LOOP_THREADS = b"pt_autograd"
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one process or thread, since it began. `loop_s`: of the training loop; None: of all."""

    cpu_s: float
    queued_s: float
    loop_s: float | None = None
    read_bytes: int | None = None
    disk_bytes: int | None = None
    written_bytes: int | None = None


def divide_time(before: Counters, after: Counters, passed_s: float, states: Mapping[str, int]) -> Shares:
    """Divide the time between two readings; `states`: how often the process was seen blocked or asleep."""
    used_s = after.cpu_s - before.cpu_s
    if before.loop_s is not None and after.loop_s is not None:
        used_s = after.loop_s - before.loop_s
    computing = min(1.0, max(0.0, used_s) / passed_s)
    queued = min(1.0 - computing, max(0.0, after.queued_s - before.queued_s) / passed_s)
    rest = max(0.0, 1.0 - computing - queued)
    blocked, asleep = states.get("blocked", 0), states.get("asleep", 0)
    storage = rest * blocked / (blocked + asleep) if blocked else 0.0
    return Shares(computing, queued, storage, max(0.0, rest - storage))


def find_state(pid: int) -> str:
    """Return whether a process is `blocked`, `asleep` or neither at this moment; empty: it has ended."""
    text = read_file(f"/proc/{pid}/stat") or b""
    state = text[text.rfind(b")") + 2 :][:1]
    if state == b"D":
        return "blocked"
    if state != b"S":
        return "running" if state else ""
    where = read_file(f"/proc/{pid}/wchan") or b""
    return "blocked" if where.startswith(_STORAGE_WAITS) else "asleep"


class JobSampler:
    """Watches one job from `pid` down. `take` returns the time since its last call; None: the job ended.

    Args:
        notes, other_jobs: for every view: how the job was chosen, and from which.
    """

    def __init__(
        self, pid: int, gpus: Gpus, notes: tuple[str, ...] = (), other_jobs: tuple[JobSummary, ...] = ()
    ) -> None:
        self.pid, self._gpus, self._notes, self._other_jobs = pid, gpus, notes, other_jobs
        stat = read_stat(pid)
        self._start = -1 if stat is None else stat.start
        self._meter = JobMeter(pid, {os.getpid()}, group=pid)
        self._user = name_user(read_user(pid)) or "unknown"
        self._lines: dict[tuple[int, str], tuple[str, ...]] = {}
        self._before: dict[int, Counters] = {}
        self._threads_before: dict[int, tuple[float, float]] = {}
        self._states: dict[int, Counter[str]] = {}
        self._roles: dict[int, str] = {}
        self._frameworks: tuple[str, ...] = ()
        self._doctor = find_doctor(pid)
        self._throttled_s: float | None = None
        self._readings = 0
        self._mounts: dict[str, float] = {}
        self._verdicts: deque[Verdict] = deque(maxlen=5)
        self._at_s = time.monotonic()
        self.take()

    def glance(self) -> None:
        """Note the state of each process at this moment; a few microseconds for each."""
        for pid, role in self._roles.items():
            if role != HELPER and (state := find_state(pid)):
                self._states.setdefault(pid, Counter())[state] += 1

    def take(self) -> WatchedJob | None:
        root = read_stat(self.pid)
        if root is None or root.start != self._start or root.is_over:
            return None
        now_s = time.monotonic()
        passed_s, self._at_s = max(now_s - self._at_s, 1e-3), now_s
        members = {self.pid: root, **self._meter.tree.look()}
        members = {pid: stat for pid, stat in members.items() if not stat.is_over}
        self._roles = self._find_roles(members)
        loaders = [pid for pid, role in self._roles.items() if role != HELPER]
        open_files = {path for pid in loaders for path in list_open(pid)}
        on_gpus = self._gpus.of(set(members), open_files)
        on_gpu = {holder.pid for gpu in on_gpus for holder in gpu.job}
        promote_ranks(self._roles, members, on_gpu | self._find_unfed(members, passed_s))
        processes = self._measure(members, passed_s, on_gpu)
        trainers = [one.pid for one in processes if one.role == TRAINER]
        self._look_for_frameworks(trainers)
        has_workers = any(one.role == WORKER for one in processes)
        threads = self._measure_threads(trainers[0], passed_s) if trainers and not has_workers else ()
        self._mounts.update(dict.fromkeys(find_data_mounts(open_files), now_s))
        self._mounts = {mount: seen for mount, seen in self._mounts.items() if now_s - seen < 60}
        read: dict[str, Any] = {
            name: part() for name, part in self._meter.list_parts(passed_s, members).items()
        }
        job = WatchedJob(
            pid=self.pid,
            user=self._user,
            command=self._lines[self.pid, root.name],
            frameworks=self._frameworks,
            age_s=max(0.0, time.clock_gettime(_BOOT_CLOCK) - root.start / os.sysconf("SC_CLK_TCK")),
            seconds=passed_s,
            processes=processes,
            helpers=len(members) - len(processes),
            threads=threads,
            gpus=on_gpus,
            free_gpus=self._gpus.list_free(),
            cores=self._measure_cores(read["cpu"], passed_s),
            memory=self._measure_memory(read["memory"], members, processes),
            stores=list_stores(read["disks"], read["nfs"] or {}, self._mounts),
            received_bytes_per_s=read["network"]["received_per_s"],
            sent_bytes_per_s=read["network"]["sent_per_s"],
            verdict=_UNKNOWN,
            not_visible=tuple(self._list_hidden(on_gpus)),
            notes=self._notes,
            other_jobs=self._other_jobs,
            doctor=self._doctor,
        )
        self._states = {}
        self._readings += 1
        if self._readings > 1:
            self._verdicts.append(judge(job))
            job = replace(job, verdict=settle(self._verdicts))
        return job

    def _find_roles(self, members: Mapping[int, ProcessStat]) -> dict[int, str]:
        # A process that was just forked runs another program, or gets another name, a little later.
        self._lines = {
            (pid, stat.name): self._lines.get((pid, stat.name)) or read_command_line(pid)
            for pid, stat in members.items()
        }
        return assign_roles(
            {s.pid: Member(s.pid, s.parent, s.name, self._lines[s.pid, s.name]) for s in members.values()}
        )

    def _find_unfed(self, members: Mapping[int, ProcessStat], passed_s: float) -> set[int]:
        """Return the children of parents that take nothing from them, and only wait for their end."""
        quiet = {
            pid
            for pid, stat in members.items()
            if (old := self._before.get(pid)) and stat.cpu_s - old.cpu_s < _LEAST_FED * passed_s
        }
        # A fork may load for a parent that is quiet for now: that one does not sleep in wait().
        joins = {pid for pid in quiet if (read_file(f"/proc/{pid}/wchan") or b"") == b"do_wait"}
        spawned = {pid for pid, stat in members.items() if is_spawned(self._lines[pid, stat.name])}
        unfed = set()
        for pid, stat in members.items():
            # A server of forks takes nothing itself: the process that started it does.
            is_served = stat.parent in spawned and self._roles[stat.parent] == HELPER
            taker = members[stat.parent].parent if is_served else stat.parent
            if taker in joins or (pid in spawned and taker in quiet and not self._has_read(taker)):
                unfed.add(pid)
        return unfed

    def _has_read(self, pid: int) -> bool:
        """Return whether a process read anything since it was counted: batches come through pipes."""
        before, now = self._before[pid].read_bytes, read_io(pid)
        return before is not None and now is not None and now["rchar"] > before

    def _measure(
        self, members: Mapping[int, ProcessStat], passed_s: float, on_gpu: set[int]
    ) -> tuple[WatchedProcess, ...]:
        """Return the processes that train and load; the rest are helpers."""
        after = {pid: self._count(stat) for pid, stat in members.items()}
        found = [
            self._describe(stat, self._before.get(pid, after[pid]), after[pid], passed_s)
            for pid, stat in members.items()
            if self._roles[pid] != HELPER
        ]
        self._before = after
        trains = on_gpu | {members[one.pid].parent for one in found if one.role == WORKER}
        trains |= {one.pid for one in found if one.cores >= _LEAST_CORES}
        might = [one for one in found if one.role == TRAINER]
        if not any(one.pid in trains for one in might) and might:
            trains = {max(might, key=lambda one: (one.cores, one.resident_bytes)).pid}
        for one in might:
            if one.pid not in trains:
                self._roles[one.pid] = HELPER
        kept = [one for one in found if self._roles[one.pid] != HELPER]
        return tuple(sorted(kept, key=lambda one: (one.role, one.pid)))

    def _count(self, stat: ProcessStat) -> Counters:
        io = read_io(stat.pid) if self._roles[stat.pid] != HELPER else None
        _, queued_s = read_schedule(stat.pid) or (0.0, 0.0)
        return Counters(
            stat.cpu_s,
            queued_s,
            _read_loop_s(stat.pid) if self._roles[stat.pid] == TRAINER else None,
            *(() if io is None else (io["rchar"], io["read_bytes"], io["write_bytes"])),
        )

    def _describe(
        self, stat: ProcessStat, before: Counters, after: Counters, passed_s: float
    ) -> WatchedProcess:
        def rate(name: str) -> float | None:
            old, new = getattr(before, name), getattr(after, name)
            return None if old is None or new is None else max(0, new - old) / passed_s

        shares = divide_time(before, after, passed_s, self._states.get(stat.pid, {}))
        return WatchedProcess(
            pid=stat.pid,
            role=self._roles[stat.pid],
            name=stat.name,
            cores=max(0.0, after.cpu_s - before.cpu_s) / passed_s,
            shares=shares,
            doing=shares.doing,
            threads=stat.threads,
            resident_bytes=stat.rss_bytes,
            swap_bytes=read_swap(stat.pid),
            read_bytes_per_s=rate("read_bytes"),
            disk_bytes_per_s=rate("disk_bytes"),
            written_bytes_per_s=rate("written_bytes"),
        )

    def _measure_threads(self, trainer: int, passed_s: float) -> tuple[ThreadGroup, ...]:
        after: dict[int, tuple[float, float]] = {}
        groups: dict[str, list[tuple[float, float, bool]]] = {}
        for tid in list_threads(trainer)[:_MOST_THREADS]:
            stat = parse_stat(read_file(f"/proc/{trainer}/task/{tid}/stat") or b"")
            schedule = read_schedule(trainer, tid)
            if stat is None or schedule is None:
                continue
            after[tid] = schedule
            before = self._threads_before.get(tid, schedule)
            used, waited = (max(0.0, n - o) / passed_s for n, o in zip(schedule, before, strict=True))
            name = MAIN_THREAD if tid == trainer else stat.name.rstrip("0123456789-_#")
            groups.setdefault(name, []).append((used, waited, stat.state == "D"))
        self._threads_before = after
        made = [
            ThreadGroup(name, len(found), *(sum(values) for values in zip(*found, strict=True)))
            for name, found in groups.items()
        ]
        return tuple(sorted(made, key=lambda group: (-group.cores, -group.count, group.name)))

    def _measure_cores(self, reading: Reading, passed_s: float) -> CoreUse:
        allowed = len(reading["cores"])
        quota = cpu.read_cpu_quota(cpu.group_file(self.pid))
        unused = sum(1.0 - busy for busy in reading["busy"] if busy is not None)
        left = unused if quota is None else min(unused, quota - reading["ours"])
        other = reading.get("biggest_other")
        return CoreUse(
            machine=os.cpu_count() or allowed,
            allowed=allowed,
            quota=quota,
            job=reading["ours"],
            others=reading["others"],
            idle=max(0.0, left),
            iowait=reading["iowait"],
            throttled_share=self._measure_throttling(reading.get("throttled"), passed_s),
            biggest_other=None if other is None else (other["name"], other["user"] or "", other["cores"]),
        )

    def _measure_throttling(self, throttled: Mapping[str, Any] | None, passed_s: float) -> float | None:
        if throttled is None:
            return None
        before, self._throttled_s = self._throttled_s, throttled["seconds"]
        return None if before is None else min(1.0, max(0.0, throttled["seconds"] - before) / passed_s)

    def _measure_memory(
        self, reading: Reading, members: Iterable[int], processes: Sequence[WatchedProcess]
    ) -> MemoryUse:
        swapped = [one.swap_bytes for one in processes]
        # Pages that forks share are in swap once, and count in each.
        known = min(sum(one or 0 for one in swapped), reading["swap_used"])
        return MemoryUse(
            used_bytes=reading["used"],
            limit_bytes=reading["limit"],
            cache_bytes=reading["cache"] or 0,
            is_group=reading["is_group"],
            job_bytes=sum(read_anonymous(pid) or 0 for pid in members),
            job_swap_bytes=None if None in swapped else known,
            swap_used_bytes=reading["swap_used"],
            swap_in_bytes_per_s=reading["swap_in_per_s"],
            swap_out_bytes_per_s=reading["swap_out_per_s"],
            major_faults_per_s=reading["major_faults_per_s"],
        )

    def _look_for_frameworks(self, trainers: Sequence[int]) -> None:
        if self._readings >= _LOOK_FOR_FRAMEWORKS or (self._frameworks and self._readings > 2):
            return
        found: dict[str, None] = {}
        for pid in trainers[:4]:
            found.update(dict.fromkeys(find_frameworks(pid, read_command_line(pid))))
        if not found and any(name.startswith(WORKER_NAME) for _, name in self._lines):
            found["PyTorch"] = None
        self._frameworks = tuple(found)

    def _list_hidden(self, gpus: Sequence[GpuUse]) -> Iterator[str]:
        if not os.access(f"/proc/{self.pid}/fd", os.R_OK):
            yield (
                f"processes of {self._user} hide from other users what they read and write (io), their open "
                "files (fd), libraries (maps), and what they sleep in (wchan)"
            )
        if any(not gpu.job for gpu in gpus):
            yield "the driver names no process of this job, as in containers: who shares the GPU is not known"


def read_swap(pid: int) -> int | None:
    """Return the bytes of a process that are in swap; None: not told."""
    text = read_file(f"/proc/{pid}/status") or b""
    at = text.find(b"VmSwap:")
    return None if at < 0 else int(text[at + 7 : at + 40].split()[0]) * 1024


def _read_loop_s(pid: int) -> float | None:
    """Return the CPU time of a trainer's main thread, and of those that run a part of its loop for it."""
    used_s = 0.0
    for tid in list_threads(pid)[:_MOST_THREADS]:
        name = read_file(f"/proc/{pid}/task/{tid}/comm") or b""
        if tid == pid or name.startswith(_LOOP_THREADS):
            schedule = read_schedule(pid, tid)
            if schedule is None:
                return None
            used_s += schedule[0]
    return used_s


_UNKNOWN = Verdict((), "not known yet", "this is the first reading")


class UserSampler:
    """Watches all jobs of a user, also those that begin later."""

    def __init__(self, user: int, gpus: Gpus) -> None:
        self._user, self._gpus = user, gpus
        self._finder = JobFinder(user, time.monotonic())
        self._samplers: dict[int, JobSampler] = {}
        self._found_s = time.monotonic()
        self._find()

    def glance(self) -> None:
        for sampler in self._samplers.values():
            sampler.glance()

    def take(self) -> WatchedUser:
        found = {pid: sampler.take() for pid, sampler in self._samplers.items()}
        jobs = [job for job in found.values() if job is not None]
        self._samplers = {job.pid: self._samplers[job.pid] for job in jobs}
        if time.monotonic() - self._found_s >= _FIND_EVERY_S:
            self._find()
        jobs.sort(key=lambda job: (-len(job.gpus), -job.cores.job))
        return WatchedUser(name_user(self._user) or "", tuple(jobs))

    def _find(self) -> None:
        self._found_s = time.monotonic()
        jobs = self._finder.find(self._found_s, self._gpus.processes)
        for job in jobs[:_MOST_JOBS]:
            if job.pid not in self._samplers:
                self._samplers[job.pid] = JobSampler(job.pid, self._gpus)


def choose_job(user: int, gpus: Gpus, wait: Callable[[], None]) -> JobSampler:
    """Return a sampler of the job that is meant where none is named, of those busy while `wait` waits.

    Raises:
        NotFound: no process of this user uses a GPU, or a tenth of a core, or none of them is meant.
        UsageError: several may be.
    """
    finder = JobFinder(user, time.monotonic())
    wait()
    jobs = finder.find(time.monotonic(), gpus.processes)
    busy = [job for job in jobs if job.gpus or job.cores >= _LEAST_CORES]
    name = name_user(user) or ""
    if not busy:
        raise NotFound(
            f"no process of {name} uses a GPU or a tenth of a core just now",
            hint="start one: python train.py & feedrate watch $!; or name a process: feedrate watch PID",
        )
    chosen, note = choose_training(busy, name)
    return JobSampler(chosen.pid, gpus, (note,), tuple(job for job in busy if job is not chosen))
