# SPDX-License-Identifier: Apache-2.0
"""One HDF5 file of contiguous datasets, so that any reader of HDF5 takes it, and any value is a byte range.

    key, number, and every field of numbers    one value per sample
    FIELD                                      raw pixels and arrays that share one shape: N x shape
    FIELD/data, FIELD/offset, FIELD/length     all else: bytes end to end, and where each sample's are

Shards are written one by one, in any process, as parts: a part is its samples' bytes end to end. When all are
there, `packing.build.hdf5_join` lays out the file with `make_layout` and copies them to their places.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedrate.errors import MissingExtra, PackError
from feedrate.format.containers import Content, Member, Output
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.raw import bare_array

if TYPE_CHECKING:
    import h5py

FILE_NAME = "data.h5"
_BLOCK_SAMPLES = 4096


class Hdf5:
    name = "hdf5"

    def shard_name(self, number: int) -> str:
        return f"part-{number:05d}.bin"

    def write(self, output: Output) -> PartWriter:
        return PartWriter(output)

    def member_name(self, key: str, content: Content) -> str:
        return f"{key}.{content.field.name}"

    def dump_number(self, field: Field, value: int | float) -> bytes:
        return np.array(value, "<i8" if field.dtype == "int64" else "<f8").tobytes()

    def read_members(
        self, path: str | os.PathLike[str], fields: Sequence[Field], samples: range
    ) -> Iterator[Member]:
        h5py = import_h5py()
        try:
            with h5py.File(path, "r") as file:
                for start in range(samples.start, samples.stop, _BLOCK_SAMPLES):
                    block = range(start, min(start + _BLOCK_SAMPLES, samples.stop))
                    keys = [key.decode("ascii") for key in file["key"][block.start : block.stop].tolist()]
                    ranges = [_ranges(file, field, block) for field in fields]
                    for i, key in enumerate(keys):
                        for field, (offsets, lengths) in zip(fields, ranges, strict=True):
                            yield Member(f"{key}.{field.name}", int(offsets[i]), int(lengths[i]))
        except (OSError, KeyError, ValueError, RuntimeError, AttributeError, TypeError) as error:
            if isinstance(error, PackError):
                raise
            raise PackError(f"{os.path.basename(path)} is not the HDF5 file of a pack: {error}") from error


class PartWriter:
    """Also notes what the layout will depend on: sizes, and whether arrays all share one shape and type."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.size_bytes: dict[str, int] = {}
        self.bare: dict[str, list[Any] | None] = {}
        self.key_bytes = 1

    def add(self, key: str, contents: Sequence[Content]) -> list[int]:
        self.key_bytes = max(self.key_bytes, len(key))
        offsets = []
        for content in contents:
            offsets.append(self.output.size_bytes)
            if content.number is None:
                self._note(content.field, content.data)
                self.output.put(content.data)
        return offsets

    def _note(self, field: Field, data: bytes) -> None:
        name = field.name
        self.size_bytes[name] = self.size_bytes.get(name, 0) + len(data)
        if field.kind is Kind.ARRAY or field.coding is Coding.RAW:
            array = bare_array(data)
            found = None if array is None or not array.size else [array.dtype.str, list(array.shape)]
            if self.bare.setdefault(name, found) != found:
                self.bare[name] = None

    def end(self) -> Mapping[str, object]:
        return {"hdf5": {"size_bytes": self.size_bytes, "bare": self.bare, "key_bytes": self.key_bytes}}


class Column(NamedTuple):
    """A dataset to be made: its name, its type and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=object))


def make_columns(fields: Sequence[Field], samples: int, parts: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the datasets of a file; `parts` is what `PartWriter.end` noted of each part.

    The fields are those of the file: arrays without a header of their own have the coding raw.
    """
    key_bytes = max((int(part["key_bytes"]) for part in parts), default=1)
    columns = [Column("key", f"S{key_bytes}", (samples,)), Column("number", "<i8", (samples,))]
    for field in fields:
        if field.kind is Kind.NUMBER:
            columns.append(Column(field.name, "<i8" if field.dtype == "int64" else "<f8", (samples,)))
            continue
        bare = find_bare(field, parts)
        if bare is not None:
            columns.append(Column(field.name, bare[0], (samples, *bare[1])))
            continue
        size_bytes = sum(int(part["size_bytes"].get(field.name, 0)) for part in parts)
        columns += [
            Column(f"{field.name}/offset", "<i8", (samples,)),
            Column(f"{field.name}/length", "<i8", (samples,)),
            Column(f"{field.name}/data", "|u1", (size_bytes,)),
        ]
    return columns


def find_bare(field: Field, parts: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[int, ...]] | None:
    """Return type and shape of arrays that can be stored without their headers; None: they differ."""
    found = {
        str(part["bare"].get(field.name)): part["bare"].get(field.name) for part in parts if part["bare"]
    }
    if len(found) != 1 or None in found.values():
        return None
    ((dtype, shape),) = found.values()
    return str(dtype), tuple(int(n) for n in shape)


def make_layout(path: str, columns: Sequence[Column]) -> dict[str, int]:
    """Make an HDF5 file with these datasets, unwritten; return at which byte the values of each begin.

    Raises:
        OSError: the disk is full or failed.
    """
    h5py = import_h5py()
    try:
        # The oldest format that will do, so that old readers take it; no times, so that bytes are equal.
        with h5py.File(path, "w", libver=("earliest", "v110")) as file:
            for column in columns:
                _make_dataset(h5py, file, column)
            return {c.name: file[c.name].id.get_offset() or 0 for c in columns}
    except RuntimeError as error:  # from closing it: the cause is told by its number, in the text alone
        number = re.search(r"errno = ([0-9]+)", str(error))
        cause = int(number[1]) if number else errno.EIO
        raise OSError(cause, os.strerror(cause)) from error


def _make_dataset(h5py: Any, file: h5py.File, column: Column) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    group, _, name = column.name.rpartition("/")
    h5py.h5d.create(
        (file.require_group(group) if group else file).id,
        name.encode(),
        h5py.h5t.py_create(np.dtype(column.dtype), logical=True),
        h5py.h5s.create_simple(column.shape),
        settings,
    )


def _ranges(file: h5py.File, field: Field, block: range) -> tuple[Any, Any]:
    at = file[field.name]
    if hasattr(at, "id") and hasattr(at.id, "get_offset"):
        each = int(at.dtype.itemsize * np.prod(at.shape[1:], dtype=object))
        numbers = np.arange(block.start, block.stop, dtype=np.int64)
        return int(at.id.get_offset() or 0) + each * numbers, np.full(len(block), each, np.int64)
    offsets, lengths = (at[name][block.start : block.stop] for name in ("offset", "length"))
    return int(at["data"].id.get_offset() or 0) + offsets, lengths


def import_h5py() -> Any:
    """Return h5py.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(
            f"HDF5 needs h5py, which cannot be imported ({error})", hint="pip install 'feedrate[hdf5]'"
        ) from error
    return h5py
