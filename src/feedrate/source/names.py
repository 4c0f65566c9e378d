# SPDX-License-Identifier: Apache-2.0
"""What names in containers mean: which are refused, which fields they make, which of them is the label."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from feedrate.errors import SourceError
from feedrate.format.fields import IMAGE_SUFFIXES, RESERVED_NAMES, Kind
from feedrate.units import printable

_PLAIN_NAME = re.compile(rb"[\w +,=@()~-][\w .+,=@()~-]{0,200}(/[\w .+,=@()~-]{1,200}){0,10}")
# What the parts of a dataset are called, where each has a folder or files of its own.
TRAIN_NAMES = ("train", "training")
SPLIT_NAMES = (*TRAIN_NAMES, "val", "valid", "validation", "test", "testing", "dev", "eval")
_LONGEST_NAME = 4096  # as Linux has it
_IMAGE_NAMES = (
    "image/encoded", "image", "images", "img", "jpg", "jpeg", "png", "webp", "x", "data", "pixel_values",
)  # fmt: skip
_LABEL_NAMES = (
    "image/class/label", "label", "labels", "class", "cls", "target", "targets", "y", "fine_label",
)  # fmt: skip
_MASK_WORDS = re.compile(r"(^|[^a-z])(masks?|seg|segmentation|annotation|semantic)([^a-z]|$)")
_KINDS = {
    "npy": Kind.ARRAY, "txt": Kind.TEXT, "text": Kind.TEXT, "caption": Kind.TEXT, "transcript": Kind.TEXT,
    "json": Kind.JSON, "jsn": Kind.JSON, "cls": Kind.NUMBER, "cls2": Kind.NUMBER, "class": Kind.NUMBER,
    "count": Kind.NUMBER, "index": Kind.NUMBER, "inx": Kind.NUMBER, "id": Kind.NUMBER,
}  # fmt: skip
_BEGINNINGS = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"),
    (b"II*\0", "tif"), (b"MM\0*", "tif"),
)  # fmt: skip


def find_train(parts: Iterable[str]) -> str:
    """Return the part that is trained on, by its name; empty: none is called that."""
    return next((part for part in parts if part.lower().rpartition(":")[2] in TRAIN_NAMES), "")


def clean_name(name: bytes, archive: str) -> bytes:
    """Return a member's name without './'; empty for the top itself.

    Raises:
        SourceError: it leads out of the folder it would be unpacked to, or is no text.
    """
    if _PLAIN_NAME.fullmatch(name) and b".." not in name and b"./" not in name:
        return name
    shown = printable(name[:200])
    problem = None
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or re.match(rb"[A-Za-z]:", name):
        problem = "is an absolute path"
    elif b".." in parts:
        problem = "leads out of the folder it would be unpacked to"
    elif b"\\" in name:
        problem = "has a backslash in it, which some systems take for a folder's"
    elif len(name) > _LONGEST_NAME:
        problem = f"is {len(name):,} bytes long; paths end at {_LONGEST_NAME:,}"
    else:
        try:
            if any(ord(c) < 32 or ord(c) == 127 for c in name.decode("utf-8")):
                problem = "holds control characters"
        except UnicodeDecodeError:
            problem = "is not UTF-8"
    if problem:
        raise SourceError(
            f"{archive}: the name '{shown}' {problem}: refused",
            hint="unpack the archive with a tool you trust, look at it, and pack the folder",
        )
    return b"/".join(parts)


def is_hidden(name: bytes) -> bool:
    """Return whether a file is left out, as hidden files of a folder are."""
    return name.startswith((b".", b"__MACOSX/")) or b"/." in name


def safe_field(name: str) -> str:
    """Return a field's name made from any text: lower-case letters, digits and '_'."""
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if not text or not text[0].isalpha():
        text = f"field_{text}".rstrip("_")
    return f"{text}_" if text in RESERVED_NAMES else text


def name_fields(columns: Mapping[str, Kind]) -> dict[str, str]:
    """Return column -> field: one of the images is `image`, a number of a usual name is `label`."""
    images = [c for c, kind in columns.items() if kind is Kind.IMAGE]
    numbers = [c for c, kind in columns.items() if kind is Kind.NUMBER]
    chosen = {_first(images, _IMAGE_NAMES) or (images[0] if images else None): "image"}
    chosen[_first(numbers, _LABEL_NAMES)] = "label"
    names: dict[str, str] = {}
    used = set()
    for column in [*(c for c in columns if c in chosen), *(c for c in columns if c not in chosen)]:
        name = wanted = chosen.get(column) or safe_field(column)
        number = 1
        while name in used or (name in ("image", "label") and column not in chosen):
            number += 1
            name = f"{wanted}_{number}"
        used.add(name)
        names[column] = name
    return {column: names[column] for column in columns}


def is_label_name(column: str) -> bool:
    return column.lower() in _LABEL_NAMES


def is_mask_name(column: str) -> bool:
    return _MASK_WORDS.search(column.lower()) is not None


def image_suffix(data: bytes) -> str | None:
    """Return `jpg` when bytes begin as a JPEG does; None: they begin like no image."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((suffix for beginning, suffix in _BEGINNINGS if data.startswith(beginning)), None)


def kind_of_suffix(suffix: str) -> Kind:
    """Return what a file with such a suffix (no dot) holds."""
    if f".{suffix}" in IMAGE_SUFFIXES:
        return Kind.IMAGE
    return _KINDS.get(suffix, Kind.BYTES)


def record_name(file: bytes, number: int) -> bytes:
    """Return what a record is called that has no name: after its file, and by its number in there."""
    return _record_stem(file) + b"/%08d" % number


@functools.lru_cache(maxsize=16)
def _record_stem(file: bytes) -> bytes:
    stem = file.removesuffix(b".gz")
    folder, base = os.path.split(stem)
    # 'train.tfrecord-00000-of-00010' and the next one must differ: only a last suffix goes.
    root, suffix = os.path.splitext(base)
    return os.path.join(folder, root if suffix[1:].isalnum() and not suffix[1:].isdigit() else base)


class Digests:
    """A set of names at 8 bytes each. What it says of a name is as certain as 64 bits are."""

    def __init__(self) -> None:
        self._digests = array("Q")

    def add(self, name: bytes) -> None:
        self._digests.append(hash_name(name))

    def sorted(self) -> npt.NDArray[np.uint64]:
        """Return the digests, sorted in place: a copy of millions would show."""
        digests = np.frombuffer(self._digests or array("Q", [0]), np.uint64)[: len(self._digests)]
        digests.sort()
        return digests

    def others(self, names: Iterable[bytes]) -> Iterator[bytes]:
        """Yield those of `names` that are not in the set."""
        known = self.sorted()
        names = iter(names)
        while block := list(itertools.islice(names, 4096)):
            digests = np.array([hash_name(name) for name in block], np.uint64)
            at = np.searchsorted(known, digests)
            is_known = np.zeros(len(block), bool)
            inside = at < len(known)
            is_known[inside] = known[at[inside]] == digests[inside]
            yield from (name for name, has in zip(block, is_known.tolist(), strict=True) if not has)


class Repeats(Digests):
    """Notices names that come twice. A digest is no proof: where it seems so, names are looked at again."""

    def find(self, again: Iterable[bytes]) -> bytes | None:
        """Return the first name that comes twice; `again` are the names once more, read only if needed."""
        return next(iter(sorted(self.find_all(again))), None)

    def find_all(self, again: Iterable[bytes]) -> set[bytes]:
        """Return the names that come twice."""
        digests = self.sorted()
        suspects = set(digests[1:][digests[1:] == digests[:-1]].tolist())
        if not suspects:
            return set()
        seen: set[bytes] = set()
        twice: set[bytes] = set()
        for name in again:
            if hash_name(name) in suspects:
                (twice if name in seen else seen).add(name)
        return twice


def hash_name(name: bytes) -> int:
    """Return 64 bits that two names hardly ever share."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _first(columns: Iterable[str], names: tuple[str, ...]) -> str | None:
    lower = {column.lower(): column for column in columns}
    return next((lower[name] for name in names if name in lower), None)
