# SPDX-License-Identifier: Apache-2.0
"""What the sampler saw of the machine, over time: means between two moments, and growth of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feedrate.doctor.columns import (
    GPU_SERIES,
    SERIES,
    Floats,
    ProcessSeries,
    Sample,
    Times,
    ask,
    column,
    first,
    mean,
    read_processes,
    slope_per_s,
    table,
)
from feedrate.doctor.facts import read_samples
from feedrate.results.doctor import Curve

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
        from feedrate.doctor.curves import make_curves

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
