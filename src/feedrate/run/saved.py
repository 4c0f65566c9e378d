# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run wrote down, added up: what was taken and left, and the time that was saved.

A rank is a process that trains. Of its fetches some were made bare, on purpose: the difference between both
kinds, and what the processors had to do at the same time, say how long the run would have taken without.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate.figures import Figure
from feedrate.run.inside.counters import Left, read_counters
from feedrate.run.inside.proof import Verdict, explain
from feedrate.run.results import LoaderReport

Fact = dict[str, Any]
_Rank = tuple[str, int]  # node, process
_FEW = 3  # bare fetches: with fewer the proof's gain stands in
_PROOF_ERROR, _LEAST_ERROR = 0.15, 0.08  # of a fetch, relative


def read_facts(folder: Path) -> list[Fact]:
    """Return all facts of a run, each with its node and process; a line that a kill tore is left out."""
    facts = []
    for path in sorted(folder.glob("facts-*.jsonl")):
        node, _, pid = path.stem.removeprefix("facts-").rpartition("-")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                facts.append(json.loads(line) | {"node": node, "pid": int(pid)})
            except ValueError:
                continue
    return facts


@dataclass
class Fetch:
    """One fetch in the mean: seconds of wall-clock and of CPU, and the relative error of both."""

    wall: float
    cpu: float
    error: float

    def scaled(self, factor: float, error: float) -> Fetch:
        return Fetch(self.wall * factor, self.cpu * factor, math.hypot(self.error, error))


@dataclass
class Seen:
    """What one rank's loader counted: in the training process, and in that and all workers."""

    main: dict[str, float]
    all: dict[str, float]
    workers: int
    gain: float

    @property
    def seconds(self) -> float:
        return (self.main["wait_ns"] + self.main["busy_ns"]) / 1e9

    def estimate_saved(self, cores: float) -> tuple[float, float]:
        """Return the seconds that were saved, and their error."""
        lazy = self._mean("lazy")
        if lazy is None:
            return 0.0, 0.0
        bare = self._mean("bare")
        if bare is None or self.all["bare_fetches"] < _FEW:
            bare = lazy.scaled(self.gain, _PROOF_ERROR)
        error = math.hypot(lazy.error, bare.error)
        batches, fetches = self.main["batches"], self.all["lazy_fetches"] + self.all["bare_fetches"]
        if not self.workers:
            saved = self.all["lazy_fetches"] * (bare.wall - lazy.wall)
            return saved, self.all["lazy_fetches"] * bare.wall * error
        steps = max(batches, 1.0)
        busy, main_cpu = self.main["busy_ns"] / 1e9 / steps, self.main["main_cpu_ns"] / 1e9 / steps
        per_step = min(fetches / steps, 1.0)  # with persistent workers some fetches are never asked for

        def take(fetch: Fetch) -> float:
            of_workers = per_step * fetch.wall / self.workers
            of_cores = (per_step * fetch.cpu + main_cpu) / cores
            return max(busy, of_workers, of_cores)

        share = self.all["lazy_fetches"] / max(fetches, 1.0)
        # What a step took beyond the limits that are known here, it would have taken, too.
        step, limit = self.seconds / steps, take(lazy)
        longer = max(take(bare) - max(step, limit), 0.0) if bare.wall > lazy.wall else take(bare) - limit
        # The first batch of an epoch is waited for, whatever the limit is.
        first = self.main["epochs"] * share
        saved = steps * longer * share + first * (bare.wall - lazy.wall)
        # A limit that is not the loader's has no error of the loader's.
        later = steps * take(bare) * error * share if take(bare) > busy else 0.0
        return saved, later + first * bare.wall * error

    def _mean(self, way: str) -> Fetch | None:
        count = self.all[f"{way}_fetches"]
        if not count:
            return None
        wall_ms, cpu = self.all[f"{way}_wall_ns"] / 1e6 / count, self.all[f"{way}_cpu_ns"] / 1e9 / count
        variance = max(self.all[f"{way}_wall_ms2"] / count - wall_ms**2, 0.0)
        error = math.sqrt(variance / count) / wall_ms if wall_ms else 0.0
        return Fetch(wall_ms / 1e3, cpu, max(error, _LEAST_ERROR))


def list_loaders(facts: list[Fact]) -> dict[tuple[_Rank, int], Fact]:
    """Return what was told of each loader of each rank."""
    return {
        ((fact["node"], fact["pid"]), fact["loader"]): fact for fact in facts if fact.get("kind") == "loader"
    }


def read_seen(folder: Path, told: dict[tuple[_Rank, int], Fact]) -> dict[tuple[_Rank, int], Seen]:
    """Return what each loader of each rank counted."""
    files = read_counters(folder)
    seen = {}
    for ((node, pid), number), fact in told.items():
        own = [
            values for where, values in files
            if where == node and values["parent"] == pid and values["loader"] == number
        ]  # fmt: skip
        mains = [values for values in own if values["is_main"]]
        if mains:
            seen[(node, pid), number] = Seen(_add(mains), _add(own), fact["workers"], fact["gain"])
    return seen


def _add(counted: list[dict[str, float]]) -> dict[str, float]:
    return {name: math.fsum(one[name] for one in counted) for name in counted[0]}


def report_loaders(folder: Path, facts: list[Fact]) -> tuple[LoaderReport, ...]:
    """Return the run's loaders, with those of all ranks together."""
    told = list_loaders(facts)
    seen = read_seen(folder, told)
    groups: dict[tuple[int, str], list[tuple[_Rank, int]]] = {}
    for key, fact in told.items():
        groups.setdefault((fact["loader"], fact["dataset"]), []).append(key)
    reports = []
    for (number, dataset), keys in sorted(groups.items()):
        # A rank that could not take it says more than one that could.
        fact = next((told[key] for key in keys if told[key]["verdict"] != Verdict.EQUAL.value), told[keys[0]])
        verdict = Verdict(fact["verdict"])
        counted = [seen[key] for key in keys if key in seen]
        whole = _add([one.all for one in counted]) if counted else {}
        left = {reason.words: int(whole.get(f"left_{reason.value}", 0)) for reason in Left}
        reports.append(
            LoaderReport(
                number,
                dataset,
                fact["length"],
                fact["workers"],
                fact["batch_size"],
                verdict is Verdict.EQUAL,
                verdict.value,
                fact["problem"] or explain(verdict, fact["sample"], fact["left"]),
                fact["samples"],
                fact["gain"],
                fact["gain_first"],
                batches=int(sum(one.main["batches"] for one in counted)),
                seconds=max((one.seconds for one in counted), default=0.0),
                images=int(whole.get("taken", 0)),
                left={words: count for words, count in left.items() if count},
            )
        )
    return tuple(reports)


def estimate_bare(folder: Path, facts: list[Fact], seconds: float, cores: float) -> Figure | None:
    """Return how long the run would have taken without feedrate; None: nothing was taken.

    Args:
        cores: of a node, for all of its ranks.
    """
    told = list_loaders(facts)
    seen = read_seen(folder, told)
    ranks = {rank for rank, _ in told}
    if not any(one.all["lazy_fetches"] for one in seen.values()):
        return None
    per_node = max(sum(1 for node, _ in ranks if node == one) for one in {node for node, _ in ranks})
    saved, errors = [], []
    again = [fact for fact in facts if fact.get("kind") == "proof"]
    for rank in ranks:
        parts = [one.estimate_saved(cores / per_node) for (whose, _), one in seen.items() if whose == rank]
        proofs = sum(fact["proof_s"] for (whose, _), fact in told.items() if whose == rank)
        proofs += sum(fact["proof_s"] for fact in again if (fact["node"], fact["pid"]) == rank)
        saved.append(sum(part for part, _ in parts) - proofs)
        errors.append(math.hypot(*(error for _, error in parts)))
    mean, error = sum(saved) / len(saved), max(errors)
    value = max(seconds + mean, 0.0)
    return Figure(value, max(value - 2 * error, 0.0), value + 2 * error)
