# SPDX-License-Identifier: Apache-2.0
"""Which samples the code to paste trains on: the folder or the share of each loader, and validation's own.

A pack has all images of its folder. Code that would train on more of them than the script did, or on other
ones without a word, is not given.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedrate.doctor.analyse.call_draft import TRAIN_PACK, VALIDATION_PACK
from feedrate.doctor.analyse.data_folders import (
    LoaderFacts,
    Place,
    find_place,
    list_images,
    list_opened,
    share_of,
)
from feedrate.doctor.analyse.metrics import LoaderCall
from feedrate.doctor.analyse.records import Process, Recording
from feedrate.doctor.hook.feedrate_hook import layout

Fact = Mapping[str, Any]
_BESIDE_TRAINING = ("val", "valid", "validation", "test", "dev")


@dataclass(frozen=True)
class OtherLoader:
    """A loader of the run that does not feed the training."""

    facts: LoaderFacts
    calls: Sequence[Fact]  # of Pillow's functions
    place: Place
    was_asked: bool = True  # for a batch; else it was only made, as those for validation are that comes later


def list_others(recording: Recording, main: Process, loaders: Sequence[str]) -> list[OtherLoader]:
    """Return the other loaders that were asked for batches and read images, in the order of their use.

    Where there is none, those that were made for datasets of class folders and not asked by the end.
    """
    waits = main.of(layout.WAIT, phase=layout.REAL)
    names = dict.fromkeys(main.name(number) for number in waits["name"])
    others = []
    for name in names:
        paths = list_images(list_opened(recording, [name])) if name not in loaders else ()
        if not paths:
            continue
        facts = LoaderFacts.of(main, name)
        pids = {
            pid for fact in main.facts_of("workers") if fact.get("loader") == name for pid in fact["pids"]
        }
        calls = [
            fact
            for process in recording.processes
            for fact in process.facts_of("calls")
            if fact.get("loader") == name or (fact.get("loader") is None and process.pid in pids)
        ]
        others.append(OtherLoader(facts, calls, find_place(paths, facts)))
    return others or _list_unasked(main, loaders)


def _list_unasked(main: Process, loaders: Sequence[str]) -> list[OtherLoader]:
    asked = [LoaderFacts.of(main, name) for name in loaders[:1]]
    others = []
    for fact in main.facts_of("unasked") if asked else ():
        facts = LoaderFacts(fact["told"], asked[0].batch, fact["pipeline"])
        place = find_place((), facts) if facts.root else Place("")
        if place.folder and facts.loader.get("made_at") != asked[0].loader.get("made_at"):
            others.append(OtherLoader(facts, (), place, was_asked=False))
    return others


def name_difference(facts: LoaderFacts, place: Place) -> str:
    """Say why a pack of the place has other samples than the dataset; empty: it has not, or is unknown."""
    wanted, samples, table = facts.samples, place.samples, place.table
    if samples is None or wanted is None or samples == wanted:
        return ""
    if table is not None and samples > wanted:
        return (
            f"no code is given: the script takes {wanted:,} of the {samples:,} rows of {table.path} "
            "(a fold?), and a pack of the table has all; with the paths of the training's rows in train.txt, "
            "'feedrate split PACK --file train=train.txt validation=rest' makes the parts"
        )
    held = (
        f"{place.folder} holds {samples:,} images"
        if table is None
        else f"{table.path} names {samples:,} files"
    )
    return (
        f"no code is given: the script's dataset has {wanted:,} samples, and {held}, "
        "all of which a Loader without split= would take; 'feedrate split' makes parts of a pack"
    )


def fit_to_data(
    call: LoaderCall, place: Place, facts: LoaderFacts, others: Sequence[OtherLoader],
    other_call: LoaderCall | None,
) -> LoaderCall:  # fmt: skip
    """Return a call for the samples that the training loader has, and with one for validation beside it.

    Args:
        others: loaders of the run besides the training's.
        other_call: the Loader that the first of them becomes, where it is known.
    """
    if why := name_difference(facts, place):
        return replace(call, why_not=why, reads_others=True)
    if place.samples is None and facts.samples is not None:
        call = _add(
            call, f"the images were not counted: the pack must have the script's {facts.samples:,} samples"
        )
    if place.is_unlabelled:
        call = _add(
            call, f"labels: {place.folder} has no class folders; TABLE is a .csv of file names and labels"
        )
    if not others:
        return _without_validation(call, place.folder, facts.chosen)
    for more in others[1:]:
        named = more.place.folder or "images of another place"
        call = _add(call, f"another loader of the run reads {named}: it is left as it is")
    other = others[0]
    if (other.place.folder, other.place.table) != (place.folder, place.table):
        named = other.place.folder or "images of another place"
        if other_call is None or not other.place.folder or not place.folder or name_difference(
            other.facts, other.place
        ):  # fmt: skip
            return _add(call, f"validation reads {named}: it needs a pack of its own")
        packs = ((place, TRAIN_PACK), (other.place, VALIDATION_PACK))
        return _join(replace(call, packs=packs), other, other_call)
    chosen, held_out = facts.chosen, other.facts.chosen
    if chosen is None and facts.chooser:
        return replace(call, reads_others=True, why_not=(
            f"no code is given: {facts.chooser} chooses the script's samples, and another loader of the run "
            f"reads {place.folder}, too: a Loader without split= would take its samples as well"
        ))  # fmt: skip
    if chosen is None or held_out is None or other_call is None:
        return _add(call, f"another loader of the run reads {place.folder}, too: it is left as it is")
    (first, of), both = chosen, chosen[0] + held_out[0]
    if both > of or held_out[1] != of:
        return _add(
            call, "the loaders' subsets share samples, or come from different ones: see feedrate split"
        )
    return _join(
        call, other, other_call, split=(share_of(first, of), 1 if both == of else share_of(both, of))
    )


def _without_validation(call: LoaderCall, folder: str, chosen: tuple[int, int] | None) -> LoaderCall:
    if chosen is not None:
        rest = f"split=({share_of(*chosen)}, 1)"
        return _add(call, f"validation, where the script has some, takes the rest: {rest}")
    above, name = os.path.split(folder)
    beside = [os.path.join(above, one) for one in _BESIDE_TRAINING] if name.startswith("train") else []
    found = next((one for one in beside if os.path.isdir(one)), None)
    if found is None:
        return call
    command = f"feedrate pack {shlex.quote(found)} {VALIDATION_PACK}"
    return _add(call, f"{found} was not read by then: for validation {command}, and a Loader of that")


def _join(call: LoaderCall, other: OtherLoader, its_call: LoaderCall, **more: Any) -> LoaderCall:
    """Return a call with another loader's for validation beside it, and what that leaves out."""
    options = {name: value for name, value in {**its_call.options, **more}.items() if name != "seed"}
    left_out = [f"validation: {text}" for text in its_call.left_out if text not in call.left_out]
    name = str(other.facts.loader.get("loader") or "")
    return _add(replace(call, validation=options, validates=name), *left_out)


def _add(call: LoaderCall, *sentences: str) -> LoaderCall:
    return replace(call, left_out=(*call.left_out, *sentences))
