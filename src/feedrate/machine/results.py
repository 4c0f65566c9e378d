# SPDX-License-Identifier: Apache-2.0
"""Facts about a machine: its parts, its file systems, and the numbers that were measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feedrate.figures import Figure


@dataclass(frozen=True, slots=True)
class Machine:
    """Where something was measured."""

    cpu_model: str
    usable_cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: Mapping[str, str]
    commit: str | None
    command_line: tuple[str, ...]
    gpus: tuple[str, ...] = ()


# File systems in memory, as the kernel names them, and a plan's preset.
MEMORY_KINDS = frozenset({"tmpfs", "ramfs", "devtmpfs", "memory"})


@dataclass(frozen=True, slots=True)
class Storage:
    """The file system and the disk under a path.

    Attributes:
        kind: as the kernel names it: `ext4`, `nfs4`, `lustre`, `fuse.sshfs`, `overlay`, `tmpfs`;
            or `unknown`.
        source: of the mount: `/dev/sda1`, `server:/home`.
        rotational: the disk spins; None: unknown. Virtual disks often claim to.
        is_virtual_disk: a virtual machine's disk, which does not tell the truth of the disk behind it.
    """

    path: str
    mount_point: str
    kind: str
    source: str
    is_network: bool
    is_fuse: bool
    is_memory: bool
    rotational: bool | None
    device: str | None
    is_virtual_disk: bool = False


@dataclass(frozen=True, slots=True)
class ScratchRate:
    """One file written to a folder, past the page cache, and read back. `read_bytes_per_s`: None: unknown."""

    size_bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment; None: it does not tell."""

    index: int
    name: str
    utilisation: float | None = None  # 0 to 1: the share of the time in which some kernel ran
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_to_device_bytes_per_s: float | None = None
    pcie_from_device_bytes_per_s: float | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU. `memory_bytes`: None: the driver does not tell."""

    gpu: int
    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """How a file system answers reads, measured on files that lie there.

    A file of `n` bytes that is not in memory takes `file_s + n / stream_bytes_per_s`. Several readers at a
    time are that many times as fast, up to `files_per_s` files and `total_bytes_per_s` bytes.

    Attributes:
        path: a folder on it; `kind`: of file system, as in Storage.
        file_s: opening a file and reading its first bytes, one file after another.
        stat_s: asking for the size of a file whose name is not known yet; None: not tried.
        read_s: one read of a few KB somewhere in a file that is open.
        warm_file_s, warm_bytes_per_s: the same file again at once. None: no time was left for it.
        keeps_pages: whether a second read of a file came from memory; None: not known.
        write_bytes_per_s, create_s: writing one file, and making a small one; None: not tried.
        streams: readers at a time, when `files_per_s` and `total_bytes_per_s` were measured.
        cold_share: the part of the bytes read that was not in memory before; None: not known.
        copy_bytes_per_s: of `feedrate stage` on files that lie there, a whole folder's asked for and
            read; None: not tried, or too few of them were not in memory.
        shared_bytes_per_s: of all nodes together; None: not known, and taken to be the rate of one.
    """

    path: str
    kind: str
    file_s: Figure
    read_s: Figure
    stream_bytes_per_s: Figure
    total_bytes_per_s: Figure
    files_per_s: Figure
    streams: int
    warm_file_s: Figure | None = None
    warm_bytes_per_s: Figure | None = None
    keeps_pages: bool | None = None
    cold_share: float | None = None
    write_bytes_per_s: Figure | None = None
    create_s: Figure | None = None
    stat_s: Figure | None = None
    shared_bytes_per_s: Figure | None = None
    copy_bytes_per_s: Figure | None = None

    @property
    def is_memory(self) -> bool:
        """Whether files there take memory, and no disk."""
        return self.kind in MEMORY_KINDS


@dataclass(frozen=True, slots=True)
class ModelRates:
    """Images per second of a standard model on one device, 224 pixels wide, on batches that are there."""

    forward: Figure
    training: Figure | None


@dataclass(frozen=True, slots=True)
class MachineNumbers:
    """The results of `feedrate bench machine` on a node, as they are kept in the user's state folder.

    Attributes:
        date: of the measurement, YYYY-MM-DD.
        stores: by mount point.
        decode_images_per_s: of one core, crops of photographs like ImageNet's: `pillow`, `feedrate`.
        core_gain: images that all usable cores decode in a time, divided by those of one core.
        to_device_bytes_per_s: from pinned memory to the first GPU.
        models: by name, on the first GPU, or on the CPU where there is none.
    """

    node: str
    date: str
    machine: Machine
    stores: Mapping[str, StoreSpeed]
    decode_images_per_s: Mapping[str, Figure]
    core_gain: Figure
    to_device_bytes_per_s: Figure | None
    gpu_decode_images_per_s: Figure | None
    models: Mapping[str, ModelRates]
    device: str
