# SPDX-License-Identifier: Apache-2.0
"""Index one shard that lies elsewhere: it is brought near, listed, looked at, and forgotten.

What all shards together decide (numbers of samples, classes, fields) is not known yet. So what is found of a
shard waits in the folder of the index as a survey; settling.py writes the parts of the index from it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedrate import kernel
from feedrate.errors import NotFound, PackError, StorageError
from feedrate.files.atomic import temporary_name
from feedrate.format.entries import AUTO, dump_entries
from feedrate.format.fields import Field
from feedrate.format.manifest import dump_field, load_field
from feedrate.pack import listing
from feedrate.pack.files import atomic_write
from feedrate.pack.indexing_task import Stretch, Stretches, look_at_samples
from feedrate.pack.listing import ListingWriter
from feedrate.pack.unfinished import SURVEYS_NAME
from feedrate.pack.workers import advance
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.remote.fetch import FetchedPlace, fetch, find_patiently
from feedrate.results.progress import Rejection
from feedrate.source.in_place import InPlace
from feedrate.source.shards import Shards
from feedrate.source.spool import Spool


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
    bytes_per_entry: int = AUTO

    @property
    def file(self) -> PlacedFile:
        (file,) = self.shards.files
        return file

    @property
    def path(self) -> Path:
        return Path(self.target) / SURVEYS_NAME / f"shard-{self.number:05d}.json"

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
    fields: tuple[Field, ...]
    rejected: tuple[Rejection, ...]
    left_out: Mapping[str, str]
    ignored: Mapping[str, int]
    checksums: tuple[int, ...]


def survey(task: SurveyTask) -> None:
    """Bring a shard near and write its survey; the JSON comes last, and appears only when all is there.

    Raises:
        SourceError: the shard is damaged, or its samples do not lie there as they are.
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
        found = _list(records, near)
        checksums = [_write_part(task, part, stretch, near) for part, stretch in enumerate(found.stretches)]
    finally:
        shutil.rmtree(near, ignore_errors=True)
    document = {
        "plan": task.plan, "records": found.records, "fields": {f.name: dump_field(f) for f in found.fields},
        "rejected": [(r.path, r.field, r.reason) for r in found.rejected],
        "left_out": records.left_out, "ignored": dict(records.reader.ignored), "checksums": checksums,
    }  # fmt: skip
    with atomic_write(task.path) as out:
        out.write(json.dumps(document).encode())
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


@dataclass(frozen=True, slots=True)
class _Listed:
    records: int
    fields: tuple[Field, ...]
    stretches: list[Stretch]
    rejected: list[Rejection]


def _list(records: InPlace, folder: Path) -> _Listed:
    rejected: list[Rejection] = []
    stretches, number = Stretches(), -1
    with atomic_write(folder / listing.NAME, is_durable=False) as out:
        writer = ListingWriter(out)
        for number, record in enumerate(records):
            if isinstance(record, Rejection):
                rejected.append(record)
                continue
            writer.add(number, record)
            stretches.add(record)
        fields = records.fields()
        writer.finish(fields)
    return _Listed(number + 1, fields, stretches.finish(), rejected)


def _write_part(task: SurveyTask, part: int, stretch: Stretch, near: Path) -> int:
    name = os.path.basename(os.fsdecode(task.file.path))
    entries = task.bytes_per_entry
    metadata = {"plan": task.plan, "shard": name, "bytes": task.file.size_bytes, **dump_entries(entries)}
    span = range(stretch.first, stretch.last)
    path = task.part_path(part)
    # Bytes were counted when they came.
    writer = look_at_samples(
        str(near), str(near), near / listing.NAME, span, lambda *_: advance(0, 0), bytes_per_entry=entries
    )
    writer.write_index(path, metadata)
    return kernel.crc32c(path.read_bytes())


def _refuse_change(source: Place, file: PlacedFile) -> None:
    address = source.address(file.path)
    try:
        found = find_patiently(source, file.path)
    except NotFound:
        found = None
    if found is None or (found.size_bytes, found.mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise StorageError(f"{address} changed while it was indexed", hint="run the same command again")


def describe_shards(shards: Shards, bytes_per_entry: int) -> dict[str, Any]:
    """Return what decides an index of shards elsewhere: it must be the same when it is gone on with."""
    return {
        "root": shards.root,
        "files": [(os.fsdecode(f.path), f.size_bytes, f.mtime_ns) for f in shards.files],
        "fields": [str(one) for one in shards.chosen.items()],
        **dump_entries(bytes_per_entry),
    }
