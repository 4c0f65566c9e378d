# SPDX-License-Identifier: Apache-2.0
"""The bytes of one sound JPEG, and pixels of them: what a pending image refers to.

It holds no state of Pillow's. Where the kernel cannot make pixels, Pillow makes them of the same bytes.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from typing import Any, Protocol

import numpy as np

from feedrate.arrays import U8
from feedrate.kernel import CleanScan, Recipe, crc32c, draw, draw_from, scan_clean
from feedrate.kernel.binding import Status, as_bytes, native
from feedrate.run.inside import counters
from feedrate.run.inside.counters import Left
from feedrate.run.inside.selftest import SelfTest

# Version, kind (a place in _SAMPLINGS, or _LEFT), width, height, end of the image, a checksum of both ends of
# the file; entry points follow.
_HEAD = struct.Struct("<BBHHQI")
_VERSION = 2
_ENDS = 4096  # bytes: of a million files, two of one length may well have one checksum
_SAMPLINGS = ("gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0")
_LEFT = (Left.DAMAGED, Left.NOT_TAKEN)
_LEFT_FROM = 128


class Entries(Protocol):
    """Where entry points are kept between epochs and processes; a value means nothing to it."""

    def find(self, length: int, crc: int) -> Any: ...

    def add(self, length: int, crc: int, value: bytes) -> None: ...


class Source:
    """A JPEG that was scanned clean, of which regions are wanted: one by one, or all pixels once.

    Threads of the script may draw at once: at worst something is decoded twice.
    """

    def __init__(self, data: bytes, scan: CleanScan, *, horizontal_first: bool) -> None:
        self.data = data
        self.mode = scan.mode
        self.size = (scan.width, scan.height)
        self.end = scan.end
        self._entries = scan.entries
        self._horizontal_first = horizontal_first
        self._whole: dict[str, U8] = {}  # by mode
        self._drawn = [0]

    def draw(self, recipe: Recipe) -> U8:
        """Return the pixels of a recipe, H x W x C, which nobody may write to."""
        try:
            pixels = self._draw(recipe)
        except ValueError:
            counters.leave(Left.OTHER_PIXELS)
            return follow(self.data, recipe)
        if self._drawn[0] == 1:
            counters.take()
        return pixels

    def _draw(self, recipe: Recipe) -> U8:
        global _latest
        if not self._drawn[0]:
            many, _latest = _latest[0] > 1, self._drawn
        else:
            many = True
        self._drawn[0] += 1
        # Of one region nothing else is decoded; of several, each would decode much of what others did.
        whole = Recipe(recipe.mode, (0, 0, *self.size))
        if recipe.mode not in self._whole:
            if not many and recipe != whole:
                return self._decode(recipe)
            self._whole[recipe.mode] = self._decode(whole)
        pixels = self._whole[recipe.mode]
        if recipe == whole:
            return pixels
        return draw_from(pixels, recipe, horizontal_first=self._horizontal_first)

    def _decode(self, recipe: Recipe) -> U8:
        try:
            return draw(self.data, self._entries, recipe, horizontal_first=self._horizontal_first)
        except ValueError:
            if not self._entries:
                raise
            # Torn or forged ones: the bytes themselves are sound.
            self._entries = b""
            return draw(self.data, b"", recipe, horizontal_first=self._horizontal_first)


# How often the source that was last begun has been drawn from. A script that took many regions of the image
# before takes many of this one, too.
_latest = [0]


def open_source(
    data: bytes, mode: str, size: tuple[int, int], cache: Entries | None, same: SelfTest
) -> Source | Left:
    """Return the source of a JPEG that Pillow opened with this mode and size, or why Pillow reads it."""
    scan = _scan_cached(data, cache)
    if isinstance(scan, Left):
        return scan
    if (scan.mode, scan.width, scan.height) != (mode, *size):
        return Left.NOT_TAKEN
    if scan.sampling not in same.subsamplings:
        return Left.OTHER_PIXELS
    return Source(data, scan, horizontal_first=same.horizontal_first)


def _scan_cached(data: bytes, cache: Entries | None) -> CleanScan | Left:
    began, crc = time.thread_time_ns(), 0
    if cache is not None:
        crc = crc32c(data)
        found = _unpack(cache.find(len(data), crc), data)
        if found is not None:
            counters.take("found")
            return found
    scan = scan_clean(data) or _why_left(data)
    if cache is not None:
        cache.add(len(data), crc, _pack(scan, data))
    counters.take("scanned")
    counters.take("scan_ns", time.thread_time_ns() - began)
    return scan


def _why_left(data: bytes) -> Left:
    return Left.NOT_TAKEN if native.probe(as_bytes(data))[0] == Status.NOT_TAKEN else Left.DAMAGED


def _check_ends(data: bytes) -> int:
    return zlib.crc32(data[-_ENDS:], zlib.crc32(data[:_ENDS]))


def _pack(scan: CleanScan | Left, data: bytes) -> bytes:
    check = _check_ends(data)
    if isinstance(scan, Left):
        return _HEAD.pack(_VERSION, _LEFT_FROM + _LEFT.index(scan), 0, 0, 0, check)
    kind = _SAMPLINGS.index(scan.sampling)
    return _HEAD.pack(_VERSION, kind, scan.width, scan.height, scan.end, check) + scan.entries


def _unpack(value: Any, data: bytes) -> CleanScan | Left | None:
    """Return what a value of the cache says; None: nothing that can be."""
    if value is None or len(value) < _HEAD.size:
        return None
    version, kind, width, height, end, check = _HEAD.unpack_from(value)
    if version != _VERSION or check != _check_ends(data):
        return None
    if _LEFT_FROM <= kind < _LEFT_FROM + len(_LEFT):
        return _LEFT[kind - _LEFT_FROM]
    if kind >= len(_SAMPLINGS) or not (width and height and 0 < end <= len(data)):
        return None
    sampling = _SAMPLINGS[kind]
    entries = bytes(memoryview(value)[_HEAD.size :])
    return CleanScan(width, height, "L" if sampling == "gray" else "RGB", sampling, entries, end)


def follow(data: bytes, recipe: Recipe) -> U8:
    """Return the pixels of a recipe as Pillow makes them of a file's bytes."""
    from PIL import JpegImagePlugin

    # Not Image.open: what is opened there is made pending.
    image: Any = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    if image.mode != recipe.mode:
        image = image.convert(recipe.mode)
    image = image.crop(recipe.crop)
    if recipe.size is not None:
        image = image.resize(recipe.size, recipe.filter, box=recipe.reach)
    if recipe.window is not None:
        image = image.crop(recipe.window)
    if recipe.mirrored:
        image = image.transpose(0)  # FLIP_LEFT_RIGHT
    if recipe.upside_down:
        image = image.transpose(1)  # FLIP_TOP_BOTTOM
    return np.frombuffer(image.tobytes(), np.uint8).reshape(*recipe.shape, -1)
