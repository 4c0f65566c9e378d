# SPDX-License-Identifier: Apache-2.0
"""`feedrate doctor --verify`: this run against an earlier one. What differs, and what did a remedy give?

Are both runs of the same training at all? A remedy may change much: a copy of the script may hold it, the
dataset may be wrapped or be feedrate's now, the model compiled. One such difference is a change; several at
once are another training.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

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
)  # fmt: skip
_PLACE = re.compile(r", made at .*")  # moves with every edit of the script
_SHAPE = re.compile(r"\b\d+(?:x\d+)*\b(?=,|$)")


def compare_runs(before: Diagnosis, after: Diagnosis, applied: str | None = None) -> Verification:
    """Compare a run with an earlier one, and with what that one predicted.

    Args:
        applied: the name of the earlier run's remedy that was applied since.

    Raises:
        UsageError: one of them has no speed; the earlier run predicted nothing of that name.
    """
    remedy = None if applied is None else find_remedy(before, applied)
    check_speed(before)
    if not _has_speed(after):
        raise UsageError("this run saw no whole step: there is nothing to compare")
    old, new = _Run(before), _Run(after)
    speedup = after.run.samples_per_s / before.run.samples_per_s
    differs = _list_differences(old, new)
    return Verification(
        before_samples_per_s=before.run.samples_per_s,
        after_samples_per_s=after.run.samples_per_s,
        actual_speedup=speedup,
        applied=remedy,
        is_inside=None if remedy is None or differs else remedy.low <= speedup <= remedy.high,
        changed=tuple(_list_changes(old, new)),
        gone=tuple(code for code in old.codes if code not in new.codes),
        new=tuple(code for code in new.codes if code not in old.codes),
        still=tuple(code for code in new.codes if code in old.codes),
        before_spread=old.spread,
        after_spread=new.spread,
        before_exposed_share=old.exposed_share,
        after_exposed_share=new.exposed_share,
        parts=tuple(_compare_parts(old, new)),
        notes=tuple(_list_reservations(old, new)),
        differs=differs,
        busy_before=old.busy,
        busy_after=new.busy,
    )


def find_remedy(before: Diagnosis, name: str) -> Remedy:
    """Return a remedy of which an earlier run predicted the gain.

    Raises:
        UsageError: it predicted none of that name.
    """
    known = {
        one.name: one
        for one in before.remedies
        if all(map(is_number, (one.predicted_speedup, one.low, one.high)))
    }
    if name in known:
        return known[name]
    hint = f"it predicted {', '.join(known)}" if known else "it predicted nothing: leave --applied out"
    raise UsageError(f"the earlier run predicted nothing for '{clean(name)}' (--applied)", hint=hint)


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
        busy: who else used the machine, so much that speeds say little; empty: nobody.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.argv, self.run = diagnosis.command, diagnosis.run
        self.facts = {one.name: one.value for one in diagnosis.facts}
        self.codes = tuple(one.code for one in diagnosis.findings)
        share = self.run.exposed_wait_share
        self.exposed_share = share if is_number(share) else None
        real = next((one for one in diagnosis.rates if one.name == "real"), None)
        is_known = real is not None and is_number(real.low) and is_number(real.high)
        self.spread = (real.low, real.high) if real is not None and is_known else None
        seconds = {one.name: one.seconds_per_step for one in diagnosis.split}
        self.split = {name: s for name, s in seconds.items() if is_number(s)}
        said = (one.company for one in diagnosis.findings if one.share >= _MUCH)
        self.busy = next(filter(None, said), "")

    @property
    def uses_feedrate(self) -> bool:
        # Without the place: a script may be in a folder that is called so.
        named = (_PLACE.sub("", self.facts.get(name, "")) for name in ("loader", "dataset"))
        return any("feedrate" in name.lower() for name in named)

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
    models = [run.run.model for run in (before, after)]
    if not all(models):  # an older document has only the fact, with the model's device in it
        models = [run.facts.get("model", "") for run in (before, after)]
    datasets = [run.facts.get("dataset", "") for run in (before, after)]
    changed = [
        *_differ("model", *models),
        *([] if after.uses_feedrate else _differ("dataset", *datasets)),
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
