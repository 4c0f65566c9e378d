# SPDX-License-Identifier: Apache-2.0
"""How the dataset behaves, by what the hook noted: workers that it leaves without data, tensors that are
small views of large ones, samples that it decodes before the first step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median, median_low

from feedrate.doctor.analyse.records import Process, Recording

_NS = 1e-9
_MANY_CALLS = 16  # fewer are not samples: a table, an index, the weights of a model
_WEIGHTS = ("torch.load", "safetensors")


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
    parts = [part for part in fact["parts"] if _is_of_samples(part["name"], part["calls"])]
    largest = max(parts, key=lambda part: part["wall_ns"], default=None)
    seconds = fact["wall_ns"] * _NS
    return Start(
        seconds=seconds,
        decode_s=min(_sum_up(parts, "decode"), seconds),
        read_s=min(_sum_up(parts, "read"), seconds),
        calls=int(largest["calls"]) if largest else 0,
        name=str(largest["name"]).partition(":")[2] if largest else "",
        place=str(largest["place"]) if largest else "",
    )


def _is_of_samples(name: str, calls: int) -> bool:
    return calls >= _MANY_CALLS and not name.partition(":")[2].startswith(_WEIGHTS)


def _sum_up(parts: Collection[dict[str, object]], kind: str) -> float:
    return sum(float(str(part["wall_ns"])) for part in parts if str(part["name"]).startswith(kind)) * _NS
