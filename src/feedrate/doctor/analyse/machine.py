# SPDX-License-Identifier: Apache-2.0
"""From the sampler's lines to columns of numbers: NaN where a reading is unknown.

What the sampler saw of the machine, over time: means between two moments, and growth of processes.

The machine's curves for the page, made of the sampler's series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.doctor.facts import read_samples
from feedrate.doctor.results import Curve

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


_LEAST_READINGS = 4
_GLANCE_NS = 200_000_000  # that a look at a GPU tells of


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """What took the most CPU outside of this run. `user`: None: not known."""

    name: str
    user: str | None
    cores: float


@dataclass(frozen=True, slots=True)
class GpuOther:
    """A process that held memory of a GPU before the run began or after it ended."""

    gpu: int
    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Means:
    """Means between two moments, weighted by time. None: unknown. Rates are per second, sizes in bytes.

    Attributes:
        per_core: busy share of each core that this job may use (`MachineTrace.cores` names them).
        iowait, steal: in cores; `steal`: wanted by this virtual machine, and given to another.
        throttled_share: of the time, in which the CPU quota stopped this job.
        mem_used: inside `mem_limit`, page cache included; `mem_cache`: the part that can be given back.
        disk_busy: share of the time, of the busiest disk. psi_*: share of the time in which some task waited.
        gpu_*: one entry per GPU; `gpu_others`: what processes have of it that were there before the run.
    """

    seconds: float
    samples: int
    cores_busy_ours: float | None
    cores_busy_others: float | None
    per_core: tuple[float | None, ...]
    iowait: float | None
    steal: float | None
    throttled_share: float | None
    biggest_other: OtherProcess | None
    mem_used: float | None
    mem_limit: float | None
    mem_cache: float | None
    mem_available: float | None
    swap_rate: float | None
    majflt_rate: float | None
    disk_read_rate: float | None
    disk_write_rate: float | None
    disk_busy: float | None
    net_rx_rate: float | None
    net_tx_rate: float | None
    nfs_read_rate: float | None
    nfs_operations_rate: float | None
    nfs_round_trip_s: float | None
    psi_cpu: float | None
    psi_memory: float | None
    psi_io: float | None
    shm_size: float | None
    shm_used: float | None
    gpu_util: tuple[float | None, ...]
    gpu_others: tuple[float | None, ...]
    gpu_memory: tuple[float | None, ...]
    gpu_memory_limit: tuple[float | None, ...]
    gpu_power: tuple[float | None, ...]
    gpu_to_device_rate: tuple[float | None, ...]

    @property
    def busiest_core(self) -> float | None:
        return max((share for share in self.per_core if share is not None), default=None)


@dataclass(frozen=True, slots=True)
class MachineTrace:
    """All samples of a run.

    Attributes:
        times_ns: perf_counter_ns of each sample; its rates are those since the sample before.
        series: by the names of `columns.SERIES`; `gpu_series`: by those of GPU_SERIES, samples x GPUs.
        gpu_glances: how busy the GPUs were just before each of these moments, oftener than there are samples.
        cores: that this job may use, in the order of the columns of `per_core`.
        is_memory_limited: by a group above the command; else memory is the machine's.
        troubles: what the sampler could not read, by name.
    """

    times_ns: Times
    passed_s: Floats
    series: Mapping[str, Floats]
    per_core: Floats
    cores: tuple[int, ...]
    gpu_names: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    gpu_series: Mapping[str, Floats]
    gpu_glances: tuple[Times, Floats]
    gpu_others: tuple[GpuOther, ...]
    others: tuple[OtherProcess | None, ...]
    processes: Mapping[int, ProcessSeries]
    is_memory_limited: bool
    troubles: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def t_s(self) -> Floats:
        """Seconds from the first sample."""
        seconds: Floats = (self.times_ns - self.times_ns[:1]) / 1e9
        return seconds

    def between(self, start_ns: int, end_ns: int) -> Means:
        """Return the means between two moments of perf_counter_ns; all None when no sample covers them."""
        weights = self._weigh(start_ns, end_ns)
        of = {name: mean(values, weights) for name, values in self.series.items()}
        gpu = {name: _means(columns, weights) for name, columns in self.gpu_series.items()}
        swap = [rate for name in ("swap_in_rate", "swap_out_rate") if (rate := of[name]) is not None]
        same = (
            "iowait", "steal", "mem_used", "mem_limit", "mem_cache", "mem_available", "majflt_rate",
            "disk_read_rate", "disk_write_rate", "disk_busy", "net_rx_rate", "net_tx_rate", "nfs_read_rate",
            "nfs_operations_rate", "nfs_round_trip_s", "psi_cpu", "psi_memory", "psi_io", "shm_size",
            "shm_used",
        )  # fmt: skip
        return Means(
            seconds=float(weights.sum()),
            samples=int((weights > 0).sum()),
            cores_busy_ours=of["cores_ours"],
            cores_busy_others=of["cores_others"],
            per_core=_means(self.per_core, weights),
            throttled_share=self._throttled(weights),
            biggest_other=self._biggest_other(weights),
            swap_rate=sum(swap) if swap else None,
            gpu_util=self._glanced(start_ns, end_ns) or gpu["utilisation"],
            gpu_others=gpu["others"],
            gpu_memory=gpu["memory_used"],
            gpu_memory_limit=gpu["memory"],
            gpu_power=gpu["power_w"],
            gpu_to_device_rate=gpu["to_device_per_s"],
            **{name: of[name] for name in same},
        )

    def growth_per_s(self, pid: int, start_ns: int | None = None, end_ns: int | None = None) -> float | None:
        """Return the bytes per second by which a process grows; None: seen too briefly.

        Taken from its private memory where that was asked often enough; else from its anonymous memory, which
        pages shared with the parent enlarge.
        """
        process = self.processes.get(pid)
        if process is None:
            return None
        times = process.times_ns
        inside = (times >= (times[0] if start_ns is None else start_ns)) & (
            times <= (times[-1] if end_ns is None else end_ns)
        )
        for values in (process.private, process.anonymous):
            known = inside & np.isfinite(values)
            if known.sum() >= _LEAST_READINGS:
                return slope_per_s(times[known], values[known])
        return None

    def process_cores(self, pid: int, start_ns: int, end_ns: int) -> float | None:
        """Return the cores that one process used between two moments; None: it was not seen then."""
        process = self.processes.get(pid)
        if process is None:
            return None
        low, high = max(int(process.times_ns[0]), start_ns), min(int(process.times_ns[-1]), end_ns)
        if high <= low:
            return None
        before, after = np.interp([low, high], process.times_ns, process.cpu_s)
        return float((after - before) / ((high - low) / 1e9))

    def curves(self) -> tuple[Curve, ...]:
        """Return what the page draws; what this machine does not tell is left out."""

        return make_curves(self)

    def _glanced(self, start_ns: int, end_ns: int) -> tuple[float | None, ...]:
        """Return how busy the GPUs were; empty when nobody looked then."""
        times, shares = self.gpu_glances
        inside = (times >= start_ns + _GLANCE_NS) & (times <= end_ns)
        return _means(shares[inside], np.ones(int(inside.sum()))) if inside.any() else ()

    def _weigh(self, start_ns: int, end_ns: int) -> Floats:
        # A sample speaks for the time since the one before.
        ends = self.times_ns.astype(np.float64)
        begins = ends - self.passed_s * 1e9
        weights: Floats = np.clip(np.minimum(ends, end_ns) - np.maximum(begins, start_ns), 0, None) / 1e9
        return weights

    def _throttled(self, weights: Floats) -> float | None:
        seconds = self.series["throttled_s"]
        known = (weights > 0) & np.isfinite(seconds)
        if known.sum() < 2:
            return None
        span_s = float(np.ptp(self.times_ns[known])) / 1e9
        # The counter adds up what every stopped core lost.
        return min(1.0, float(np.ptp(seconds[known])) / span_s / max(1, len(self.cores)))

    def _biggest_other(self, weights: Floats) -> OtherProcess | None:
        found: dict[tuple[str, str | None], float] = {}
        for other, weight in zip(self.others, weights.tolist(), strict=True):
            if other is not None and weight > 0:
                key = other.name, other.user
                found[key] = found.get(key, 0.0) + other.cores * weight
        if not found:
            return None
        name, user = max(found, key=lambda key: found[key])
        return OtherProcess(name, user, found[name, user] / float(weights.sum()))


def read_machine(run_folder: Path) -> MachineTrace:
    """Read what the sampler wrote, also when it was cut short.

    Without samples, or when none of the command's processes ran here, every answer is "unknown".
    """
    samples = list(read_samples(run_folder))
    if not first(samples, lambda s: s["processes"] or None):
        # The command ran on another node, or was over at once: this machine's numbers say nothing about it.
        samples = []
    cores = first(samples, lambda s: s["cpu"]["cores"]) or []
    gpus = first(samples, lambda s: s["gpus"]) or []

    def of_gpus(name: str) -> Floats:
        return table(samples, lambda s: [gpu[name] for gpu in s["gpus"]], len(gpus))

    return MachineTrace(
        times_ns=np.array([s["t_ns"] for s in samples], np.int64),
        passed_s=column(samples, lambda s: s["passed_s"]),
        series={name: column(samples, read) for name, read in SERIES.items()},
        per_core=table(samples, lambda s: s["cpu"]["busy"], len(cores)),
        cores=tuple(cores),
        gpu_names=tuple(str(gpu["name"]) for gpu in gpus),
        gpu_uuids=tuple(str(gpu.get("uuid", "")) for gpu in gpus),
        gpu_series={name: of_gpus(name) for name in GPU_SERIES},
        gpu_glances=_read_glances(samples, len(gpus)),
        gpu_others=_read_gpu_others(samples),
        others=tuple(_read_other(sample) for sample in samples),
        processes=read_processes(samples),
        is_memory_limited=bool(first(reversed(samples), lambda s: s["memory"]["is_group"])),
        troubles=first(reversed(samples), lambda s: s["troubles"]) or {},
    )


def _means(columns: Floats, weights: Floats) -> tuple[float | None, ...]:
    return tuple(mean(columns[:, number], weights) for number in range(columns.shape[1]))


def _read_other(sample: Sample) -> OtherProcess | None:
    other = ask(sample, lambda s: s["cpu"]["biggest_other"])
    return None if other is None else OtherProcess(other["name"], other["user"], other["cores"])


def _read_glances(samples: Sequence[Sample], gpus: int) -> tuple[Times, Floats]:
    glances = [{"t_ns": t, "busy": busy} for s in samples for t, busy in s.get("gpu_glances") or ()]
    times = np.array([glance["t_ns"] for glance in glances], np.int64)
    return times, table(glances, lambda glance: glance["busy"], gpus)


def _read_gpu_others(samples: Sequence[Sample]) -> tuple[GpuOther, ...]:
    found = {}
    for sample in samples:
        for entry in ask(sample, lambda s: s["gpu_processes"]) or ():
            found[entry["gpu"], entry["pid"]] = GpuOther(entry["gpu"], entry["pid"], entry["memory"])
    return tuple(found.values())


_MOST_POINTS = 600
# Series, name on the page, unit; those that a healthy machine leaves at zero are shown when they are not.
_CURVES = (
    ("cores_ours", "cores busy, this run", "cores"),
    ("cores_others", "cores busy, others", "cores"),
    ("iowait", "cores waiting for a disk", "cores"),
    ("mem_used", "memory used, page cache included", "B"),
    ("mem_cache", "page cache", "B"),
    ("disk_read_rate", "disks, read", "B/s"),
    ("disk_write_rate", "disks, written", "B/s"),
    ("disk_busy", "busiest disk", "share"),
    ("net_rx_rate", "network, received", "B/s"),
    ("nfs_read_rate", "NFS, read", "B/s"),
    ("nfs_round_trip_s", "NFS, round trip", "s"),
    ("psi_cpu", "stalled for a core", "share"),
    ("psi_io", "stalled for storage", "share"),
)
_ONLY_WHEN_SEEN = (
    ("steal", "cores taken by other virtual machines", "cores"),
    ("psi_memory", "stalled for memory", "share"),
    ("swap_in_rate", "swapped in", "B/s"),
    ("swap_out_rate", "swapped out", "B/s"),
)
_GPU_CURVES = (
    ("utilisation", "busy", "share"),
    ("memory_used", "memory used", "B"),
    ("power_w", "power", "W"),
    ("to_device_per_s", "PCIe, to the device", "B/s"),
)


def make_curves(trace: MachineTrace) -> tuple[Curve, ...]:
    shown = [(n, t, u) for n, t, u in _CURVES if np.isfinite(trace.series[n]).any()]
    shown += [(n, t, u) for n, t, u in _ONLY_WHEN_SEEN if np.nan_to_num(trace.series[n]).any()]
    limits: dict[str, float | None] = {"cores": float(len(trace.cores)) or None, "share": 1.0}
    memory = trace.series["mem_limit"]
    memory_limit = float(np.nanmax(memory)) if np.isfinite(memory).any() else None
    curves = [
        _make(trace, title, unit, trace.series[name], memory_limit if unit == "B" else limits.get(unit))
        for name, title, unit in shown
    ]
    if len(trace) and len(trace.cores) > 1:
        # One core at 100 % among idle ones is what the mean hides.
        busiest = np.max(np.nan_to_num(trace.per_core), axis=1)
        curves.insert(1, _make(trace, "busiest core", "share", busiest, 1.0))
    for gpu in range(len(trace.gpu_names)):
        curves += _make_gpu_curves(trace, gpu)
    return tuple(curves)


def _make_gpu_curves(trace: MachineTrace, gpu: int) -> list[Curve]:
    ends = {"memory_used": "memory", "power_w": "power_limit_w"}
    curves = []
    for name, title, unit in _GPU_CURVES:
        values = trace.gpu_series[name][:, gpu]
        if not np.isfinite(values).any():
            continue
        limit = 1.0 if unit == "share" else None
        if name in ends and np.isfinite(trace.gpu_series[ends[name]][:, gpu]).any():
            limit = float(np.nanmax(trace.gpu_series[ends[name]][:, gpu]))
        curves.append(_make(trace, f"GPU {gpu}, {title}", unit, values, limit))
    return curves


def _make(trace: MachineTrace, name: str, unit: str, values: Floats, limit: float | None) -> Curve:
    # A passive run may last for hours: groups of samples become one point, their mean.
    step = max(1, -(-len(values) // _MOST_POINTS))
    times, points = [], []
    for start in range(0, len(values), step):
        part = values[start : start + step]
        known = part[np.isfinite(part)]
        times.append(round(float(trace.t_s[min(start + step, len(values)) - 1]), 3))
        points.append(float(known.mean()) if len(known) else None)
    return Curve(name, unit, tuple(times), tuple(points), limit)
