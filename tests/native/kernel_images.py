# SPDX-License-Identifier: Apache-2.0
"""Images for the kernel's tests: made here, seeded, the same on every run."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

from feedrate import kernel

SAMPLINGS = ["gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0"]

# The order of the two passes shows in the last bit; the kernel's is that of Pillow 13.
RESIZE_TOLERANCE = 0 if int(PIL.__version__.split(".")[0]) >= 13 else 1


def make_pixels(width: int, height: int, *, seed: int = 0, gray: bool = False) -> np.ndarray:
    """Return gradients, edges and noise: what a photograph has for a codec."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for channel in range(1 if gray else 3):
        angle = rng.uniform(0, 6.28)
        wave = 90 * np.sin((x * np.cos(angle) + y * np.sin(angle)) / rng.uniform(4, 40) + channel)
        blocks = 60 * (((x // 13 + y // 9 + channel) % 3) - 1)
        planes.append(128 + wave + blocks + rng.normal(0, 12, (height, width)))
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return pixels[:, :, 0] if gray else pixels


def encode(pixels: np.ndarray, format: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


def make_jpeg(width: int, height: int, sampling: str = "4:2:0", *, seed: int = 0, **options: Any) -> bytes:
    options.setdefault("quality", 85)
    if sampling == "gray":
        return encode(make_pixels(width, height, seed=seed, gray=True), **options)
    if sampling == "4:4:0":
        return as_440(width, height, seed=seed, **options)
    return encode(make_pixels(width, height, seed=seed), subsampling=sampling, **options)


def as_440(width: int, height: int, **options: Any) -> bytes:
    """Return a 4:4:0 file, which Pillow does not write.

    It is a 4:2:2 file with other numbers in its header: both have MCUs of two luma blocks and two chroma
    blocks, so any image with as many MCUs per row and as many rows will do. The picture is scrambled, the
    file is sound.
    """
    options.pop("subsampling", None)
    across, down = -(-width // 8), -(-height // 16)
    data = bytearray(make_jpeg(16 * across, 8 * down, "4:2:2", **options))
    at = find_frame(data)
    struct.pack_into(">HH", data, at + 5, height, width)
    assert data[at + 11] == 0x21
    data[at + 11] = 0x12
    return bytes(data)


def find_frame(data: bytes | bytearray, marker: int = 0xC0) -> int:
    """Return where the SOF segment's marker stands."""
    at = 2
    while data[at + 1] != marker:
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return at


def by_pillow(
    data: bytes, box: Any = None, size: Any = None, *, mode: str = "RGB", flip: bool = False, filter_: int = 2
) -> np.ndarray:
    """Return what the kernel promises: `size` is height, width."""
    with Image.open(io.BytesIO(data)) as image:
        image = image.convert(mode)
    image = image.crop(box) if box else image
    image = image.resize(size[::-1], filter_) if size else image
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return pixels[:, ::-1] if flip else pixels


def random_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
    top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
    return left, top, right, bottom


class Store:
    """Byte strings in one file, as ranges."""

    def __init__(self, folder: Path, parts: list[bytes], *, entries: list[bytes] | None = None) -> None:
        self.path = folder / "store.bin"
        self.images = self._add(parts)
        self.entries = None if entries is None else self._add(entries)
        self.files = kernel.Files([self.path])

    def _add(self, parts: list[bytes]) -> kernel.Ranges:
        start = self.path.stat().st_size if self.path.exists() else 0
        lengths = np.array([len(part) for part in parts], np.int64)
        offsets = start + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        crc = np.array([kernel.crc32c(part) for part in parts], np.uint32)
        with self.path.open("ab") as file:
            file.write(b"".join(parts))
        return kernel.Ranges(np.zeros(len(parts), np.int32), offsets, lengths, crc)

    def decode(
        self,
        boxes: Any,
        *,
        size: tuple[int, int] = (32, 32),
        channels: int = 3,
        flips: Any = None,
        **options: Any,
    ) -> tuple[np.ndarray, kernel.DecodeReport]:
        n = len(self.images)
        out = np.full((n, *size, channels), 77, np.uint8)
        flips = np.zeros(n, np.bool_) if flips is None else np.array(flips, np.bool_)
        options.setdefault("entries", self.entries)
        report = kernel.decode_batch(
            self.files, self.images, out, boxes=np.array(boxes, np.int32), flips=flips, **options
        )
        return out, report


def decode_with_entries(
    folder: Path, data: bytes, entries: bytes, box: Any
) -> tuple[np.ndarray, kernel.DecodeReport]:
    """Decode one crop without a resize."""
    left, top, right, bottom = box
    store = Store(folder, [data], entries=[entries])
    out, report = store.decode([box], size=(bottom - top, right - left))
    return out[0], report
