# SPDX-License-Identifier: Apache-2.0
"""Crops of images in memory: any number of one image, which is decoded once where that is cheaper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.filters import BILINEAR
from feedrate.kernel import pillow
from feedrate.kernel.decoding import (
    DAMAGED_BUT_DECODED,
    DecodeReport,
    fill_by_pillow,
    is_pillow_older,
)
from feedrate.kernel.door import I32, I64, U8, Pool, Status, as_bytes, native
from feedrate.kernel.pillow import Box

# So many images per thread may be decoded at a time, and wait for their crops to be cut from them; and so
# many bytes of pixels, unless one image alone has more.
_WAITING = 2
_MOST_WAITING_BYTES = 1 << 30


class Crops(NamedTuple):
    """Parts of images; arrays of equal length."""

    image: I32  # number of the image that each is cut from
    boxes: I32  # N x 4: left, top, right, bottom
    flips: npt.NDArray[np.bool_]
    filters: U8  # by Pillow's numbers

    def take(self, at: I64) -> Crops:
        return Crops(self.image[at], self.boxes[at], self.flips[at], self.filters[at])


class _Window(NamedTuple):
    """The part of an image that is to be decoded for several crops."""

    box: Box
    by_pillow: str | None  # why Pillow decodes it, in words; None: the kernel does


class _Picture(NamedTuple):
    """A part of an image, decoded, for several crops."""

    pixels: U8
    left: int
    top: int
    by_pillow: str | None  # why Pillow decoded it, in words; None: the kernel did

    def find(self, box: Box) -> Box | None:
        """Return where a box lies in it; None: not inside."""
        height, width, _ = self.pixels.shape
        left, top, right, bottom = (
            box[0] - self.left,
            box[1] - self.top,
            box[2] - self.left,
            box[3] - self.top,
        )
        is_inside = 0 <= left < right <= width and 0 <= top < bottom <= height
        return (left, top, right, bottom) if is_inside else None


def decode_crops(
    images: Sequence[Any], entries: Sequence[Any], crops: Crops, out: U8, pool: Pool | None = None
) -> DecodeReport:
    """Decode, crop, resize and flip images in memory into `out`, N x H x W x 3.

    Args:
        images: the bytes of image files.
        entries: the entry points of each; b"": none.
        pool: threads to use; None: the calling thread.

    Pixels and statuses are those of `decode_batch`, whatever crops share an image.
    """
    n, (height, width, _) = len(crops.image), out.shape[1:]
    statuses, reasons = np.zeros(n, np.int32), dict[int, str]()
    by_pillow: list[str] = []  # append() is safe in threads, counting is not
    is_older = is_pillow_older(crops.filters)
    windows: dict[int, _Window] = {}
    pictures: dict[int, _Picture | None] = {}

    def look(number: int) -> None:
        boxes = crops.boxes[crops.image == number]
        window = _find_window(images[number], entries[number], boxes)
        if window is not None:
            windows[number] = window

    def share(number: int) -> None:
        if number in windows:
            pictures[number] = _decode_window(images[number], entries[number], windows[number])

    def make(i: int) -> None:
        number, box, flip, filter_ = (
            int(crops.image[i]), tuple(crops.boxes[i].tolist()), bool(crops.flips[i]), int(crops.filters[i])
        )  # fmt: skip
        picture = pictures.get(number)
        inside = None if picture is None else picture.find(box)
        counted = None
        if picture is None or inside is None:
            status, words, counted = _decode_alone(
                images[number], entries[number], box, out[i], flip, filter_, is_older
            )
            if status != Status.OK:
                statuses[i], reasons[i] = status, words
        elif picture.by_pillow is not None:
            pixels = pillow.crop_rows(picture.pixels, inside, out.shape[1:], filter_)
            out[i] = pixels[:, ::-1] if flip else pixels
            counted = picture.by_pillow
        else:
            native.resize_one(
                picture.pixels.reshape(-1), picture.pixels.shape[:2], inside, out[i].reshape(-1),
                (height, width), flip, filter_, is_older,
            )  # fmt: skip
        if counted is not None:
            by_pillow.append(counted)

    counts = np.bincount(crops.image, minlength=len(images))
    shared = np.flatnonzero(counts > 1)
    _for_each(look, shared, pool)
    sizes = [_count_bytes(windows.get(number)) for number in shared.tolist()]
    for part in _split(sizes, _WAITING * (1 if pool is None else pool.limit)):
        some = shared[part]
        _for_each(share, some, pool)
        _for_each(make, np.flatnonzero(np.isin(crops.image, some)), pool)
        pictures.clear()
    _for_each(make, np.flatnonzero(counts[crops.image] == 1), pool)
    return DecodeReport(statuses, dict(sorted(reasons.items())), len(by_pillow), dict(Counter(by_pillow)))


def _for_each(work: Callable[[int], None], numbers: npt.NDArray[Any], pool: Pool | None) -> None:
    if pool is None or len(numbers) < 2:
        for number in numbers.tolist():
            work(number)
    else:
        pool.map(work, numbers.tolist())


def _count_bytes(window: _Window | None) -> int:
    left, top, right, bottom = (0, 0, 0, 0) if window is None else window.box
    return 3 * (right - left) * (bottom - top)


def _split(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield parts of so many at the most that are not too many bytes, and at least one."""
    first, waiting = 0, 0
    for i, size in enumerate(sizes):
        if i > first and (i - first == most or waiting + size > _MOST_WAITING_BYTES):
            yield slice(first, i)
            first, waiting = i, 0
        waiting += size
    yield slice(first, len(sizes))


def _find_window(data: Any, entries: Any, boxes: I32) -> _Window | None:
    """Return what several crops need of an image; None: each by itself costs less, or says what is wrong."""
    status, words, width, height = native.probe(as_bytes(data))
    if status == Status.NOT_TAKEN:
        if len(entries):  # they are another file's
            return None
        try:
            width, height = (width, height) if width else pillow.measure(bytes(data))[:2]
        except pillow.Undecodable:
            return None
        return _Window((0, 0, width, height), words)
    left, top, right, bottom = boxes.T.astype(np.int64)
    inside = (
        (left >= 0) & (left < right) & (right <= width) & (top >= 0) & (top < bottom) & (bottom <= height)
    )
    if status != Status.OK or inside.sum() < 2:
        return None
    window = (
        int(left[inside].min()), int(top[inside].min()), int(right[inside].max()), int(bottom[inside].max())
    )  # fmt: skip
    in_all = (window[2] - window[0]) * (window[3] - window[1])
    apart = int(((right - left) * (bottom - top))[inside].sum())
    # From entry points a crop costs what is under it; without them all that is above it, too.
    if in_all > pillow.most_pixels() or (len(entries) and apart <= in_all):
        return None
    return _Window(window, None)


def _decode_window(data: Any, entries: Any, window: _Window) -> _Picture | None:
    """Decode a part of an image; None: that cannot be done."""
    left, top, right, bottom = window.box
    if window.by_pillow is not None:
        try:
            return _Picture(pillow.decode_whole(bytes(data)), left, top, window.by_pillow)
        except pillow.Undecodable:
            return None
    pixels = np.empty((bottom - top, right - left, 3), np.uint8)
    status, _ = native.decode_one(
        as_bytes(data),
        as_bytes(entries),
        window.box,
        pixels.reshape(-1),
        pixels.shape,
        False,
        BILINEAR,
        False,
    )
    return _Picture(pixels, left, top, None) if status == Status.OK else None


def _decode_alone(
    data: Any, entries: Any, box: Box, out: U8, flip: bool, filter_: int, is_older: bool
) -> tuple[int, str, str | None]:
    """Decode one crop; return a status, its words, and why it went through Pillow, if it did."""
    status, words = native.decode_one(
        as_bytes(data), as_bytes(entries), box, out.reshape(-1), (*out.shape[:2], 3), flip, filter_, is_older
    )
    if status == Status.OK:
        return status, "", None
    if status not in (Status.NOT_TAKEN, Status.CORRUPT):
        out[:] = 0
        return status, words, None
    is_damaged = status == Status.CORRUPT
    filled, said = fill_by_pillow(bytes(data), out, box, flip, filter_, is_damaged=is_damaged)
    if filled == Status.OK:
        return filled, "", DAMAGED_BUT_DECODED if is_damaged else words
    return filled, words if is_damaged else said, None
