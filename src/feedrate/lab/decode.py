# SPDX-License-Identifier: Apache-2.0
"""Some images of a dataset, in files or in a pack, decoded as the loader does: for commands that measure.

Files are read in place: their entry points, which a pack keeps in its index, go into a temporary file. Or
they are held in memory, one behind the other as in a pack, so that no storage is measured with them.

And are these Pillow's pixels? The reference as torchvision's users have it, and how far others are from it.
"""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from feedrate import kernel
from feedrate.arrays import I64, U8
from feedrate.errors import PackError, StorageError
from feedrate.filters import BILINEAR
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack, Rows
from feedrate.kernel import DecodeReport, Ranges
from feedrate.kernel.pillow import Box
from feedrate.loader.geometry import CropSampler, FieldCrops, Geometry, Places, decode_pixels
from feedrate.loader.image import RandomResizedCrop
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.loader.results import PixelCheck
from feedrate.progress import Rejection
from feedrate.remote.fetch import FetchedBytes, Piece
from feedrate.units import printable

if TYPE_CHECKING:
    from PIL import Image

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
        images: where each image file is in `files`.
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

    def draw(self, side: int, seed: int) -> Geometry:
        """Return the crops and flips that a loader with this seed draws in its first epoch."""
        return CropSampler(IMAGE, RandomResizedCrop(side), 0.5, seed).draw(0, self.rows, None)

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
                files, images.take(chosen), out, boxes=geometry.boxes, flips=geometry.flips,
                filters=geometry.filter_each(), entries=places.take(chosen), depth="clip", pool=pool,
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
        places = Places(pack, rows[chosen], positions[chosen])
        return decode_pixels(FieldCrops(places, stored, replace(geometry, depth="clip")), out, pool)

    files, images, _ = pack.find_values(IMAGE.name, rows, positions)
    yield Samples(names, rows, files, images, decode)


def _ask_pillow(data: bytes) -> tuple[int, int] | None:
    """Return the size of an image that Pillow decodes although the kernel finds it damaged."""
    from feedrate.kernel import pillow

    try:
        return pillow.check(data)
    except pillow.Undecodable:
        return None


# Two exact decoders differ in how they round, by a level or two in places. Half a level everywhere: 54 dB.
LOWEST_PSNR_DB = 54.0
LARGEST_DIFFERENCE = 2

# Rows of pixels, as a pack may hold them in place of an image file.
_NPY = b"\x93NUMPY"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two pictures of equal size. A pixel differs by as much as its channel that differs most."""

    psnr_db: float | None  # None: every pixel is equal
    largest: int
    levels: tuple[int, int, int, int]  # pixels that differ by 0, 1, 2 and more

    @property
    def is_rounding(self) -> bool:
        """Whether two exact decoders may differ by this much."""
        return self.psnr_db is None or (self.psnr_db >= LOWEST_PSNR_DB and self.largest <= LARGEST_DIFFERENCE)


def decode_as_torchvision(file: bytes, box: Box, side: int, flip: bool, filter_: int = BILINEAR) -> U8:
    """Return what `Compose([RandomResizedCrop(side), RandomHorizontalFlip()])` makes of an image file.

    Written with Pillow alone, and apart from feedrate's own way through Pillow, which it checks.

    Raises:
        Exception: whatever Pillow raises for a file that it does not decode.
    """
    pixels = np.asarray(_open(file).crop(box).resize((side, side), filter_))
    return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels


def compare_pixels(ours: U8, theirs: U8) -> Difference:
    difference = np.abs(ours.astype(np.int16) - theirs.astype(np.int16))
    zero, one, two, more = np.bincount(np.minimum(difference.max(axis=-1), 3).ravel(), minlength=4).tolist()
    error = float(np.square(difference, dtype=np.float64).mean())
    psnr_db = 10 * math.log10(255**2 / error) if error else None
    return Difference(psnr_db, int(difference.max()), (zero, one, two, more))


def check_pixels(pack_path: str, *, side: int, images: int = 24, seed: int = 0) -> PixelCheck:
    """Decode random crops of up to `images` samples, spread over the pack, both ways.

    Raises:
        BadSample: one of them cannot be decoded.
    """
    pack = open_anywhere(pack_path)
    try:
        positions = np.unique(np.linspace(0, len(pack) - 1, min(images, len(pack))).astype(np.int64))
        with open_pack(pack, positions) as samples:
            geometry = samples.draw(side, seed)
            ours = np.zeros((len(samples), side, side, 3), np.uint8)
            report = samples.decode(geometry, ours)
            for number, reason in report.reasons.items():
                raise pack.describe_bad(int(positions[number]), "image", samples.rows[number], reason)
            boxes, flips = geometry.boxes.tolist(), geometry.flips.tolist()
            theirs = [
                decode_as_torchvision(samples.read(i), tuple(boxes[i]), side, flips[i])
                for i in range(len(samples))
            ]
    finally:
        pack.close()
    return judge_pixels(ours, np.stack(theirs), report.by_pillow)


def judge_pixels(ours: U8, theirs: U8, by_pillow: int = 0) -> PixelCheck:
    found = [compare_pixels(a, b) for a, b in zip(ours, theirs, strict=True)]
    psnrs = [one.psnr_db for one in found if one.psnr_db is not None]
    return PixelCheck(
        images=len(found),
        lowest_psnr_db=min(psnrs, default=None),
        largest_difference=max(one.largest for one in found),
        is_same=all(one.is_rounding for one in found),
        by_pillow=by_pillow,
    )


def _open(file: bytes) -> Image.Image:
    from PIL import Image

    if file.startswith(_NPY):
        rows: U8 = np.load(io.BytesIO(file), allow_pickle=False)
        image: Image.Image = Image.fromarray(rows)
    else:
        image = Image.open(io.BytesIO(file))
    with image:
        pixels: Image.Image = image.convert("RGB")
    return pixels
