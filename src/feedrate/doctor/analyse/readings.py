# SPDX-License-Identifier: Apache-2.0
"""The readings of the machine: one line each says how it is found in a sample, its unit, and how it is shown.

Series, means, curves, facts and what causes are judged by are all made of this table: to add a reading, add
its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from feedrate.units import format_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Sample = dict[str, Any]  # a line of the sampler's file
UNKNOWN = "unknown"
# How facts show a number, by its unit.
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "cores": lambda value: f"{value:.1f}",
    "B": format_bytes,
    "B/s": lambda value: f"{format_bytes(value)}/s",
    "share": lambda value: f"{value:.0%}",
    "W": lambda value: f"{value:.0f} W",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one reading.

    Attributes:
        unit: cores, B, B/s, share (of the time), s, W, or a plain number a second (/s).
        read: finds it in a sample; a part that is missing there makes it unknown.
        curve: its title on the page; empty: it is not drawn.
        is_rare: a healthy machine leaves it at zero: it is drawn when it is not.
        fact: its name among the facts; empty: it is none.
        end: the reading that its scale ends at.
    """

    unit: str
    read: Callable[[Sample], float | None]
    curve: str = ""
    fact: str = ""
    end: str = ""
    is_rare: bool = False


def _reading(unit: str, read: Callable[[Sample], float | None], curve: str = "", **more: Any) -> Any:
    return field(default=None, metadata={"reading": Reading(unit, read, curve, **more)})


def derived(unit: str, fact: str) -> Any:
    """Return the field of a number that is made of readings, and shown like one."""
    return _reading(unit, lambda _: None, fact=fact)


def list_readings(kind: type[DataclassInstance]) -> dict[str, Reading]:
    """Return what is known of a class's readings, by name."""
    return {one.name: one.metadata["reading"] for one in fields(kind) if "reading" in one.metadata}


def _add(parts: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    # Device-mapper volumes and software RAID repeat what the disks below them count.
    values = [part[name] for key, part in parts.items() if not key.startswith(("dm-", "md"))]
    return float(sum(values)) if values else None


def _round_trip(mounts: Mapping[str, Mapping[str, float | None]]) -> float | None:
    pairs = [(m["operations_per_s"] or 0.0, m["round_trip_s"]) for m in mounts.values()]
    known = [(rate, trip) for rate, trip in pairs if rate and trip is not None]
    return sum(rate * trip for rate, trip in known) / sum(rate for rate, _ in known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Means over some time; None: unknown. Curves have this order.

    Attributes:
        steal_cores: wanted by this virtual machine, and given to another.
        throttled_share: of the time, in which the CPU quota stopped this job.
        memory_held_bytes: inside the limit, page cache included; `memory_cache_bytes` can be given back.
        disk_busy: of the busiest disk. *_stall_share: in which some task waited (pressure).
    """

    cores_ours: float | None = _reading(
        "cores", lambda s: s["cpu"]["ours"], "cores busy, this run", fact="cores used by the run"
    )
    cores_others: float | None = _reading(
        "cores", lambda s: s["cpu"]["others"], "cores busy, others", fact="cores used by others"
    )
    iowait_cores: float | None = _reading("cores", lambda s: s["cpu"]["iowait"], "cores waiting for a disk")
    memory_held_bytes: float | None = _reading(
        "B", lambda s: s["memory"]["used"], "memory used, page cache included"
    )
    memory_cache_bytes: float | None = _reading(
        "B", lambda s: s["memory"]["cache"], "page cache", fact="page cache"
    )
    disk_read_bytes_per_s: float | None = _reading(
        "B/s", lambda s: _add(s["disks"], "read_per_s"), "disks, read", fact="read from disks"
    )
    disk_written_bytes_per_s: float | None = _reading(
        "B/s", lambda s: _add(s["disks"], "write_per_s"), "disks, written"
    )
    disk_busy: float | None = _reading(
        "share", lambda s: max(disk["busy"] for disk in s["disks"].values()), "busiest disk", fact="disk busy"
    )
    network_bytes_per_s: float | None = _reading(
        "B/s", lambda s: s["network"]["received_per_s"], "network, received", fact="received from the network"
    )
    nfs_read_bytes_per_s: float | None = _reading("B/s", lambda s: _add(s["nfs"], "read_per_s"), "NFS, read")
    nfs_round_trip_s: float | None = _reading("s", lambda s: _round_trip(s["nfs"]), "NFS, round trip")
    cpu_stall_share: float | None = _reading("share", lambda s: s["pressure"]["cpu"], "stalled for a core")
    io_stall_share: float | None = _reading(
        "share", lambda s: s["pressure"]["io"], "stalled for storage", fact="I/O pressure"
    )
    steal_cores: float | None = _reading(
        "cores", lambda s: s["cpu"]["steal"], "cores taken by other virtual machines",
        fact="cores taken by other virtual machines", is_rare=True,
    )  # fmt: skip
    memory_stall_share: float | None = _reading(
        "share", lambda s: s["pressure"]["memory"], "stalled for memory", fact="memory pressure", is_rare=True
    )
    swap_in_bytes_per_s: float | None = _reading(
        "B/s", lambda s: s["memory"]["swap_in_per_s"], "swapped in", is_rare=True
    )
    swap_out_bytes_per_s: float | None = _reading(
        "B/s", lambda s: s["memory"]["swap_out_per_s"], "swapped out", is_rare=True
    )
    memory_limit_bytes: float | None = _reading("B", lambda s: s["memory"]["limit"], fact="memory limit")
    major_faults_per_s: float | None = _reading("/s", lambda s: s["memory"]["major_faults_per_s"])
    shm_size_bytes: float | None = _reading("B", lambda s: s["shared_memory"][0], fact="/dev/shm")
    throttled_share: float | None = _reading("share", lambda s: s["cpu"]["throttled"]["seconds"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """Means of one GPU. `others_share`: what processes have of its time that were there before the run."""

    utilisation: float | None = _reading("share", lambda gpu: gpu["utilisation"], "busy")
    memory_used_bytes: float | None = _reading(
        "B", lambda gpu: gpu["memory_used"], "memory used", end="memory_bytes"
    )
    power_w: float | None = _reading("W", lambda gpu: gpu["power_w"], "power", end="power_limit_w")
    to_device_bytes_per_s: float | None = _reading(
        "B/s", lambda gpu: gpu["to_device_per_s"], "PCIe, to the device"
    )
    others_share: float | None = _reading("share", lambda gpu: gpu["others"])
    memory_bytes: float | None = _reading("B", lambda gpu: gpu["memory"])
    power_limit_w: float | None = _reading("W", lambda gpu: gpu["power_limit_w"])


READINGS, GPU_READINGS = list_readings(Readings), list_readings(GpuReadings)


def format_reading(value: float | None, reading: Reading) -> str:
    """Return a reading as facts show it."""
    return UNKNOWN if value is None else _FORMATS[reading.unit](value)
