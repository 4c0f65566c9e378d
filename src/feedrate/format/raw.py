# SPDX-License-Identifier: Apache-2.0
"""Images as plain rows of uint8: a .npy file, and the table of checksums that lets single rows be trusted.

Where a container itself says type and shape (HDF5), a .npy file is stored without its header: bare.

The kernel reads the table (native/raw.h describes it); here both are written, and read back for checking.
"""

from __future__ import annotations

import functools
import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.kernel import U8

# A block is what one checksum covers, so the least that can be read: two pages. The table is then 0.05 % of
# the pixels.
BLOCK_BYTES = 8192
_MAGIC = b"\x93NUMPY\x01\x00"
_HEAD = struct.Struct("<BBBBIIII")


def dump_raw(pixels: U8) -> bytes:
    """Return the .npy file of an image of shape H x W (gray) or H x W x 3."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def parse_raw(data: bytes) -> tuple[U8, int]:
    """Return the pixels of a raw image, and at which byte their rows begin.

    Raises:
        ValueError: it is not a .npy file of uint8 rows, gray or RGB; in words.
    """
    shape, is_fortran, dtype, start = _parse_header(data)
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    if dtype != np.uint8 or is_fortran or not is_image or min(shape) < 1:
        raise ValueError(f"is an array of {dtype} and shape {shape}, not rows of uint8, gray or RGB")
    if len(data) - start != int(np.prod(shape, dtype=object)):
        raise ValueError(f"has {len(data) - start} bytes of pixels, its shape {shape} needs others")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape), start


def _parse_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    if not data.startswith(_MAGIC):
        raise ValueError("is not a .npy file of version 1.0")
    stream = io.BytesIO(data)
    stream.seek(len(_MAGIC))
    try:
        header = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # numpy raises whatever it likes on a bad header
        raise ValueError(f"is not a .npy file: {error}") from error
    return *header, stream.tell()


def dump_table(data: bytes) -> bytes:
    """Return the table of a raw image: its geometry, and a crc32c per block of rows."""
    return _dump_table(*parse_raw(data))


def dump_bare_table(pixels: U8, block_bytes: int = BLOCK_BYTES) -> bytes:
    """Return the table of an image whose rows are in a file without a header: H x W or H x W x 3."""
    return _dump_table(pixels, 0, block_bytes=block_bytes)


def measure_table(width: int, height: int, channels: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Return how many bytes `dump_bare_table` gives."""
    block_rows = min(max(1, block_bytes // (width * channels)), height)
    return _HEAD.size + 4 - 4 * (-height // block_rows)


def bare_table(table: bytes) -> bytes:
    """Return the table of the same image without the header of its file."""
    return _check_table(_HEAD.pack(*_HEAD.unpack_from(table)[:7], 0), table[_HEAD.size + 4 :])


def parse_stored(data: bytes, table: bytes) -> U8:
    """Return the pixels of a raw image; its table says whether the file's header is there.

    Raises:
        ValueError: the bytes are not such an image; in words.
    """
    if len(table) < _HEAD.size or _HEAD.unpack_from(table)[7] != 0:
        return parse_raw(data)[0]
    _, _, channels, _, _, width, height, _ = _HEAD.unpack_from(table)
    if len(data) != channels * width * height:
        raise ValueError(f"has {len(data)} bytes, {height} x {width} x {channels} pixels need others")
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(data, np.uint8).reshape(shape)


def table_fits(data: bytes, table: bytes) -> bool:
    """Say whether a table is right for a raw image, whatever the size of its blocks."""
    if len(table) < _HEAD.size:
        return False
    *_, block_rows, _, _, start = _HEAD.unpack_from(table)
    pixels = parse_stored(data, table)
    start = start and parse_raw(data)[1]
    return 1 <= block_rows <= len(pixels) and _dump_table(pixels, start, block_rows) == table


def _dump_table(pixels: U8, start: int, block_rows: int = 0, block_bytes: int = BLOCK_BYTES) -> bytes:
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else 3
    row_bytes = width * channels
    block_rows = block_rows or min(max(1, block_bytes // row_bytes), height)
    head = _HEAD.pack(ord("R"), 1, channels, 0, block_rows, width, height, start)
    rows, step = np.ascontiguousarray(pixels).reshape(-1), block_rows * row_bytes
    crcs = [kernel.crc32c(rows[at : at + step]) for at in range(0, len(rows), step)]
    return _check_table(head, struct.pack(f"<{len(crcs)}I", *crcs))


def _check_table(head: bytes, crcs: bytes) -> bytes:
    return head + struct.pack("<I", kernel.crc32c(crcs, kernel.crc32c(head))) + crcs


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        ValueError, or whatever else numpy raises: it is not one.
        MemoryError: there is too little for it; not for a header that claims more than the file holds.
    """
    try:
        array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except MemoryError:
        np.empty(len(data), np.uint8)  # an honest file needs no more than this
        raise ValueError("its header claims more than it holds") from None
    return array


def bare_array(data: bytes) -> npt.NDArray[Any] | None:
    """Return the array of a .npy file whose header follows from type and shape; None: it has another one."""
    try:
        shape, is_fortran, dtype, start = _parse_header(data)
    except ValueError:
        return None
    size_bytes = int(dtype.itemsize * np.prod(shape, dtype=object))
    if is_fortran or dtype.kind not in "biufc" or len(data) - start != size_bytes:
        return None
    if data[:start] != npy_header(dtype.str, shape):
        return None
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


@functools.lru_cache(maxsize=64)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return how a .npy file of this type and shape begins."""
    stream = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()
