# SPDX-License-Identifier: Apache-2.0
"""`feedrate index ADDRESS`: remote shards -> an index of them on this machine.

    find       which shards there are, and by the first samples, which fields
    survey     each shard is fetched once, looked at and forgotten; as many at a time as there are workers
    settle     what all of them say together: the parts of the index, as if the shards had been here

What all shards decide together (numbers of samples, classes, fields) is not known when one is looked at: what
was found in it waits as a survey in the folder of the index. An interrupted run keeps its surveys, and goes
on with the shards that have none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import NotFound, PackError, SourceError, StorageError
from feedrate.files.atomic import explained, remove_temporaries, temporary_name, write_file
from feedrate.format.containers import RANGES
from feedrate.format.fields import Field, Kind, dump_entries, row_dtype
from feedrate.format.index import Part, parse_part
from feedrate.format.manifest import dump_field, load_field
from feedrate.packing.build import unfinished
from feedrate.packing.build.plan import digest_plan
from feedrate.packing.build.shard import ShardDone, read_part_done, write_part
from feedrate.packing.indexing import local
from feedrate.packing.results import IndexResult
from feedrate.packing.workers import advance, finish_tasks
from feedrate.progress import Rejection, Tick
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.remote.copier import fetch
from feedrate.remote.fetch import FetchedPlace, find_with_retries
from feedrate.source.in_place import InPlace, Shards, find_shards
from feedrate.source.options import SourceOptions
from feedrate.source.record import Spool

Fields = tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Everything needed to survey a shard: small, picklable, harmless to run twice.

    Attributes:
        shards: the one that it is about.
        target: the folder of the index.
        plan: a digest of all shards' names, sizes and times.
    """

    shards: Shards
    number: int
    target: str
    plan: str
    bytes_per_entry: int

    @property
    def file(self) -> PlacedFile:
        (file,) = self.shards.files
        return file

    @property
    def samples(self) -> int:
        return 1  # what is counted here is shards

    @property
    def source_bytes(self) -> int:
        return self.file.size_bytes

    @property
    def path(self) -> Path:
        return Path(self.target) / unfinished.SURVEYS_NAME / f"shard-{self.number:05d}.json"

    def part_path(self, part: int) -> Path:
        return self.path.with_name(f"shard-{self.number:05d}-{part:05d}.arrow")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in a shard.

    Attributes:
        records: how many numbers its samples take, rejected ones among them.
        checksums: of its parts.
    """

    records: int
    fields: Fields
    rejected: tuple[Rejection, ...]
    left_out: Mapping[str, str]
    ignored: Mapping[str, int]
    checksums: tuple[int, ...]


def survey(task: SurveyTask) -> None:
    """Bring a shard near and write its survey; the JSON comes last, and appears only when all is there.

    Raises:
        SourceError: the shard is damaged, or its samples are not there as they are.
        StorageError: the source or a disk failed, or the shard changed meanwhile.
    """
    source = Place(task.shards.root)
    near = Path(task.target) / temporary_name(f"near-{task.number:05d}")
    try:
        copy = near / os.fsdecode(task.file.path)
        copy.parent.mkdir(parents=True)
        fetch(source, task.file.path, range(task.file.size_bytes), copy, lambda count: advance(0, count))
        _refuse_change(source, task.file)
        place = FetchedPlace(str(near), source)
        records = InPlace(task.shards.open(place, task.file, Spool(str(near))))
        found = local.list_in_place(records, near, None)
        checksums = [_survey_part(task, part, section, near) for part, section in enumerate(found.sections)]
    finally:
        shutil.rmtree(near, ignore_errors=True)
    document = {
        "plan": task.plan, "records": found.records, "fields": {f.name: dump_field(f) for f in found.fields},
        "rejected": list(map(dataclasses.astuple, found.rejected)),
        "left_out": records.left_out, "ignored": dict(records.reader.ignored), "checksums": checksums,
    }  # fmt: skip
    write_file(task.path, json.dumps(document).encode())
    advance(1, 0)


def find_survey(task: SurveyTask) -> Survey | None:
    """Return what `survey` made of a task; None: it has to be done, or done again."""
    try:
        document = json.loads(task.path.read_bytes())
        if document["plan"] != task.plan:
            return None
        found = Survey(
            records=int(document["records"]),
            fields=tuple(_load_field(name, field) for name, field in document["fields"].items()),
            rejected=tuple(Rejection(*one) for one in document["rejected"]),
            left_out=document["left_out"],
            ignored=document["ignored"],
            checksums=tuple(document["checksums"]),
        )
        is_whole = all(
            kernel.crc32c(task.part_path(part).read_bytes()) == crc32c
            for part, crc32c in enumerate(found.checksums)
        )
    except (OSError, PackError, KeyError, TypeError, ValueError):
        return None
    return found if is_whole else None


def _load_field(name: str, document: dict[str, Any]) -> Field:
    field = load_field(name, document)
    # Thousands of shards have the same classes.
    classes = None if field.classes is None else tuple(map(sys.intern, field.classes))
    return dataclasses.replace(field, classes=classes)


def _survey_part(task: SurveyTask, part: int, section: local.Section, near: Path) -> int:
    name = os.path.basename(os.fsdecode(task.file.path))
    entries, path = task.bytes_per_entry, task.part_path(part)
    metadata = {"plan": task.plan, "shard": name, "bytes": task.file.size_bytes, **dump_entries(entries)}
    # Bytes were counted when they came.
    writer = local.inspect_section(section, str(near), str(near), entries, lambda *_: advance(0, 0))
    writer.write_index(path, metadata)
    return kernel.crc32c(path.read_bytes())


def _refuse_change(source: Place, file: PlacedFile) -> None:
    address = source.address(file.path)
    try:
        found = find_with_retries(source, file.path)
    except NotFound:
        found = None
    if found is None or (found.size_bytes, found.mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise StorageError(f"{address} changed while it was indexed", hint="run the same command again")


def unite_fields(surveys: Sequence[Survey]) -> Fields:
    """Return the fields of all shards: numbers and classes of all, without what one of them leaves out.

    Raises:
        SourceError: a field is a number in some and a text in others.
    """
    left_out = {name for one in surveys for name in one.left_out}
    # What a shard without samples says of its numbers means nothing.
    telling = [one for one in surveys if one.checksums] or list(surveys)
    united = []
    for field in telling[0].fields:
        if field.name in left_out:
            if field.has_pixels:
                why = next(one.left_out[field.name] for one in surveys if field.name in one.left_out)
                raise SourceError(
                    f"field '{field.name}' does not lie in all shards as it is: {why}",
                    hint="they can be packed: feedrate pack SOURCE PACK",
                )
            continue
        united.append(field if field.kind is not Kind.NUMBER else _unite_numbers(field.name, telling))
    return tuple(united)


def _unite_numbers(name: str, surveys: Sequence[Survey]) -> Field:
    all_of_it = [field for one in surveys for field in one.fields if field.name == name]
    classes = {text for field in all_of_it for text in field.classes or ()}
    if classes and any(field.classes is None for field in all_of_it):
        raise SourceError(
            f"'{name}' is a number in some shards and a text in others, such as '{min(classes)}'",
            hint="make them all numbers, or all texts",
        )
    dtype = "float64" if any(field.dtype == "float64" for field in all_of_it) else "int64"
    return Field(name, Kind.NUMBER, dtype=dtype, classes=tuple(sorted(classes)) if classes else None)


def _settle(
    task: SurveyTask, found: Survey, part: int, number: int, first_number: int, fields: Fields, plan: str
) -> ShardDone:
    """Make a part of a survey part `number` of the index: with the numbers of all, and all shards' classes.

    Raises:
        StorageError: it is not there any more.
    """
    source = task.part_path(part)
    before = parse_part(source.read_bytes(), found.fields, name=source.name)
    rows = np.zeros(len(before.rows), row_dtype(fields))
    for name in rows.dtype.names or ():
        rows[name] = before.rows[name]
    rows["number"] += first_number
    own_classes = {field.name: field.classes or () for field in found.fields}
    for field in fields:
        if field.classes is not None:
            numbers = {text: number for number, text in enumerate(field.classes)}
            here = np.array([numbers[text] for text in own_classes[field.name]], np.int64)
            rows[field.name] = here[before.rows[field.name]]
    names = ["key", *(name for field in fields for name in field.variable_columns())]
    variable = {name: before.variable[name] for name in names}
    target = Path(task.target) / local.index_name(number)
    write_part(target, fields, Part(rows, variable, {**before.metadata, "plan": plan}))
    folder, _, name = task.shards.address(task.file).rpartition("/")
    done = read_part_done(target.parent, target.name, name, plan, RANGES)
    if done is None:
        raise _changed(target.parent)
    return done._replace(shard=dataclasses.replace(done.shard, folder=folder, mtime_ns=task.file.mtime_ns))


def _changed(folder: Path) -> StorageError:
    return StorageError(f"{folder} changed while it was written", hint="run the same command again")


def index_remote(
    source: str,
    folder: Path,
    options: SourceOptions,
    workers: int | None,
    watch: Callable[[Tick], None],
    *,
    bytes_per_entry: int,
) -> IndexResult:
    """Index WebDataset shards or TFRecord files behind an address; see `index`."""
    unfinished.check_foreign(folder)
    with unfinished.own_folder(folder):
        local.check_indexed(folder, source)
        shards = find_shards(source, options)
        settings = local.make_settings(bytes_per_entry)
        # What decides an index of remote shards: it must be the same to go on with it.
        known = {
            "root": shards.root,
            "files": [(os.fsdecode(f.path), f.size_bytes, f.mtime_ns) for f in shards.files],
            "fields": [str(one) for one in shards.chosen.items()],
            **dump_entries(bytes_per_entry),
        }
        digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
        remove_temporaries(folder)
        size_bytes = sum(file.size_bytes for file in shards.files)
        fingerprint = {"files": len(shards.files), "bytes": size_bytes, "digest": digest}
        unfinished.begin(folder, settings, fingerprint)
        with explained(folder):
            (folder / unfinished.SURVEYS_NAME).mkdir(exist_ok=True)
        tasks = [
            SurveyTask(shards.pick(number), number, str(folder), digest, bytes_per_entry)
            for number in range(len(shards.files))
        ]
        missing, found = finish_tasks(
            "indexing", survey, tasks, find_survey, workers=workers, watch=watch, unit="shard"
        )
        if len(found) < len(tasks):
            raise _changed(folder)
        rejected = tuple(r for one in found for r in one.rejected)
        if not any(one.checksums for one in found):
            local.remove_all(folder, 0)
            raise local.nothing_to_index(shards.root, rejected)
        fields = unite_fields(found)
        plan = digest_plan(digest, fields, settings)
        done: list[ShardDone] = []
        first_number = 0
        for task, one in zip(tasks, found, strict=True):
            for part in range(len(one.checksums)):
                done.append(_settle(task, one, part, len(done), first_number, fields, plan))
            first_number += one.records
        result = local.conclude(folder, fields, done, rejected, {**settings, "plan": plan})
        unfinished.finish(folder)
    todo = {task.number for task in missing}
    kept = (one for task, one in zip(tasks, found, strict=True) if task.number not in todo)
    ignored = sum((Counter(one.ignored) for one in found), Counter[str]())
    return dataclasses.replace(
        result,
        resumed_parts=sum(len(one.checksums) for one in kept),
        left_out={name: why for one in found for name, why in one.left_out.items()},
        ignored=dict(sorted(ignored.items())),
    )
