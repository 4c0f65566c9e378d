# SPDX-License-Identifier: Apache-2.0
"""Which remedy of an earlier run was applied? Read off what differs between two runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from feedrate.doctor.results import Remedy
from feedrate.errors import clean
from feedrate.report.doctor_earlier import Seen
from feedrate.report.doctor_words import GAIN_WORTH_NAMING, describe_gain, describe_number

# Facts that somebody sets; the others (free memory, load) differ from run to run.
_SET = (
    "loader", "dataset", "pinned memory", "persistent workers", "prefetch factor", "batch", "precision",
    "model", "channels last", "data lies in", "file system", "torch", "start method", "collate", "affinity",
    "pack", "threads", "cache", "scratch", "batches arrive on", "image", "transform", "workers without data",
    "pipeline threads",
)  # fmt: skip
_PLACE = re.compile(r", made at .*")  # moves with every edit of the script
_FEEDRATE = "feedrate"
_NONE = "none"  # an option of feedrate.Loader that is not set
_GONE = 0.5  # a part that shrank by this much was worked on
# What leaves the same trace as another remedy.
_MORE_USUAL = {"normalise": "faster-decode", "preprocess-once": "cache-in-memory"}
# What `feedrate.Loader` does along with the rest: where it was predicted, that is the prediction that counts.
_WITH_LOADER = ("faster-decode", "pack", "pinned-memory", "lighter-handover")
_NOTICED = 0.05  # of the step or the sample: less is noise

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
_SHORTER_SAMPLE = {
    "vectorise-transform": (("transform", 0), ("rest", 0)),
    "preprocess-once": _KEPT,
    "faster-decode": (("decode", 0),),
    "normalise": (("decode", 0),),
    "cache-in-memory": _KEPT,
    "warm-page-cache": (("read", 1), ("decode", 1), ("rest", 1)),
    "stage": (("read", 1), ("decode", 1), ("rest", 1)),
    "pack": (("read", 0), ("read", 1)),
    "lighter-handover": (("collate", 0), ("hand-over", 0)),
    "clone-views": (("hand-over", 0),),
}


def describe_changes(before: Seen, after: Seen) -> list[str]:
    """Return what differs between the two runs, each as `workers: 2 -> 8`."""
    changes = []
    for name, old, new in (
        ("workers", before.workers, after.workers),
        ("samples a step", before.samples_per_step, after.samples_per_step),
        ("ranks", before.ranks, after.ranks),
    ):
        if old is not None and new is not None and old != new:
            changes.append(f"{name}: {describe_number(old)} -> {describe_number(new)}")
    if before.device != after.device:
        changes.append(f"device: {clean(before.device)} -> {clean(after.device)}")
    for name, new_value in after.facts.items():
        old_value, new_value = (_PLACE.sub("", value) for value in (before.facts.get(name, ""), new_value))
        if old_value and old_value != new_value and _is_set(name):
            changes.append(f"{clean(name)}: {clean(old_value)} -> {clean(new_value)}")
    words = _compare_words(before.argv, after.argv)
    return [*changes, *([f"command: {words}"] if words else [])]


def find_applied(before: Seen, after: Seen) -> tuple[Remedy | None, list[str]]:
    """Return the remedy that was applied, and sentences on what makes that unsure."""
    notes: list[str] = []
    applied = [one for one in before.remedies if _is_applied(one, before, after, notes)]
    if not applied:
        shorter = [
            (drop, one) for one in before.remedies if (drop := _measure_drop(one, before, after)) >= _GONE
        ]
        applied = [max(shorter, key=lambda pair: pair[0])[1]] if shorter else []
        if applied:
            notes.append(f"'{applied[0].title}' was recognised by what became shorter, not by a setting")
    applied = [one for one in applied if not _is_other_way(one, applied, notes)]
    if "loader" in [one.name for one in applied]:
        applied = [one for one in applied if one.name not in _WITH_LOADER]
    helping = [one for one in applied if one.predicted_speedup >= GAIN_WORTH_NAMING]
    if len(helping) > 1:
        titles = " and ".join(f"'{one.title}'" for one in helping)
        notes.append(f"{titles} were applied at once, but predicted one by one")
    best = max(applied, key=lambda one: one.predicted_speedup, default=None)
    return best, notes


def _is_other_way(one: Remedy, applied: list[Remedy], notes: list[str]) -> bool:
    """Whether a remedy cannot be told from another one that was applied, which is the more usual."""
    usual = _MORE_USUAL.get(one.name)
    if usual is None or usual not in [other.name for other in applied]:
        return False
    notes.append(f"if '{one.title}' was done, {describe_gain(one)} was predicted")
    return True


def _is_set(name: str) -> bool:
    return name.lower() in _SET


def _compare_words(old: tuple[str, ...], new: tuple[str, ...]) -> str:
    """Return the words of the command that differ, and where they stood."""
    if not old or old == new:
        return ""
    pieces = []
    for what, a, b, c, d in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if what != "equal":
            gone, come = (clean(" ".join(words)) or "nothing" for words in (old[a:b], new[c:d]))
            pieces.append(f"{gone} -> {come}")
    return "; ".join(pieces)


def _is_applied(one: Remedy, before: Seen, after: Seen, notes: list[str]) -> bool:
    test = _BY_SETTING.get(one.name)
    return test is not None and test(one, before, after, notes)


def _workers(one: Remedy, before: Seen, after: Seen, notes: list[str]) -> bool:
    if before.workers is None or after.workers is None or before.workers == after.workers:
        return False
    if (after.workers > before.workers) != (one.name == "more-workers"):
        return False
    if after.facts.get("threads"):
        return False  # a feedrate.Loader, which has none
    number = re.search(r"num_workers=(\d+)|use (\d+) worker", f"{one.change or ''} {one.title}")
    wanted = int(number.group(1) or number.group(2)) if number else None
    if wanted is not None and wanted != after.workers:
        now = describe_number(after.workers)
        notes.append(f"the prediction was for {wanted} workers; with {now} it says nothing")
        return False
    return True


def _batch(one: Remedy, before: Seen, after: Seen, notes: list[str]) -> bool:
    old, new = before.samples_per_step, after.samples_per_step
    if not old or not new or new <= 1.2 * old:
        return False
    if not 1.8 <= new / old <= 2.2:
        notes.append(f"'{one.title}' was predicted for twice the batch, not for {new / old:.1f} times")
        return False
    return True


def _turned_to(name: str, wanted: Callable[[str], bool]) -> Callable[[Remedy, Seen, Seen, list[str]], bool]:
    """Return a test of one fact: it is as wanted now, and was not before."""

    def test(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
        old, new = _find(before, name), _find(after, name)
        return old is not None and new is not None and wanted(new.lower()) and not wanted(old.lower())

    return test


def _moved(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
    if uses_feedrate(after) and not uses_feedrate(before):
        return False
    if _is_set_now("scratch", before, after):
        return True
    pairs = [(_find(before, name), _find(after, name)) for name in ("data lies in", "file system")]
    return any(old is not None and new is not None and old != new for old, new in pairs)


def _fed(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
    return uses_feedrate(after) and not (uses_feedrate(before) or _keeps(after))


def _replaced(one: Remedy, before: Seen, after: Seen, notes: list[str]) -> bool:
    """The whole DataLoader, not its dataset alone."""
    return _fed(one, before, after, notes) and (_find(after, "loader") or "").startswith("feedrate.Loader")


def _cached(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
    return (_keeps(after) and not _keeps(before)) or _is_set_now("cache", before, after)


def _is_set_now(name: str, before: Seen, after: Seen) -> bool:
    """Return whether an option of feedrate.Loader has a value that it did not have."""
    return _find(before, name) == _NONE and _find(after, name) not in (None, _NONE)


def _normalised(one: Remedy, before: Seen, after: Seen, notes: list[str]) -> bool:
    """Of two runs of a Loader: Pillow has much less to do than it had."""
    old, new = (_percent(_find(seen, "decoded by Pillow")) for seen in (before, after))
    if old is None or new is None:
        return _fed(one, before, after, notes)
    return old - new >= _GONE * old > 0


def _percent(value: str | None) -> float | None:
    found = re.match(r"(\d+)%", value or "")
    return float(found.group(1)) if found else None


def _threads(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
    old, new = (re.match(r"\d+", _find(seen, "threads") or "") for seen in (before, after))
    return old is not None and new is not None and int(new.group()) > int(old.group())


def _keeps(seen: Seen) -> bool:
    """Return whether the dataset is one that `feedrate.cached` wraps."""
    name = (_find(seen, "dataset") or "").partition(",")[0]
    return name.startswith(_FEEDRATE) and name.endswith((".Cached", ".Mapped"))


def _used_gpu(_one: Remedy, before: Seen, after: Seen, _notes: list[str]) -> bool:
    return before.device == "cpu" and after.device != "cpu"


def uses_feedrate(seen: Seen) -> bool:
    """Return whether a run was fed by feedrate."""
    # Without the place: a script may lie in a folder that is called so.
    named = (_PLACE.sub("", _find(seen, name) or "") for name in ("loader", "dataset"))
    return any(_FEEDRATE in name.lower() for name in named)


def _find(seen: Seen, name: str) -> str | None:
    return seen.facts.get(name)


def _is_true(value: str) -> bool:
    return value.startswith(("true", "yes", "on"))


_BY_SETTING: dict[str, Callable[[Remedy, Seen, Seen, list[str]], bool]] = {
    "more-workers": _workers,
    "fewer-workers": _workers,
    "more-shards": _turned_to("workers without data", lambda value: value == "0"),
    "larger-batch": _batch,
    "persistent-workers": _turned_to("persistent workers", _is_true),
    "pinned-memory": _turned_to("pinned memory", _is_true),
    "uint8-transfer": _turned_to("batch", lambda value: "uint8" in value),
    "half-precision": _turned_to("precision", lambda value: "16" in value),
    "channels-last": _turned_to("channels last", _is_true),
    "loader": _replaced,
    "pack": _fed,
    "faster-decode": _fed,
    "normalise": _normalised,
    "more-threads": _threads,
    "batches-on-device": _turned_to("batches arrive on", lambda value: value != "the host"),
    "cache-in-memory": _cached,
    "preprocess-once": _cached,
    "stage": _moved,
    "use-gpu": _used_gpu,
}


def _measure_drop(one: Remedy, before: Seen, after: Seen) -> float:
    """Return by which share that part became shorter that this remedy is for; 0: not worth a word."""
    if one.name in _SHORTER_STEP:
        words = _SHORTER_STEP[one.name]
        old, new = (
            sum(s for name, s in seen.split.items() if any(word in name.lower() for word in words))
            for seen in (before, after)
        )
        whole = sum(before.split.values())
    elif one.name in _SHORTER_SAMPLE and before.sample and after.sample:
        kinds = _SHORTER_SAMPLE[one.name]
        old, new = (
            sum(seen.sample.get(kind, (0.0, 0.0))[where] for kind, where in kinds) for seen in (before, after)
        )
        whole = sum(core + blocked for core, blocked in before.sample.values())
    else:
        return 0.0
    return 1 - new / old if old > 0 and old - new >= _NOTICED * whole else 0.0
