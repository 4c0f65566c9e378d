# SPDX-License-Identifier: Apache-2.0
"""Write and read whole index parts with pyarrow. (The loader does not: it reads single rows, see pack.py.)"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrate import kernel
from feedrate.errors import PackError
from feedrate.format.fields import Field, row_dtype

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_KEY = b"feedrate"


@dataclass(frozen=True, slots=True)
class Part:
    """One index part in memory. `rows` has the type `row_dtype(fields)`; `variable` maps column to values."""

    rows: np.ndarray[Any, np.dtype[Any]]
    variable: Mapping[str, Sequence[bytes]]
    metadata: Mapping[str, Any]


def fill_derived(rows: np.ndarray[Any, np.dtype[Any]], variable: Mapping[str, Sequence[bytes]]) -> None:
    """Fill, in place, what follows from the rest: entry-point ranges, then each row's checksum."""
    for name in rows.dtype.names or ():
        if name.endswith(".entries"):
            stops = np.cumsum([0, *map(len, variable[name])])
            rows[name] = np.stack([stops[:-1], stops[1:]], axis=1)
    width = rows.dtype.itemsize
    raw = rows.view(np.uint8).reshape(len(rows), width)
    rows["check"] = [kernel.crc32c(line[: width - 4].tobytes()) for line in raw]


def dump_part(fields: Sequence[Field], part: Part) -> bytes:
    """Return the bytes of an Arrow file with one record batch: uncompressed, no nulls, equal input -> equal bytes."""
    import pyarrow as pa

    columns = {"key": pa.array([k.decode("ascii") for k in part.variable["key"]], pa.large_utf8())}
    for name in row_dtype(fields).names or ():
        if not name.endswith(".entries"):
            columns[name] = pa.array(part.rows[name])
    for field in fields:
        for name in field.variable_columns():
            columns[name] = pa.array(part.variable[name], pa.large_binary())
    metadata = {METADATA_KEY: json.dumps(part.metadata, sort_keys=True).encode()}
    batch = pa.record_batch(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def locate_columns(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return where in an Arrow file's bytes the values of each column begin (see `manifest.IndexPart`)."""
    import pyarrow as pa

    whole = pa.py_buffer(data)
    batch = _only_batch(whole)
    positions = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        buffers = column.buffers()[1:]
        # An empty column has no memory to point at; nothing will be read there.
        positions[name] = tuple(b.address - whole.address if b is not None and b.size else 0 for b in buffers)
    return positions


def read_part(path: str | os.PathLike[str], fields: Sequence[Field]) -> Part:
    """Read a whole index part.

    Raises:
        PackError: the file is not an index part with these fields.
    """
    return parse_part(Path(path).read_bytes(), fields, name=os.path.basename(path))


def parse_part(data: bytes, fields: Sequence[Field], *, name: str) -> Part:
    import pyarrow as pa

    try:
        batch = _only_batch(pa.py_buffer(data))
        batch.validate(full=True)
        metadata = json.loads(batch.schema.metadata[METADATA_KEY])
        rows = np.zeros(batch.num_rows, row_dtype(fields))
        for column in rows.dtype.names or ():
            if not column.endswith(".entries"):
                rows[column] = batch.column(column).to_numpy(zero_copy_only=False)
        variable: dict[str, list[bytes]] = {"key": [k.encode("ascii") for k in batch.column("key").to_pylist()]}
        for field in fields:
            for column in field.variable_columns():
                variable[column] = batch.column(column).to_pylist()
                if column.endswith(".entries"):
                    stops = np.cumsum([0, *map(len, variable[column])])
                    rows[column] = np.stack([stops[:-1], stops[1:]], axis=1)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise PackError(f"{name} is not an index part of this pack: {error}") from error
    return Part(rows, variable, metadata)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read only what a part says about itself."""
    import pyarrow as pa

    try:
        with pa.OSFile(os.fspath(path)) as source:
            document = json.loads(pa.ipc.open_file(source).schema.metadata[METADATA_KEY])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise PackError(f"{os.path.basename(path)} is not an index part: {error}") from error
    if not isinstance(document, dict):
        raise PackError(f"{os.path.basename(path)} is not an index part")
    return document


def _only_batch(whole: pa.Buffer) -> pa.RecordBatch:
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.BufferReader(whole))
    if reader.num_record_batches != 1:
        raise ValueError(f"it has {reader.num_record_batches} record batches, not 1")
    return reader.get_batch(0)
