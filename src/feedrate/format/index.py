# SPDX-License-Identifier: Apache-2.0
"""Write and read whole index parts with pyarrow; the loader reads single rows instead, without it (pack.py).

Many short byte strings (names, paths, entry points) are one piece of memory: a Python object each would
take ten times the memory, and more time than packing a small file does. Columns that are added to a pack
later are small Arrow files of their own. A row holds what a row of the index would hold of these fields, and
a checksum; the offsets of texts count from where their column's data begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from feedrate import kernel
from feedrate.errors import PackError, need
from feedrate.format.fields import Field, Kind, row_dtype, text_check
from feedrate.format.manifest import ColumnPart
from feedrate.kernel import I64

if TYPE_CHECKING:
    import pyarrow as pa

_TOGETHER = 4096


class ByteStrings(Sequence[bytes]):
    """Text `i` is `data[starts[i]:starts[i + 1]]`."""

    __slots__ = ("data", "starts")

    def __init__(self, data: bytes, starts: I64) -> None:
        self.data, self.starts = data, starts

    @classmethod
    def of(cls, values: Sequence[bytes]) -> ByteStrings:
        """Return values as they are if they are texts already."""
        if isinstance(values, ByteStrings):
            return values
        return cls.by_lengths(b"".join(values), np.fromiter(map(len, values), np.int64, len(values)))

    @classmethod
    def by_lengths(cls, data: bytes, lengths: I64) -> ByteStrings:
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return cls(data, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> ByteStrings: ...
    def __getitem__(self, index: int | slice) -> bytes | ByteStrings:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            assert step == 1, "texts are divided into neighbours"
            return ByteStrings(self.data, self.starts[first : max(first, stop) + 1])
        at = range(len(self))[index]
        return self.data[int(self.starts[at]) : int(self.starts[at + 1])]

    def __iter__(self) -> Iterator[bytes]:
        for first in range(0, len(self), _TOGETHER):
            bounds = self.starts[first : first + _TOGETHER + 1].tolist()
            for start, stop in pairwise(bounds):
                yield self.data[start:stop]

    def take(self, chosen: np.ndarray[Any, Any], before: bytes = b"") -> ByteStrings:
        """Return some of them, by number or by a mask, with `before` in front of each."""
        starts, lengths = self.starts[:-1][chosen], self.lengths[chosen]
        return ByteStrings.by_lengths(
            kernel.join_pieces(self.data, starts, lengths, before), lengths + len(before)
        )

    @property
    def lengths(self) -> I64:
        lengths: I64 = np.diff(self.starts)
        return lengths

    def find_first(self) -> int:
        """Return the number of the first by alphabet; of equal ones the first."""
        return kernel.find_first(*self.pack())

    def pack(self) -> tuple[bytes, I64]:
        """Return data that holds these and no others, and where each starts in it."""
        first, last = int(self.starts[0]), int(self.starts[-1])
        return self.data[first:last], self.starts - first


class TextsBuilder:
    """Texts that come one by one, or many at a time."""

    def __init__(self) -> None:
        self._pieces: list[ByteStrings] = []
        self._loose: list[bytes] = []

    def append(self, text: bytes) -> None:
        self._loose.append(text)

    def extend(self, texts: ByteStrings) -> None:
        self._gather()
        self._pieces.append(texts)

    def finish(self) -> ByteStrings:
        self._gather()
        return join_texts(self._pieces)

    def _gather(self) -> None:
        if self._loose:
            self._pieces.append(ByteStrings.of(self._loose))
            self._loose = []


def join_texts(pieces: Iterable[ByteStrings]) -> ByteStrings:
    """Return texts one behind the other."""
    packed = [piece.pack() for piece in pieces]
    lengths = [np.diff(starts) for _, starts in packed]
    return ByteStrings.by_lengths(
        b"".join(data for data, _ in packed), np.concatenate([np.zeros(0, np.int64), *lengths])
    )


METADATA_KEY = b"feedrate"


class Part(NamedTuple):
    """One index part in memory. `rows` has the type `row_dtype(fields)`; `variable` maps column to values."""

    rows: np.ndarray[Any, np.dtype[Any]]
    variable: Mapping[str, Sequence[bytes]]
    metadata: Mapping[str, Any]


def fill_derived(rows: np.ndarray[Any, np.dtype[Any]], variable: Mapping[str, Sequence[bytes]]) -> None:
    """Fill, in place, what follows from the rest: entry-point ranges, then each row's checksum."""
    for name in rows.dtype.names or ():
        if name.endswith(".entries"):
            rows[name] = _entry_ranges(variable[name])
    rows["check"] = kernel.crc32c_rows(rows)


def dump_part(fields: Sequence[Field], part: Part) -> bytes:
    """Return an Arrow file with one record batch: uncompressed, no nulls, equal input -> equal bytes."""
    pa = need("pyarrow")

    # From buffers: `cast`, and arrays of numpy's, would load parts of both libraries that are not needed here
    # and take as long as packing 10,000 small files.
    columns = _make_texts("key", pa.large_utf8(), part.variable["key"])
    for name in row_dtype(fields).names or ():
        if not name.endswith(".entries"):
            columns[name] = _make_fixed(np.ascontiguousarray(part.rows[name]))
    for field in fields:
        for name in field.variable_columns():
            columns |= _make_texts(name, pa.large_binary(), part.variable[name])
    return _dump_file(columns, {METADATA_KEY: json.dumps(part.metadata, sort_keys=True).encode()})


def _dump_file(columns: Mapping[str, pa.Array], metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    pa = need("pyarrow")

    batch = pa.record_batch(list(columns.values()), names=list(columns)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _make_fixed(values: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    pa = need("pyarrow")

    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _make_texts(name: str, kind: pa.DataType, values: Sequence[bytes]) -> dict[str, pa.Array]:
    """Return a variable-width column and, unless its values carry their own, that of their checksums."""
    pa = need("pyarrow")

    data, starts = ByteStrings.of(values).pack()
    column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(starts), pa.py_buffer(data)])
    if name.endswith(".entries"):
        return {name: column}
    return {name: column, text_check(name): _make_fixed(kernel.crc32c_texts(data, starts))}


def find_bad_texts(data: bytes, part: Part) -> list[tuple[int, str]]:
    """Return row and column of each text that does not fit its checksum. `part`: what `data` holds."""
    pa = need("pyarrow")

    batch = only_batch(pa.py_buffer(data))
    bad = []
    for name, values in part.variable.items():
        if text_check(name) in batch.schema.names:
            stored = batch.column(text_check(name)).to_numpy(zero_copy_only=False)
            checks = kernel.crc32c_texts(*ByteStrings.of(values).pack())
            bad += [(row, name) for row in np.flatnonzero(stored != checks).tolist()]
    return sorted(bad)


def locate_columns(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return where in an Arrow file's bytes the values of each column begin (see `manifest.IndexPart`).

    The bytes must be those of a good part: `parse_part` says whether they are.
    """
    pa = need("pyarrow")

    whole = pa.py_buffer(data)
    batch = only_batch(whole)
    positions = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        buffers = column.buffers()[1:]
        # An empty column has no memory to point at; nothing will be read there.
        positions[name] = tuple(b.address - whole.address if b is not None and b.size else 0 for b in buffers)
    return positions


def parse_part(data: bytes, fields: Sequence[Field], *, name: str) -> Part:
    pa = need("pyarrow")

    try:
        batch = only_batch(pa.py_buffer(data))
        batch.validate(full=True)
        metadata = dict(json.loads(batch.schema.metadata[METADATA_KEY]))
        keys = _checked(batch, "key", pa.large_utf8()).to_pylist()
        rows = np.zeros(len(keys), row_dtype(fields))
        for column in rows.dtype.names or ():
            if not column.endswith(".entries"):
                expected = pa.from_numpy_dtype(rows.dtype[column])
                rows[column] = _checked(batch, column, expected).to_numpy(zero_copy_only=False)
        variable: dict[str, list[bytes]] = {"key": [key.encode("ascii") for key in keys]}
        for field in fields:
            for column in field.variable_columns():
                variable[column] = _checked(batch, column, pa.large_binary()).to_pylist()
                if column.endswith(".entries"):
                    rows[column] = _entry_ranges(variable[column])
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise PackError(f"{name} is not an index part of this pack: {error}") from error
    return Part(rows, variable, metadata)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read only what a part says about itself."""
    pa = need("pyarrow")

    try:
        with pa.OSFile(os.fspath(path)) as source:
            document = json.loads(pa.ipc.open_file(source).schema.metadata[METADATA_KEY])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise PackError(f"{os.path.basename(path)} is not an index part: {error}") from error
    if not isinstance(document, dict):
        raise PackError(f"{os.path.basename(path)} is not an index part")
    return document


def only_batch(whole: pa.Buffer) -> pa.RecordBatch:
    """Return the one record batch of an Arrow file; raises what pyarrow raises, and ValueError."""
    pa = need("pyarrow")

    reader = pa.ipc.open_file(pa.BufferReader(whole))
    if reader.num_record_batches != 1:
        raise ValueError(f"it has {reader.num_record_batches} record batches, not 1")
    batch = reader.get_batch(0)
    # Looked at here, since the names of a damaged file need not be text.
    if len(set(batch.schema.names)) < batch.num_columns:
        raise ValueError("two of its columns have the same name")
    return batch


def _checked(batch: pa.RecordBatch, name: str, expected: pa.DataType) -> pa.Array:
    column = batch.column(name)
    if column.type != expected or column.null_count:
        raise ValueError(f"column '{name}' is {column.type} with {column.null_count} nulls, not {expected}")
    return column


def _entry_ranges(entries: Sequence[bytes]) -> np.ndarray[Any, np.dtype[Any]]:
    starts = ByteStrings.of(entries).pack()[1]
    return np.stack([starts[:-1], starts[1:]], axis=1)


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
        data, starts = ByteStrings.of(stored).pack()
        rows[f"{field.name}.offset"], rows[f"{field.name}.length"] = starts[:-1], np.diff(starts)
        rows[f"{field.name}.crc32c"] = kernel.crc32c_texts(data, starts)
        texts[field.name] = pa.array(stored, pa.large_binary())
    rows["check"] = kernel.crc32c_rows(rows)
    return _dump_file({**{name: pa.array(rows[name]) for name in rows.dtype.names or ()}, **texts})


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
    wrong = np.flatnonzero(rows["check"] != kernel.crc32c_rows(rows))
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
