# SPDX-License-Identifier: Apache-2.0
"""The kinds of fields a sample can have, and the index columns that each kind needs."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedrate.errors import UsageError

RESERVED_NAMES = frozenset({"key", "number", "check"})
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Kind(str, enum.Enum):
    IMAGE = "image"  # decoded to uint8 pixels, cropped, resized, flipped
    MASK = "mask"  # pixels that are names, not colours: follows the image by nearest neighbour
    BOXES = "boxes"  # rows of left, top, right, bottom, ... in pixels: follow the image by arithmetic
    ARRAY = "array"  # .npy
    TEXT = "text"
    NUMBER = "number"  # lives in the index itself, so that reading labels touches no shard
    BYTES = "bytes"
    JSON = "json"

    def __str__(self) -> str:
        return self.value


class Coding(str, enum.Enum):
    """How the pixels of an image or mask are stored."""

    FILE = "file"  # the original file, bit for bit
    RECODED = "recoded"  # a file too, but made anew where the user's choice of size or quality asked for it
    RAW = "raw"  # rows of uint8 pixels as .npy: nothing to decode, and only the rows under the crop are read;
    # of arrays: the values alone, without a header: type and shape are the field's

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a dataset.

    Attributes:
        dtype: of a number (`int64` or `float64`) or of an array whose samples all share it.
        shape: height and width of images or masks, or the shape of arrays, when all samples share it.
        classes: names of the values 0, 1, 2 ... of a number that stands for a class.
    """

    name: str
    kind: Kind
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] | None = None
    coding: Coding = Coding.FILE

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in RESERVED_NAMES:
            raise UsageError(
                f"'{self.name}' cannot be the name of a field",
                hint=f"use lower-case letters, digits and '_'; not {', '.join(sorted(RESERVED_NAMES))}",
            )
        if not _allows(self.kind, self.coding):
            raise UsageError(f"field '{self.name}' of kind {self.kind} cannot be stored as '{self.coding}'")
        if (
            self.kind is Kind.ARRAY
            and self.coding is Coding.RAW
            and (self.dtype is None or self.shape is None)
        ):
            raise UsageError(f"field '{self.name}' is stored as 'raw', and its type or shape is not known")
        if self.kind is Kind.NUMBER and self.dtype not in ("int64", "float64"):
            raise UsageError(f"field '{self.name}' is a number of type {self.dtype}; int64 and float64 exist")

    @property
    def has_pixels(self) -> bool:
        return self.kind in (Kind.IMAGE, Kind.MASK)

    def row_columns(self) -> list[tuple[str, Any]]:
        """Return the fixed-width index columns of this field as numpy dtype fields, in stored order."""
        if self.kind is Kind.NUMBER:
            return [(self.name, "<i8" if self.dtype == "int64" else "<f8")]
        columns: list[tuple[str, Any]] = [
            (f"{self.name}.offset", "<i8"),
            (f"{self.name}.length", "<i8"),
            (f"{self.name}.crc32c", "<u4"),
        ]
        if self.has_pixels:
            columns += [(f"{self.name}.width", "<u4"), (f"{self.name}.height", "<u4")]
        if self.kind is Kind.IMAGE:
            # Start and stop of the entry points inside their variable-width column.
            columns.append((f"{self.name}.entries", "<i8", (2,)))  # type: ignore[arg-type]
        return columns

    def variable_columns(self) -> list[str]:
        """Return the index columns of this field whose values differ in length."""
        if self.kind is Kind.NUMBER:
            return []
        return [f"{self.name}.path"] + ([f"{self.name}.entries"] if self.kind is Kind.IMAGE else [])


def _allows(kind: Kind, coding: Coding) -> bool:
    if coding is Coding.RAW:
        return kind in (Kind.IMAGE, Kind.ARRAY)
    return coding is Coding.FILE or kind in (Kind.IMAGE, Kind.MASK)


def row_dtype(fields: Iterable[Field]) -> np.dtype[Any]:
    """Return the type of one row of the index: packed, little-endian, its checksum last."""
    columns: list[Any] = [("number", "<i8")]
    for field in fields:
        columns += field.row_columns()
    return np.dtype([*columns, ("check", "<u4")])


def text_check(column: str) -> str:
    """Return the name of the column that holds the checksums of a column of texts."""
    return f"{column}.crc32c"
