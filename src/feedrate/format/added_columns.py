# SPDX-License-Identifier: Apache-2.0
"""Columns that were added to a pack: small Arrow files whose rows are samples in stored order.

A row holds what a row of the index would hold of these fields, and a checksum of its own. The bytes of texts
lie in the same file, and their offsets count from where that column's data begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import PackError, need
from feedrate.format.fields import Field, Kind
from feedrate.format.index import locate_columns, only_batch, row_checks
from feedrate.format.manifest import ColumnPart

Values = Mapping[str, "np.ndarray[Any, np.dtype[Any]] | Sequence[bytes]"]


def part_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """Return the type of one row of a part that holds these fields."""
    columns: list[Any] = [column for field in fields for column in field.row_columns()]
    return np.dtype([*columns, ("check", "<u4")])


def dump_columns(fields: Sequence[Field], values: Values, samples: int) -> bytes:
    """Return the Arrow file of a part: of each field its numbers, or the bytes of its texts."""
    pa = need("pyarrow")

    rows = np.zeros(samples, part_dtype(fields))
    texts: dict[str, Any] = {}
    for field in fields:
        if field.kind is Kind.NUMBER:
            rows[field.name] = values[field.name]
            continue
        stored: Sequence[bytes] = values[field.name]  # type: ignore[assignment]
        lengths = np.array([len(text) for text in stored], np.int64)
        rows[f"{field.name}.offset"] = np.cumsum(lengths) - lengths
        rows[f"{field.name}.length"] = lengths
        rows[f"{field.name}.crc32c"] = [kernel.crc32c(text) for text in stored]
        texts[field.name] = pa.array(stored, pa.large_binary())
    rows["check"] = _checks(rows)
    columns = {name: pa.array(rows[name]) for name in rows.dtype.names or ()}
    columns |= texts
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _checks(rows: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the checksum of each row; of classes, of which there are few, each is computed once."""
    names = rows.dtype.names or ()
    if len(names) > 2:
        return row_checks(rows)
    _, first, which = np.unique(rows[names[0]].view("<i8"), return_index=True, return_inverse=True)
    return row_checks(rows[first])[which]


def make_part(name: str, fields: Sequence[Field], data: bytes, *, first: int, samples: int) -> ColumnPart:
    """Return the entry of a part for pack.json."""
    return ColumnPart(
        name=name,
        size_bytes=len(data),
        crc32c=kernel.crc32c(data),
        first=first,
        samples=samples,
        fields=tuple(field.name for field in fields),
        columns=locate_columns(data),
    )


def check_columns(data: bytes, part: ColumnPart, fields: Sequence[Field]) -> list[str]:
    """Return what is wrong with a part, in words; nothing when it is good."""
    pa = need("pyarrow")

    if len(data) != part.size_bytes:
        return [f"has {len(data)} bytes, pack.json says {part.size_bytes}"]
    if kernel.crc32c(data) != part.crc32c:
        return ["its bytes are not those that were added (checksum of the file)"]
    try:
        batch = only_batch(pa.py_buffer(data))
        batch.validate(full=True)
        rows = np.zeros(batch.num_rows, part_dtype(fields))
        for name in rows.dtype.names or ():
            rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
        if dict(part.columns) != locate_columns(data):
            return ["its columns do not begin where pack.json says"]
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError, PackError) as error:
        return [f"is not a column of this pack: {error}"]
    if len(rows) != part.samples:
        return [f"has {len(rows)} samples, pack.json says {part.samples}"]
    wrong = np.flatnonzero(rows["check"] != _checks(rows))
    problems = [f"row {number} fails its checksum" for number in wrong[:5].tolist()]
    for field in fields:
        if field.kind is not Kind.NUMBER:
            problems += _check_texts(field, rows, batch.column(field.name).to_pylist())
        elif field.classes is not None:
            strange = np.flatnonzero((rows[field.name] < -1) | (rows[field.name] >= len(field.classes)))
            problems += [f"row {n} has class {rows[field.name][n]} of '{field.name}'" for n in strange[:5]]
    return problems


def _check_texts(field: Field, rows: Any, texts: Sequence[bytes]) -> list[str]:
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if row[f"{field.name}.length"] != len(text) or row[f"{field.name}.crc32c"] != kernel.crc32c(text):
            return [f"row {number} does not fit its text of field '{field.name}'"]
    return []
