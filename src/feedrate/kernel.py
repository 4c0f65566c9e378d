# SPDX-License-Identifier: Apache-2.0
"""The only door to the C++ kernel: typed, and everything is checked before a pointer crosses.

PROVISIONAL BODY in plain Python, the interface is final: the kernel replaces it.
"""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class Status(enum.IntEnum):
    """How one sample ended."""

    OK = 0
    UNREADABLE = 1  # the file cannot be opened or read
    CUT_SHORT = 2  # the file ends before the range does
    CRC_MISMATCH = 3  # the bytes are not those that were packed
    NOT_TAKEN = 4  # a kind of image the kernel leaves to Pillow (never leaves `decode_batch`)
    CORRUPT = 5  # the image is damaged; neither the kernel nor Pillow decodes it
    BAD_BOX = 6  # the crop box is empty or not inside the image
    BAD_ENTRIES = 7  # the entry points do not describe this file


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over an image file found."""

    width: int
    height: int
    sampling: str  # "4:4:4", "4:2:0", "gray", ...; "" when the kernel does not take the file
    reason: str | None  # why the kernel does not take it, in words; None when it does
    damaged: bool  # the reason is damage, not kind
    entries: bytes  # entry points, opaque; b"" when the kernel does not take the file


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
        self._fds: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _pread(self, file: int, length: int, offset: int) -> bytes:
        if file not in self._fds:
            self._fds[file] = os.open(self.paths[file], os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._fds[file], length, offset)


class Pool:
    """Native threads that take samples one by one; shared by any number of concurrent calls."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def close(self) -> None:
        pass


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of `data`, continuing from `value`."""
    value ^= 0xFFFFFFFF
    for byte in bytes(data):
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def scan(data: bytes) -> Scan:
    """Look at an image file once: geometry, whether the kernel decodes it, its entry points.

    Never raises for bad bytes: `reason` and `damaged` say what is wrong.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Scan(*image.size, "", "provisional kernel", False, b"")
    except Exception as error:
        return Scan(0, 0, "", str(error), True, b"")


def gather_rows(files: Files, file: I32, row: I64, bases: I64, strides: I64, dtype: np.dtype[Any]) -> Any:
    """Read rows of a columnar table straight from its file, and check each row's last column.

    Column `c` of row `r` lies at `bases[i, c] + r * strides[c]` in `files[file[i]]`. Returns `(rows, statuses)`: `rows` is a
    structured array of `dtype` (packed, one field per column); its last field holds the CRC-32C of the
    bytes before it. `bases` has one row per *sample*.
    """
    n = len(file)
    out = np.zeros(n, dtype)
    statuses = np.zeros(n, np.int32)
    sizes = [dtype.fields[name][0].itemsize for name in dtype.names]  # type: ignore[union-attr, index]
    raw = out.view(np.uint8).reshape(n, dtype.itemsize)
    for i in range(n):
        parts = [files._pread(int(file[i]), size, int(bases[i, c] + row[i] * strides[c])) for c, size in enumerate(sizes)]
        line = b"".join(parts)
        if len(line) != dtype.itemsize:
            statuses[i] = Status.CUT_SHORT
            continue
        raw[i] = np.frombuffer(line, np.uint8)
        if crc32c(line[:-4]) != int.from_bytes(line[-4:], "little"):
            statuses[i] = Status.CRC_MISMATCH
    return out, statuses


def read_ranges(files: Files, ranges: Ranges, pool: Pool | None = None) -> tuple[U8, I64, I32]:
    """Read ranges one behind the other into one buffer: `(buffer, starts, statuses)`, `starts` of length N+1."""
    starts = np.concatenate([[0], np.cumsum(ranges.length)]).astype(np.int64)
    buffer = np.zeros(int(starts[-1]), np.uint8)
    statuses = np.zeros(len(ranges), np.int32)
    for i in range(len(ranges)):
        data, statuses[i] = _read(files, ranges, i)
        if statuses[i] == 0:
            buffer[starts[i] : starts[i + 1]] = np.frombuffer(data, np.uint8)
    return buffer, starts, statuses


def decode_batch(
    files: Files,
    images: Ranges,
    out: U8,
    *,
    boxes: I32,
    flips: npt.NDArray[np.bool_],
    entries: Ranges | None = None,
    nearest: bool = False,
    pool: Pool | None = None,
) -> DecodeReport:
    """Read, check, decode, crop, resize and flip images into `out`.

    Args:
        images: where the image files lie.
        out: uint8, C-contiguous, N x H x W x C; C is 3 (RGB) or 1 (gray, as Pillow's "L").
        boxes: N x 4: left, top, right, bottom in pixels of the image, inside it, not empty.
        flips: mirror left to right, after the resize.
        entries: where the entry points lie (length 0: none); None: decode from the top.
        nearest: nearest neighbour and stored values as they are (palette indices, 8-bit), for masks.
        pool: threads to use; None: the calling thread.

    Pixels are those of Pillow: `convert(mode).crop(box).resize((W, H), BILINEAR)`. A sample whose status is
    not OK leaves its part of `out` zeroed.
    """
    from PIL import Image

    n, height, width, channels = out.shape
    statuses = np.zeros(n, np.int32)
    reasons: dict[int, str] = {}
    for i in range(n):
        data, statuses[i] = _read(files, images, i)
        if statuses[i]:
            reasons[i] = Status(statuses[i]).name
            out[i] = 0
            continue
        try:
            with Image.open(io.BytesIO(data)) as image:
                if not nearest:
                    image = image.convert("RGB" if channels == 3 else "L")
                image = image.crop(tuple(boxes[i])).resize((width, height), Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR)
                pixels = np.asarray(image).reshape(height, width, channels)
                out[i] = pixels[:, ::-1] if flips[i] else pixels
        except Exception as error:
            statuses[i], reasons[i] = Status.CORRUPT, str(error)
            out[i] = 0
    return DecodeReport(statuses, reasons, by_pillow=n)


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """How a batch ended: a status per sample, words for each bad one, and how many went through Pillow."""

    statuses: I32
    reasons: dict[int, str]
    by_pillow: int
    pillow_reasons: dict[str, int] | None = None  # why, in words -> how many


def decode_one(
    data: bytes, *, box: tuple[int, int, int, int] | None = None, size: tuple[int, int] | None = None,
    flip: bool = False, mode: str = "RGB", nearest: bool = False,
) -> U8:
    """Decode one image in memory to H x W x C (`size` is height, width); raises ValueError in words when it is damaged."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image = image.convert(mode) if not nearest else image.copy()
    image = image.crop(box) if box else image
    image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR) if size else image
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)[:, :: -1 if flip else 1].copy()


def _read(files: Files, ranges: Ranges, i: int) -> tuple[bytes, int]:
    try:
        data = files._pread(int(ranges.file[i]), int(ranges.length[i]), int(ranges.offset[i]))
    except OSError:
        return b"", Status.UNREADABLE
    if len(data) < ranges.length[i]:
        return b"", Status.CUT_SHORT
    if ranges.crc32c is not None and crc32c(data) != ranges.crc32c[i]:
        return b"", Status.CRC_MISMATCH
    return data, Status.OK


def _make_table() -> list[int]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


_TABLE = _make_table()
