# SPDX-License-Identifier: Apache-2.0
"""Bytes and rows of files, by the number of the file and the place in it.

Pixels of images. What the kernel does not decode goes through Pillow in the same call, and is counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.filters import BILINEAR, FILTERS
from feedrate.kernel import pillow
from feedrate.kernel.door import I32, I64, U8, U32, Pool, Status, as_bytes, checked, native
from feedrate.kernel.pillow import Box

_MOST_PER_CALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Ranges:
    """Byte ranges in files, one per sample; arrays of equal length."""

    file: I32
    offset: I64
    length: I64
    crc32c: U32 | None = None  # None: not checked

    def __len__(self) -> int:
        return len(self.file)


class Files:
    """Files that the kernel reads by number; opened when first needed, at most a bounded number at a time."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [os.fspath(path) for path in paths]
        # As bytes: a name need not be valid UTF-8.
        self._native = native.Files([os.fsencode(path) for path in self.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __reduce__(self) -> tuple[type[Files], tuple[list[str]]]:
        return Files, (self.paths,)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        self._native.close()


def gather_rows(files: Files, file: I32, row: I64, bases: I64, strides: I64, dtype: np.dtype[Any]) -> Any:
    """Read rows of a columnar table straight from its file, and check each row's last column.

    Column `c` of row `r` lies at `bases[i, c] + r * strides[c]` in `files[file[i]]`. Returns `(rows,
    statuses)`: `rows` is a structured array of `dtype` (packed, one field per column); its last field holds
    the CRC-32C of the bytes before it. `bases` has one row per *sample*. A bad row is zeroed.
    """
    sizes = _column_sizes(dtype)
    n, columns = len(file), len(sizes)
    file, row = checked(file, np.int32, (n,), "file"), checked(row, np.int64, (n,), "row")
    bases = checked(bases, np.int64, (n, columns), "bases")
    strides = checked(strides, np.int64, (columns,), "strides")
    rows, details = np.zeros(n, dtype), np.zeros((n, 4), np.int64)
    native.gather_rows(
        files._native, file, row, bases.reshape(-1), strides, sizes, rows.view(np.uint8), details.reshape(-1)
    )
    return rows, details[:, 0].astype(np.int32)


@lru_cache(maxsize=64)
def _column_sizes(dtype: np.dtype[Any]) -> I64:
    if dtype.names is None or dtype.fields is None:
        raise ValueError(f"dtype must have one field per column, got {dtype}")
    sizes = np.array([dtype.fields[name][0].itemsize for name in dtype.names], np.int64)
    if sizes.sum() != dtype.itemsize or sizes[-1] != 4:
        raise ValueError(f"dtype must be packed and end with a field of 4 bytes, got {dtype}")
    return sizes


def read_ranges(files: Files, ranges: Ranges, pool: Pool | None = None) -> tuple[U8, I64, I32]:
    """Read ranges one behind the other into one buffer: `(buffer, starts, statuses)`, `starts` of length N+1.

    A range that cannot be read leaves its part of the buffer zeroed; one that lies outside of its file has
    no part: lengths are a stranger's claims, so that they are checked before memory is taken for them.
    """
    buffer, starts, details = _read(files, ranges, pool)
    return buffer, starts, details[:, 0].astype(np.int32)


def read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Return so many bytes of an open file from `offset` on; fewer where it ends, nothing where it cannot be.

    Linux reads 2 GB at the most in one call, others refuse more. Memory is taken for what the file holds,
    whatever a stranger's index claims.

    Raises:
        OSError: it cannot be read.
    """
    left_bytes = min(size_bytes, os.fstat(descriptor).st_size - offset) if offset >= 0 else 0
    pieces: list[bytes] = []
    while left_bytes > 0 and (piece := os.pread(descriptor, min(left_bytes, _MOST_PER_CALL), offset)):
        pieces.append(piece)
        left_bytes, offset = left_bytes - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def arrays_of(ranges: Ranges, n: int) -> tuple[I32, I64, I64, U32]:
    crc = np.empty(0, np.uint32) if ranges.crc32c is None else ranges.crc32c
    return (
        checked(ranges.file, np.int32, (n,), "file"),
        checked(ranges.offset, np.int64, (n,), "offset"),
        checked(ranges.length, np.int64, (n,), "length"),
        checked(crc, np.uint32, (0,) if ranges.crc32c is None else (n,), "crc32c"),
    )


def say_outcome(files: Files, ranges: Ranges, i: int, detail: I64) -> str:
    words = native.words(*map(int, detail))
    number = int(ranges.file[i])
    if detail[0] == Status.UNREADABLE and 0 <= number < len(files):
        return f"{files.paths[number]} {words}"
    return words


def _read(files: Files, ranges: Ranges, pool: Pool | None) -> tuple[U8, I64, I64]:
    n = len(ranges)
    file, offset, length, crc32c = arrays_of(ranges, n)
    threads = None if pool is None else pool._native
    claims, details = np.zeros((n, 4), np.int64), np.zeros((n, 4), np.int64)
    native.check_ranges(files._native, (file, offset, length, crc32c), threads, claims.reshape(-1))
    outside = claims[:, 0] != 0
    if outside.any():
        offset, length = np.where(outside, 0, offset), np.where(outside, 0, length)
    total_bytes = float(length.sum(dtype=np.float64))
    if total_bytes >= 2**62:  # each lies in its file, but together they would leave 64 bits
        raise MemoryError(f"{n} values of {total_bytes:.3g} bytes together")
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(length, out=starts[1:])
    buffer = np.empty(int(starts[-1]), np.uint8)
    inside = (file, offset, length, crc32c)
    native.read_ranges(files._native, inside, starts, buffer, threads, details.reshape(-1))
    details[outside] = claims[outside]
    return buffer, starts, details


def read_one(files: Files, ranges: Ranges, i: int) -> tuple[bytes, I64]:
    crc = None if ranges.crc32c is None else ranges.crc32c[i : i + 1]
    one = Ranges(ranges.file[i : i + 1], ranges.offset[i : i + 1], ranges.length[i : i + 1], crc)
    buffer, _, details = _read(files, one, None)
    return buffer.tobytes(), details[0]


MAX_CROP_PIXELS = 512 << 20  # as in native/jpeg.h
TRUSTED_PIXELS = 16 << 20  # for a larger image no memory is taken before `check_size` had a look
DAMAGED_BUT_DECODED = "damaged, decoded by Pillow"  # one of `DecodeReport.pillow_reasons`
_WITH_LOBES = frozenset({FILTERS["bicubic"], FILTERS["lanczos"]})  # below zero (native/resize.cpp)
STAGES = ("checksum", "headers", "huffman", "idct", "colour", "resize")


class DecodeReport(NamedTuple):
    """How a batch ended: a status per sample, words for each bad one, and how many went through Pillow."""

    statuses: I32
    reasons: dict[int, str]
    by_pillow: int
    pillow_reasons: dict[str, int] | None = None  # why, in words -> how many
    bytes_read: int = 0


def decode_batch(
    files: Files,
    images: Ranges,
    out: U8,
    *,
    boxes: I32,
    flips: npt.NDArray[np.bool_],
    filters: U8 | None = None,
    entries: Ranges | None = None,
    nearest: bool = False,
    raw: bool | npt.NDArray[np.bool_] = False,
    pool: Pool | None = None,
) -> DecodeReport:
    """Read, check, decode, crop, resize and flip images into `out`.

    Args:
        files: the files that `images` and `entries` count.
        images: where the image files lie. Of raw images only the rows under the crop are read: their blocks
            have checksums of their own, and that of the whole file is not looked at.
        out: uint8, C-contiguous, N x H x W x C; C is 3 (RGB) or 1 (gray, as Pillow's "L").
        boxes: N x 4: left, top, right, bottom in pixels of the image, inside it, not empty.
        flips: mirror left to right, after the resize.
        filters: Pillow's number of each image's filter; None: bilinear.
        entries: where the entry points lie (length 0: none); None: decode from the top.
        nearest: nearest neighbour and stored values as they are (palette indices, 8-bit), for masks.
        raw: the images are stored as rows of pixels, and `entries` are their tables (native/raw.h); an array
            says it of each.
        pool: threads to use; None: the calling thread.

    Pixels are those of Pillow: `convert(mode).crop(box).resize((W, H), filter)`. A sample whose status is
    not OK leaves its part of `out` zeroed.
    """
    _check_out(out)
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
    if nearest:
        by_pillow = dict.fromkeys(range(n), "mask")
    else:
        native.decode_batch(
            files=files._native,
            images=arrays_of(images, n),
            entries=None if entries is None else arrays_of(entries, n),
            boxes=boxes.reshape(-1),
            flips=flips.view(np.uint8),
            filters=filters,
            before_13=is_pillow_older(filters),
            out=out.reshape(-1),
            shape=(height, width, channels),
            raw=is_raw.view(np.uint8),
            pool=None if pool is None else pool._native,
            bytes_read=bytes_read,
            details=details.reshape(-1),
        )
        found = details[:, 0]
        if not found.any():  # most often
            return DecodeReport(found.astype(np.int32), {}, 0, {}, int(bytes_read.sum()))
        # Pillow is asked about damage too: what it decodes without complaint is what users get today.
        left_over = np.flatnonzero(((found == Status.NOT_TAKEN) | (found == Status.CORRUPT)) & ~is_raw)
        by_pillow = {int(i): native.words(*map(int, details[i])) for i in left_over}
    statuses = details[:, 0].astype(np.int32)
    reasons = {
        int(i): say_outcome(files, images, int(i), details[i])
        for i in np.flatnonzero(statuses)
        if int(i) not in by_pillow
    }
    if not by_pillow:
        return DecodeReport(statuses, reasons, 0, {}, int(bytes_read.sum()))
    decoded: list[str] = []  # why each went through Pillow; append() is safe in threads, counting is not

    def decode(i: int) -> None:
        counted = by_pillow[i]
        data, found = read_one(files, images, i)
        if found[0]:
            statuses[i], reasons[i] = int(found[0]), say_outcome(files, images, i, found)
            return
        bytes_read[i] += len(data)
        damaged = statuses[i] == Status.CORRUPT
        box: Box = tuple(boxes[i].tolist())
        statuses[i], words = fill_by_pillow(
            data, out[i], box, bool(flips[i]), None if nearest else int(filters[i]), is_damaged=bool(damaged)
        )
        if statuses[i] == Status.OK:
            decoded.append(DAMAGED_BUT_DECODED if damaged else counted)
        else:
            reasons[i] = counted if damaged else words

    if pool is None or len(by_pillow) == 1:
        for i in by_pillow:
            decode(i)
    else:
        pool.map(decode, list(by_pillow))
    counts = dict(Counter(decoded))
    return DecodeReport(statuses, dict(sorted(reasons.items())), len(decoded), counts, int(bytes_read.sum()))


def decode_one(
    data: bytes,
    *,
    box: Box | None = None,
    size: tuple[int, int] | None = None,
    flip: bool = False,
    mode: str = "RGB",
    nearest: bool = False,
    entries: bytes = b"",
    filter_: int = BILINEAR,
) -> U8:
    """Decode one image in memory to H x W x C (`size` is height, width); the rest as in `decode_batch`.

    Raises:
        ValueError: the image is damaged, or the box is not inside it; in words.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode must be "RGB" or "L", got {mode!r}')
    if size is not None and (size[0] < 1 or size[1] < 1):
        raise ValueError(f"size must be at least 1 x 1, got {size[0]} x {size[1]}")
    array = as_bytes(data)
    width, height, stored_mode, status, words = measure(data, ask_pillow=nearest)
    channels = 3 if (stored_mode if nearest else mode) == "RGB" else 1
    if box is None and width * height > pillow.most_pixels():
        raise ValueError(pillow.say_too_large(width, height))
    left, top, right, bottom = box or (0, 0, width, height)
    _check_box((left, top, right, bottom), width, height)
    rows, columns = size or (bottom - top, right - left)
    out = np.empty((rows, columns, channels), np.uint8)
    if not nearest and (status == Status.OK or len(entries)):
        status, words = native.decode_one(
            array, as_bytes(entries), (left, top, right, bottom), out.reshape(-1), out.shape, flip, filter_,
            is_pillow_older(np.array([filter_])),
        )  # fmt: skip
        if status == Status.OK:
            return out
        if status == Status.BAD_ENTRIES:
            raise ValueError(words)
    filled, said = fill_by_pillow(data, out, (left, top, right, bottom), flip, None if nearest else filter_)
    if filled != Status.OK:
        raise ValueError(words if status == Status.CORRUPT else said)
    return out


def check_size(
    files: Files, image: Ranges, size: tuple[int, int], *, raw: bool = False
) -> tuple[Status, str]:
    """Look whether one image has the width and height that an index claims; decodes nothing.

    Returns how it ended, in words if it is not OK. Damage that a decode would find is its business, unless
    the file is far too short for so many pixels.
    """
    width, height = size
    if raw:
        detail = np.zeros(4, np.int64)
        native.check_ranges(files._native, arrays_of(image, 1), None, detail)
        if detail[0]:
            return Status(detail[0]), say_outcome(files, image, 0, detail)
        has_room = image.length[0] >= width * height
        found = f"{image.length[0]} bytes"
    else:
        data, detail = read_one(files, image, 0)
        if detail[0]:
            return Status(detail[0]), say_outcome(files, image, 0, detail)
        try:
            measured = measure(data)[:2]
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


def measure(data: bytes, *, ask_pillow: bool = False) -> tuple[int, int, str, int, str]:
    """Return width, height, Pillow's mode if it was asked, and what the kernel says: a status, and words.

    Raises:
        ValueError: nobody knows its size, or the file is too short for that many pixels; in words.
    """
    status, words, width, height = native.probe(as_bytes(data))
    if status == Status.CORRUPT and _claims_too_much(width, height, data):
        raise ValueError(words)
    if not ask_pillow and width and status != Status.CORRUPT:
        return width, height, "", status, words
    try:
        return (*pillow.measure(data), status, words)
    except pillow.Undecodable as error:
        raise ValueError(words if status == Status.CORRUPT else str(error)) from error


def _claims_too_much(width: int, height: int, data: bytes) -> bool:
    """Say whether a damaged JPEG would take much memory that its bytes cannot fill.

    A block of 8 x 8 takes two bits or more. Of smaller images Pillow is asked: it takes some that end early.
    """
    return width * height > max(TRUSTED_PIXELS, 256 * len(data))


def is_pillow_older(filters: npt.NDArray[Any]) -> bool:
    """Say whether the order of passes before Pillow 13 is wanted; Pillow is asked only where that shows."""
    # Not `isin`: for a few images it takes as long as to decode a small one.
    return not _WITH_LOBES.isdisjoint(filters.tolist()) and not pillow.resizes_as_kernel()


def _check_out(out: Any) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8 or out.ndim != 4:
        raise ValueError("out must be a uint8 array of shape N x H x W x C")
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


def fill_by_pillow(
    data: bytes, out: U8, box: Box, flip: bool, filter_: int | None, *, is_damaged: bool = False
) -> tuple[Status, str]:
    """Decode with Pillow into `out` (H x W x C); zeroes it when that fails. No filter: it is a mask."""
    out[:] = 0
    try:
        width, height, _ = pillow.measure(data)
        if is_damaged and _claims_too_much(width, height, data):
            return Status.CORRUPT, "too short for its size"
        try:
            _check_box(box, width, height)
        except ValueError as error:
            return Status.BAD_BOX, str(error)
        if filter_ is None:
            pixels = pillow.decode_mask(data, box, out.shape)
        else:
            pixels = pillow.decode(data, box, out.shape, filter_)
    except pillow.Undecodable as error:
        return Status.CORRUPT, str(error)
    except MemoryError as error:
        raise MemoryError(
            "out of memory while Pillow decoded an image; fewer threads and smaller batches need less"
        ) from error
    out[:] = pixels[:, ::-1] if flip else pixels
    return Status.OK, ""
