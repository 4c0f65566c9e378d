# SPDX-License-Identifier: Apache-2.0
"""Which datasets of an HDF5 file are columns of one table, and what bytes a row of each becomes."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.fields import Kind
from feedrate.source.names import image_suffix, is_label_name, is_mask_name
from feedrate.source.values import dump_array

_CLASS_NAMES = re.compile(r"class|label.*name|categor", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset, and how one of its rows becomes a value."""

    name: str  # its path in the file
    kind: Kind
    form: str  # "number", "text", "encoded", "pixels" or "array"


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
    _use_words_as_label(columns)
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
    """Bytes end to end, and where each sample's lie: rows of that would be numbers without an image."""
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
        return Column(name, Kind.TEXT, "text") if dataset.ndim == 1 else None
    if element is not None or dtype.kind == "V":
        if dataset.ndim > 1 or dtype.fields or (element is not None and np.dtype(element) != np.uint8):
            return None
        is_image = image_suffix(dump_cell("encoded", dataset[0])) is not None
        kind = Kind.BYTES if not is_image else Kind.MASK if looks_like_mask else Kind.IMAGE
        return Column(name, kind, "encoded")
    if dtype.kind not in "biuf":
        return None
    if dataset.ndim == 1 or dataset.shape[1:] == (1,):
        return Column(name, Kind.NUMBER, "number")
    if dtype == np.uint8 and _has_image_shape(dataset.shape[1:]):
        is_mask = looks_like_mask and (dataset.ndim == 3 or 1 in dataset.shape[1:])
        return Column(name, Kind.MASK if is_mask else Kind.IMAGE, "pixels")
    return Column(name, Kind.ARRAY, "array")


def _has_image_shape(shape: tuple[int, ...]) -> bool:
    if len(shape) == 3:
        return (shape[2] in (1, 3, 4) and min(shape[:2]) > 1) or (shape[0] in (1, 3) and min(shape[1:]) > 1)
    return len(shape) == 2 and min(shape) > 1


def _use_words_as_label(columns: dict[str, Column]) -> None:
    """Without a number that is called label, a text of that name is the label."""
    bases = {name: name.rpartition("/")[2] for name in columns}
    if any(columns[name].kind is Kind.NUMBER and is_label_name(base) for name, base in bases.items()):
        return
    for name, base in bases.items():
        if columns[name].form == "text" and is_label_name(base):
            columns[name] = Column(name, Kind.NUMBER, "number")


def _class_names(others: dict[str, Any]) -> tuple[str, ...] | None:
    import h5py

    for name, dataset in others.items():
        is_text = h5py.check_string_dtype(dataset.dtype) is not None and dataset.ndim == 1
        if is_text and _CLASS_NAMES.search(name) and len(dataset) <= 100_000:
            return tuple(
                one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in dataset[:]
            )
    return None


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
