# SPDX-License-Identifier: Apache-2.0
"""The kinds of fields a sample can have, the index columns that each needs, and what samples are called.

Keys are such that WebDataset readers take them. Any decoder takes any distance of a JPEG's entry points: the
CPU kernel gains nothing from close ones; a decoder with a thread for each range between two of them does.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from feedrate.errors import UsageError
from feedrate.units import printable

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
)
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


# Bytes of JPEG data from one entry point to the next. AUTO is the kernel's own choice (native/jpeg.h). On 250
# photographs of 109 KB, entry points take 0.54 % of the data by AUTO, 2.9 % by GPU.
AUTO, GPU = 1000, 150
# Closer than LEAST, next to every block would have one; further than MOST, each row of blocks has one anyway.
LEAST, MOST = 16, 1_000_000
# What a row of an index takes beside its entry points, about.
ROW_BYTES = 200
_WORDS = {"auto": AUTO, "gpu": GPU}
_HINT = f"say auto ({AUTO:,}), gpu ({GPU}), or a number of bytes from {LEAST} to {MOST:,}"


def parse_entries(value: str | int) -> int:
    """Return the bytes from one entry point to the next.

    Args:
        value: `auto`, `gpu`, or a number of bytes.

    Raises:
        UsageError: it is none of these, or outside of the limits.
    """
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"entries={value!r} is neither a word that is known nor a whole number", hint=_HINT)
    if number < LEAST:
        raise UsageError(
            f"entries={number} is below {LEAST}: next to every block would get an entry point", hint=_HINT
        )
    if number > MOST:
        raise UsageError(
            f"entries={number} is above {MOST:,}: every row of blocks has an entry point anyway", hint=_HINT
        )
    return number


def estimate_share(entries: int) -> float:
    """Return at most which part of its JPEGs' size an index takes for their entry points."""
    # Photographs of 109 KB, measured: 0.5 % by 1000, 1.3 % by 400, 2.9 % by 150, 6.0 % by 60, 10.5 % by 16.
    return 0.004 + min(6 / entries, 0.12)


def find_entries(settings: Mapping[str, Any]) -> int:
    """Return how far apart the settings of a pack, or the metadata of an index part, say that they are.

    What nobody could have asked for counts as not said: anybody may have written it.
    """
    said = settings.get("entries", AUTO)
    is_sound = isinstance(said, int) and not isinstance(said, bool) and LEAST <= said <= MOST
    return said if is_sound else AUTO


def dump_entries(entries: int) -> dict[str, int]:
    """Return the setting as it is stored: AUTO is not, as it was before there was a choice."""
    return {} if entries == AUTO else {"entries": entries}


# Most file systems take names of 255 bytes; a member's name is a key's last part, a field and a suffix.
_LONGEST_PART = 180
_SUFFIX_OF_KIND = {
    Kind.BOXES: "npy", Kind.ARRAY: "npy", Kind.TEXT: "txt",
    Kind.NUMBER: "json", Kind.BYTES: "bin", Kind.JSON: "json",
}  # fmt: skip

# What re-encoding makes: how such a file begins, and the suffixes that say so.
_BEGINNINGS = {b"\xff\xd8\xff": (".jpg", ".jpeg"), b"\x89PNG\r\n\x1a\n": (".png",)}


def make_key(path: bytes) -> str:
    """Return the key that a path would like to have; another path may have the same wish."""
    return key_of_stem(make_stem(path))


def make_stem(path: bytes) -> bytes:
    """Return a path without its suffix, and without dots in its last part: equal stems want equal keys."""
    folder, slash, base = path.rpartition(b"/")
    stem, dot, _ = base.rpartition(b".")
    # '.hidden' has no suffix, it only begins with a dot.
    return folder + slash + (stem if dot and stem else base).replace(b".", b"_")


def key_of_stem(stem: bytes) -> str:
    folder, slash, base = stem.rpartition(b"/")
    key = f"{_safe_folder(folder)}/{_safe_part(base)}" if slash else _safe_part(base)
    # WebDataset skips members that begin like '__this__'.
    return "%5F" + key[1:] if key.startswith("__") else key


@functools.lru_cache(1024)
def _safe_folder(folder: bytes) -> str:
    return "/".join(map(_safe_part, folder.split(b"/")))


def member_name(key: str, field: Field, path: bytes, content: bytes = b"") -> str:
    """Return the name of a field's tar member.

    `path` is the original file's, empty for a table's value; `content` the stored bytes, or the first few.
    """
    if field.name == "label" and field.dtype == "int64":
        return f"{key}.cls"
    suffix = new_suffix(field, path, content) or _SUFFIX_OF_KIND.get(field.kind) or _image_suffix(path)
    return f"{key}.{suffix}" if field.name == "image" else f"{key}.{field.name}.{suffix}"


def new_suffix(field: Field, path: bytes, content: bytes) -> str | None:
    """Return the suffix of what is stored now; None: the original file's still says what it is."""
    if field.coding is Coding.RAW and field.has_pixels:
        return "npy"
    if field.coding is Coding.RECODED:
        for beginning, suffixes in _BEGINNINGS.items():
            if content.startswith(beginning) and file_suffix(path) not in suffixes:
                return suffixes[0][1:]
    return None


def restored_path(field: Field, path: bytes, content: bytes) -> bytes:
    """Return where `unpack` writes a file: the original path, and behind it what it is now, if another."""
    suffix = new_suffix(field, path, content)
    return path if suffix is None else path + b"." + suffix.encode()


def has_image_suffix(name: bytes) -> bool:
    return file_suffix(name) in IMAGE_SUFFIXES


def file_suffix(name: bytes) -> str:
    """Return `.jpg` for `IMG.JPG`, '' for a name without suffix; for people where it is not ASCII."""
    base = name.rpartition(b"/")[2]
    stem, dot, suffix = base.rpartition(b".")
    return "." + printable(suffix).lower() if dot and stem else ""


def _safe_part(part: bytes) -> str:
    if part in (b".", b".."):
        return part.decode().replace(".", "%2E")
    text = quote(part, safe="+=,@()")
    if len(text) <= _LONGEST_PART:
        return text
    head = text[: _LONGEST_PART - 17]
    # An escape such as '%C3' must not be cut in two.
    cut = head.rfind("%", len(head) - 2)
    return f"{head if cut < 0 else head[:cut]}~{hashlib.sha256(part).hexdigest()[:16]}"


def _image_suffix(path: bytes) -> str:
    suffix = file_suffix(path)
    return suffix[1:] if suffix in IMAGE_SUFFIXES else "bin"
