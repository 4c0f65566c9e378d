# SPDX-License-Identifier: Apache-2.0
"""HDF5 files: datasets of one length are the columns of a table, and a row of it is a sample."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import MissingExtra, SourceError
from feedrate.format.fields import Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source.columns import ColumnReader, Columns, find_word_labels
from feedrate.source.names import image_suffix, is_mask_name, record_name
from feedrate.source.record import ContainerValue, Record, Spool, Value, dump_array

_CLASS_NAMES = re.compile(r"class|label.*name|categor", re.IGNORECASE)
_MOST_CLASSES = 100_000
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**25
_BLOCK_FILES = 16
_CACHE_BYTES = 2**26  # of decompressed chunks, per dataset


class Column(NamedTuple):
    """What field a dataset makes, and how one of its rows becomes a value."""

    kind: Kind
    form: str  # "number", "text", "encoded", "pixels" or "array"


class Hdf5Reader(ColumnReader):
    """A sample per row of the datasets that are as long as the images are.

    Raises, when iterated:
        MissingExtra: h5py is not installed.
        SourceError: the file is damaged, or holds nothing that looks like samples.
    """

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool, group: str = "") -> None:
        super().__init__(place, files, spool)
        self._group = group
        self._datasets: dict[str, Column] = {}  # by their paths in the group

    def _read(self) -> Iterator[Record | Rejection]:
        others: Counter[str] = Counter()
        self._datasets = {}
        for file in self.files:
            address = self._place.address(file.path)
            with open_hdf5(self._place, file.path) as opened:
                columns, passed_over, classes = find_columns(opened, self._group, address)
                others.update(f"dataset {name}" for name in passed_over)
                if not self._datasets:
                    self._datasets = columns
                    self._columns = Columns({name: column.kind for name, column in columns.items()})
                    names = self._columns.names.items()
                    self._columns.classes = {name: classes for name, field in names if field == "label"}
                elif columns != self._datasets:
                    raise SourceError(
                        f"{address} holds other datasets than {self._place.address(self.files[0].path)}",
                        hint="pack each by itself",
                    )
                yield from self._read_rows(opened, file, address)
        self.ignored = dict(sorted(others.items()))

    def _read_rows(self, opened: Any, file: PlacedFile, address: str) -> Iterator[Record | Rejection]:
        datasets = {name: opened[self._group + name] for name in self._columns.names}
        rows = len(next(iter(datasets.values())))
        row_bytes = sum(_row_bytes(one) for one in datasets.values())
        step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        if any(self._datasets[name].form == "encoded" for name in datasets):
            step = min(step, _BLOCK_FILES)  # whose size nobody knows before they are read
        likes = {name: _like(self._datasets[name], dataset) for name, dataset in datasets.items()}
        # Rows are read while listing to know them, to know their size, or for good.
        forms = ("number", "text", "encoded")
        read = [name for name in datasets if self._datasets[name].form in forms or likes[name].is_dear]
        for start in range(0, rows, step):
            try:
                block = {name: datasets[name][start : start + step] for name in read}
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                raise SourceError(f"{address}: rows from {start:,} on cannot be read: {error}") from error
            for row in range(start, min(rows, start + step)):
                cells = {name: values[row - start] for name, values in block.items()}
                yield self._read_row(file, row, cells, likes)

    def _read_row(
        self, file: PlacedFile, row: int, cells: dict[str, Any], likes: dict[str, _Like]
    ) -> Record | Rejection:
        def read(dataset: str, path: bytes) -> Value:
            column, like = self._datasets[dataset], likes[dataset]
            if column.kind is Kind.NUMBER:
                return self._columns.numbers[dataset].add(_plain(cells[dataset]))
            if column.form == "text":
                return self._spool.keep(path + b".txt", dump_cell("text", cells[dataset]), file.mtime_ns)
            size, suffix = like.size_bytes, like.suffix
            if like.is_dear or column.form == "encoded":
                data = dump_cell(column.form, cells[dataset])
                size, suffix = len(data), suffix_of(column.kind, data)
                if like.is_dear:
                    return self._spool.add(path + suffix, data, file.mtime_ns)
            place = (self._group + dataset, row, column.form)
            return ContainerValue(path + suffix, size, file.path, "hdf5", place, file.mtime_ns)

        return self._columns.read(record_name(file.path, row), read)


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


def find_columns(
    opened: Any, group: str, address: str
) -> tuple[dict[str, Column], list[str], tuple[str, ...] | None]:
    """Return the datasets that hold samples, the names of the others, and those of the classes if given."""
    import h5py

    datasets: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.ndim and len(node):
            if node.external or node.is_virtual:
                raise SourceError(f"{address}: '{name}' takes its data from other files: refused")
            datasets[name] = node

    if group and group not in opened:
        raise SourceError(
            f"{address} has no group '{group}'", hint=f"it holds: {', '.join(sorted(opened)[:10])}"
        )
    try:
        (opened[group] if group else opened).visititems(visit)
    except SourceError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{address} cannot be read as HDF5: {error}") from error
    _refuse_pack(datasets, address)
    columns = {
        name: column for name, one in datasets.items() if (column := _column_of(name, one)) is not None
    }
    kinds = {name: column.kind for name, column in columns.items()}
    for name in find_word_labels(kinds, lambda name: name.rpartition("/")[2]):
        columns[name] = Column(Kind.NUMBER, "number")
    lengths = defaultdict(list)
    for name in columns:
        lengths[len(datasets[name])].append(name)
    with_images = [n for n, names in lengths.items() if any(columns[c].kind is Kind.IMAGE for c in names)]
    if len(with_images) > 1:
        counts = ", ".join(f"{n:,}" for n in sorted(with_images))
        parts = sorted({c.rpartition("/")[0] for n in with_images for c in lengths[n]})
        raise SourceError(
            f"{address} holds several sets of images, of {counts} rows",
            hint=f"name the group of one of them: {address}/{parts[-1]}",
        )
    if not columns:
        shown = ", ".join(f"{name} {one.dtype} {one.shape}" for name, one in list(datasets.items())[:4])
        raise SourceError(
            f"{address} holds no dataset of images, numbers, texts or arrays",
            hint=f"it holds: {shown or 'none'}",
        )
    rows = with_images[0] if with_images else max(lengths, key=lambda n: (len(lengths[n]), n))
    chosen = {name: columns[name] for name in lengths[rows]}
    others = [name for name in datasets if name not in chosen]
    return chosen, others, _class_names({name: datasets[name] for name in others})


def _refuse_pack(datasets: Mapping[str, Any], address: str) -> None:
    """Bytes end to end, and where each sample's are: rows of that would be numbers without an image."""
    parts = [name.removesuffix("/offset") for name in datasets if name.endswith("/offset")]
    if {"key", "number"} <= datasets.keys() and any(
        f"{part}/{rest}" in datasets for part in parts for rest in ("data", "length")
    ):
        folder = os.path.dirname(address) or "."
        raise SourceError(
            f"{address} is part of a feedrate pack",
            hint=f"use the pack as it is: feedrate ls {shlex.quote(folder)}; or, to pack it otherwise,"
            " its source or what feedrate unpack gives",
        )


def _column_of(name: str, dataset: Any) -> Column | None:
    import h5py

    dtype = dataset.dtype
    looks_like_mask = is_mask_name(name.rpartition("/")[2])
    element = h5py.check_vlen_dtype(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        return Column(Kind.TEXT, "text") if dataset.ndim == 1 else None
    if element is not None or dtype.kind == "V":
        if dataset.ndim > 1 or dtype.fields or (element is not None and np.dtype(element) != np.uint8):
            return None
        is_image = image_suffix(dump_cell("encoded", dataset[0])) is not None
        kind = Kind.BYTES if not is_image else Kind.MASK if looks_like_mask else Kind.IMAGE
        return Column(kind, "encoded")
    if dtype.kind not in "biuf":
        return None
    if dataset.ndim == 1 or dataset.shape[1:] == (1,):
        return Column(Kind.NUMBER, "number")
    if dtype == np.uint8 and _has_image_shape(dataset.shape[1:]):
        is_mask = looks_like_mask and (dataset.ndim == 3 or 1 in dataset.shape[1:])
        return Column(Kind.MASK if is_mask else Kind.IMAGE, "pixels")
    return Column(Kind.ARRAY, "array")


def _has_image_shape(shape: tuple[int, ...]) -> bool:
    if len(shape) == 3:
        return (shape[2] in (1, 3, 4) and min(shape[:2]) > 1) or (shape[0] in (1, 3) and min(shape[1:]) > 1)
    return len(shape) == 2 and min(shape) > 1


def _class_names(others: dict[str, Any]) -> tuple[str, ...] | None:
    import h5py

    for name, dataset in others.items():
        is_text = h5py.check_string_dtype(dataset.dtype) is not None and dataset.ndim == 1
        if is_text and _CLASS_NAMES.search(name) and len(dataset) <= _MOST_CLASSES:
            return tuple(
                one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in dataset[:]
            )
    return None


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


def dump_cell(form: str, cell: Any) -> bytes:
    """Return the bytes of one row: a file as it is, an image without compression, or .npy."""
    if form == "text":
        return cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogateescape")
    if form == "encoded":
        return cell if isinstance(cell, bytes) else np.asarray(cell, np.uint8).tobytes()
    if form == "array":
        return dump_array(np.ascontiguousarray(cell))
    return _dump_pixels(np.asarray(cell))


def suffix_of(kind: Kind, data: bytes) -> bytes:
    if kind in (Kind.IMAGE, Kind.MASK):
        suffix = {b"P5": "pgm", b"P6": "ppm"}.get(data[:2]) or image_suffix(data) or "bin"
        return b"." + suffix.encode()
    return {Kind.TEXT: b".txt", Kind.ARRAY: b".npy"}.get(kind, b".bin")


def _dump_pixels(pixels: np.ndarray) -> bytes:
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()
    # The plainest of image files: a head and the pixels.
    head = b"P%d\n%d %d\n255\n" % (5 if pixels.ndim == 2 else 6, pixels.shape[1], pixels.shape[0])
    return head + np.ascontiguousarray(pixels).tobytes()


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
