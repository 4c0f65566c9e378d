# SPDX-License-Identifier: Apache-2.0
"""Pixels of images: of files by their number, or of files in memory, each with any number of crops.

Kinds of images that the kernel does not decode go through Pillow in the same call, and are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import I32, I64, U8, Flags, Pixels
from feedrate.filters import BILINEAR, FILTERS
from feedrate.kernel import binding, pillow
from feedrate.kernel.binding import Files, Pool, Ranges, Status, as_bytes, checked, for_each, native
from feedrate.kernel.depth import WIDEN, Depth, TooDeep, check_mode
from feedrate.kernel.pillow import Box

__all__ = [
    "DAMAGED_BUT_DECODED", "MAX_CROP_PIXELS", "STAGES", "TRUSTED_PIXELS", "Crops", "DecodeReport",
    "check_size", "decode_batch", "decode_crops", "decode_one", "measure", "profile_decode",
]  # fmt: skip

MAX_CROP_PIXELS = 512 << 20  # as in native/jpeg.h
TRUSTED_PIXELS = 16 << 20  # for a larger image no memory is taken before `check_size` had a look
DAMAGED_BUT_DECODED = "damaged, decoded by Pillow"  # one of `DecodeReport.pillow_reasons`
WITH_LOBES = frozenset({FILTERS["bicubic"], FILTERS["lanczos"]})  # below zero (native/resize.cpp)
STAGES = ("checksum", "headers", "huffman", "idct", "colour", "resize")


class DecodeReport(NamedTuple):
    """How a batch ended: a status per sample, words for each bad one, and how many went through Pillow."""

    statuses: I32
    reasons: dict[int, str]
    pillow_reasons: dict[str, int]  # why, in words -> how many
    bytes_read: int = 0

    @property
    def by_pillow(self) -> int:
        """How many samples Pillow decoded."""
        return sum(self.pillow_reasons.values())


def decode_batch(
    files: Files,
    images: Ranges,
    out: Pixels,
    *,
    boxes: I32,
    flips: Flags,
    filters: U8 | None = None,
    entries: Ranges | None = None,
    nearest: bool = False,
    raw: bool | Flags = False,
    depth: Depth | None = None,
    pool: Pool | None = None,
) -> DecodeReport:
    """Read, check, decode, crop, resize and flip images into `out`.

    Args:
        files: the files that `images` and `entries` count.
        images: where the image files are. Of raw images only the rows under the crop are read: their blocks
            have checksums of their own, and that of the whole file is not looked at.
        out: uint8, C-contiguous, N x H x W x C; C is 3 (RGB) or 1 (gray, as Pillow's "L"). With depth
            "uint16" it is uint16, and images of 8 bits are decoded as ever, then multiplied by 257.
        boxes: N x 4: left, top, right, bottom in pixels of the image, inside it, not empty.
        flips: mirror left to right, after the resize.
        filters: Pillow's number of each image's filter; None: bilinear.
        entries: where the entry points are (length 0: none); None: decode from the top.
        nearest: nearest neighbour and stored values as they are (palette indices, 8-bit), for masks.
        raw: the images are stored as rows of pixels, and `entries` are their tables (native/raw.h); an array
            says it of each.
        depth: what becomes of gray of more than 8 bits; None: such an image has the status TOO_DEEP.
        pool: threads to use; None: the calling thread.

    Pixels are those of Pillow: `convert(mode).crop(box).resize((W, H), filter)`. A sample whose status is
    not OK leaves its part of `out` zeroed.
    """
    _check_out(out, np.uint16 if depth == "uint16" and not nearest else np.uint8)
    n, height, width, channels = out.shape
    if len(images) != n:
        raise ValueError(f"out has room for {n} images, images has {len(images)} ranges")
    if pool is not None and pool._closed:
        raise ValueError("the pool is closed")
    boxes = checked(boxes, np.int32, (n, 4), "boxes")
    flips = checked(flips, np.bool_, (n,), "flips")
    filters = checked(
        np.full(n, BILINEAR, np.uint8) if filters is None else filters, np.uint8, (n,), "filters"
    )
    is_raw = np.full(n, raw) if isinstance(raw, bool) else checked(raw, np.bool_, (n,), "raw")
    details, bytes_read = np.zeros((n, 4), np.int64), np.zeros(n, np.int64)
    if is_raw.any() and (nearest or entries is None):
        raise ValueError("raw images need entries, and are not masks")
    narrow = out if out.dtype == np.uint8 else np.empty(out.shape, np.uint8)
    if nearest:
        by_pillow = dict.fromkeys(range(n), "mask")
    else:
        native.decode_batch(
            files=files._native, images=binding.arrays_of(images, n),
            entries=None if entries is None else binding.arrays_of(entries, n), boxes=boxes.reshape(-1),
            flips=flips.view(np.uint8), filters=filters, before_13=is_pillow_older(filters),
            out=narrow.reshape(-1), shape=(height, width, channels), raw=is_raw.view(np.uint8),
            pool=None if pool is None else pool._native, bytes_read=bytes_read, details=details.reshape(-1),
        )  # fmt: skip
        if narrow is not out:
            np.multiply(narrow, WIDEN, out=out)
        found = details[:, 0]
        if not found.any():  # most often
            return DecodeReport(found.astype(np.int32), {}, {}, int(bytes_read.sum()))
        # Pillow is asked about damage too: users get today the pixels that it decodes without complaint.
        left_over = np.flatnonzero(((found == Status.NOT_TAKEN) | (found == Status.CORRUPT)) & ~is_raw)
        by_pillow = {int(i): native.words(*map(int, details[i])) for i in left_over}
    statuses = details[:, 0].astype(np.int32)
    reasons = {
        int(i): binding.say_outcome(files, images, int(i), details[i])
        for i in np.flatnonzero(statuses)
        if int(i) not in by_pillow
    }
    decoded: list[str] = []  # why each went through Pillow; append() is safe in threads, counting is not

    def decode(i: int) -> None:
        counted = by_pillow[i]
        data, found = binding.read_one(files, images, i)
        if found[0]:
            statuses[i], reasons[i] = int(found[0]), binding.say_outcome(files, images, i, found)
            return
        bytes_read[i] += len(data)
        box: Box = tuple(boxes[i].tolist())
        filter_, is_damaged = None if nearest else int(filters[i]), bool(statuses[i] == Status.CORRUPT)
        statuses[i], words, why = _fill_by_pillow(
            data, out[i], box, bool(flips[i]), filter_, counted, depth, is_damaged=is_damaged
        )
        if why is None:
            reasons[i] = words
        else:
            decoded.append(why)

    for_each(decode, list(by_pillow), pool)
    in_order = dict(sorted(reasons.items()))
    return DecodeReport(statuses, in_order, dict(Counter(decoded)), int(bytes_read.sum()))


def decode_one(
    data: bytes,
    *,
    box: Box | None = None,
    size: tuple[int, int] | None = None,
    flip: bool = False,
    mode: str = "RGB",
    entries: bytes = b"",
    filter_: int = BILINEAR,
    depth: Depth | None = None,
) -> Pixels:
    """Decode one image in memory to H x W x C (`size` is height, width); the rest as in `decode_batch`.

    Raises:
        TooDeep: it needs a depth, or another one.
        ValueError: the image is damaged, or the box is not inside it; in words.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode must be "RGB" or "L", got {mode!r}')
    if size is not None and (size[0] < 1 or size[1] < 1):
        raise ValueError(f"size must be at least 1 x 1, got {size[0]} x {size[1]}")
    width, height = measure(data)
    if box is None and width * height > pillow.most_pixels():
        raise ValueError(pillow.say_too_large(width, height))
    left, top, right, bottom = box = box or (0, 0, width, height)
    _check_box(box, width, height)
    shape = *(size or (bottom - top, right - left)), 3 if mode == "RGB" else 1
    out = np.empty(shape, np.uint16 if depth == "uint16" else np.uint8)
    is_older = is_pillow_older(np.array([filter_]))
    status, words, _ = _decode_alone(data, entries, box, out, flip, filter_, depth, is_older)
    if status == Status.TOO_DEEP:
        raise TooDeep(words)
    if status != Status.OK:
        raise ValueError(words)
    return out


def check_size(
    files: Files, image: Ranges, size: tuple[int, int], *, raw: bool = False
) -> tuple[Status, str]:
    """Compare one image's width and height with the index's claim, without decoding.

    Returns a status, with words if it is not OK. Damage is left for the decoder to find, unless the file is
    far too short for so many pixels.
    """
    width, height = size
    if raw:
        detail = np.zeros(4, np.int64)
        native.check_ranges(files._native, binding.arrays_of(image, 1), None, detail)
        if detail[0]:
            return Status(detail[0]), binding.say_outcome(files, image, 0, detail)
        has_room = image.length[0] >= width * height
        found = f"{image.length[0]} bytes"
    else:
        data, detail = binding.read_one(files, image, 0)
        if detail[0]:
            return Status(detail[0]), binding.say_outcome(files, image, 0, detail)
        try:
            measured = measure(data)
        except ValueError as error:
            return Status.CORRUPT, str(error)
        has_room = measured == size
        found = "{} x {} pixels".format(*measured)
    return (Status.OK, "") if has_room else (Status.BAD_BOX, f"it has {found}, not {width} x {height} pixels")


def profile_decode(
    data: bytes, entries: bytes, *, box: Box, size: tuple[int, int], repeats: int = 5, filter_: int = BILINEAR
) -> dict[str, float]:
    """Return the seconds of processor time that each of `STAGES` takes for one crop of an image in memory.

    A stage's time is what it adds: decodes that stop after each stage are run in turn, `repeats` times, and
    the least of each counts. "headers" includes the tables and the check of the entry points.

    Raises:
        ValueError: the kernel does not decode this; in words.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    out = np.empty(size[0] * size[1] * 3, np.uint8)
    status, words, sums = native.profile_one(
        as_bytes(data), as_bytes(entries), box, out, size, repeats, filter_
    )
    if status != Status.OK:
        raise ValueError(words)
    befores = [0.0, *sums[:-1]]
    return {name: max(s - before, 0.0) for name, s, before in zip(STAGES, sums, befores, strict=True)}


def measure(data: bytes) -> tuple[int, int]:
    """Return an image's width and height.

    Raises:
        ValueError: its size is unknown, or the file is too short for that many pixels; in words.
    """
    status, words, width, height = native.probe(as_bytes(data))
    if status == Status.CORRUPT and _claims_too_much(width, height, data):
        raise ValueError(words)
    if width and status != Status.CORRUPT:
        return width, height
    try:
        return pillow.measure(data)[:2]
    except pillow.Undecodable as error:
        raise ValueError(words if status == Status.CORRUPT else str(error)) from error


def _claims_too_much(width: int, height: int, data: bytes) -> bool:
    """Say whether a damaged JPEG would take much memory that its bytes cannot fill.

    A block of 8 x 8 takes two bits or more. Of smaller images Pillow is asked: it takes some that end early.
    """
    return width * height > max(TRUSTED_PIXELS, 256 * len(data))


def is_pillow_older(filters: Any) -> bool:
    """Say whether the resize has the order of passes before Pillow 13; only filters with lobes show it."""
    # Not `isin`: for a few images it takes as long as to decode a small one.
    return not WITH_LOBES.isdisjoint(filters.tolist()) and not pillow.resizes_as_kernel()


def _check_out(out: Any, dtype: type[np.uint8 | np.uint16]) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.ndim != 4:
        raise ValueError(f"out must be a {dtype.__name__} array of shape N x H x W x C")
    if out.shape[3] not in (1, 3) or out.shape[1] < 1 or out.shape[2] < 1:
        raise ValueError(f"out must be N x H x W x C with C 1 or 3, got {' x '.join(map(str, out.shape))}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be C-contiguous and writeable")


def _check_box(box: Box, width: int, height: int) -> None:
    left, top, right, bottom = box
    if left >= right or top >= bottom:
        raise ValueError(f"the crop box {box} is empty")
    if left < 0 or top < 0 or right > width or bottom > height:
        raise ValueError(f"the crop box {box} is not inside the image of {width} x {height} pixels")
    if (right - left) * (bottom - top) > MAX_CROP_PIXELS:
        raise ValueError(f"the crop box {box} has more than {MAX_CROP_PIXELS} pixels")


def _fill_by_pillow(
    data: bytes, out: Pixels, box: Box, flip: bool, filter_: int | None, words: str, depth: Depth | None, *,
    is_damaged: bool,
) -> tuple[Status, str, str | None]:  # fmt: skip
    """Decode with Pillow into `out` (H x W x C), which is zeroed when that fails. No filter: it is a mask.

    `words`: the kernel's, for its refusal. Returns a status, its words, and why Pillow decoded it, if it did.
    """
    out[:] = 0
    status, said = _decode_by_pillow(data, out, box, flip, filter_, depth, is_damaged=is_damaged)
    if status == Status.OK:
        return status, "", DAMAGED_BUT_DECODED if is_damaged else words
    return status, words if is_damaged else said, None


def _decode_by_pillow(
    data: bytes, out: Pixels, box: Box, flip: bool, filter_: int | None, depth: Depth | None, *,
    is_damaged: bool,
) -> tuple[Status, str]:  # fmt: skip
    try:
        width, height, mode = pillow.measure(data)
        if is_damaged and _claims_too_much(width, height, data):
            return Status.CORRUPT, "too short for its size"
        try:
            _check_box(box, width, height)
        except ValueError as error:
            return Status.BAD_BOX, str(error)
        if filter_ is None:
            pixels: Pixels = pillow.decode_mask(data, box, out.shape)
        else:
            check_mode(mode, depth)
            pixels = pillow.decode(data, box, out.shape, filter_, depth)
    except TooDeep as error:
        return Status.TOO_DEEP, str(error)
    except pillow.Undecodable as error:
        return Status.CORRUPT, str(error)
    except MemoryError as error:
        raise MemoryError(
            "out of memory while Pillow decoded an image; fewer threads and smaller batches need less"
        ) from error
    if pixels.dtype != out.dtype:
        pixels = pixels * WIDEN
    out[:] = pixels[:, ::-1] if flip else pixels
    return Status.OK, ""


# So many images per thread may be decoded at a time, and wait for their crops to be cut from them; and so
# many bytes of pixels, unless one image alone has more.
_WAITING = 2
_MOST_WAITING_BYTES = 1 << 30


class Crops(NamedTuple):
    """Parts of images; arrays of equal length."""

    image: I32  # number of the image that each is cut from
    boxes: I32  # N x 4: left, top, right, bottom
    flips: Flags
    filters: U8  # by Pillow's numbers

    def take(self, at: I64) -> Crops:
        return Crops(self.image[at], self.boxes[at], self.flips[at], self.filters[at])


class _Part(NamedTuple):
    """The part of an image that is decoded once for several crops."""

    box: Box
    by_pillow: str | None  # why Pillow decodes it, in words; None: the kernel does
    pixels: U8 | None = None  # None: not decoded yet, or that cannot be done

    @property
    def size_bytes(self) -> int:
        left, top, right, bottom = self.box
        return 3 * (right - left) * (bottom - top)

    def locate(self, box: Box) -> Box | None:
        """Return where a box is in it; None: not inside."""
        x, y, edge, floor = self.box
        is_inside = x <= box[0] < box[2] <= edge and y <= box[1] < box[3] <= floor
        return (box[0] - x, box[1] - y, box[2] - x, box[3] - y) if is_inside else None


def decode_crops(
    images: Sequence[Any], entries: Sequence[Any], crops: Crops, out: U8, pool: Pool | None = None,
    depth: Depth | None = None,
) -> DecodeReport:  # fmt: skip
    """Decode, crop, resize and flip images in memory into `out`, N x H x W x 3, of 8 bits.

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
    parts: dict[int, _Part] = {}

    def find_part(number: int) -> None:
        boxes = crops.boxes[crops.image == number]
        part = _find_part(images[number], entries[number], boxes, depth)
        if part is not None:
            parts[number] = part

    def decode_part(number: int) -> None:
        if number in parts:
            pixels = _decode_part(images[number], entries[number], parts[number], depth)
            parts[number] = parts[number]._replace(pixels=pixels)

    def make(i: int) -> None:
        number, box, flip, filter_ = (
            int(crops.image[i]), tuple(crops.boxes[i].tolist()), bool(crops.flips[i]), int(crops.filters[i])
        )  # fmt: skip
        part, counted = parts.get(number), None
        inside = None if part is None else part.locate(box)
        if part is None or part.pixels is None or inside is None:
            status, words, counted = _decode_alone(
                images[number], entries[number], box, out[i], flip, filter_, depth, is_older
            )
            if status != Status.OK:
                statuses[i], reasons[i] = status, words
        elif part.by_pillow is not None:
            pixels = pillow.crop_rows(part.pixels, inside, out.shape[1:], filter_)
            out[i] = pixels[:, ::-1] if flip else pixels
            counted = part.by_pillow
        else:
            native.resize_one(
                part.pixels.reshape(-1), part.pixels.shape[:2], inside, out[i].reshape(-1),
                (height, width), flip, filter_, is_older,
            )  # fmt: skip
        if counted is not None:
            by_pillow.append(counted)

    counts = np.bincount(crops.image, minlength=len(images))
    shared = np.flatnonzero(counts > 1)
    for_each(find_part, shared.tolist(), pool)
    sizes = [parts[number].size_bytes if number in parts else 0 for number in shared.tolist()]
    most = _WAITING * (1 if pool is None else pool.limit)
    for turn in binding.split_by_size(sizes, _MOST_WAITING_BYTES, most):
        some = shared[turn]
        for_each(decode_part, some.tolist(), pool)
        for_each(make, np.flatnonzero(np.isin(crops.image, some)).tolist(), pool)
        for number in some.tolist():
            parts.pop(number, None)
    for_each(make, np.flatnonzero(counts[crops.image] == 1).tolist(), pool)
    return DecodeReport(statuses, dict(sorted(reasons.items())), dict(Counter(by_pillow)))


def _find_part(data: Any, entries: Any, boxes: I32, depth: Depth | None) -> _Part | None:
    """Return the part of an image that several crops need; None: each is to be decoded by itself."""
    status, words, width, height = native.probe(as_bytes(data))
    if status == Status.NOT_TAKEN:
        if len(entries):  # they are another file's
            return None
        try:
            width, height, mode = pillow.measure(bytes(data))
            check_mode(mode, depth)
        except (pillow.Undecodable, TooDeep):
            return None
        return _Part((0, 0, width, height), words)
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
    return _Part(window, None)


def _decode_part(data: Any, entries: Any, part: _Part, depth: Depth | None) -> U8 | None:
    """Decode a part of an image; None: that cannot be done."""
    if part.by_pillow is not None:
        try:
            return pillow.decode_whole(bytes(data), depth)
        except pillow.Undecodable:
            return None
    left, top, right, bottom = part.box
    pixels = np.empty((bottom - top, right - left, 3), np.uint8)
    status, _ = native.decode_one(
        as_bytes(data), as_bytes(entries), part.box, pixels.reshape(-1), pixels.shape, False, BILINEAR, False
    )
    return pixels if status == Status.OK else None


def _decode_alone(
    data: Any, entries: Any, box: Box, out: Pixels, flip: bool, filter_: int, depth: Depth | None,
    is_older: bool,
) -> tuple[int, str, str | None]:  # fmt: skip
    """Decode one crop; return a status, its words, and why Pillow decoded it, if it did.

    `is_older`: `is_pillow_older` of this filter, or of several.
    """
    narrow = out if out.dtype == np.uint8 else np.empty(out.shape, np.uint8)
    status, words = native.decode_one(
        as_bytes(data), as_bytes(entries), box, narrow.reshape(-1), out.shape, flip, filter_, is_older
    )
    if status in (Status.NOT_TAKEN, Status.CORRUPT):
        is_damaged = status == Status.CORRUPT
        return _fill_by_pillow(bytes(data), out, box, flip, filter_, words, depth, is_damaged=is_damaged)
    if status != Status.OK:
        out[:] = 0
        return status, words, None
    if narrow is not out:
        np.multiply(narrow, WIDEN, out=out)
    return status, "", None
