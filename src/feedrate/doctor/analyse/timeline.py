# SPDX-License-Identifier: Apache-2.0
"""One training process's records as steps: where the time between batches went; what watching costs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, variance

import numpy as np

from feedrate.doctor.analyse.records import Process, Recording, Records
from feedrate.doctor.hook.feedrate_hook import layout
from feedrate.doctor.options import LEAST_STEPS
from feedrate.doctor.results import Overhead
from feedrate.stats import median as middle

# Records that are parts of a step, by the name that reports use.
PARTS = {
    layout.COPY: "copy",
    layout.SYNC: "sync",
    layout.READBACK: "readback",
    layout.FORWARD: "forward",
    layout.BACKWARD: "backward",
    layout.OPTIMIZER: "optimizer",
    layout.SAVE: "save",
    layout.WRITE: "write",
}
BETWEEN = ("validation", "save", "epoch-start")  # what happens between steps
# Savers of checkpoints; what other savers write (pictures, tables) is output.
_CHECKPOINTS = ("torch.", "safetensors", "joblib", "pickle", "accelerate", "lightning")
_NS = 1e-9
_Interval = tuple[int, int]
_Piece = tuple[int, int, str]  # from, to, part


@dataclass(frozen=True, slots=True)
class Step:
    """From one next() of the training loader to the following one; times in seconds."""

    start_ns: int
    wall_s: float
    wait_s: float
    exposed_s: float
    samples: int
    is_probed: bool
    is_first: bool  # of its iterator: the wait holds the start of the workers
    parts: Mapping[str, float]

    @property
    def end_ns(self) -> int:
        return self.start_ns + round(self.wall_s / _NS)

    @property
    def own_s(self) -> float:
        """Return the step without validation, checkpoints and the start of an epoch."""
        return self.wall_s - sum(self.parts.get(name, 0.0) for name in BETWEEN)


@dataclass(frozen=True, slots=True)
class Loop:
    """The real steps of one process after its warm-up."""

    loader: str
    loaders: tuple[str, ...]  # that feed a step: the training loader, and those asked beside it
    heaviest: float  # the largest share of a step's samples that one of them gives
    steps: tuple[Step, ...]
    warmup_steps: int
    places: Mapping[str, Mapping[str, float]]  # part -> file:line -> seconds, over all steps
    validations: int
    saves: int
    syncs: float  # calls that wait for the device, per step
    epochs: int  # iterators of the training loader that began in the steps
    preparing_s: float  # per step, in the loop's own code before a batch is copied or goes forward
    has_optimizer: bool
    # Of other loaders: the seconds that each was waited for in all steps, and its samples.
    asked: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    timed: tuple[_Interval, ...] = ()  # what is known by itself: parts of steps, and what is between steps

    @property
    def start_ns(self) -> int:
        return self.steps[0].start_ns

    @property
    def end_ns(self) -> int:
        return self.steps[-1].end_ns

    @property
    def seconds(self) -> float:
        return sum(step.wall_s for step in self.steps)

    @property
    def is_single_pass(self) -> bool:
        """Return whether the script goes through its data once, as far as was seen: nothing is repeated."""
        return not self.has_optimizer and self.epochs == 0

    @property
    def samples_per_step(self) -> float:
        return sum(step.samples for step in self.steps) / len(self.steps)

    @property
    def step_s(self) -> float:
        return self.seconds / len(self.steps)

    @property
    def between_s(self) -> float:
        return sum(self.per_step(name) for name in BETWEEN)

    @property
    def own_s(self) -> float:
        """Return the step itself, without what happens between steps."""
        return max(self.step_s - self.between_s, 1e-9)

    @property
    def wait_s(self) -> float:
        return self.per_step("wait")

    @property
    def computing_s(self) -> float:
        """Return what the training process takes for the model, or to give the device that work."""
        return sum(self.per_step(part) for part in ("forward", "backward", "optimizer"))

    @property
    def exposed_s(self) -> float:
        return self.per_step("exposed")

    @property
    def other_s(self) -> float:
        """Return the training process's time outside of waits and of all named parts."""
        named = sum(self.per_step(part) for part in PARTS.values() if part != "save")
        return max(self.own_s - self.wait_s - named, 0.0)

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.step_s

    def share_of(self, part: str) -> float:
        return self.per_step(part) / self.step_s

    def each(self, part: str, times: int) -> float:
        """Return how long one of a part's rare occurrences took."""
        return self.per_step(part) * len(self.steps) / max(times, 1)

    def place_of(self, part: str) -> str:
        """Return the call that most of a part's time went into, as file:line."""
        places = self.places.get(part, {})
        return max(places, key=places.__getitem__, default="")

    def per_step(self, part: str) -> float:
        """Return a part's mean seconds per step; parts of a step's own are known in the probed steps only."""
        steps = self.steps if part in ("wait", "exposed", *ALWAYS) else [s for s in self.steps if s.is_probed]
        if not steps:
            return 0.0
        if part in ("wait", "exposed"):
            return sum(s.wait_s if part == "wait" else s.exposed_s for s in steps) / len(steps)
        return sum(s.parts.get(part, 0.0) for s in steps) / len(steps)


# Recorded in every step: they are rare, and one that was missed would be missed in the verdict.
ALWAYS = ("validation", "epoch-start", "save", "write")


def build_loops(recording: Recording, warmup: int) -> dict[int, Loop]:
    """Return the steps of the training processes by rank; of those that made too few, nothing."""
    built = {process.rank: _build_loop(process, warmup) for process in recording.mains}
    return {rank: loop for rank, loop in built.items() if loop is not None}


def _build_loop(process: Process, warmup: int) -> Loop | None:
    waits = process.of(layout.WAIT, phase=layout.REAL)
    loader = _training_loader(process, waits)
    if loader is None:
        return None
    together = _loaders_beside(process, waits, loader)
    all_ours, all_beside = process.named(waits, [loader]), process.named(waits, together)
    others = waits[~np.isin(waits["name"], np.append(all_ours["name"], all_beside["name"]))]
    ours = all_ours[all_ours["a"] >= 0]
    if len(ours) < LEAST_STEPS:
        return None
    # At most a quarter of a short run is given to the warm-up.
    skipped = min(warmup, len(ours) // 4)
    starts = ours["start"][skipped:]
    watched_ns = max((int(fact["t_ns"]) for fact in process.facts_of("watched")), default=0)
    if watched_ns > starts[-1]:
        # The last step is whole where the experiments begin; often it has an epoch's validation in it.
        starts = np.append(starts, np.int64(watched_ns))
    window = (int(starts[0]), int(starts[-1]))
    usual_wait = median((ours["wall"][ours["b"] > 0] if (ours["b"] > 0).any() else ours["wall"]).tolist())
    between = {
        "validation": _passes_of_others(process, others),
        "beside": [_span(record) for record in all_beside],
        "epoch-start": _epoch_starts(process, all_ours, loader, usual_wait),
    }
    pieces, places = _exclusive_pieces(process, between["validation"], window)
    syncs = process.of(layout.SYNC, phase=layout.REAL)
    # What is known by itself: the time of calls that timed ones stand for, samples of further loaders.
    untimed = [(int(s["start"]), int(s["wall"]) * (int(s["a"]) - 1) * _NS) for s in syncs[syncs["a"] > 1]]
    beside = all_beside[all_beside["a"] > 0]
    given = [int(each["a"].sum()) for each in (ours, *process.by_name(beside).values())]
    idle = process.of(layout.EXPOSED, phase=layout.REAL)
    exposed = dict(zip(idle["start"].tolist(), idle["wall"].tolist(), strict=True))
    # Where the experiments were given up, the step before ends there, too: then writers were waited for.
    ends = [watched_ns if start < watched_ns < end else int(end) for start, end in pairwise(starts)]
    steps = tuple(
        _make_step(wait, end, usual_wait, between, pieces, exposed, beside, untimed)
        for wait, end in zip(ours[skipped:], ends, strict=False)
    )
    validations = sum(window[0] <= start < window[1] for start, _ in between["validation"])
    return Loop(
        loader=loader,
        loaders=(loader, *sorted(together)),
        heaviest=max(given) / max(sum(given), 1),
        steps=steps,
        warmup_steps=skipped,
        places=places,
        validations=validations,
        saves=sum(name == "save" and window[0] <= start < window[1] for start, _, name in pieces),
        syncs=float(np.maximum(_within(syncs, window)["a"], 1).sum())
        / max(sum(step.is_probed for step in steps), 1),
        epochs=int((ours["b"][skipped + 1 :] == 0).sum()),
        preparing_s=_preparing_s(process, steps, pieces),
        has_optimizer=len(process.of(layout.OPTIMIZER, phase=layout.REAL)) > 0,
        asked={
            name: (float(mine["wall"].sum()) * _NS, int(np.maximum(mine["a"], 0).sum()))
            for name, mine in process.by_name(_within(others, window)).items()
        },
        timed=(*((start, end) for start, end, _ in pieces), *between["validation"], *between["epoch-start"]),
    )


def _span(record: np.void) -> _Interval:
    return int(record["start"]), int(record["start"] + record["wall"])


def _within(records: Records, window: _Interval) -> Records:
    return records[(records["start"] >= window[0]) & (records["start"] < window[1])]


def _preparing_s(process: Process, steps: Sequence[Step], pieces: Sequence[_Piece]) -> float:
    """Return the mean time from a batch's arrival until something is done with it, named parts left out."""
    waits = process.of(layout.WAIT, phase=layout.REAL)
    arrivals = np.sort(waits["start"] + waits["wall"])
    uses = process.of(layout.COPY, layout.FORWARD, phase=layout.REAL)["start"]
    seconds = []
    for step in steps:
        first = int(np.searchsorted(uses, step.start_ns))
        if not step.is_probed or first == len(uses) or uses[first] >= step.end_ns:
            continue
        used = int(uses[first])
        # The last loader that was asked before that; it may be a second one of the same step.
        arrived = int(arrivals[max(int(np.searchsorted(arrivals, used, side="right")) - 1, 0)])
        named = [(start, end) for start, end, _ in pieces[bisect_left(pieces, (arrived,)) :][:8]]
        seconds.append(max((used - arrived) * _NS - _overlap(named, arrived, used), 0.0))
    return sum(seconds) / len(seconds) if seconds else 0.0


def count_steps(process: Process) -> int:
    """Return how many batches a process took from its training loader."""
    waits = process.of(layout.WAIT, phase=layout.REAL)
    loader = _training_loader(process, waits)
    return 0 if loader is None else int((process.named(waits, [loader])["a"] >= 0).sum())


def _training_loader(process: Process, waits: Records) -> str | None:
    """Return the loader whose batches are followed by optimizer steps; else the one asked most often."""
    taken = process.by_name(waits[waits["a"] >= 0])
    score = {name: (_count_stepped(process, mine)[0], len(mine)) for name, mine in taken.items()}
    return max(score, key=lambda name: score[name]) if score else None


def _loaders_beside(process: Process, waits: Records, loader: str) -> set[str]:
    """Return the loaders that are asked in the same steps as the training loader (unlabelled data, say)."""
    beside = set()
    for name, mine in process.by_name(waits[waits["a"] >= 0]).items():
        stepped, probed = _count_stepped(process, mine)
        if name != loader and len(mine) > 2 and probed and stepped >= 0.5 * probed:
            beside.add(name)
    return beside


def _count_stepped(process: Process, mine: Records) -> tuple[int, int]:
    """Return how many of a loader's batches an optimizer step followed, and after how many one would show.

    It shows in probed steps.
    """
    if len(mine) < 2:
        return 0, 0
    is_stepped = np.diff(np.searchsorted(process.of(layout.OPTIMIZER)["start"], mine["start"])) > 0
    is_probed = (mine["c"][:-1] & layout.PROBED) > 0
    return int((is_stepped & is_probed).sum()), int(is_probed.sum())


def _passes_of_others(process: Process, waits: Records) -> list[_Interval]:
    """Return when other loaders were gone through: validation."""
    passes: list[_Interval] = []
    made = process.of(layout.ITERATOR, phase=layout.REAL)
    for name, mine in process.by_name(waits).items():
        iterators = process.named(made, [name])["start"]
        firsts = np.flatnonzero(mine["b"] == 0)
        for first, last in zip(firsts, [*firsts[1:], len(mine)], strict=True):
            batches = mine[first:last]
            start, (_, end) = int(batches["start"][0]), _span(batches[-1])
            before = iterators[iterators <= start]
            if len(before) and (len(passes) == 0 or before[-1] >= passes[-1][1]):
                start = int(before[-1])
            if batches["a"][-1] >= 0 and len(batches) > 1:
                # Left by `break`: the last batch was worked on, too.
                end += int(np.median(np.diff(batches["start"]) - batches["wall"][:-1]))
            passes.append((start, end))
    return sorted(passes)


def _epoch_starts(process: Process, waits: Records, loader: str, usual_wait: float) -> list[_Interval]:
    """Return the pauses between epochs: the old iterator's end, the new one, its first batch."""
    made = process.of(layout.ITERATOR, phase=layout.REAL)
    pauses = [_span(record) for record in process.named(made, [loader])]
    for record in waits:
        start, end = _span(record)
        if record["a"] < 0:
            pauses.append((start, end))
        elif record["b"] == 0:
            pauses.append((start, max(start, end - round(usual_wait))))
    return sorted(pauses)


def _exclusive_pieces(
    process: Process, validation: Sequence[_Interval], window: _Interval
) -> tuple[list[_Piece], dict[str, dict[str, float]]]:
    """Cut nested parts out of those around them (a sync in a forward pass), and all out of validation."""
    pieces: list[_Piece] = []
    places: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    stack: list[_Piece] = []  # from where on it is not cut yet

    def close(until: int) -> None:
        while stack and stack[-1][1] <= until:
            position, end, part = stack.pop()
            if end > position:
                pieces.append((position, end, part))
            if stack:
                position, outer_end, outer = stack[-1]
                stack[-1] = max(position, end), outer_end, outer

    for record in process.of(*PARTS, phase=layout.REAL):
        start, end = _span(record)
        part = PARTS[int(record["kind"])]
        if part == "save" and not process.name(record["name"]).startswith(_CHECKPOINTS):
            part = "write"
        if part != "save" and any(a <= start < b for a, b in validation):
            continue
        if window[0] <= start < window[1]:
            places[part][process.name(record["name"])] += (end - start) * _NS
        close(start)
        if stack:
            position, outer_end, outer = stack[-1]
            if start > position:
                pieces.append((position, start, outer))
            end = min(end, outer_end)
        stack.append((start, end, part))
    close(2**62)
    return sorted(pieces), {part: dict(where) for part, where in places.items()}


def _make_step(
    wait: np.void, end_ns: int, usual_wait: float, between: Mapping[str, Sequence[_Interval]],
    pieces: Sequence[_Piece], exposed: Mapping[int, int], beside: Records,
    untimed: Sequence[tuple[int, float]],
) -> Step:  # fmt: skip
    start_ns, wall_ns = int(wait["start"]), int(wait["wall"])
    is_first = int(wait["b"]) == 0
    wait_ns = min(wall_ns, round(usual_wait)) if is_first else wall_ns
    seconds: dict[str, float] = defaultdict(float)
    for name, intervals in between.items():
        seconds[name] += _overlap(intervals, start_ns, end_ns)
    # A second loader of the same step is waited for like the first.
    beside_ns = round(seconds.pop("beside", 0.0) / _NS)
    # They are sorted by start and free of overlaps, so the pieces of a step are side by side.
    for piece_start, piece_end, name in pieces[bisect_left(pieces, (start_ns,)) :]:
        if piece_start >= end_ns:
            break
        seconds[name] += (min(piece_end, end_ns) - piece_start) * _NS
    if "save" in seconds:
        # A checkpoint is written, synchronised and renamed: all of that is saving.
        seconds["save"] += seconds.pop("write", 0.0)
    if waited := sum(waited for at, waited in untimed if start_ns <= at < end_ns):
        seconds["sync"] += waited
    return Step(
        start_ns=start_ns,
        wall_s=(end_ns - start_ns) * _NS,
        wait_s=(wait_ns + beside_ns) * _NS,
        exposed_s=(min(exposed.get(start_ns, wait_ns), wait_ns) + beside_ns) * _NS,
        samples=int(wait["a"]) + int(_within(beside, (start_ns, end_ns))["a"].sum()),
        is_probed=bool(int(wait["c"]) & layout.PROBED),
        is_first=is_first,
        parts=dict(seconds),
    )


def _overlap(intervals: Sequence[_Interval], start_ns: int, end_ns: int) -> float:
    return sum(max(0, min(e, end_ns) - max(s, start_ns)) for s, e in intervals) * _NS


def user_seconds(process: Process, phase: int) -> list[float]:
    """Return how long the user's loop took between two batches of a phase, without waits and checkpoints."""
    waits = process.of(layout.WAIT, phase=phase)
    waits = waits[waits["a"] >= 0]
    ends = waits["start"] + waits["wall"]
    gaps = (waits["start"][1:] - ends[:-1]).astype(float)
    for save in process.of(layout.SAVE, phase=phase):
        slot = int(np.searchsorted(ends, save["start"], side="right")) - 1
        if 0 <= slot < len(gaps) and process.name(save["name"]).startswith(_CHECKPOINTS):
            gaps[slot] -= float(save["wall"])
    return [max(float(gap), 0.0) * _NS for gap in gaps[3:]]


def batch_seconds(process: Process, phase: int, skip: int = 0) -> list[float]:
    """Return the time from the arrival of one batch to that of the next, in a phase."""
    waits = process.of(layout.WAIT, phase=phase)
    waits = waits[waits["a"] >= 0]
    ends = waits["start"] + waits["wall"]
    return [float(period) * _NS for period in np.diff(ends)[skip:]]


def measure_overhead(loop: Loop) -> Overhead | None:
    """Compare probed steps with those left alone; medians, since a checkpoint may fall on either."""
    usual = [step for step in loop.steps if not step.is_first]
    probed = [step.own_s - step.wait_s for step in usual if step.is_probed]
    bare = [step.own_s - step.wait_s for step in usual if not step.is_probed]
    if len(probed) < 5 or len(bare) < 5:
        return None
    cost = middle(probed) - middle(bare)
    # A difference within twice its error is none that can be seen.
    error = 1.25 * math.sqrt(variance(probed) / len(probed) + variance(bare) / len(bare))
    cost = cost if cost > 2 * error else 0.0
    return Overhead(cost, cost / loop.step_s, len(probed), len(bare))
