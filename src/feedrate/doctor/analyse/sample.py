# SPDX-License-Identifier: Apache-2.0
"""What making one sample costs, and where, and how the dataset behaves.

Costs come from the records of the workers, or of the training process; those of a feedrate.Loader from the
statistics of its stages. The hook's facts tell of workers without data, of tensors that are small views of
large ones, and of samples that are decoded before the first step.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_low

import numpy as np

from feedrate.doctor.analyse.records import Fact, Process, Recording
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.documents import load

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


def add_up(costs: Iterable[Cost]) -> Cost:
    whole = Cost()
    for cost in costs:
        whole = whole.plus(cost)
    return whole


@dataclass(frozen=True, slots=True)
class SampleCost:
    """The cost of one sample of the training loader; without `samples`, none was seen, and all is 0.

    Attributes:
        total: of one sample, the batch's collating included.
        parts: by kind and name, e.g. ("decode", "PIL"); ("rest", "") is the time outside of all parts.
        read_bytes, device_bytes: per sample by system calls, and those that a block device had to give.
        major_faults: per sample.
        samples: the number of samples that these are means of.
    """

    total: Cost = Cost()
    parts: Mapping[tuple[str, str], Cost] = field(default_factory=dict)
    read_bytes: float = 0.0
    device_bytes: float = 0.0
    major_faults: float = 0.0
    samples: int = 0

    def kind(self, kind: str) -> Cost:
        return add_up(part for (k, _), part in self.parts.items() if k == kind)

    def largest(self, kind: str) -> str:
        """Return the name of a kind's largest part."""
        named = {name: cost.wall_s for (k, name), cost in self.parts.items() if k == kind and name}
        return max(named, key=lambda name: named[name]) if named else ""


def makers(recording: Recording, main: Process, loaders: Collection[str]) -> list[Process]:
    """Return the processes that made the loaders' batches: their workers, or the training process itself."""
    pids = main.workers_of(loaders)
    workers = [p for p in recording.processes if p.pid in pids and len(p.of(layout.FETCH))]
    if workers:
        return workers
    if len(main.of(layout.FETCH)):
        return [main]
    children = [p for p in recording.processes if p is not main and p.last("process").get("ppid") == main.pid]
    return [p for p in children if len(p.of(layout.FETCH))]


def measure_sample(
    processes: Sequence[Process], phase: int = layout.REAL, window: tuple[int, int] | None = None
) -> SampleCost:
    """Return the mean cost of a sample over the fetches that a window touches."""
    total = np.zeros(3)
    parts: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3))
    samples = probed_samples = 0
    io = np.zeros(3)
    io_samples = 0
    for process in processes:
        fetch_list = process.of(layout.FETCH, phase=phase)
        if window is not None:
            ends = fetch_list["start"] + fetch_list["wall"]
            fetch_list = fetch_list[(ends > window[0]) & (fetch_list["start"] < window[1])]
        if not len(fetch_list):
            continue
        low, high = int(fetch_list["start"].min()), int((fetch_list["start"] + fetch_list["wall"]).max())
        inside = process.of(layout.PART, layout.IO, phase=phase)
        inside = inside[(inside["start"] >= low) & (inside["start"] <= high)]
        part_list, io_list = inside[inside["kind"] == layout.PART], inside[inside["kind"] == layout.IO]
        total += _total(fetch_list)
        samples += int(fetch_list["a"].sum())
        # Fetches without parts were left unprobed.
        slots = np.unique(np.searchsorted(fetch_list["start"], inside["start"], side="right") - 1)
        probed = int(fetch_list["a"][slots[slots >= 0]].sum())
        probed_samples += probed
        for number, times in zip(part_list["name"], _times(part_list), strict=True):
            kind, _, name = process.name(number).partition(":")
            parts[kind if kind in KINDS else "transform", name or kind] += times
        io += [io_list[column].sum() for column in ("a", "b", "c")]
        io_samples += probed if len(io_list) else 0
    if not samples:
        return SampleCost()
    costs = {key: _cost(value, max(probed_samples, 1)) for key, value in parts.items()}
    rest = _cost(total, samples)
    for cost in costs.values():
        rest = rest.minus(cost)
    costs["rest", ""] = rest
    io = io / max(io_samples, 1)
    return SampleCost(
        total=_cost(total, samples),
        parts=costs,
        read_bytes=float(io[0]),
        device_bytes=float(io[1]),
        major_faults=float(io[2]),
        samples=samples,
    )


def _total(fetches: np.ndarray) -> np.ndarray:
    """Return the times of all fetches; where most were left alone, split as in those that were not."""
    clocked = fetches[fetches["cpu"] >= 0]
    wall = float(fetches["wall"].sum())
    if not len(clocked):
        return np.array([wall, 0.0, 0.0])
    return np.asarray(_times(clocked).sum(axis=0) * wall / max(float(clocked["wall"].sum()), 1.0))


def _times(records: np.ndarray) -> np.ndarray:
    cpu, queue = records["cpu"], records["queue"]
    # The three clocks tick at different moments; a short part can come out a little below zero.
    blocked = np.maximum(records["wall"] - cpu - queue, 0)
    return np.stack([cpu, queue, blocked], axis=1).astype(float)


def _cost(times: np.ndarray, samples: int) -> Cost:
    cpu, queue, blocked = (times * _NS / samples).tolist()
    return Cost(cpu, queue, blocked)


PACK_LOADER = "feedrate.Loader"
# What the stages are in the words of a sample: kind and name of the part.
_KINDS = {
    "order": ("rest", "index"),
    "index": ("rest", "index"),
    "fetch": ("read", "fetch"),
    "read and decode": ("decode", "feedrate"),
    "other fields": ("read", "other fields"),
    "transform": ("transform", ""),
    "collate": ("collate", ""),
    "finish": ("rest", "finish"),
    "transfer": ("rest", "transfer"),
}
_IN_PYTHON = 0.2  # of the stages: from here on threads that wait, wait for each other's Python
_FROM_STORAGE = 0.1  # of the bytes: less is no reason to wait
_MAKERS = 2  # threads that prepare batches, where no function of the user's has to run in them


@dataclass(frozen=True, slots=True)
class PackStages:
    """A range of steps; all times in seconds per batch.

    Attributes:
        busy_s: by stage, summed over the threads that prepare batches; waiting inside a stage counts.
        consumer_waited_s, makers_waited_s: the loop for the loader, the loader for the loop.
        by_pillow: share of the samples that the kernel left to Pillow; `reasons` says why, the usual first.
        cached_share: of the samples, what is in the loader's cache; None: it has none.
    """

    batches: int
    samples: int
    busy_s: Mapping[str, float]
    consumer_waited_s: float
    makers_waited_s: float
    by_pillow: float
    reasons: tuple[str, ...]
    read_bytes: float
    requests: float
    fetched_bytes: float
    cached_share: float | None = None

    def share(self, *names: str) -> float:
        """Return what some stages have of the time of all."""
        whole = sum(self.busy_s.values())
        return sum(self.busy_s.get(name, 0.0) for name in names) / whole if whole else 0.0


_NUMBERS = (
    "batches", "samples", "by_pillow", "bytes_read", "consumer_waited_s", "makers_waited_s", "requests",
    "bytes_fetched",
)  # fmt: skip


def read_stages(facts: Sequence[Fact], loader: str, start_ns: int) -> PackStages | None:
    """Return what happened from the last note before the steps (or the first of all) to the last one.

    A loader that the script makes anew for every epoch counts from zero again.
    """
    notes = sorted((fact for fact in facts if fact.get("loader") == loader), key=lambda fact: fact["t_ns"])
    earlier = [number for number, fact in enumerate(notes) if fact["t_ns"] <= start_ns]
    notes = notes[earlier[-1] if earlier else 0 :]
    sums: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for old, new in pairwise(notes):
        before: Fact = {} if new["batches"] < old["batches"] else old
        for name in _NUMBERS:
            sums[name] += (new.get(name) or 0) - (before.get(name) or 0)
        for words, into in (("stages", busy), ("pillow_reasons", reasons)):
            for name, value in (new.get(words) or {}).items():
                into[name] += value - (before.get(words) or {}).get(name, 0)
    if not (batches := int(sums["batches"])):
        return None
    return PackStages(
        batches=batches,
        samples=int(sums["samples"]),
        busy_s={name: seconds / batches for name, seconds in busy.items()},
        consumer_waited_s=sums["consumer_waited_s"] / batches,
        makers_waited_s=sums["makers_waited_s"] / batches,
        by_pillow=sums["by_pillow"] / max(sums["samples"], 1),
        reasons=tuple(reason for reason, count in reasons.most_common(3) if count),
        read_bytes=sums["bytes_read"] / batches,
        requests=sums["requests"] / batches,
        fetched_bytes=sums["bytes_fetched"] / batches,
        cached_share=notes[-1].get("cached_share"),
    )


@dataclass(frozen=True, slots=True)
class Drained:
    """The loader without training, per batch. `device_bytes`: those that no memory held."""

    seconds: float
    again_s: float
    cpu_s: float
    device_bytes: float


def estimate_sample(
    stages: PackStages, loader: Fact, drained: Drained | None, *, cores: float, free: float
) -> SampleCost:
    """Return what a sample costs the loader's threads, by stage; `free` are the cores that others leave.

    Drained, the loader shows what it computes for a batch: all that the process does then. What its threads
    had besides went into waiting: for cores that others use; for storage, as far as bytes came from it and
    the same batches came faster when they were taken again; else, where much of the work is Python, for each
    other. A loader that was not drained is known by its stages alone.
    """
    asked = float(loader.get("threads") or 1)
    threads = max(min(asked, free), 0.5)
    n = max(stages.samples / stages.batches, 1e-9)
    fetching = stages.share("fetch")
    python = stages.share("transform", "collate")
    queued = reading = waiting = 0.0
    if drained is None:
        makers = asked if python else _MAKERS
        # Stages of several makers overlap as far as the loop waits for the loader.
        is_behind = stages.consumer_waited_s > stages.makers_waited_s
        batch_s = sum(stages.busy_s.values()) / (makers if is_behind else 1.0)
        cpu = batch_s * (1 - fetching) * threads
        reading = batch_s * fetching * threads
    else:
        cpu = min(drained.cpu_s, drained.seconds * threads)
        queued = drained.seconds * max(min(asked, cores) - threads, 0.0)
        blocked = max(drained.seconds * threads - cpu, 0.0)
        if drained.device_bytes > _FROM_STORAGE * stages.read_bytes:
            reading = min(max(drained.seconds - drained.again_s, 0.0) * threads, blocked)
        waiting = blocked - reading if python >= _IN_PYTHON else 0.0
    parts: dict[tuple[str, str], Cost] = {}
    for name in stages.busy_s:
        kind, word = _KINDS.get(name, ("rest", name))
        word = word or str(loader.get("transform") if kind == "transform" else kind)
        share = stages.share(name)
        if kind == "read" and word == "fetch":
            cost = Cost()
        else:
            of_rest = share / max(1 - fetching, 1e-9)
            of_python = share / python if python and name in ("transform", "collate") else 0.0
            cost = Cost(cpu * of_rest / n, queued * of_rest / n, waiting * of_python / n)
        parts[kind, word] = parts.get((kind, word), Cost()).plus(cost)
    if reading:
        key = ("read", "fetch") if fetching else ("read", "storage")
        parts[key] = parts.get(key, Cost()).plus(Cost(0.0, 0.0, reading / n))
    return SampleCost(
        total=add_up(parts.values()),
        parts={key: cost for key, cost in parts.items() if cost.wall_s > 0},
        read_bytes=(stages.read_bytes + stages.fetched_bytes) / n,
        samples=stages.samples,
    )


_MANY_CALLS = 16


@dataclass(frozen=True, slots=True)
class IdleWorkers:
    """Workers of an iterable dataset that gave no batch. `shards`: as the dataset says; None: it does not."""

    count: int = 0
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class Views:
    """Bytes per batch: those of its tensors, and those that torch copies for them to the other process."""

    used_bytes: float
    copied_bytes: float


@dataclass(frozen=True, slots=True)
class Start:
    """The time before the first step.

    Attributes:
        seconds: from the start of the program to the first loader's iterator.
        decode_s, read_s: of these, in decoders and readers that were called for one sample after the other.
        calls, name, place: of the one that took longest.
    """

    seconds: float
    decode_s: float
    read_s: float
    calls: int
    name: str
    place: str


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array of an HDF5 file.

    Attributes:
        chunks: their shape; None: it is stored in one piece.
        filter: by h5py's name, or HDF5's number; None: nothing is compressed.
        rows: that a sample is.
        place: file:line of the user's code that reads it; empty: not known.
    """

    file: str
    array: str
    shape: tuple[int, ...]
    itemsize: int
    chunks: tuple[int, ...] | None
    filter: str | None
    rows: int
    place: str = ""

    @property
    def sample_bytes(self) -> int:
        return math.prod((self.rows, *self.shape[1:])) * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Return the size of all chunks that hold a part of a sample; they are read whole."""
        if self.chunks is None:
            return self.sample_bytes
        sides = zip((self.rows, *self.shape[1:]), self.chunks, strict=True)
        return math.prod(-(-side // chunk) * chunk for side, chunk in sides) * self.itemsize


def find_chunked(makers: Iterable[Process]) -> ChunkedArray | None:
    """Return the array that most is read of for a sample; None: no array of HDF5 was seen."""
    facts = [fact for process in makers for fact in process.facts_of("chunked") if fact["shape"]]
    return max((load(ChunkedArray, fact) for fact in facts), key=lambda one: one.read_bytes, default=None)


def count_idle_workers(
    recording: Recording, main: Process, loaders: Collection[str], end_ns: int
) -> IdleWorkers:
    """Return how many of an epoch's workers had nothing to give; of several epochs, the usual number."""
    passes = [
        set(fact.get("pids") or ())
        for fact in main.facts_of("workers")
        if fact.get("loader") in loaders and int(fact.get("t_ns") or 0) <= end_ns
    ]
    ended = {p.pid: facts[0] for p in recording.processes if (facts := p.facts_of("worker-ended"))}
    idle = [sum(pid in ended and ended[pid]["batches"] == 0 for pid in pids) for pids in passes if pids]
    shards = next((fact["shards"] for fact in ended.values() if fact.get("shards")), None)
    return IdleWorkers(median_low(idle) if idle else 0, shards)


def measure_views(workers: Collection[Process]) -> Views | None:
    """Return what a batch takes with it; None: no batch held a view that matters.

    A worker's first batches are left out: a tensor that the dataset keeps is brought to shared memory once,
    which may still be under way when the second batch is made.
    """
    facts = [fact for worker in workers for fact in worker.facts_of("views")[2:]]
    if not facts:
        return None
    used, copied = (median(fact[name] for fact in facts) for name in ("used_bytes", "copied_bytes"))
    return Views(used, copied) if copied > used else None


def read_start(main: Process) -> Start | None:
    """Return what happened before the first step; None: it was not seen."""
    fact = next(iter(main.facts_of("before-loop")), None)
    if fact is None:
        return None
    # Fewer calls are not samples: a table, an index, the weights of a model.
    parts = [
        part
        for part in fact["parts"]
        if part["calls"] >= _MANY_CALLS
        and not str(part["name"]).partition(":")[2].startswith(("torch.load", "safetensors"))
    ]
    seconds, spent = fact["wall_ns"] * _NS, Counter[str]()
    for part in parts:
        spent[str(part["name"]).partition(":")[0]] += part["wall_ns"]
    nothing: Fact = {"calls": 0, "name": "", "place": ""}
    largest = max(parts, key=lambda part: part["wall_ns"], default=nothing)
    return Start(
        seconds=seconds,
        decode_s=min(spent["decode"] * _NS, seconds),
        read_s=min(spent["read"] * _NS, seconds),
        calls=int(largest["calls"]),
        name=str(largest["name"]).partition(":")[2],
        place=str(largest["place"]),
    )
