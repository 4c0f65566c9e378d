# SPDX-License-Identifier: Apache-2.0
"""What the machine and the storage did during the real steps, in a few numbers. None: unknown."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedrate.doctor.growth import Growth


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
