# SPDX-License-Identifier: Apache-2.0
"""What the sampler saw of the machine, over time: means between two moments, growth of processes, curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.doctor.analyse.readings import GPU_READINGS, READINGS, GpuReadings, Reading, Readings, Sample
from feedrate.doctor.facts import read_samples
from feedrate.doctor.results import Curve

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]

_LEAST_READINGS = 4
_GLANCE_NS = 200_000_000  # that a look at a GPU tells of
_MOST_POINTS = 600  # of a curve
_UNREADABLE = (KeyError, TypeError, IndexError, ValueError, AttributeError)


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
        private: bytes that only this process uses, asked every few seconds.
        anonymous: resident bytes of neither files nor shared memory; after a fork also what is still shared.
        cpu_s: CPU time since its start.
    """

    parent: int
    times_ns: Times
    anonymous: Floats
    private: Floats
    cpu_s: Floats


def read_processes(samples: Sequence[Sample]) -> dict[int, ProcessSeries]:
    """Return the processes by pid; of two that had the same number, the one that was seen longer."""
    readings: dict[tuple[int, int], list[tuple[int, Sample]]] = {}
    for sample in samples:
        for process in ask(sample, lambda s: s["processes"]) or ():
            key = int(process["pid"]), int(process["start"])
            readings.setdefault(key, []).append((sample["t_ns"], process))
    longest_last = sorted(readings.items(), key=lambda pair: len(pair[1]))
    return {pid: _make_series(found) for (pid, _), found in longest_last}


def _make_series(found: list[tuple[int, Sample]]) -> ProcessSeries:
    parts = [part for _, part in found]
    return ProcessSeries(
        parent=int(parts[0].get("parent", 0)),
        times_ns=np.array([t_ns for t_ns, _ in found], np.int64),
        anonymous=column(parts, lambda part: part["anonymous"]),
        private=column(parts, lambda part: part["private"]),
        cpu_s=column(parts, lambda part: part["cpu_s"]),
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


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """What took the most CPU outside of this run. `user`: None: not known."""

    name: str
    user: str | None
    cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Means(Readings):
    """Means between two moments, weighted by time.

    Attributes:
        seconds: that samples cover.
        per_core: busy share of each core that this job may use (`MachineTrace.cores` names them).
    """

    seconds: float
    per_core: tuple[float | None, ...]
    biggest_other: OtherProcess | None
    gpus: tuple[GpuReadings, ...]

    @property
    def busiest_core(self) -> float | None:
        return max((share for share in self.per_core if share is not None), default=None)


@dataclass(frozen=True, slots=True)
class MachineTrace:
    """All samples of a run.

    Attributes:
        times_ns: perf_counter_ns of each sample; its rates are those since the sample before.
        series: by the names of READINGS; `gpu_series`: by those of GPU_READINGS, samples x GPUs.
        gpu_glances: how busy the GPUs were just before each of these moments, oftener than there are samples.
        cores: that this job may use, in the order of the columns of `per_core`.
        gpu_others: GPU and number of the processes that had memory of it before the run or after it.
        others: what took the most CPU outside of this run, by sample.
        unread: what the sampler could not read, by name.
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
    gpu_others: frozenset[tuple[int, int]]
    others: tuple[Sample | None, ...]
    processes: Mapping[int, ProcessSeries]
    unread: Mapping[str, str] = field(default_factory=dict)

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
        means = {name: mean(values, weights) for name, values in self.series.items()}
        means["throttled_share"] = self._throttled(weights)
        gpus = {name: _means(columns, weights) for name, columns in self.gpu_series.items()}
        times, shares = self.gpu_glances
        inside = (times >= start_ns + _GLANCE_NS) & (times <= end_ns)
        if inside.any():
            gpus["utilisation"] = _means(shares[inside], np.ones(int(inside.sum())))
        return Means(
            seconds=float(weights.sum()),
            per_core=_means(self.per_core, weights),
            biggest_other=self._biggest_other(weights),
            gpus=tuple(
                GpuReadings(**{name: values[gpu] for name, values in gpus.items()})
                for gpu in range(len(self.gpu_names))
            ),
            **means,
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

    def curves(self, start_ns: int, end_ns: int) -> tuple[Curve, ...]:
        """Return what the page draws, with means between two moments; what is not known is left out."""
        means = self.between(start_ns, end_ns)
        memory = self.series["memory_limit_bytes"]
        limits = {
            "cores": float(len(self.cores)) or None,
            "share": 1.0,
            "B": float(np.nanmax(memory)) if np.isfinite(memory).any() else None,
        }
        shown = [(name, one, self.series[name]) for name, one in READINGS.items() if one.curve]
        drawn = [one for one in shown if not one[1].is_rare and np.isfinite(one[2]).any()]
        drawn += [one for one in shown if one[1].is_rare and np.nan_to_num(one[2]).any()]
        curves = [
            self._curve(one.curve, one.unit, values, limits.get(one.unit), getattr(means, name))
            for name, one, values in drawn
        ]
        if len(self) and len(self.cores) > 1:
            # One core at 100 % among idle ones is what the mean hides.
            busiest = np.max(np.nan_to_num(self.per_core), axis=1)
            usual = mean(busiest, self._weigh(start_ns, end_ns))
            curves.insert(1, self._curve("busiest core", "share", busiest, 1.0, usual))
        for gpu in range(len(self.gpu_names)):
            of_gpu = {name: values[:, gpu] for name, values in self.gpu_series.items()}
            for name, one in GPU_READINGS.items():
                if one.curve and np.isfinite(of_gpu[name]).any():
                    limit = 1.0 if one.unit == "share" else None
                    if one.end and np.isfinite(of_gpu[one.end]).any():
                        limit = float(np.nanmax(of_gpu[one.end]))
                    title, usual = f"GPU {gpu}, {one.curve}", getattr(means.gpus[gpu], name)
                    curves.append(self._curve(title, one.unit, of_gpu[name], limit, usual))
        return tuple(curves)

    def _curve(
        self, title: str, unit: str, values: Floats, limit: float | None, usual: float | None
    ) -> Curve:
        # A passive run may last for hours: groups of samples become one point, their mean.
        step = max(1, -(-len(values) // _MOST_POINTS))
        times, points = [], []
        for start in range(0, len(values), step):
            part = values[start : start + step]
            known = part[np.isfinite(part)]
            times.append(round(float(self.t_s[min(start + step, len(values)) - 1]), 3))
            points.append(float(known.mean()) if len(known) else None)
        return Curve(title, unit, tuple(times), tuple(points), limit, usual)

    def _weigh(self, start_ns: int, end_ns: int) -> Floats:
        # A sample speaks for the time since the one before.
        ends = self.times_ns.astype(np.float64)
        begins = ends - self.passed_s * 1e9
        weights: Floats = np.clip(np.minimum(ends, end_ns) - np.maximum(begins, start_ns), 0, None) / 1e9
        return weights

    def _throttled(self, weights: Floats) -> float | None:
        seconds = self.series["throttled_share"]  # so far
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
                key = other["name"], other["user"]
                found[key] = found.get(key, 0.0) + other["cores"] * weight
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

    glances = [(t_ns, busy) for s in samples for t_ns, busy in s.get("gpu_glances") or ()]

    def of_gpus(one: Reading) -> Floats:
        return table(samples, lambda s: [one.read(gpu) for gpu in s["gpus"]], len(gpus))

    return MachineTrace(
        times_ns=np.array([s["t_ns"] for s in samples], np.int64),
        passed_s=column(samples, lambda s: s["passed_s"]),
        series={name: column(samples, one.read) for name, one in READINGS.items()},
        per_core=table(samples, lambda s: s["cpu"]["busy"], len(cores)),
        cores=tuple(cores),
        gpu_names=tuple(str(gpu["name"]) for gpu in gpus),
        gpu_uuids=tuple(str(gpu.get("uuid", "")) for gpu in gpus),
        gpu_series={name: of_gpus(one) for name, one in GPU_READINGS.items()},
        gpu_glances=(
            np.array([t_ns for t_ns, _ in glances], np.int64),
            table([{"busy": busy} for _, busy in glances], lambda glance: glance["busy"], len(gpus)),
        ),
        gpu_others=frozenset(
            (one["gpu"], one["pid"]) for s in samples for one in ask(s, lambda s: s["gpu_processes"]) or ()
        ),
        others=tuple(ask(sample, lambda s: s["cpu"]["biggest_other"]) for sample in samples),
        processes=read_processes(samples),
        unread=first(reversed(samples), lambda s: s["unread"]) or {},
    )


def _means(columns: Floats, weights: Floats) -> tuple[float | None, ...]:
    return tuple(mean(columns[:, number], weights) for number in range(columns.shape[1]))
