# SPDX-License-Identifier: Apache-2.0
"""Read what the hook left in a run folder: every process's facts and records. No opinions here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.doctor.facts import read_lines
from feedrate.doctor.hook.feedrate_hook import layout

# The same bytes as layout.RECORD.
RECORD_TYPE = np.dtype(
    [
        ("kind", "<u2"), ("phase", "<u2"), ("name", "<u4"), ("start", "<i8"), ("wall", "<i8"),
        ("cpu", "<i8"), ("queue", "<i8"), ("a", "<i8"), ("b", "<i8"), ("c", "<i8"),
    ]
)  # fmt: skip
assert RECORD_TYPE.itemsize == layout.RECORD.size

Records = npt.NDArray[np.void]
Fact = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Process:
    """One Python process of the command. Records are ordered by start."""

    pid: int
    facts: tuple[Fact, ...]
    names: Mapping[int, str]
    records: Records

    def of(self, *kinds: int, phase: int | None = None) -> Records:
        mask = np.isin(self.records["kind"], kinds)
        if phase is not None:
            mask &= self.records["phase"] == phase
        return self.records[mask]

    def name(self, number: int) -> str:
        return self.names.get(int(number), "")

    def named(self, records: Records, names: Collection[str]) -> Records:
        """Return those records that have one of these names."""
        numbers = [number for number in np.unique(records["name"]) if self.name(number) in names]
        return records[np.isin(records["name"], numbers)]

    def by_name(self, records: Records) -> dict[str, Records]:
        return {
            self.name(number): records[records["name"] == number] for number in np.unique(records["name"])
        }

    def facts_of(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.get("kind") == kind]

    def last(self, kind: str) -> Fact:
        """Return the facts of a kind laid over each other, later ones on top; empty when there is none."""
        merged: dict[str, Any] = {}
        for fact in self.facts_of(kind):
            merged.update({name: value for name, value in fact.items() if value is not None})
        return merged

    def workers_of(self, loaders: Collection[str]) -> set[int]:
        """Return the processes that were workers of these loaders."""
        facts = [fact for fact in self.facts_of("workers") if fact.get("loader") in loaders]
        return {pid for fact in facts for pid in fact.get("pids") or ()}

    @property
    def is_main(self) -> bool:
        """Whether this process trained: it asked a loader for batches."""
        return len(self.of(layout.WAIT, layout.OPTIMIZER)) > 0

    @property
    def is_on_gpu(self) -> bool:
        return str(self.last("module").get("device", "cpu")).startswith("cuda")

    @property
    def rank(self) -> int:
        return int(self.last("process").get("rank") or 0)


@dataclass(frozen=True, slots=True)
class Recording:
    """All that the hook wrote in one run."""

    processes: tuple[Process, ...]

    @property
    def mains(self) -> tuple[Process, ...]:
        """Return the training processes, by rank; of several with one rank, the one with the most records.

        One that asked a loader for batches comes before one that only made optimizer steps.
        """
        by_rank: dict[int, Process] = {}
        mains = [process for process in self.processes if process.is_main]
        for process in sorted(mains, key=lambda p: (len(p.of(layout.WAIT)) > 0, len(p.records))):
            by_rank[process.rank] = process
        return tuple(by_rank[rank] for rank in sorted(by_rank))

    def main_of(self, rank: int) -> Process:
        return next(process for process in self.mains if process.rank == rank)

    def facts_of(self, kind: str) -> Iterator[Fact]:
        for process in self.processes:
            yield from process.facts_of(kind)


def read_run(folder: Path) -> Recording:
    """Read a run folder, also one that a killed process left in the middle of a write."""
    stems = sorted({path.stem for suffix in ("*.facts", "*.ring") for path in folder.glob(suffix)})
    processes = []
    for stem in stems:
        facts = tuple(read_lines(folder / f"{stem}.facts"))
        names = {fact["id"]: fact["text"] for fact in facts if fact.get("kind") == "name"}
        records = _read_ring(folder / f"{stem}.ring")
        processes.append(Process(int(stem.split("-")[0]), facts, names, records))
    return Recording(tuple(processes))


def _read_ring(path: Path) -> Records:
    data = path.read_bytes() if path.exists() else b""
    if len(data) < layout.HEADER_BYTES:
        return np.zeros(0, RECORD_TYPE)
    magic, version, _, capacity, written = layout.HEADER.unpack_from(data)
    if magic != layout.MAGIC or version != layout.VERSION:
        return np.zeros(0, RECORD_TYPE)
    present = min(written, capacity, (len(data) - layout.HEADER_BYTES) // RECORD_TYPE.itemsize)
    records = np.frombuffer(data, RECORD_TYPE, present, layout.HEADER_BYTES)
    return records[np.argsort(records["start"], kind="stable")]


def are_inside(moments: npt.NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return which moments are in one of the spans, which may overlap."""
    if not spans:
        return np.zeros(len(moments), bool)
    starts, ends = np.array(sorted(spans), np.int64).T
    last_end = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ends)])
    return np.asarray(moments < last_end[np.searchsorted(starts, moments, side="right")])
