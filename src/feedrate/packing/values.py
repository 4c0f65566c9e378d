# SPDX-License-Identifier: Apache-2.0
"""What is in the files of a source: facts about images and arrays, and words for what nobody could load.

Packing asks every image which way up it was taken, so that is found in a few microseconds.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

from feedrate import kernel
from feedrate.format.fields import AUTO, Kind
from feedrate.format.raw import read_npy
from feedrate.kernel import pillow
from feedrate.kernel.depth import is_deep
from feedrate.progress import RejectionCode
from feedrate.source.record import UnusableValue

_Order = Literal["little", "big"]
_MARKER = b"Exif\0\0"
_ORIENTATION, _SHORT = 0x0112, 3
# Cameras write it among the first segments; a kilobyte of other things may stand before it.
_LOOK_AT_BYTES = 70_000
# What Pillow, its codecs and the native kernel say of a file that ends too early; they give no code.
_CUT_SHORT = re.compile(
    "ends early|ends inside|truncated|cut short|end of file|unexpected end|no scan", re.IGNORECASE
)
# Kinds of JPEG that have names of their own: the kernel's reasons to leave them to Pillow.
_JPEG_KINDS = {name: f"{name} JPEG" for name in ("progressive", "CMYK")}


def find_orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG, 1 to 8; 1, upright, when it has none that makes sense."""
    place = _locate(data)
    return 1 if place is None else place[0]


def set_upright(data: bytes) -> bytes:
    """Return the same JPEG with its EXIF orientation set to 1."""
    place = _locate(data)
    if place is None:
        return data
    _, at, order = place
    return data[:at] + (1).to_bytes(2, order) + data[at + 2 :]


def _locate(data: bytes) -> tuple[int, int, _Order] | None:  # value, where it stands, byte order
    if data.find(_MARKER, 0, _LOOK_AT_BYTES) < 0:
        return None
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA or length < 2:
            return None
        if marker == 0xE1 and data.startswith(_MARKER, at + 4):
            return _read_tags(data, at + 10, at + 2 + length)
        at += 2 + length
    return None


def _read_tags(data: bytes, start: int, end: int) -> tuple[int, int, _Order] | None:
    letters = data[start : start + 2]
    if letters not in (b"II", b"MM"):
        return None
    order: _Order = "little" if letters == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    first = start + number(start + 4, 4)
    count = number(first, 2) if first + 2 <= end else 0
    for entry in range(first + 2, min(first + 2 + 12 * count, end - 11), 12):
        if number(entry, 2) == _ORIENTATION:
            value = number(entry + 8, 2)
            is_good = number(entry + 2, 2) == _SHORT and 1 <= value <= 8
            return (value, entry + 8, order) if is_good else None
    return None


class ImageFacts(NamedTuple):
    """What is known of an image file.

    Attributes:
        pillow_reason: why the kernel leaves it to Pillow; None: it does not.
        damage: code of what the kernel finds wrong, where Pillow decodes the image nevertheless; else None.
        is_gray: None: the kernel does not know.
        format: "JPEG" (what the kernel takes), "progressive JPEG", "CMYK JPEG", "PNG", ...
        mode: Pillow's; "" where the kernel takes it.
        orientation: EXIF, 1 to 8.
    """

    width: int
    height: int
    entries: bytes
    pillow_reason: str | None
    damage: RejectionCode | None
    is_gray: bool | None
    format: str = "JPEG"
    mode: str = ""
    frames: int = 1
    orientation: int = 1

    @property
    def kind(self) -> str:
        """Return the format, and whether it is on its side."""
        return self.format if self.orientation == 1 else f"rotated {self.format}"

    @property
    def is_deep(self) -> bool:
        return is_deep(self.mode)


def unusable(words: str) -> UnusableValue:
    """Return the error for an image that is damaged, in the words of its decoder."""
    return UnusableValue(words, "truncated" if _CUT_SHORT.search(words) else "corrupt")


def dump_number(value: int | float) -> bytes:
    return json.dumps(value).encode()


def inspect_image(data: bytes, *, scan: bool = True, bytes_per_entry: int = AUTO) -> ImageFacts:
    """Look at an image file. What the kernel does not take, or finds damaged, Pillow has decoded in full.

    Without `scan`, only headers are looked at: there are no entry points, and damage behind them is not seen.

    Raises:
        UnusableValue: neither of them decodes it.
    """
    if not data:
        raise UnusableValue("the file is empty", "empty")
    found = kernel.scan(data, bytes_per_entry) if scan else kernel.scan_headers(data)
    if found.reason is None:
        is_gray, orientation = found.sampling == "gray" if scan else None, find_orientation(data)
        return ImageFacts(
            found.width, found.height, found.entries, None, None, is_gray, orientation=orientation
        )
    width, height, damage = found.width, found.height, None
    if found.damaged:
        wrong = unusable(found.reason)
        damage = wrong.code
        try:
            width, height = pillow.check(data)
        except pillow.Undecodable as error:
            raise wrong from error
    format_name, mode, frames = pillow.describe(data)
    if format_name in ("JPEG", "MPO"):
        format_name = "JPEG" if found.damaged else _JPEG_KINDS.get(found.reason, "other JPEG")
        frames = 1  # beside the picture, cameras store smaller ones of it
    return ImageFacts(
        width, height, b"", found.reason, damage, None, format_name, mode, frames,
        pillow.read_orientation(data),
    )  # fmt: skip


def inspect_headers(data: bytes) -> ImageFacts:
    """Look at the headers of an image whose pixels are another user's business.

    Raises:
        UnusableValue: it has none that anybody knows.
    """
    try:
        width, height, mode = pillow.measure(data)
        format_name, _, frames = pillow.describe(data)
    except pillow.Undecodable as error:
        raise unusable(str(error)) from error
    if format_name == "MPO":
        format_name, frames = "JPEG", 1
    orientation = pillow.read_orientation(data)
    return ImageFacts(width, height, b"", "", None, None, format_name, mode, frames, orientation)


def inspect_array(data: bytes) -> tuple[tuple[int, ...], str | None]:
    """Return shape and dtype of a .npy file.

    Raises:
        UnusableValue: it is not one, or holds pickled objects.
    """
    if data.startswith(b"PK"):
        raise UnusableValue("is a .npz archive; a field holds one array")
    try:
        array = read_npy(data)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise UnusableValue(f"is not a .npy file: {error}") from error
    if array.dtype.fields:
        return array.shape, None
    return array.shape, array.dtype.name if array.dtype.isnative else array.dtype.str


def inspect_text(kind: Kind, data: bytes) -> None:
    """See that a text, or JSON, can be read by who loads it.

    Raises:
        UnusableValue: it cannot.
    """
    try:
        text = data.decode("utf-8")
        if kind is Kind.JSON:
            json.loads(text)
    except UnicodeDecodeError as error:
        raise UnusableValue(f"is not UTF-8, from byte {error.start} on") from error
    except (ValueError, RecursionError) as error:
        raise UnusableValue(f"is not JSON: {error}") from error
