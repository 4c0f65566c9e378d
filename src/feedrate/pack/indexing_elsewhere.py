# SPDX-License-Identifier: Apache-2.0
"""`feedrate index ADDRESS`: shards that lie elsewhere -> an index of them on this machine.

    find       which shards there are, and by the first samples, which fields
    survey     each shard is brought once, looked at and forgotten; as many at a time as there are workers
    settle     what all of them say together: the parts of the index, as if the shards had lain here

An interrupted run keeps its surveys, and goes on with the shards that have none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from feedrate.errors import SourceError, StorageError
from feedrate.format.fields import Field
from feedrate.pack.files import explained, remove_temporaries
from feedrate.pack.indexing import make_settings, refuse_indexed, remove_all, summarise, write_manifest
from feedrate.pack.plan import digest_plan
from feedrate.pack.settling import SettleTask, read_settled, settle, unite_fields
from feedrate.pack.surveying import Survey, SurveyTask, describe_shards, find_survey, survey
from feedrate.pack.unfinished import SURVEYS_NAME, begin, finish, own_folder, refuse_foreign
from feedrate.pack.workers import run_tasks
from feedrate.results.index import IndexResult
from feedrate.results.progress import Tick
from feedrate.source.options import SourceOptions
from feedrate.source.shards import Shards, find_shards


def index_elsewhere(
    source: str,
    folder: Path,
    options: SourceOptions,
    workers: int | None,
    watch: Callable[[Tick], None],
    *,
    bytes_per_entry: int,
) -> IndexResult:
    """Index WebDataset shards or TFRecord files behind an address; see `index`."""
    refuse_foreign(folder)
    with own_folder(folder):
        refuse_indexed(folder)
        shards = find_shards(source, options)
        digest = _digest(shards, bytes_per_entry)
        remove_temporaries(folder)
        size_bytes = sum(file.size_bytes for file in shards.files)
        settings = make_settings(bytes_per_entry)
        begin(folder, settings, {"files": len(shards.files), "bytes": size_bytes, "digest": digest})
        with explained(folder):
            (folder / SURVEYS_NAME).mkdir(exist_ok=True)
        result = _index(shards, folder, digest, workers, watch, bytes_per_entry)
        finish(folder)
    return dataclasses.replace(result, source=source)


def _digest(shards: Shards, bytes_per_entry: int) -> str:
    return hashlib.sha256(json.dumps(describe_shards(shards, bytes_per_entry)).encode()).hexdigest()


def _index(
    shards: Shards,
    folder: Path,
    digest: str,
    workers: int | None,
    watch: Callable[[Tick], None],
    bytes_per_entry: int,
) -> IndexResult:
    tasks = [
        SurveyTask(shards.pick(number), number, str(folder), digest, bytes_per_entry)
        for number in range(len(shards.files))
    ]
    missing = [task for task in tasks if find_survey(task) is None]
    _survey(tasks, missing, workers, watch)
    found = [one for task in tasks if (one := find_survey(task)) is not None]
    if len(found) < len(tasks):
        raise StorageError(f"{folder} changed while it was written", hint="run the same command again")
    rejected = tuple(r for one in found for r in one.rejected)
    if not any(one.checksums for one in found):
        remove_all(folder, 0)
        first = f": '{rejected[0].path}': {rejected[0].reason}" if rejected else ""
        raise SourceError(f"there is nothing to index in {shards.root}{first}")
    fields = unite_fields(found)
    settings = make_settings(bytes_per_entry)
    plan = digest_plan(digest, fields, settings)
    settling = list(_list_parts(tasks, found, fields, plan))
    for part in settling:
        settle(part)
    done = [read_settled(task) for task in settling]
    rejected += tuple(r for one in done for r in one.rejected)
    manifest = write_manifest(folder, fields, done, rejected, {**settings, "plan": plan})
    ignored: Counter[str] = Counter()
    for one in found:
        ignored.update(one.ignored)
    resumed = {task.number for task in tasks} - {task.number for task in missing}
    return dataclasses.replace(
        summarise(shards.root, folder, manifest, done, rejected),
        resumed_parts=sum(len(found[number].checksums) for number in resumed),
        left_out={name: why for one in found for name, why in one.left_out.items()},
        ignored=dict(sorted(ignored.items())),
    )


def _survey(
    tasks: Sequence[SurveyTask],
    missing: Sequence[SurveyTask],
    workers: int | None,
    watch: Callable[[Tick], None],
) -> None:
    total_bytes, left_bytes = (sum(task.file.size_bytes for task in some) for some in (tasks, missing))

    def report(files: int, size_bytes: int) -> None:
        done, done_bytes = len(tasks) - len(missing) + files, total_bytes - left_bytes + size_bytes
        watch(Tick("indexing", done, len(tasks), done_bytes, total_bytes, "shard"))

    report(0, 0)
    for _ in run_tasks(survey, missing, workers=workers, size_bytes=left_bytes, watch=report):
        pass


def _list_parts(
    tasks: Sequence[SurveyTask], found: Sequence[Survey], fields: tuple[Field, ...], plan: str
) -> Iterator[SettleTask]:
    number = first_number = 0
    for task, one in zip(tasks, found, strict=True):
        for part in range(len(one.checksums)):
            yield SettleTask(task, part, number, first_number, one.fields, fields, plan)
            number += 1
        first_number += one.records
