# SPDX-License-Identifier: Apache-2.0
"""Do the run's own processes take more memory step by step, so steadily that they will fill what there is?

Which GPU of the machine is torch's `cuda:0`? A job on a shared machine sees only some of them.

What the machine and the storage did during the real steps, in a few numbers. None: unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from feedrate.doctor.analyse.machine import MachineTrace

_LEAST_STEPS = 30
_LEAST_BYTES_PER_S = 1e6  # less is how any program breathes
_LEAST_PART = 0.02  # of what is left, while it was watched: the limit is at most 50 times as far away
_LEVELLING_OFF = 0.5  # of the whole growth, what the second half must still have
_LATE, _EARLY = 0.1, 0.2  # of the time watched: so late a process may come, and so early be done
_TELLING = 0.2  # of all growth: a process with less is not named


@dataclass(frozen=True, slots=True)
class Growth:
    """`where`: the processes that grow, in words."""

    bytes_per_step: float
    steps_to_limit: float
    where: str


def measure_growth(
    trace: MachineTrace, start_ns: int, end_ns: int, *, steps: int, left_bytes: float | None, main_pid: int
) -> Growth | None:
    """Return how the processes of this run grow over the steps; None: they do not, or it cannot be told.

    What other programs take, and the page cache, are not counted. Growth that slows down (buffers that fill,
    a program that warms up) ends by itself. `left_bytes`: inside the limit; None: unknown.
    """
    seconds = (end_ns - start_ns) / 1e9
    if steps < _LEAST_STEPS or not left_bytes or left_bytes < 0:
        return None
    late_ns, early_ns = (round(part * (end_ns - start_ns)) for part in (_LATE, _EARLY))
    # One that was started or ended meanwhile takes its memory along.
    staying = [
        pid
        for pid, process in trace.processes.items()
        if process.times_ns[0] <= start_ns + late_ns and process.times_ns[-1] >= end_ns - early_ns
    ]

    def slopes(start: int, end: int) -> dict[int, float]:
        return {pid: slope for pid in staying if (slope := trace.growth_per_s(pid, start, end)) is not None}

    middle = (start_ns + end_ns) // 2
    whole, early, late = slopes(start_ns, end_ns), slopes(start_ns, middle), slopes(middle, end_ns)
    per_s = sum(whole.values())
    if per_s < _LEAST_BYTES_PER_S or per_s * seconds < _LEAST_PART * left_bytes:
        return None
    if sum(early.values()) <= 0 or sum(late.values()) < _LEVELLING_OFF * per_s:
        return None
    growing = [pid for pid, slope in whole.items() if slope > _TELLING * per_s]
    per_step = per_s * seconds / steps
    return Growth(per_step, left_bytes / per_step, _name(trace, growing, main_pid))


def _name(trace: MachineTrace, growing: list[int], main_pid: int) -> str:
    workers = [pid for pid in growing if trace.processes[pid].parent == main_pid]
    named = ["the training process"] if main_pid in growing else []
    if workers:
        named.append("a worker" if len(workers) == 1 else f"{len(workers)} workers")
    return " and ".join(named) or "its processes"


def find_gpu(uuids: Sequence[str], ordinal: int, visible: str | None) -> int | None:
    """Return the driver's number of torch's GPU `ordinal`; None: unknown.

    Args:
        uuids: of the GPUs, in the driver's order.
        visible: CUDA_VISIBLE_DEVICES of the process; None: not set.
    """
    if visible is None:
        return ordinal if ordinal < len(uuids) else None
    entries = [entry.strip() for entry in visible.split(",")]
    entry = entries[ordinal] if ordinal < len(entries) else ""
    if entry.isdigit():
        number = int(entry)
        if number < len(uuids):
            return number
        # A scheduler that hides the other GPUs from the driver, too, may leave their numbers in place.
        return ordinal if len(entries) == len(uuids) else None
    # The beginning of a name is enough for CUDA, if it is the beginning of only one.
    matches = [number for number, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files that samples come from.

    Attributes:
        folder: what they have in common.
        kind: of the file system ("ext4", "nfs4", "fuse.sshfs"); source: what is mounted there.
        resident: share of sampled pages in the page cache after the run.
        dataset_bytes: of the whole dataset, from the sizes seen and the number of samples.
    """

    folder: str
    kind: str
    source: str
    is_network: bool
    is_fuse: bool
    is_memory: bool
    is_rotational: bool | None
    files_seen: int
    mean_bytes: float
    suffixes: tuple[str, ...]
    resident: float | None
    dataset_bytes: float | None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Means over the real steps."""

    cores: float
    cores_ours: float | None = None
    cores_others: float = 0.0
    biggest_other: str = ""  # who has a good part of these, in words; empty: nobody stands out
    steal_cores: float = 0.0
    busiest_core: float | None = None
    device_cpu_share: float | None = None  # cores that the training process used while it replayed batches
    memory_limit_bytes: float | None = None
    memory_used_bytes: float | None = None  # without the page cache
    memory_cache_bytes: float | None = None
    swap_bytes_per_s: float = 0.0
    major_faults_per_s: float = 0.0
    memory_stall_share: float | None = None  # pressure: some
    io_stall_share: float | None = None
    growth: Growth | None = None  # of the run's own processes
    disk_read_bytes_per_s: float | None = None
    disk_busy: float | None = None
    network_bytes_per_s: float | None = None
    shm_size_bytes: float | None = None
    throttled_share: float | None = None
    gpus: int = 0
    gpu_name: str = ""
    gpu_utilisation: float | None = None
    gpu_memory_share: float | None = None
    gpu_power_w: float | None = None
    gpu_others: int = 0  # processes that were there before, or stayed
    gpu_others_share: float | None = None  # what they had of its time
    data: DataFiles | None = None
    scratch: str | None = None
    scratch_bytes_per_s: float | None = None
    decoded_bytes: float | None = None  # of the whole dataset, decoded
    copied_bytes: float | None = None  # to the device, per step
    copied_element_bytes: int | None = None
    copies_are_pinned: bool = False
    copies_are_beside: bool = False  # on a stream of their own
    notes: tuple[str, ...] = field(default=())

    @property
    def is_busy(self) -> bool:
        """Whether others use a part of the cores that may be felt."""
        return self.cores_others + self.steal_cores >= 0.15 * self.cores
