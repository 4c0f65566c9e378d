# SPDX-License-Identifier: Apache-2.0
"""Some images of a dataset, in files or in a pack, decoded as the loader does: for commands that measure.

Files are read in place: their entry points, which a pack keeps in its index, go into a temporary file. Or
they are held in memory, one behind the other as in a pack, so that no storage is measured with them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from feedrate import kernel
from feedrate.errors import PackError, StorageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack, Rows
from feedrate.kernel import I64, U8, DecodeReport, Ranges
from feedrate.loader.geometry import CropSampler, Geometry, Places, decode_pixels
from feedrate.loader.image import RandomResizedCrop
from feedrate.progress import Rejection
from feedrate.remote.fetch import FetchedBytes, Piece
from feedrate.units import printable

IMAGE = Field("image", Kind.IMAGE)
_ROW = np.dtype([("number", "<i8"), ("image.width", "<u4"), ("image.height", "<u4")])


class DecodeChosen(Protocol):
    """Decodes some of the images into an array, in the calling thread or in those of a pool."""

    def __call__(
        self, chosen: I64, geometry: Geometry, out: U8, pool: kernel.Pool | None = None
    ) -> DecodeReport: ...


@dataclass(frozen=True, slots=True)
class Samples:
    """Images to measure with.

    Attributes:
        names: paths as the user knows them.
        rows: at least number, image.width and image.height of each.
        images: where each image file lies in `files`.
        rejected: what was asked for and cannot be decoded, each with its reason.
    """

    names: tuple[str, ...]
    rows: Rows
    files: kernel.Files
    images: Ranges
    decode_chosen: DecodeChosen
    rejected: tuple[Rejection, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.names)

    def draw(self, side: int, seed: int, interpolation: str = "bilinear") -> Geometry:
        """Return the crops and flips that a loader with this seed draws in its first epoch."""
        operation = RandomResizedCrop(side, interpolation=interpolation)
        return CropSampler(IMAGE, operation, 0.5, seed).draw(0, self.rows, None)

    def decode(self, geometry: Geometry, out: U8) -> DecodeReport:
        """Decode all of them into `out` in the calling thread, as the loader does."""
        return self.decode_chosen(np.arange(len(self)), geometry, out)

    def decode_one(self, number: int, geometry: Geometry, shape: tuple[int, int]) -> tuple[U8, DecodeReport]:
        """Decode one of them to height x width."""
        chosen = np.array([number], np.int64)
        out = np.zeros((1, *shape, 3), np.uint8)
        report = self.decode_chosen(chosen, geometry.take(chosen), out)
        return out[0], report

    def read(self, number: int) -> bytes:
        """Return the bytes of an image file, as Python reads them.

        Raises:
            StorageError: they cannot be read.
        """
        path = self.files.paths[int(self.images.file[number])]
        try:
            with open(path, "rb") as file:
                file.seek(int(self.images.offset[number]))
                return file.read(int(self.images.length[number]))
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error


def pick(count: int, wanted: int, seed: int) -> I64:
    """Return up to `wanted` of the numbers below `count`, in ascending order."""
    if wanted >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, wanted, replace=False)).astype(np.int64)


@contextmanager
def open_files(
    paths: Sequence[str], numbers: I64 | None = None, *, in_memory: bool = False
) -> Iterator[Samples]:
    """Open image files: each is read and scanned once. `numbers` are theirs in the dataset, for the draws."""
    numbers = np.arange(len(paths)) if numbers is None else numbers
    rejected: list[Rejection] = []
    rows, lengths, checks, entries, names, held = [], [], [], [], [], []
    for number, path in zip(numbers.tolist(), paths, strict=True):
        name = printable(os.fsencode(path))
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            rejected.append(Rejection(name, IMAGE.name, f"cannot be read: {error.strerror}"))
            continue
        scan = kernel.scan(data)
        size = _ask_pillow(data) if scan.damaged else (scan.width, scan.height)
        if size is None:
            rejected.append(Rejection(name, IMAGE.name, scan.reason or "not an image"))
            continue
        rows.append((number, *size))
        lengths.append(len(data))
        checks.append(kernel.crc32c(data))
        entries.append(scan.entries)
        names.append((name, path))
        if in_memory:
            held.append(data)
    count, sizes = len(names), np.array([len(one) for one in entries], np.int64)
    with _beside(held, entries) as sidecar:
        stored = np.array(lengths, np.int64)
        if in_memory:
            file_of, starts = np.zeros(count, np.int32), np.cumsum(stored) - stored
            places = Ranges(file_of, int(stored.sum()) + np.cumsum(sizes) - sizes, sizes)
        else:
            file_of, starts = np.arange(count, dtype=np.int32), np.zeros(count, np.int64)
            places = Ranges(np.full(count, count, np.int32), np.cumsum(sizes) - sizes, sizes)
        files = kernel.Files([sidecar] if in_memory else [*(path for _, path in names), sidecar])
        images = Ranges(file_of, starts, stored, np.array(checks, np.uint32))

        def decode(chosen: I64, geometry: Geometry, out: U8, pool: kernel.Pool | None = None) -> DecodeReport:
            return kernel.decode_batch(
                files, take_ranges(images, chosen), out, boxes=geometry.boxes, flips=geometry.flips,
                filters=geometry.filter_each(), entries=take_ranges(places, chosen), pool=pool,
            )  # fmt: skip

        try:
            yield Samples(
                tuple(name for name, _ in names), np.array(rows, _ROW), files, images, decode, tuple(rejected)
            )
        finally:
            files.close()


@contextmanager
def _beside(held: Sequence[bytes], entries: Sequence[bytes]) -> Iterator[str]:
    """Hold what is read beside the files, one behind the other; images go into memory alone."""
    if held:
        data = b"".join([*held, *entries])
        piece = Piece(b"", 0, len(data))
        try:
            stored = FetchedBytes([piece])
            stored.lay(piece, piece, data)
        except OSError as error:
            raise StorageError(f"no memory for {len(data)} bytes of images: {error.strerror}") from error
        yield stored.path
        return
    with tempfile.NamedTemporaryFile(prefix="feedrate-entries-") as sidecar:
        try:
            sidecar.write(b"".join(entries))
            sidecar.flush()
        except OSError as error:
            raise StorageError(f"cannot write {sidecar.name}: {error.strerror}") from error
        yield sidecar.name


@contextmanager
def open_pack(pack: Pack, positions: I64) -> Iterator[Samples]:
    """Take samples of a pack by their positions. The pack stays the caller's to close."""
    stored = pack.manifest.field(IMAGE.name)
    if stored is None or stored.kind is not Kind.IMAGE:
        have = ", ".join(f.name for f in pack.fields)
        raise PackError(f"{pack.name} has no field 'image' to decode; it has: {have}")
    rows, statuses = pack.rows(positions)
    if statuses.any():
        bad = int(np.flatnonzero(statuses)[0])
        raise pack.describe_bad(int(positions[bad]), IMAGE.name, None, "its row of the index is damaged")
    names = tuple(printable(path) for path in pack.texts("image.path", positions))

    def decode(chosen: I64, geometry: Geometry, out: U8, pool: kernel.Pool | None = None) -> DecodeReport:
        return decode_pixels(Places(pack, rows[chosen], positions[chosen]), stored, geometry, out, pool)

    files, images, _ = pack.find_values(IMAGE.name, rows, positions)
    yield Samples(names, rows, files, images, decode)


def take_ranges(ranges: Ranges, chosen: I64) -> Ranges:
    crc = None if ranges.crc32c is None else ranges.crc32c[chosen]
    return Ranges(ranges.file[chosen], ranges.offset[chosen], ranges.length[chosen], crc)


def _ask_pillow(data: bytes) -> tuple[int, int] | None:
    """Return the size of an image that Pillow decodes although the kernel finds it damaged."""
    from feedrate.kernel import pillow

    try:
        return pillow.check(data)
    except pillow.Undecodable:
        return None
