# SPDX-License-Identifier: Apache-2.0
"""Where something was measured, and what that machine is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Storage:
    """What is under a path.

    Attributes:
        kind: as the kernel names it: `ext4`, `nfs4`, `lustre`, `fuse.sshfs`, `overlay`, `tmpfs`;
            or `unknown`.
        source: what is mounted: `/dev/sda1`, `server:/home`.
        rotational: the disk spins; None: unknown. Virtual disks often claim to.
        is_virtual_disk: a virtual machine's disk, which says nothing true of what it is made of.
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
    utilisation: float | None  # 0 to 1: the share of the time in which some kernel ran
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    pcie_to_device_bytes_per_s: float | None
    pcie_from_device_bytes_per_s: float | None
    pcie_generation: int | None
    pcie_width: int | None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU. `memory_bytes`: None: the driver does not tell."""

    gpu: int
    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Which part of a GPU's time a process had."""

    gpu: int
    pid: int
    share: float
