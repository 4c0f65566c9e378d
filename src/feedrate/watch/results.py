# SPDX-License-Identifier: Apache-2.0
"""A job between two readings: its processes, what the machine gave them, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from feedrate.machine.results import Gpu

TRAINER, WORKER, HELPER = "trainer", "worker", "helper"
MAIN_THREAD = "main thread"
COMPUTING, QUEUED, STORAGE, IDLE = "computing", "queued for a core", "waiting for storage", "idle"


@dataclass(frozen=True, slots=True)
class Shares:
    """The time of a process, as shares; together 1."""

    computing: float
    queued: float
    storage: float
    idle: float

    @property
    def doing(self) -> str:
        """The state in which it was for most of the time."""
        named = {
            COMPUTING: self.computing, STORAGE: self.storage, QUEUED: self.queued, IDLE: self.idle,
        }  # fmt: skip
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """One process of the job. None: not told, for lack of rights.

    Attributes:
        cores: that all its threads used together.
        doing: the state in which it was for most of the time.
        read_bytes_per_s: the page cache included; `disk_bytes_per_s`: without that.
    """

    pid: int
    role: str
    name: str
    cores: float
    shares: Shares
    doing: str
    threads: int
    resident_bytes: int
    swap_bytes: int | None
    read_bytes_per_s: float | None
    disk_bytes_per_s: float | None
    written_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """The threads of one name inside of the training process. `queued`: cores that they waited for."""

    name: str
    count: int
    cores: float
    queued: float
    waiting_for_storage: int


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process on a GPU. `name`: None: it is not to be seen from here, as from inside of a container."""

    pid: int
    name: str | None
    user: str | None
    memory_bytes: int | None
    share: float | None


@dataclass(frozen=True, slots=True)
class GpuUse(Gpu):
    """A GPU that the job uses, or all where that is unknown. `others_share`: of its time; None: not told."""

    job: tuple[GpuHolder, ...] = ()
    others: tuple[GpuHolder, ...] = ()
    others_share: float | None = None


@dataclass(frozen=True, slots=True)
class CoreUse:
    """Cores.

    Attributes:
        machine: all that there are; `allowed`: by the job's affinity; `quota`: of its control group.
        job, others: used by the job, and by others on those that are allowed.
        idle: that the job could still use.
        throttled_share: of the time, in which the quota stopped the job.
        biggest_other: name, user and cores of the largest other user of the machine.
    """

    machine: int
    allowed: int
    quota: float | None
    job: float
    others: float
    idle: float
    iowait: float
    throttled_share: float | None
    biggest_other: tuple[str, str, float] | None

    @property
    def limit(self) -> float:
        return self.allowed if self.quota is None else min(self.allowed, self.quota)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the control group that limits the job, or of the machine where none does.

    Attributes:
        used_bytes: page cache included; `cache_bytes`: that part of it.
        job_bytes: of the job's processes, without files; pages that forks share count in each.
        job_swap_bytes: that the job's processes have in swap; None: not told.
        swap_used_bytes, swap_in_bytes_per_s, swap_out_bytes_per_s, major_faults_per_s: of the machine.
    """

    used_bytes: int
    limit_bytes: int
    cache_bytes: int
    is_group: bool
    job_bytes: int
    job_swap_bytes: int | None
    swap_used_bytes: int
    swap_in_bytes_per_s: float
    swap_out_bytes_per_s: float
    major_faults_per_s: float


@dataclass(frozen=True, slots=True)
class StoreUse:
    """A disk, or a mount of a network file system. None: the kernel does not count it.

    Attributes:
        name: `vda`, or the mount point.
        kind: `disk`, or the file system: `nfs4`, `lustre`.
        mount_points: where the job has data files open on it.
    """

    name: str
    kind: str
    mount_points: tuple[str, ...]
    read_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None
    busy: float | None = None
    operations_per_s: float | None = None
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on the readings.

    Attributes:
        codes: of the doctor's findings, the likely ones; empty: the readings do not tell.
        is_good: nothing is to be done for the data.
        remedy: a change that helps, where that is clear; `next`: the command to type.
    """

    codes: tuple[str, ...]
    title: str
    reason: str
    remedy: str = ""
    next: str = ""
    is_good: bool = False


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job of several."""

    pid: int
    user: str
    command: tuple[str, ...]
    cores: float
    gpus: tuple[int, ...]
    gpu_memory_bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job at one moment.

    Attributes:
        pid: its first process.
        seconds: that lie between the two readings.
        helpers: processes of it that neither train nor load: launchers, trackers.
        threads: of the training process, where it has no worker processes.
        free_gpus: that no process uses.
        not_visible: readings that the rights forbid, and why.
        notes: how the job was chosen, and the process that the given PID stands for.
        other_jobs: of the same user, where watch chose this one.
        doctor: the process of a `feedrate doctor` that runs this job.
    """

    pid: int
    user: str
    command: tuple[str, ...]
    frameworks: tuple[str, ...]
    age_s: float
    seconds: float
    processes: tuple[WatchedProcess, ...]
    helpers: int
    threads: tuple[ThreadGroup, ...]
    gpus: tuple[GpuUse, ...]
    free_gpus: tuple[int, ...]
    cores: CoreUse
    memory: MemoryUse
    stores: tuple[StoreUse, ...]
    received_bytes_per_s: float
    sent_bytes_per_s: float
    verdict: Verdict
    not_visible: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    other_jobs: tuple[JobSummary, ...] = ()
    doctor: int | None = None

    @property
    def trainers(self) -> tuple[WatchedProcess, ...]:
        return tuple(one for one in self.processes if one.role == TRAINER)

    @property
    def workers(self) -> tuple[WatchedProcess, ...]:
        return tuple(one for one in self.processes if one.role == WORKER)


@dataclass(frozen=True, slots=True)
class WatchedUser:
    """All jobs of one user."""

    user: str
    jobs: tuple[WatchedJob, ...]
