# SPDX-License-Identifier: Apache-2.0
"""What the stages of a feedrate.Loader did in the watched steps, from the statistics that the hook noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from feedrate.doctor.records import Fact
from feedrate.doctor.sample import Cost, SampleCost

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
    """A stretch of steps; all times in seconds per batch.

    Attributes:
        busy_s: by stage, summed over the threads that prepare batches; waiting inside a stage counts.
        consumer_waited_s, makers_waited_s: the loop for the loader, the loader for the loop.
        by_pillow: share of the samples that the kernel left to Pillow; `reasons` says why, the usual first.
        cached_share: of the samples, what lies in the loader's cache; None: it has none.
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

    @property
    def is_behind(self) -> bool:
        """Whether the loop waits for the loader, and not the loader for the loop."""
        return self.consumer_waited_s > self.makers_waited_s


@dataclass
class _Sums:
    numbers: Counter[str] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


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
    sums = _Sums()
    for old, new in pairwise(notes):
        _add(sums, {} if new["batches"] < old["batches"] else old, new)
    batches = int(sums.numbers["batches"])
    if not batches:
        return None
    per_batch = {name: sums.numbers[name] / batches for name in _NUMBERS}
    return PackStages(
        batches=batches,
        samples=int(sums.numbers["samples"]),
        busy_s={name: seconds / batches for name, seconds in sums.busy.items()},
        consumer_waited_s=per_batch["consumer_waited_s"],
        makers_waited_s=per_batch["makers_waited_s"],
        by_pillow=sums.numbers["by_pillow"] / max(sums.numbers["samples"], 1),
        reasons=tuple(reason for reason, count in sums.reasons.most_common(3) if count),
        read_bytes=per_batch["bytes_read"],
        requests=per_batch["requests"],
        fetched_bytes=per_batch["bytes_fetched"],
        cached_share=notes[-1].get("cached_share"),
    )


def _add(sums: _Sums, old: Fact, new: Fact) -> None:
    for name in _NUMBERS:
        sums.numbers[name] += (new.get(name) or 0) - (old.get(name) or 0)
    for words, into in (("stages", sums.busy), ("pillow_reasons", sums.reasons)):
        before = old.get(words) or {}
        for name, value in (new.get(words) or {}).items():
            into[name] += value - before.get(name, 0)


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
        # Stages of several makers overlap as far as the loader is behind.
        batch_s = sum(stages.busy_s.values()) / (makers if stages.is_behind else 1.0)
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
    total = Cost()
    for cost in parts.values():
        total = total.plus(cost)
    return SampleCost(
        total=total,
        parts={key: cost for key, cost in parts.items() if cost.wall_s > 0},
        handover=Cost(),
        read_bytes=(stages.read_bytes + stages.fetched_bytes) / n,
        device_bytes=0.0,
        major_faults=0.0,
        idle_share=0.0,
        samples=stages.samples,
        fetches=stages.batches,
    )
