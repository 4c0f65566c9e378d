# SPDX-License-Identifier: Apache-2.0
"""HDF5 files: datasets of one length are the columns of a table, and a row of it is a sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedrate.errors import MissingExtra, SourceError
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.hdf5_columns import Column, dump_cell, find_columns, suffix_of
from feedrate.source.labels import NumberColumn
from feedrate.source.names import name_fields, record_name
from feedrate.source.record import ContainerValue, Record, Value
from feedrate.source.spool import Spool, SpooledReader
from feedrate.source.values import UnusableValue
from feedrate.units import printable

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**25
_BLOCK_FILES = 16
_CACHE_BYTES = 2**26  # of decompressed chunks, per dataset


class Hdf5Reader(SpooledReader):
    """A sample per row of the datasets that are as long as the images are.

    Raises, when iterated:
        MissingExtra: h5py is not installed.
        SourceError: the file is damaged, or holds nothing that looks like samples.
    """

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool, group: str = "") -> None:
        self.root = place.root
        self.ignored: dict[str, int] = {}
        self._place, self._files, self._spool, self._group = place, files, spool, group
        self._columns: dict[str, Column] = {}
        self._names: dict[str, str] = {}
        self._numbers: dict[str, NumberColumn] = {}

    def _read(self) -> Iterator[Record | Rejection]:
        others: Counter[str] = Counter()
        self._columns = {}
        for file in self._files:
            address = self._place.address(file.path)
            with open_hdf5(self._place, file.path) as opened:
                columns, passed_over, classes = find_columns(opened, self._group, address)
                others.update(f"dataset {name}" for name in passed_over)
                if not self._columns:
                    self._take(columns, classes)
                elif columns != self._columns:
                    raise SourceError(
                        f"{address} holds other datasets than {self._place.address(self._files[0].path)}",
                        hint="pack each by itself",
                    )
                yield from self._read_rows(opened, file, address)
        self.ignored = dict(sorted(others.items()))

    def fields(self) -> tuple[Field, ...]:
        return tuple(
            self._numbers[name].field() if name in self._numbers else Field(field, self._columns[name].kind)
            for name, field in self._names.items()
        )

    def _take(self, columns: dict[str, Column], classes: tuple[str, ...] | None) -> None:
        names = name_fields({name: column.kind for name, column in columns.items()})
        order = sorted(names, key=lambda name: (names[name] != "image", names[name] != "label"))
        self._names = {name: names[name] for name in order}
        self._columns = columns
        self._numbers = {
            name: NumberColumn(field, classes if field == "label" else None)
            for name, field in self._names.items()
            if columns[name].kind is Kind.NUMBER
        }

    def _read_rows(self, opened: Any, file: PlacedFile, address: str) -> Iterator[Record | Rejection]:
        datasets = {name: opened[self._group + name] for name in self._names}
        rows = len(next(iter(datasets.values())))
        row_bytes = sum(_row_bytes(one) for one in datasets.values())
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        if any(self._columns[name].form == "encoded" for name in self._names):
            step = min(step, _BLOCK_FILES)  # whose size nobody knows before they are read
        likes = {name: _like(self._columns[name], dataset) for name, dataset in datasets.items()}
        for start in range(0, rows, step):
            try:
                block = {
                    name: datasets[name][start : start + step]
                    for name in self._names
                    if self._is_read(datasets[name], name)
                }
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                raise SourceError(f"{address}: rows from {start:,} on cannot be read: {error}") from error
            for row in range(start, min(rows, start + step)):
                cells = {name: values[row - start] for name, values in block.items()}
                yield self._read_row(file, row, cells, likes)

    def _is_read(self, dataset: Any, name: str) -> bool:
        """Return whether rows are read while listing: to know them, to know their size, or for good."""
        return self._columns[name].form in ("number", "text", "encoded") or _is_dear(dataset)

    def _read_row(
        self, file: PlacedFile, row: int, cells: dict[str, Any], likes: dict[str, _Like]
    ) -> Record | Rejection:
        name = record_name(file.path, row)
        values: dict[str, Value] = {}
        field = ""
        try:
            for dataset, field in self._names.items():
                column = self._columns[dataset]
                path = name + (b"" if field == "image" else b"." + field.encode())
                if column.kind is Kind.NUMBER:
                    values[field] = self._numbers[dataset].add(_plain(cells[dataset]))
                elif column.form == "text":
                    values[field] = self._spool.keep(
                        path + b".txt", dump_cell("text", cells[dataset]), file.mtime_ns
                    )
                elif likes[dataset].is_dear:
                    data = dump_cell(column.form, cells[dataset])
                    values[field] = self._spool.add(path + suffix_of(column.kind, data), data, file.mtime_ns)
                else:
                    values[field] = self._hold(file, row, column, path, cells.get(dataset), likes[dataset])
        except (UnusableValue, ValueError) as error:
            return Rejection(printable(name), field, str(error))
        return Record(name, values)

    def _hold(
        self, file: PlacedFile, row: int, column: Column, path: bytes, cell: Any, like: _Like
    ) -> ContainerValue:
        size, suffix = like.size_bytes, like.suffix
        if column.form == "encoded":
            data = dump_cell("encoded", cell)
            size, suffix = len(data), suffix_of(column.kind, data)
        place = (self._group + column.name, row, column.form)
        return ContainerValue(path + suffix, size, file.path, "hdf5", place, file.mtime_ns)


@dataclass(frozen=True, slots=True)
class _Like:
    """What all rows of a dataset have in common when they are given out."""

    is_dear: bool
    size_bytes: int = 0
    suffix: bytes = b""


def _like(column: Column, dataset: Any) -> _Like:
    if column.form not in ("pixels", "array"):
        return _Like(_is_dear(dataset))
    data = dump_cell(column.form, np.zeros(dataset.shape[1:], dataset.dtype))
    suffix = suffix_of(column.kind, data)
    # Only PNG differs in size from row to row, and is at most a little larger than its pixels.
    size_bytes = len(data) if suffix != b".png" else _row_bytes(dataset) * 101 // 100 + 65_536
    return _Like(_is_dear(dataset), size_bytes, suffix)


def open_hdf5(place: Place, file: bytes) -> Any:
    """Open a file with h5py; it can be used in `with`."""
    address = place.address(file)
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra(
            f"{address} is an HDF5 file, and h5py is not installed", hint="pip install 'feedrate[hdf5]'"
        ) from error
    try:
        # A file of this machine is read by the library itself, which is quicker.
        target = place.open(file) if place.is_remote else os.path.join(os.fsencode(place.root), file)
        return h5py.File(target, "r", rdcc_nbytes=_CACHE_BYTES)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise SourceError(f"{address} cannot be read as HDF5: {error}") from error


def _plain(cell: Any) -> int | float | str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8")
    if isinstance(cell, str):
        return cell
    value = np.asarray(cell).reshape(-1)[0].item()
    return int(value) if isinstance(value, bool) else value


def _row_bytes(dataset: Any) -> int:
    per_row = int(np.prod(dataset.shape[1:], dtype=np.int64))
    return per_row * int(dataset.dtype.itemsize)


def _is_dear(dataset: Any) -> bool:
    """Return whether a row costs a chunk of many rows, and the chunks do not all fit into the cache."""
    return (
        dataset.chunks is not None
        and dataset.chunks[0] > 1
        and dataset.size * dataset.dtype.itemsize > _CACHE_BYTES
    )
