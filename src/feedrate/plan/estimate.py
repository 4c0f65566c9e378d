# SPDX-License-Identifier: Apache-2.0
"""The one-line questions: how long a copy, an epoch or packing takes, and what memory a dataset fills.

Plans answer them too, with every way there is; here it is one figure, and what it is made of.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from feedrate.errors import NotFound, StorageError, UsageError, suggest_path
from feedrate.figures import ASSUMED, GIVEN, Figure, combine
from feedrate.lab.store import PATIENCE_S, call_patiently, measure_store, measure_writes
from feedrate.machine.disk import describe_storage, find_scratch, measure_room
from feedrate.machine.memory import MemoryGauge
from feedrate.machine.results import MachineNumbers, StoreSpeed
from feedrate.model.numbers import find_store
from feedrate.model.ways import COPY_STREAMS, copy_s
from feedrate.plan.folders import count_tree
from feedrate.plan.node import describe_node, measure_memory, note_age
from feedrate.plan.outcome import PROCESS_BYTES, collect_figures, make_store, name_store
from feedrate.plan.recipes import MARGIN
from feedrate.plan.results import Estimate, Plan, Survey, Way
from feedrate.plan.survey import Sizes, measure_sizes, survey_dataset
from feedrate.plan.ways import MODEL_ERROR, make_plan
from feedrate.units import format_bytes, format_count, parse_bytes, shell_quote

_TRAINING = Figure.within(PROCESS_BYTES, 1.5, ASSUMED, "torch, CUDA's context, pinned batches")
_MOST_SIZES = 512  # files whose size is asked for
_ENOUGH_COLD = 0.2  # of the bytes that were read: with fewer, a store was hardly seen
_SAME = 1.03  # two epochs that differ by less are one answer
Say = Callable[[str], None]
Figures = dict[str, tuple[Figure, str]]


@dataclass(frozen=True, slots=True)
class _Files:
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
    size = _read_size(what)
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
    found = call_patiently(folder, lambda: _look_at_files(folder, seconds / 2), PATIENCE_S + seconds)
    speed = _find_speed(folder, found, numbers, seconds / 2)
    write, create = _find_writes(target, numbers, say)
    common = {**name_store("source", speed), "write": write, "create": create, "error": MODEL_ERROR}
    loads = _list_loads(size, files, found, folder)
    answers = {
        name: combine(_copy, {**common, "files": count, "size_bytes": total})
        for name, (count, total) in loads.items()
    }
    most = max(total.value for _, total in loads.values())
    return Estimate(
        question=f"copying {what}{'' if size is None else f' from {folder}'} to {target} "
        f"by 'feedrate stage', {format_count(COPY_STREAMS, 'file')} at a time",
        answers=answers,
        unit="s",
        figures={**_name_load(size, files, found), **_name_speed(speed),
                 f"writing to {target}": (write, "bytes/s"), f"a new file in {target}": (create, "s")},
        notes=(*_note_room(target, most), *_note_memory(folder, speed),
               *(() if numbers is None else note_age(numbers))),
        commands=() if size is not None
        else (f"feedrate stage {shell_quote(what)} --scratch {shell_quote(target)}",),
    )  # fmt: skip


def _copy(files: float, size_bytes: float, write: float, create: float, error: float, **v: float) -> float:
    source = make_store("source", v, keeps_pages=True)
    target = replace(source, write_bytes_per_s=write, create_s=create)
    return error * copy_s(files, size_bytes, source, target)


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
    chosen = paths if len(paths) <= _MOST_SIZES else random.Random(0).sample(paths, _MOST_SIZES)
    sizes = []
    for name in chosen:
        try:
            sizes.append((name, os.stat(name).st_size))
        except OSError:
            continue  # gone since, or a link to nowhere
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
        return measure_store(
            folder if os.path.isdir(folder) else os.path.dirname(folder) or ".", files, seconds=seconds
        )
    stored = None if numbers is None else find_store(numbers, folder)
    if stored is None:
        raise StorageError(
            f"there is no file to read in {folder}, so its speed cannot be measured",
            hint=f"name a folder with files, or type: feedrate bench machine --store {shell_quote(folder)}",
        )
    return stored


def _find_writes(folder: str, numbers: MachineNumbers | None, say: Say) -> tuple[Figure, Figure]:
    stored = None if numbers is None else find_store(numbers, folder)
    if stored is not None and stored.write_bytes_per_s is not None and stored.create_s is not None:
        return stored.write_bytes_per_s, stored.create_s
    say(f"writing a trial file to {folder}")
    try:
        return measure_writes(folder)
    except StorageError as error:
        raise StorageError(error.message, hint="name a folder that you may write to: --to DIR") from error


def _note_room(target: str, size_bytes: float) -> tuple[str, ...]:
    free = measure_room(target).free_bytes
    if size_bytes > free:
        return (f"it does not fit: {target} has {format_bytes(free)} free",)
    if describe_storage(target).is_memory:  # as `feedrate stage` has it
        memory = MemoryGauge().measure()
        most = min(memory.limit_bytes // 2, memory.free_bytes)
        if size_bytes > most:
            return (
                f"it does not fit: {target} is memory, of which a copy may take {format_bytes(most)} here",
            )
    return ()


def _note_memory(folder: str, speed: StoreSpeed) -> tuple[str, ...]:
    if speed.cold_share is None or speed.cold_share >= _ENOUGH_COLD:
        return ()
    return (f"most of what was read in {folder} was in memory already: from the disk it may be slower",)


def _list_loads(
    size: int | None, files: int | None, found: _Files, folder: str
) -> dict[str, tuple[Figure, Figure]]:
    """Return files and bytes of what is asked for, by what it is called."""
    if size is None:
        return {
            "": (found.files, combine(lambda n, each: n * each, {"n": found.files, "each": found.mean_bytes}))
        }
    total = Figure.exactly(size, GIVEN)
    if files is not None:
        return {"": (Figure.exactly(files, GIVEN), total)}
    loads = {"as one file": (Figure.exactly(1, GIVEN), total)}
    if 0 < found.mean_bytes.value < size / 2:
        count = combine(lambda each: size / each, {"each": found.mean_bytes})
        loads[f"in {count.value:,.0f} files, as those of {folder}"] = (count, total)
    return loads


def _name_load(size: int | None, files: int | None, found: _Files) -> Figures:
    if size is not None:
        given: Figures = {"size": (Figure.exactly(size, GIVEN), "bytes")}
        return given if files is None else {**given, "files": (Figure.exactly(files, GIVEN), "")}
    return {"files": (found.files, ""), "a file": (found.mean_bytes, "bytes")}


def _name_speed(speed: StoreSpeed) -> Figures:
    asking: Figures = {} if speed.stat_s is None else {"asking a file for its size": (speed.stat_s, "s")}
    return {
        "opening a file": (speed.file_s, "s"),
        f"opening {speed.streams} at a time": (speed.files_per_s, "files/s"),
        **asking,
        "reading, one stream": (speed.stream_bytes_per_s, "bytes/s"),
        f"reading, {speed.streams} streams": (speed.total_bytes_per_s, "bytes/s"),
    }


def estimate_epoch(
    dataset: str,
    *,
    model: str = "",
    model_rate: float | None = None,
    workers: int = 4,
    numbers: MachineNumbers | None = None,
    seconds: float = 10.0,
    say: Say = lambda _: None,
) -> Estimate:
    """Return how long an epoch takes: read in place, from a pack, and if the device had all it could take."""
    plan = _plan(dataset, workers, seconds, say, model=model, model_rate=model_rate, numbers=numbers)
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
    figures = _name_dataset(survey)
    figures |= {f"samples of '{name}'": (count, "") for name, count in survey.parts.items()}
    if survey.has_images:
        known = collect_figures(survey, node)
        figures["decoding with Pillow, a core"] = (known["pillow_s"], "s")
        figures["decoding by feedrate, a core"] = (known["feedrate_s"], "s")
    figures |= {"cores": (node.cores, "")}
    figures |= {f"{model or 'the model'} trains on": (rate, "images/s")} if rate else {}
    return Estimate(
        f"an epoch of {dataset}", answers, "s", {**figures, **_name_speed(survey.source)}, plan.notes
    )


def _list_epochs(name: str, way: Way) -> dict[str, Figure]:
    first, later = way.first_epoch_s, way.later_epoch_s
    if max(first.value, later.value) <= _SAME * min(first.value, later.value):
        return {name: later}
    return {f"{name}, the first": first, f"{name}, later ones": later}


def estimate_pack(
    dataset: str,
    *,
    numbers: MachineNumbers | None = None,
    seconds: float = 10.0,
    say: Say = lambda _: None,
) -> Estimate:
    """Return how long `feedrate pack` takes, once, and how large the pack is.

    Raises:
        UsageError: it is a pack already.
    """
    plan = _plan(dataset, 4, seconds, say, numbers=numbers)
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
    size = survey.total_bytes
    if decoded:
        parts = {"samples": survey.samples, "each": survey.decoded_bytes}
        size = combine(lambda samples, each: samples * each, parts)
    limit, whose = measure_memory()
    figures = _name_dataset(survey)
    if decoded:
        figures |= {
            "a sample, decoded": (survey.decoded_bytes, "bytes"),
            "K: decoded / encoded size": (survey.factor, ""),
        }
    figures |= {f"free memory ({whose})": (limit, "bytes"), "for the training process": (_TRAINING, "bytes")}
    return Estimate(
        f"{dataset} in memory, {'decoded' if decoded else 'as its files are'}",
        {"": size},
        "bytes",
        figures,
        (_judge_memory(size, limit), *survey.notes),
        (f"sbatch --mem={math.ceil(_needed(size.high) / 1e9)}G ...",),
    )


def _needed(size_bytes: float) -> float:
    return (size_bytes + PROCESS_BYTES) / MARGIN


def _judge_memory(size: Figure, limit: Figure) -> str:
    has = f"of the {format_bytes(limit.value)} that are free"
    if _needed(size.high) <= limit.value:
        return f"it fits: {format_bytes(_needed(size.value))} {has}, training included"
    if _needed(size.low) <= limit.value:
        return f"it may fit, barely: {format_bytes(_needed(size.value))} {has}, training included"
    return f"it does not fit: {format_bytes(_needed(size.value))} are needed {has}, training included"


def _plan(dataset: str, workers: int, seconds: float, say: Say, **node: Any) -> Plan:
    survey = survey_dataset(dataset, seconds=seconds, workers=workers, say=say)
    found = describe_node(dataset, scratch="", say=say, **node)
    return make_plan(survey, found, epochs=2, workers=workers)


def _name_dataset(survey: Survey | Sizes) -> Figures:
    return {"samples": (survey.samples, ""), "size": (survey.total_bytes, "bytes")}
