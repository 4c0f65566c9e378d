# SPDX-License-Identifier: Apache-2.0
"""From the surveys of shards that lie elsewhere to the parts of an index: what all shards say together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedrate.errors import SourceError, StorageError
from feedrate.format.containers import RANGES
from feedrate.format.fields import Field, Kind, row_dtype
from feedrate.format.index import Part, dump_part, fill_derived, parse_part
from feedrate.pack.files import atomic_write
from feedrate.pack.indexing_task import index_name
from feedrate.pack.shard import ShardDone, read_part_done
from feedrate.pack.surveying import Survey, SurveyTask


def unite_fields(surveys: Sequence[Survey]) -> tuple[Field, ...]:
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


@dataclass(frozen=True, slots=True)
class SettleTask:
    """A part of a survey that becomes part `number` of the index."""

    survey: SurveyTask
    part: int
    number: int
    first_number: int
    before: tuple[Field, ...]
    fields: tuple[Field, ...]
    plan: str


def settle(task: SettleTask) -> None:
    """Write a part of the index: with the numbers of all samples, and the classes of all shards."""
    data = task.survey.part_path(task.part).read_bytes()
    part = parse_part(data, task.before, name=task.survey.part_path(task.part).name)
    rows = np.zeros(len(part.rows), row_dtype(task.fields))
    for name in rows.dtype.names or ():
        rows[name] = part.rows[name]
    rows["number"] += task.first_number
    before = {field.name: field for field in task.before}
    for field in task.fields:
        if field.classes is not None:
            numbers = {text: number for number, text in enumerate(field.classes)}
            here = np.array([numbers[text] for text in before[field.name].classes or ()], np.int64)
            rows[field.name] = here[part.rows[field.name]]
    variable = {name: part.variable[name] for name in ["key", *_variable_columns(task.fields)]}
    fill_derived(rows, variable)
    written = dump_part(task.fields, Part(rows, variable, {**part.metadata, "plan": task.plan}))
    with atomic_write(Path(task.survey.target) / index_name(task.number), expected_bytes=len(written)) as out:
        out.write(written)


def _variable_columns(fields: Sequence[Field]) -> Iterator[str]:
    return (name for field in fields for name in field.variable_columns())


def read_settled(task: SettleTask) -> ShardDone:
    """Return what `settle` wrote.

    Raises:
        StorageError: it is not there any more.
    """
    file = task.survey.file
    folder, _, name = task.survey.shards.address(file).rpartition("/")
    done = read_part_done(Path(task.survey.target), index_name(task.number), name, task.plan, RANGES)
    if done is None:
        raise StorageError(
            f"{task.survey.target} changed while it was written", hint="run the same command again"
        )
    shard = dataclasses.replace(done.shard, folder=folder, mtime_ns=file.mtime_ns)
    return done._replace(shard=shard)
