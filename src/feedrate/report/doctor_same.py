# SPDX-License-Identifier: Apache-2.0
"""Are two runs of the doctor runs of the same training at all?

A remedy may change much: a copy of the script may hold it, the dataset may be wrapped or be feedrate's now,
the model compiled. One such difference is a change; several at once are another training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from feedrate.errors import clean
from feedrate.report.doctor_applied import uses_feedrate
from feedrate.report.doctor_earlier import Seen

_SHAPE = re.compile(r"\b\d+(?:x\d+)*\b(?=,|$)")


def list_differences(before: Seen, after: Seen) -> tuple[str, ...]:
    """Return what shows that the runs are of two different things, each as `model: A -> B`; (): nothing does.

    It takes another script, and two of model, dataset and the shape of a sample; or all of these three.
    """
    changed = [
        *_compare("model", _model(before), _model(after)),
        *([] if uses_feedrate(after) else _compare("dataset", _dataset(before), _dataset(after))),
        *_compare("a sample", _shapes(before), _shapes(after)),
    ]
    script = _compare("script", _script(before.argv), _script(after.argv))
    return (*script, *changed) if len(changed) >= (2 if script else 3) else ()


def _compare(name: str, old: str, new: str) -> list[str]:
    """What an older document does not tell is no difference."""
    return [f"{name}: {clean(old)} -> {clean(new)}"] if old and new and old != new else []


def _model(seen: Seen) -> str:
    """Return the model's class; `unknown` where there was none."""
    return seen.facts.get("model", "").partition(" on ")[0]


def _dataset(seen: Seen) -> str:
    return seen.facts.get("dataset", "")


def _shapes(seen: Seen) -> str:
    """Return the shapes of a sample's tensors, whatever their type, order of axes and batch."""
    shapes = []
    for shape in _SHAPE.findall(seen.facts.get("batch", "")):
        _, *sides = shape.split("x")
        shapes.append("x".join(sorted(sides, key=int)))
    return ", ".join(sorted(filter(None, shapes)))


def _script(argv: Sequence[str]) -> str:
    """Return the name of the script, or the module after -m; empty: not to be seen."""
    for place, word in enumerate(argv):
        if word == "-m":
            return argv[place + 1] if place + 1 < len(argv) else ""
        if word.endswith(".py"):
            return os.path.basename(word)
    return ""
