# SPDX-License-Identifier: Apache-2.0
"""What making one sample costs, and where: from the workers' records, or the training process's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.records import Process, Recording

_NS = 1e-9
KINDS = ("read", "decode", "transform", "collate")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per sample; wall = cpu + queue + blocked."""

    cpu_s: float = 0.0
    queue_s: float = 0.0
    blocked_s: float = 0.0

    @property
    def wall_s(self) -> float:
        return self.cpu_s + self.queue_s + self.blocked_s

    def plus(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.queue_s + other.queue_s, self.blocked_s + other.blocked_s)

    def minus(self, other: Cost) -> Cost:
        return Cost(
            max(self.cpu_s - other.cpu_s, 0.0),
            max(self.queue_s - other.queue_s, 0.0),
            max(self.blocked_s - other.blocked_s, 0.0),
        )


@dataclass(frozen=True, slots=True)
class SampleCost:
    """The cost of one sample of the training loader.

    Attributes:
        total: of one sample, the batch's collating included.
        parts: by kind and name, e.g. ("decode", "PIL"); what no part covers is ("rest", "").
        handover: pickling and the like, per sample, in the worker.
        read_bytes, device_bytes: per sample by system calls, and those that a block device had to give.
        major_faults: per sample.
        idle_share: of the workers' time, with nothing to do or no room for another batch.
        fetches: that the figures come from.
    """

    total: Cost
    parts: Mapping[tuple[str, str], Cost]
    handover: Cost
    read_bytes: float
    device_bytes: float
    major_faults: float
    idle_share: float
    samples: int
    fetches: int

    def kind(self, kind: str) -> Cost:
        cost = Cost()
        for (k, _), part in self.parts.items():
            if k == kind:
                cost = cost.plus(part)
        return cost

    def largest(self, kind: str) -> str:
        """Return the name of a kind's largest part."""
        named = {name: cost.wall_s for (k, name), cost in self.parts.items() if k == kind and name}
        return max(named, key=lambda name: named[name]) if named else ""


def makers(recording: Recording, main: Process, loaders: Collection[str]) -> list[Process]:
    """Return the processes that made the loaders' batches: their workers, or the training process itself."""
    pids = {
        pid
        for fact in main.facts_of("workers")
        if fact.get("loader") in loaders
        for pid in fact.get("pids", ())
    }
    workers = [p for p in recording.processes if p.pid in pids and len(p.of(layout.FETCH))]
    if workers:
        return workers
    if len(main.of(layout.FETCH)):
        return [main]
    children = [p for p in recording.processes if p is not main and p.last("process").get("ppid") == main.pid]
    return [p for p in children if len(p.of(layout.FETCH))]


def measure_sample(
    processes: Sequence[Process], phase: int = layout.REAL, window: tuple[int, int] | None = None
) -> SampleCost | None:
    """Return the mean cost of a sample over the fetches that a window touches, or None without any."""
    total, handover = np.zeros(3), np.zeros(3)
    parts: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3))
    samples = probed_samples = fetches = 0
    io = np.zeros(3)
    io_samples = 0
    idle_ns = span_ns = 0.0
    for process in processes:
        fetch_list = process.of(layout.FETCH, phase=phase)
        if window is not None:
            inside = (fetch_list["start"] + fetch_list["wall"] > window[0]) & (
                fetch_list["start"] < window[1]
            )
            fetch_list = fetch_list[inside]
        if not len(fetch_list):
            continue
        low, high = int(fetch_list["start"].min()), int((fetch_list["start"] + fetch_list["wall"]).max())
        total += _total(fetch_list)
        samples += int(fetch_list["a"].sum())
        fetches += len(fetch_list)
        part_list = _inside(process.of(layout.PART, phase=phase), low, high)
        io_list = _inside(process.of(layout.IO, phase=phase), low, high)
        probed = _probed_samples(fetch_list, np.concatenate([part_list["start"], io_list["start"]]))
        probed_samples += probed
        for part in part_list:
            kind, _, name = process.name(part["name"]).partition(":")
            parts[kind if kind in KINDS else "transform", name or kind] += _times(part)
        for record in io_list:
            io += (int(record["a"]), int(record["b"]), int(record["c"]))
        io_samples += probed if len(io_list) else 0
        for record in _inside(process.of(layout.HANDOVER, phase=phase), low, high):
            times = _times(record)
            handover += (times[0], times[1], 0.0)
            idle_ns += times[2]
        span_ns += high - low
    if not samples:
        return None
    costs = {key: _cost(value, max(probed_samples, 1)) for key, value in parts.items()}
    rest = _cost(total, samples)
    for cost in costs.values():
        rest = rest.minus(cost)
    costs["rest", ""] = rest
    io = io / max(io_samples, 1)
    return SampleCost(
        total=_cost(total, samples),
        parts=costs,
        handover=_cost(handover, samples),
        read_bytes=float(io[0]),
        device_bytes=float(io[1]),
        major_faults=float(io[2]),
        idle_share=idle_ns / span_ns if span_ns else 0.0,
        samples=samples,
        fetches=fetches,
    )


def _inside(records: np.ndarray, low: int, high: int) -> np.ndarray:
    return records[(records["start"] >= low) & (records["start"] <= high)]


def _probed_samples(fetches: np.ndarray, starts: np.ndarray) -> int:
    """Count the samples of fetches that have parts: the others were left unprobed."""
    if not len(starts):
        return 0
    slot = np.searchsorted(fetches["start"], starts, side="right") - 1
    with_parts = np.unique(slot[slot >= 0])
    return int(fetches["a"][with_parts].sum())


def _total(fetches: np.ndarray) -> np.ndarray:
    """Return the times of all fetches; where most were left alone, split as in those that were not."""
    clocked = fetches[fetches["cpu"] >= 0]
    wall = float(fetches["wall"].sum())
    if not len(clocked):
        return np.array([wall, 0.0, 0.0])
    split = np.sum([_times(fetch) for fetch in clocked], axis=0)
    return np.asarray(split * wall / max(float(clocked["wall"].sum()), 1.0))


def _times(record: np.void) -> np.ndarray:
    wall, cpu, queue = int(record["wall"]), int(record["cpu"]), int(record["queue"])
    # The three clocks tick at different moments; a short part can come out a little below zero.
    return np.array([cpu, queue, max(wall - cpu - queue, 0)], dtype=float)


def _cost(times: np.ndarray, samples: int) -> Cost:
    cpu, queue, blocked = (times * _NS / samples).tolist()
    return Cost(cpu, queue, blocked)
