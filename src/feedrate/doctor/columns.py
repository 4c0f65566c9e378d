# SPDX-License-Identifier: Apache-2.0
"""From the sampler's lines to columns of numbers: NaN where a reading is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Sample = dict[str, Any]

# Of a sample, how each series is read. A missing part makes the value unknown.
SERIES: dict[str, Callable[[Sample], float | None]] = {
    "cores_ours": lambda s: s["cpu"]["ours"],
    "cores_others": lambda s: s["cpu"]["others"],
    "cores_sampler": lambda s: s["cpu"]["sampler"],
    "iowait": lambda s: s["cpu"]["iowait"],
    "steal": lambda s: s["cpu"]["steal"],
    "throttled_s": lambda s: s["cpu"]["throttled"]["seconds"],
    "mem_used": lambda s: s["memory"]["used"],
    "mem_limit": lambda s: s["memory"]["limit"],
    "mem_cache": lambda s: s["memory"]["cache"],
    "mem_available": lambda s: s["memory"]["available"],
    "swap_in_rate": lambda s: s["memory"]["swap_in_per_s"],
    "swap_out_rate": lambda s: s["memory"]["swap_out_per_s"],
    "majflt_rate": lambda s: s["memory"]["major_faults_per_s"],
    "psi_cpu": lambda s: s["pressure"]["cpu"],
    "psi_memory": lambda s: s["pressure"]["memory"],
    "psi_io": lambda s: s["pressure"]["io"],
    "disk_read_rate": lambda s: _add(s["disks"], "read_per_s"),
    "disk_write_rate": lambda s: _add(s["disks"], "write_per_s"),
    "disk_busy": lambda s: max(disk["busy"] for disk in s["disks"].values()),
    "net_rx_rate": lambda s: s["network"]["received_per_s"],
    "net_tx_rate": lambda s: s["network"]["sent_per_s"],
    "nfs_read_rate": lambda s: _add(s["nfs"], "read_per_s"),
    "nfs_operations_rate": lambda s: _add(s["nfs"], "operations_per_s"),
    "nfs_round_trip_s": lambda s: _round_trip(s["nfs"]),
    "shm_size": lambda s: s["shared_memory"][0],
    "shm_used": lambda s: s["shared_memory"][1],
}
GPU_SERIES = ("utilisation", "others", "memory_used", "memory", "power_w", "power_limit_w", "to_device_per_s")
_UNREADABLE = (KeyError, TypeError, IndexError, ValueError, AttributeError)


def _add(parts: dict[str, dict[str, float]], name: str) -> float | None:
    # Device-mapper volumes and software RAID repeat what the disks below them count.
    values = [part[name] for key, part in parts.items() if not key.startswith(("dm-", "md"))]
    return float(sum(values)) if values else None


def _round_trip(mounts: dict[str, dict[str, float | None]]) -> float | None:
    pairs = [(m["operations_per_s"] or 0.0, m["round_trip_s"]) for m in mounts.values()]
    known = [(rate, trip) for rate, trip in pairs if rate and trip is not None]
    return sum(rate * trip for rate, trip in known) / sum(rate for rate, _ in known) if known else None


def ask(sample: Sample, read: Callable[[Sample], Any]) -> Any:
    """Return what `read` finds in a sample; None where that part is missing."""
    try:
        return read(sample)
    except _UNREADABLE:
        return None


def first(samples: Iterable[Sample], read: Callable[[Sample], Any]) -> Any:
    """Return the first answer that is one."""
    return next((found for sample in samples if (found := ask(sample, read)) is not None), None)


def column(samples: Sequence[Sample], read: Callable[[Sample], float | None]) -> Floats:
    return np.array([_number(ask(sample, read)) for sample in samples], np.float64)


def table(samples: Sequence[Sample], read: Callable[[Sample], Sequence[float | None]], width: int) -> Floats:
    """Return samples x width; rows of another width are unknown."""
    rows = np.full((len(samples), width), np.nan)
    for number, sample in enumerate(samples):
        row = ask(sample, read)
        if row is not None and len(row) == width:
            rows[number] = [_number(value) for value in row]
    return rows


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


@dataclass(frozen=True, slots=True)
class ProcessSeries:
    """One process of the tree. Arrays are as long as `times_ns`; NaN where it was not asked.

    Attributes:
        private: bytes that only this process uses, asked every few seconds; `pss` likewise.
        anonymous: resident bytes of neither files nor shared memory; after a fork also what is still shared.
        cpu_s: CPU time since its start. `read_bytes`: exact on block devices only.
        core: where it ran last. `affinity`: the cores that it may use, as last seen; None: unknown.
    """

    pid: int
    name: str
    parent: int
    times_ns: Times
    rss: Floats
    anonymous: Floats
    private: Floats
    pss: Floats
    cpu_s: Floats
    read_bytes: Floats
    rchar: Floats
    major_faults: Floats
    core: Floats
    threads: int
    affinity: tuple[int, ...] | None


def read_processes(samples: Sequence[Sample]) -> dict[int, ProcessSeries]:
    """Return the processes by pid; of two that had the same number, the one that was seen longer."""
    readings: dict[tuple[int, int], list[tuple[int, Sample]]] = {}
    for sample in samples:
        for process in ask(sample, lambda s: s["processes"]) or ():
            key = int(process["pid"]), int(process["start"])
            readings.setdefault(key, []).append((sample["t_ns"], process))
    longest_last = sorted(readings.items(), key=lambda pair: len(pair[1]))
    return {pid: _make_series(pid, found) for (pid, _), found in longest_last}


def _make_series(pid: int, found: list[tuple[int, Sample]]) -> ProcessSeries:
    parts = [part for _, part in found]

    def of(name: str) -> Floats:
        return column(parts, lambda part: part[name])

    affinity = first(reversed(parts), lambda part: part["affinity"])
    return ProcessSeries(
        pid=pid,
        name=str(parts[-1].get("name", "")),
        parent=int(parts[0].get("parent", 0)),
        times_ns=np.array([t_ns for t_ns, _ in found], np.int64),
        rss=of("rss"),
        anonymous=of("anonymous"),
        private=of("private"),
        pss=of("pss"),
        cpu_s=of("cpu_s"),
        read_bytes=of("read_bytes"),
        rchar=of("rchar"),
        major_faults=of("major_faults"),
        core=of("core"),
        threads=max(int(part.get("threads", 1)) for part in parts),
        affinity=None if affinity is None else tuple(affinity),
    )


def slope_per_s(times_ns: Times, values: Floats) -> float:
    """Return the median slope of all pairs (Theil-Sen): a few jumps do not count as growth."""
    step = max(1, len(values) // 200)
    seconds, values = (times_ns[::step] - times_ns[0]) / 1e9, values[::step]
    left, right = np.triu_indices(len(values), 1)
    return float(np.median((values[right] - values[left]) / (seconds[right] - seconds[left])))


def mean(values: Floats, weights: Floats) -> float | None:
    """Return the weighted mean of what is known; None when nothing is."""
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None
