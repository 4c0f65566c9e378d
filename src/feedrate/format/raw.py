# SPDX-License-Identifier: Apache-2.0
"""Images as plain rows of uint8: a .npy file, and the table of checksums that lets single rows be trusted.

The kernel reads the table (native/raw.h describes it); here both are written, and read back for checking.
"""

from __future__ import annotations

import io
import struct

import numpy as np

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
    if not data.startswith(_MAGIC):
        raise ValueError("is not a .npy file of version 1.0")
    stream = io.BytesIO(data)
    stream.seek(len(_MAGIC))
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # numpy raises whatever it likes on a bad header
        raise ValueError(f"is not a .npy file: {error}") from error
    start = stream.tell()
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    if dtype != np.uint8 or is_fortran or not is_image or min(shape) < 1:
        raise ValueError(f"is an array of {dtype} and shape {shape}, not rows of uint8, gray or RGB")
    if len(data) - start != int(np.prod(shape, dtype=object)):
        raise ValueError(f"has {len(data) - start} bytes of pixels, its shape {shape} needs others")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape), start


def dump_table(data: bytes, block_rows: int | None = None) -> bytes:
    """Return the table of a raw image: its geometry, and a crc32c per block of rows."""
    pixels, start = parse_raw(data)
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else 3
    row_bytes = width * channels
    block_rows = block_rows or min(max(1, BLOCK_BYTES // row_bytes), height)
    head = _HEAD.pack(ord("R"), 1, channels, 0, block_rows, width, height, start)
    view, step = memoryview(data), block_rows * row_bytes
    crcs = [kernel.crc32c(view[at : at + step]) for at in range(start, len(data), step)]
    tail = struct.pack(f"<{len(crcs)}I", *crcs)
    return head + struct.pack("<I", kernel.crc32c(tail, kernel.crc32c(head))) + tail


def table_fits(data: bytes, table: bytes) -> bool:
    """Say whether a table is right for a raw image, whatever the size of its blocks."""
    if len(table) < _HEAD.size:
        return False
    block_rows = int(_HEAD.unpack_from(table)[4])
    return 1 <= block_rows <= len(parse_raw(data)[0]) and dump_table(data, block_rows) == table
