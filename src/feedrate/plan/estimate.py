# SPDX-License-Identifier: Apache-2.0
"""The one-line questions: how long a copy, an epoch or packing takes, and what memory a dataset fills.

Plans answer them too, with every way there is; here it is one figure, and what it is made of.
"""

from __future__ import annotations

import math
import os
import random
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from feedrate.errors import NotFound, StorageError, UsageError, suggest_path
from feedrate.figures import ASSUMED, GIVEN, Figure, combine, vary
from feedrate.lab.copier import measure_source
from feedrate.lab.store import NO_ANSWER_S, NOT_SEEN, Neighbours, call_patiently
from feedrate.machine.disk import describe_storage, find_scratch, measure_room
from feedrate.machine.memory import MemoryGauge
from feedrate.machine.results import MachineNumbers, StoreSpeed
from feedrate.model.numbers import find_store
from feedrate.model.ways import COPY_STREAMS, copy_s
from feedrate.plan.contents import ask_size
from feedrate.plan.folders import count_tree
from feedrate.plan.node import describe_node, find_scratch_speed, measure_memory, note_age
from feedrate.plan.recipes import MARGIN
from feedrate.plan.results import Estimate, Plan, Survey, Way
from feedrate.plan.survey import Sizes, measure_sizes, survey_dataset
from feedrate.plan.ways import (
    PROCESS_BYTES,
    complete_store,
    complete_survey,
    find_error,
    make_plan,
    value_store,
)
from feedrate.units import format_bytes, format_count, parse_bytes, shell_quote

_TRAINING = Figure.within(PROCESS_BYTES, 1.5, ASSUMED, "torch, CUDA's context, pinned batches")
_MOST_SIZES = 512  # files whose size is asked for
_SAME = 1.03  # two epochs that differ by less are one answer
Say = Callable[[str], None]
Figures = dict[str, tuple[Figure, str]]


class _Files(NamedTuple):
    """What is copied, or lies where it is copied from. `sample`: paths and sizes of some files."""

    files: Figure
    mean_bytes: Figure
    sample: tuple[tuple[str, int], ...]


def estimate_copy(
    what: str,
    *,
    source: str | None = None,
    target: str | None = None,
    files: int | None = None,
    numbers: MachineNumbers | None = None,
    seconds: float = 10.0,
    say: Say = lambda _: None,
) -> Estimate:
    """Return how long `feedrate stage` takes for so many bytes, or for a folder or file.

    Args:
        what: a size like `100GB`, or a path.
        source: a folder on the file system that a size is copied from; `target`: None: scratch.
        files: of how many a size is made.

    Raises:
        UsageError: it is neither a size nor a path, or a folder is missing.
        StorageError: a file system cannot be measured, and no numbers of it are stored.
    """
    size, neighbours = _read_size(what), Neighbours()
    if size is None and (source is not None or files is not None):
        name = "--from" if source is not None else "--files"
        raise UsageError(f"{name} goes with a size, and {what} is a path: its files are counted")
    folder = source if size is not None else what
    if folder is None:
        raise UsageError(
            f"where are the {what} copied from?", hint=f"feedrate estimate copy {what} --from DIR --to DIR"
        )
    target = target or os.fspath(find_scratch() or "")
    if not target:
        raise UsageError("no scratch folder is known on this node", hint="name one: --to DIR")
    for option, path in (("--from", folder), ("--to", target)):
        if not os.path.exists(path):
            near = suggest_path(path)
            raise NotFound(f"there is no {path}", hint=near or f"name a folder that is there: {option} DIR")
    say(f"looking at {folder}")
    found = call_patiently(folder, lambda: _look_at_files(folder, seconds / 2), NO_ANSWER_S + seconds)
    speed = _find_speed(folder, found, numbers, seconds / 2)
    try:
        scratch = find_scratch_speed(target, numbers, say)
    except StorageError as error:
        raise StorageError(error.message, hint="name a folder that you may write to: --to DIR") from error
    busy = neighbours.describe()
    whole = combine(lambda n, each: n * each, {"n": found.files, "each": found.mean_bytes})
    given, total = None if files is None else Figure.exactly(files, GIVEN), Figure.exactly(size or 0, GIVEN)
    # Only of files like those that are there it is known what the copier gets.
    other, like = complete_store(replace(speed, copy_bytes_per_s=None)), complete_store(speed)
    load: Figures = {"size": (total, "bytes")}
    if size is None:
        loads = {"": (found.files, whole, like)}
        load = {"files": (found.files, ""), "a file": (found.mean_bytes, "bytes")}
    elif given is not None:
        loads = {"": (given, total, other)}
        load["files"] = given, ""
    else:
        loads = {"as one file": (Figure.exactly(1, GIVEN), total, other)}
        if 0 < found.mean_bytes.value < size / 2:
            count = combine(lambda each: size / each, {"each": found.mean_bytes})
            loads[f"in {count.value:,.0f} files, as those of {folder}"] = count, total, like
    error_of, into = find_error(busy), complete_store(scratch)
    answers = {
        name: vary(_copy, count, bytes_, store, into, error_of)[0]
        for name, (count, bytes_, store) in loads.items()
    }
    notes = [*_note_room(target, whole.value if size is None else size)]
    notes += [f"{NOT_SEEN}: {folder}"] if speed.file_s.note == NOT_SEEN else []
    notes += [busy] if busy else []
    return Estimate(
        question=f"copying {what}{'' if size is None else f' from {folder}'} to {target} "
        f"by 'feedrate stage', {format_count(COPY_STREAMS, 'file')} at a time",
        answers=answers,
        unit="s",
        figures={**load, **_name_speed(speed),
                 f"writing to {target}": (into.write_bytes_per_s or into.total_bytes_per_s, "bytes/s"),
                 f"a new file in {target}": (into.create_s or into.file_s, "s")},
        notes=(*notes, *(() if numbers is None else note_age(numbers))),
        commands=() if size is not None
        else (f"feedrate stage {shell_quote(what)} --scratch {shell_quote(target)}",),
    )  # fmt: skip


def _copy(
    files: Figure, size_bytes: Figure, source: StoreSpeed, target: StoreSpeed, error: Figure
) -> list[Figure]:
    took_s = copy_s(files.value, size_bytes.value, value_store(source), value_store(target))
    return [Figure.exactly(error.value * took_s)]


def _read_size(text: str) -> int | None:
    """Return the bytes of `100GB`; None: it is a path."""
    if os.path.exists(text):
        return None
    if re.fullmatch(r"\s*[0-9.,_]+\s*", text):
        plain = text.strip()
        raise UsageError(f"'{plain}' has no unit", hint=f"write {plain}GB, {plain}MB or {plain}TB")
    try:
        return parse_bytes(text)
    except UsageError:
        near = suggest_path(text)
        raise NotFound(
            f"'{text}' is neither a size nor a path that is there", hint=near or "write a size like 100GB"
        ) from None


def _look_at_files(path: str, seconds: float) -> _Files:
    """Count the files of a folder, as far as the time reaches, and ask some for their size."""
    if not os.path.isdir(path):
        size = os.stat(path).st_size
        return _Files(Figure.exactly(1), Figure.exactly(size), ((path, size),))
    tree = count_tree(path, seconds=seconds)
    paths = [*tree.paths, *tree.other_paths]
    chosen = random.Random(0).sample(paths, min(len(paths), _MOST_SIZES))
    sizes = [(name, size) for name, size in map(ask_size, chosen) if size is not None]
    files = combine(lambda images, others: images + others, {"images": tree.images, "others": tree.others})
    if not sizes:
        return _Files(files, Figure.exactly(0), ())
    is_all = tree.is_whole and len(sizes) == files.value
    note = f"sizes of {format_count(len(sizes), 'file')}"
    mean = Figure.of_mean([size for _, size in sizes], note, least=0.0)
    return _Files(files, Figure.exactly(mean.value, note=note) if is_all else mean, tuple(sizes))


def _find_speed(folder: str, found: _Files, numbers: MachineNumbers | None, seconds: float) -> StoreSpeed:
    files = [(path, size) for path, size in found.sample if size]
    if files:
        # Half of them for the copier: a second read of a file is fast.
        copied = [path for path, _ in files[1::2] or files]
        top = folder if os.path.isdir(folder) else os.path.dirname(folder) or "."
        return measure_source(
            top, files[::2], copied, tempfile.gettempdir(), seconds=seconds, copying_s=seconds / 2
        )
    stored = None if numbers is None else find_store(numbers, folder)
    if stored is None:
        raise StorageError(
            f"there is no file to read in {folder}, so its speed cannot be measured",
            hint=f"name a folder with files, or type: feedrate bench machine --store {shell_quote(folder)}",
        )
    return stored


def _note_room(target: str, size_bytes: float) -> tuple[str, ...]:
    free = measure_room(target).free_bytes
    if size_bytes > free:
        return (f"it does not fit: {target} has {format_bytes(free)} free",)
    if describe_storage(target).is_memory:  # as `feedrate stage` has it
        memory = MemoryGauge().measure()
        most = min(memory.limit_bytes // 2, memory.free_bytes)
        if size_bytes > most:
            room = f"of which a copy may take {format_bytes(most)} here"
            return (f"it does not fit: {target} is memory, {room}",)
    return ()


def _name_speed(speed: StoreSpeed) -> Figures:
    return _pick({
        "copying such files": (speed.copy_bytes_per_s, "bytes/s"),
        "opening a file": (speed.file_s, "s"),
        f"opening {speed.streams} at a time": (speed.files_per_s, "files/s"),
        "asking a file for its size": (speed.stat_s, "s"),
        "reading, one stream": (speed.stream_bytes_per_s, "bytes/s"),
        f"reading, {speed.streams} streams": (speed.total_bytes_per_s, "bytes/s"),
    })  # fmt: skip


def _pick(figures: Mapping[str, tuple[Figure | None, str]]) -> Figures:
    """Return the figures that are known."""
    return {name: (figure, unit) for name, (figure, unit) in figures.items() if figure is not None}


def estimate_epoch(dataset: str, *, workers: int = 4, **options: Any) -> Estimate:
    """Return how long an epoch takes: read in place, from a pack, and if the device had all it could take.

    Args:
        options: of `_plan`: seconds, say, and what `describe_node` takes.
    """
    plan = _plan(dataset, workers, **options)
    survey, node = plan.survey, plan.node
    answers: dict[str, Figure] = {}
    names = {"in-place": "from the pack" if survey.kind == "pack" else f"read in place, {workers} workers",
             "pack": "from a pack"}  # fmt: skip
    for way in plan.ways:
        if way.code in names:
            answers |= _list_epochs(names[way.code], way)
    rate = node.model_rate
    if rate is not None:
        devices = max(node.gpus, 1) * node.nodes
        alone = combine(
            lambda samples, rate: samples / rate / devices, {"samples": survey.trained_samples, "rate": rate}
        )
        answers["the device alone"] = alone
    known = complete_survey(survey) if survey.has_images else survey
    figures = _name_dataset(survey)
    figures |= {f"samples of '{name}'": (count, "") for name, count in survey.parts.items()}
    figures |= _pick({
        "decoding with Pillow, a core": (known.pillow_s, "s"),
        "decoding by feedrate, a core": (known.feedrate_s, "s"),
        "cores": (node.cores, ""),
        f"{node.model or 'the model'} trains on": (rate, "images/s"),
    })  # fmt: skip
    figures |= _name_speed(survey.source)
    return Estimate(f"an epoch of {dataset}", answers, "s", figures, plan.notes)


def _list_epochs(name: str, way: Way) -> dict[str, Figure]:
    first, later = way.first_epoch_s, way.later_epoch_s
    if max(first.value, later.value) <= _SAME * min(first.value, later.value):
        return {name: later}
    return {f"{name}, the first": first, f"{name}, later ones": later}


def estimate_pack(dataset: str, **options: Any) -> Estimate:
    """Return how long `feedrate pack` takes, once, and how large the pack is; `options`: as of an epoch.

    Raises:
        UsageError: it is a pack already.
    """
    plan = _plan(dataset, 4, **options)
    way = next((way for way in plan.ways if way.code == "pack"), None)
    if way is None:
        raise UsageError(f"{dataset} is a pack already", hint="feedrate estimate epoch says what it gives")
    survey = plan.survey
    figures: Figures = {
        **_name_dataset(survey),
        "the pack's size": (replace(way.disk_bytes, note="computed from the samples' sizes"), "bytes"),
        "packing a sample, a core": (survey.pack_s, "s"),
        "listing all of it": (survey.list_s, "s"),
        "cores": (plan.node.cores, ""),
        **_name_speed(survey.source),
    }
    notes = (way.why_not,) if way.why_not else ()
    return Estimate(
        f"packing {dataset}", {"": way.before_s}, "s", figures, (*notes, *survey.notes), way.commands[:1]
    )


def estimate_memory(
    dataset: str, *, decoded: bool = False, seconds: float = 10.0, say: Say = lambda _: None
) -> Estimate:
    """Return what a dataset takes in memory, as its files are or as pixels, and whether this job has that."""
    survey = measure_sizes(dataset, seconds=seconds, say=say)
    size, figures = survey.total_bytes, _name_dataset(survey)
    if decoded:
        parts = {"samples": survey.samples, "each": survey.decoded_bytes}
        size = combine(lambda samples, each: samples * each, parts)
        figures["a sample, decoded"] = survey.decoded_bytes, "bytes"
        figures["K: decoded / encoded size"] = survey.factor, ""
    limit, whose = measure_memory()
    figures |= {f"free memory ({whose})": (limit, "bytes"), "for the training process": (_TRAINING, "bytes")}
    least, needed, most = ((end + PROCESS_BYTES) / MARGIN for end in (size.low, size.value, size.high))
    fits, are = ("it may fit, barely" if most > limit.value else "it fits"), ""
    if least > limit.value:
        fits, are = "it does not fit", "are needed "
    has = f"of the {format_bytes(limit.value)} that are free, training included"
    return Estimate(
        f"{dataset} in memory, {'decoded' if decoded else 'as its files are'}",
        {"": size},
        "bytes",
        figures,
        (f"{fits}: {format_bytes(needed)} {are}{has}", *survey.notes),
        (f"sbatch --mem={math.ceil(most / 1e9)}G ...",),
    )


def _plan(
    dataset: str, workers: int, *, seconds: float = 10.0, say: Say = lambda _: None, **node: Any
) -> Plan:
    survey = survey_dataset(dataset, seconds=seconds, workers=workers, say=say)
    found = describe_node(dataset, scratch="", say=say, **node)
    return make_plan(survey, found, epochs=2, workers=workers)


def _name_dataset(survey: Survey | Sizes) -> Figures:
    return {"samples": (survey.samples, ""), "size": (survey.total_bytes, "bytes")}
