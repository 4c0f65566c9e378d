# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --verify`: this run against an earlier one. What was changed, and what did it give?

Are both runs of the same training at all? A remedy may change much: a copy of the script may hold it, the
dataset may be wrapped or be feedrate's now, the model compiled. One such difference is a change; several at
once are another training.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence

from feedrate.doctor.results import CONTENDED, Diagnosis, PartChange, Remedy, Verification
from feedrate.errors import UsageError, clean
from feedrate.units import format_count, format_number, is_number

_MUCH = 0.1  # of the time, lost to others: speeds are then theirs, too
_FEW_STEPS = 20
_MOST_PARTS = 5
# Facts that somebody sets; the others (free memory, load) differ from run to run.
_SET = (
    "loader", "dataset", "pinned memory", "persistent workers", "prefetch factor", "batch", "precision",
    "model", "channels last", "data lies in", "file system", "torch", "start method", "collate", "affinity",
    "pack", "threads", "cache", "scratch", "batches arrive on", "image", "transform", "workers without data",
    "pipeline threads",
)  # fmt: skip
_PLACE = re.compile(r", made at .*")  # moves with every edit of the script
_SHAPE = re.compile(r"\b\d+(?:x\d+)*\b(?=,|$)")
_NONE = "none"  # an option of feedrate.Loader that is not set
_GONE = 0.5  # a part that shrank by this much was worked on
_NOTICED = 0.05  # of the step or the sample: less is noise
# What leaves the same trace as another remedy.
_MORE_USUAL = {"normalise": "faster-decode", "preprocess-once": "cache-in-memory"}
# What `feedrate.Loader` does along with the rest: where it was predicted, that is the prediction that counts.
_WITH_LOADER = ("faster-decode", "pack", "pinned-memory", "lighter-handover")
# Remedies that leave no trace in the settings: the parts of the step that they make shorter, ...
_SHORTER_STEP = {
    "remove-sync": ("waiting for the device", "sync"),
    "keep-on-device": ("copy back", "readback", "output"),
    "fewer-evaluations": ("valid",),
    "fewer-checkpoints": ("sav", "checkpoint"),
    "write-less": ("writ",),
    "persistent-workers": ("epoch",),
    "speed-up-loop": ("own code", "other"),
    "move-to-workers": ("own code", "other"),
    "pinned-memory": ("copy to",),
}
# ... or the kinds of a sample's parts, on a core (0) or blocked (1).
_KEPT = (("read", 0), ("read", 1), ("decode", 0), ("decode", 1), ("transform", 0), ("rest", 0))
_WAITS = (("read", 1), ("decode", 1), ("rest", 1))
_SHORTER_SAMPLE = {
    "vectorise-transform": (("transform", 0), ("rest", 0)),
    "preprocess-once": _KEPT,
    "faster-decode": (("decode", 0),),
    "normalise": (("decode", 0),),
    "cache-in-memory": _KEPT,
    "warm-page-cache": _WAITS,
    "stage": _WAITS,
    "pack": (("read", 0), ("read", 1)),
    "lighter-handover": (("collate", 0), ("hand-over", 0)),
    "clone-views": (("hand-over", 0),),
    "rechunk": (("read", 0),),
    "index-batches": (("transform", 0), ("rest", 0), ("collate", 0)),
}


def compare_runs(before: Diagnosis, after: Diagnosis) -> Verification:
    """Compare a run with an earlier one, and with what that one predicted.

    Raises:
        UsageError: one of them has no speed.
    """
    check_speed(before)
    if not _has_speed(after):
        raise UsageError("this run saw no whole step: there is nothing to compare")
    old, new = _Run(before), _Run(after)
    speedup = after.run.samples_per_s / before.run.samples_per_s
    differs = _list_differences(old, new)
    comparison = _Comparison(old, new)
    applied = None if differs else comparison.find_applied()
    return Verification(
        before_samples_per_s=before.run.samples_per_s,
        after_samples_per_s=after.run.samples_per_s,
        actual_speedup=speedup,
        applied=applied,
        is_inside=applied.low <= speedup <= applied.high if applied is not None else None,
        changed=tuple(_list_changes(old, new)),
        gone=tuple(code for code in old.codes if code not in new.codes),
        new=tuple(code for code in new.codes if code not in old.codes),
        still=tuple(code for code in new.codes if code in old.codes),
        before_spread=old.spread,
        after_spread=new.spread,
        before_exposed_share=old.exposed_share,
        after_exposed_share=new.exposed_share,
        parts=tuple(_compare_parts(old, new)),
        notes=(*comparison.notes, *_list_reservations(old, new)),
        differs=differs,
        busy_before=old.busy,
        busy_after=new.busy,
    )


def check_speed(before: Diagnosis) -> None:
    """Do nothing when an earlier run can be compared with.

    Raises:
        UsageError: it has no speed.
    """
    if not _has_speed(before):
        hint = "make one with 'feedrate doctor --json FILE -- COMMAND'"
        raise UsageError("the earlier run saw no whole step: there is nothing to compare with", hint=hint)


def _has_speed(diagnosis: Diagnosis) -> bool:
    return is_number(diagnosis.run.samples_per_s) and diagnosis.run.samples_per_s > 0


class _Run:
    """What can be compared of a run. What an older document does not tell is NaN, None or missing.

    Attributes:
        spread: of the samples per second, low and high.
        split: seconds per step, by part.
        sample: seconds on or queued for a core, and blocked, per sample, by kind of part.
        busy: who else used the machine, so much that speeds say little; empty: nobody.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.argv, self.run = diagnosis.command, diagnosis.run
        self.facts = {one.name: one.value for one in diagnosis.facts}
        self.codes = tuple(one.code for one in diagnosis.findings)
        self.remedies = [
            one
            for one in diagnosis.remedies
            if all(map(is_number, (one.predicted_speedup, one.low, one.high)))
        ]
        share = self.run.exposed_wait_share
        self.exposed_share = share if is_number(share) else None
        real = next((one for one in diagnosis.rates if one.name == "real"), None)
        is_known = real is not None and is_number(real.low) and is_number(real.high)
        self.spread = (real.low, real.high) if real is not None and is_known else None
        seconds = {one.name: one.seconds_per_step for one in diagnosis.split}
        self.split = {name: s for name, s in seconds.items() if is_number(s)}
        self.sample: dict[str, tuple[float, float]] = {}
        for one in diagnosis.sample:
            core, blocked = self.sample.get(one.kind, (0.0, 0.0))
            if is_number(one.cpu_s + one.queue_s + one.blocked_s):
                self.sample[one.kind] = (core + one.cpu_s + one.queue_s, blocked + one.blocked_s)
        said = (one.company for one in diagnosis.findings if one.share >= _MUCH)
        self.busy = next(filter(None, said), "")

    @property
    def uses_feedrate(self) -> bool:
        # Without the place: a script may be in a folder that is called so.
        named = (_PLACE.sub("", self.facts.get(name, "")) for name in ("loader", "dataset"))
        return any("feedrate" in name.lower() for name in named)

    @property
    def is_cached(self) -> bool:
        """Return whether the dataset is one that `feedrate.cached` wraps."""
        name = self.facts.get("dataset", "").partition(",")[0]
        return name.startswith("feedrate") and name.endswith((".Cached", ".Mapped"))

    @property
    def script(self) -> str:
        """Return the name of the script, or the module after -m; empty: not to be seen."""
        for place, word in enumerate(self.argv):
            if word == "-m":
                return self.argv[place + 1] if place + 1 < len(self.argv) else ""
            if word.endswith(".py"):
                return os.path.basename(word)
        return ""

    @property
    def shapes(self) -> str:
        """Return the shapes of a sample's tensors, whatever their type, order of axes and batch."""
        shapes = (shape.split("x")[1:] for shape in _SHAPE.findall(self.facts.get("batch", "")))
        return ", ".join(sorted("x".join(sorted(sides, key=int)) for sides in shapes if sides))


def _list_differences(before: _Run, after: _Run) -> tuple[str, ...]:
    """Return what shows that the runs are of two different things, each as `model: A -> B`; (): nothing does.

    It takes another script, and two of model, dataset and the shape of a sample; or all of these three.
    """
    model, dataset = (
        [run.facts.get(name, "") for run in (before, after)] for name in ("model", "dataset")
    )  # of a model, what stands before its device is its class; `unknown` where there was none
    changed = [
        *_differ("model", *(text.partition(" on ")[0] for text in model)),
        *([] if after.uses_feedrate else _differ("dataset", *dataset)),
        *_differ("a sample", before.shapes, after.shapes),
    ]
    script = _differ("script", before.script, after.script)
    return (*script, *changed) if len(changed) >= (2 if script else 3) else ()


def _differ(name: str, old: str, new: str) -> list[str]:
    """What an older document does not tell is no difference."""
    return [f"{name}: {clean(old)} -> {clean(new)}"] if old and new and old != new else []


def _list_changes(before: _Run, after: _Run) -> list[str]:
    """Return what differs between the two runs, each as `workers: 2 -> 8`."""
    changes = []
    for name, old, new in (
        ("workers", before.run.workers, after.run.workers),
        ("samples a step", before.run.samples_per_step, after.run.samples_per_step),
        ("ranks", before.run.ranks, after.run.ranks),
    ):
        if is_number(old) and is_number(new) and old != new:
            changes.append(f"{name}: {format_number(old)} -> {format_number(new)}")
    if before.run.device != after.run.device:
        changes.append(f"device: {clean(before.run.device)} -> {clean(after.run.device)}")
    for name, text in after.facts.items():
        if name.lower() in _SET:
            changes += _differ(clean(name), _PLACE.sub("", before.facts.get(name, "")), _PLACE.sub("", text))
    words = _compare_words(before.argv, after.argv)
    return [*changes, *([f"command: {words}"] if words else [])]


def _compare_words(old: Sequence[str], new: Sequence[str]) -> str:
    """Return the words of the command that differ, and where they stood."""
    if not old:
        return ""
    pieces = []
    for what, a, b, c, d in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if what != "equal":
            gone, come = (clean(" ".join(words)) or "nothing" for words in (old[a:b], new[c:d]))
            pieces.append(f"{gone} -> {come}")
    return "; ".join(pieces)


def _compare_parts(old: _Run, new: _Run) -> list[PartChange]:
    """Return the parts of the step that changed, the largest change first."""
    names = dict.fromkeys([*old.split, *new.split])
    changes = [PartChange(name, old.split.get(name), new.split.get(name)) for name in names]

    def size(one: PartChange) -> float:
        return abs((one.after_s or 0.0) - (one.before_s or 0.0))

    worth = 0.01 * sum(old.split.values())
    return sorted((one for one in changes if size(one) > worth), key=size, reverse=True)[:_MOST_PARTS]


def _list_reservations(old: _Run, new: _Run) -> list[str]:
    """Return why the two runs may not be compared like for like."""
    said = []
    if old.run.device != new.run.device:
        said.append("the device is not the same: what was predicted was predicted for the other one")
    if is_number(old.run.ranks) and old.run.ranks != new.run.ranks:
        said.append("the number of ranks is not the same")
    cores = [run.run.usable_cores for run in (old, new)]
    if all(map(is_number, cores)) and cores[0] != cores[1]:
        said.append(f"{format_number(cores[0])} cores could be used before, {format_number(cores[1])} now")
    if CONTENDED in (*old.codes, *new.codes) and not (old.busy or new.busy):
        said.append("other processes took the machine in one of the runs: measure again when it is quiet")
    fewest = min([run.run.steps for run in (old, new) if is_number(run.run.steps)], default=_FEW_STEPS)
    if fewest < _FEW_STEPS:
        said.append(f"one of the runs saw {format_count(int(fewest), 'step')} only: its speed is rough")
    return said


class _Comparison:
    """Finds the remedy that was applied, by what differs; `notes`: sentences on what makes that unsure."""

    def __init__(self, before: _Run, after: _Run) -> None:
        self.before, self.after = before, after
        self.notes: list[str] = []

    def find_applied(self) -> Remedy | None:
        tests = self._tests
        applied = [one for one in self.before.remedies if one.name in tests and tests[one.name](self, one)]
        if not applied:
            drops = [(self._measure_drop(one), one) for one in self.before.remedies]
            drop, shorter = max(drops, key=lambda pair: pair[0], default=(0.0, None))
            if shorter is not None and drop >= _GONE:
                applied = [shorter]
                self.notes.append(
                    f"'{shorter.title}' was recognised by what became shorter, not by a setting"
                )
        names = [one.name for one in applied]
        for one in [one for one in applied if _MORE_USUAL.get(one.name) in names]:
            # It cannot be told from the other one, which is the more usual.
            applied.remove(one)
            self.notes.append(f"if '{one.title}' was done, {one.gain} was predicted")
        if "loader" in names:
            applied = [one for one in applied if one.name not in _WITH_LOADER]
        helping = [one for one in applied if one.helps]
        if len(helping) > 1:
            titles = " and ".join(f"'{one.title}'" for one in helping)
            self.notes.append(f"{titles} were applied at once, but predicted one by one")
        return max(applied, key=lambda one: one.predicted_speedup, default=None)

    def _facts(self, name: str) -> tuple[str | None, str | None]:
        return self.before.facts.get(name), self.after.facts.get(name)

    def _has_turned(self, name: str, is_wanted: Callable[[str], bool]) -> bool:
        """Return whether a fact is as wanted now, and was not before."""
        old, new = self._facts(name)
        return old is not None and new is not None and is_wanted(new.lower()) and not is_wanted(old.lower())

    def _is_set_now(self, name: str) -> bool:
        """Return whether an option of feedrate.Loader has a value that it did not have."""
        old, new = self._facts(name)
        return old == _NONE and new not in (None, _NONE)

    def _has_other_workers(self, one: Remedy) -> bool:
        old, new = self.before.run.workers, self.after.run.workers
        if not (is_number(old) and is_number(new)) or old == new:
            return False
        if (new > old) != (one.name == "more-workers") or self.after.facts.get("threads"):
            return False  # with threads it is a feedrate.Loader, which has no workers
        number = re.search(r"num_workers=(\d+)|use (\d+) worker", f"{one.change or ''} {one.title}")
        wanted = int(number.group(1) or number.group(2)) if number else None
        if wanted is None or wanted == new:
            return True
        now = format_number(new)
        self.notes.append(f"the prediction was for {wanted} workers; with {now} it says nothing")
        return False

    def _is_moved(self, _: Remedy) -> bool:
        if self.after.uses_feedrate and not self.before.uses_feedrate:
            return False
        pairs = [self._facts(name) for name in ("data lies in", "file system")]
        return self._is_set_now("scratch") or any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def _is_fed(self, _: Remedy) -> bool:
        return self.after.uses_feedrate and not (self.before.uses_feedrate or self.after.is_cached)

    def _is_replaced(self, one: Remedy) -> bool:
        """The whole DataLoader, not its dataset alone."""
        return self._is_fed(one) and self.after.facts.get("loader", "").startswith("feedrate.Loader")

    def _is_cached(self, _: Remedy) -> bool:
        return (self.after.is_cached and not self.before.is_cached) or self._is_set_now("cache")

    def _is_normalised(self, one: Remedy) -> bool:
        """Of two runs of a Loader: Pillow has much less to do than it had."""
        old, new = (re.match(r"(\d+)%", value or "") for value in self._facts("decoded by Pillow"))
        if old is None or new is None:
            return self._is_fed(one)
        before, after = int(old.group(1)), int(new.group(1))
        return before - after >= _GONE * before > 0

    def _has_more_threads(self, _: Remedy) -> bool:
        old, new = (re.match(r"\d+", value or "") for value in self._facts("threads"))
        return old is not None and new is not None and int(new.group()) > int(old.group())

    _tests: Mapping[str, Callable[[_Comparison, Remedy], bool]] = {
        "more-workers": _has_other_workers,
        "fewer-workers": _has_other_workers,
        "more-shards": lambda self, _: self._has_turned("workers without data", lambda value: value == "0"),
        "persistent-workers": lambda self, _: self._has_turned("persistent workers", _is_true),
        "pinned-memory": lambda self, _: self._has_turned("pinned memory", _is_true),
        "uint8-transfer": lambda self, _: self._has_turned("batch", lambda value: "uint8" in value),
        "half-precision": lambda self, _: self._has_turned("precision", lambda value: "16" in value),
        "channels-last": lambda self, _: self._has_turned("channels last", _is_true),
        "loader": _is_replaced,
        "pack": _is_fed,
        "faster-decode": _is_fed,
        "normalise": _is_normalised,
        "more-threads": _has_more_threads,
        "batches-on-device": lambda self, _: self._has_turned(
            "batches arrive on", lambda value: value != "the host"
        ),
        "cache-in-memory": _is_cached,
        "preprocess-once": _is_cached,
        "stage": _is_moved,
        "use-gpu": lambda self, _: self.before.run.device == "cpu" and self.after.run.device != "cpu",
    }

    def _measure_drop(self, one: Remedy) -> float:
        """Return by which share that part became shorter that this remedy is for; 0: not worth a word."""
        runs = (self.before, self.after)
        if one.name in _SHORTER_STEP:
            words = _SHORTER_STEP[one.name]
            old, new = (
                sum(s for name, s in run.split.items() if any(word in name.lower() for word in words))
                for run in runs
            )
            whole = sum(self.before.split.values())
        elif one.name in _SHORTER_SAMPLE and self.before.sample and self.after.sample:
            kinds = _SHORTER_SAMPLE[one.name]
            old, new = (sum(run.sample.get(kind, (0.0, 0.0))[where] for kind, where in kinds) for run in runs)
            whole = sum(core + blocked for core, blocked in self.before.sample.values())
        else:
            return 0.0
        return 1 - new / old if old > 0 and old - new >= _NOTICED * whole else 0.0


def _is_true(value: str) -> bool:
    return value.startswith(("true", "yes", "on"))
