# SPDX-License-Identifier: Apache-2.0
"""What goes on a cache's shelf: whole images or, where an operation is not random, what it makes of them.

Either way rows of pixels, with the table of checksums that `pack --raw` stores too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feedrate import kernel
from feedrate.cache.store import SampleCache
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.format.raw import dump_bare_table, measure_table
from feedrate.kernel import DAMAGED_BUT_DECODED, I32, I64, U8, Status
from feedrate.load.geometry import Geometry, Places, Sides, decode_pixels, read_sides
from feedrate.load.image import CenterCrop, ImageOp, Resize, whole
from feedrate.load.samples import pick, take_ranges
from feedrate.load.tally import Tally

# A checksum each: memory is read fast, so blocks are larger than on a disk.
BLOCK_BYTES = 32768
LARGEST_BYTES = 256 << 20  # a larger image would take too much memory on its way to the shelf
BY_PILLOW = 1  # a mark: the kernel does not decode this kind of file
_SAMPLED = 256
# Another try may find the bytes elsewhere: in the source of a scratch copy.
_MAY_BE_BETTER_LATER = (Status.UNREADABLE, Status.CUT_SHORT, Status.CRC_MISMATCH)


@dataclass(frozen=True, slots=True)
class Job:
    """Samples to decode; `numbers`: theirs on the shelf; `sides` and `cuts`: of what is kept there."""

    places: Places
    pixels: Field
    geometry: Geometry
    out: U8
    pool: kernel.Pool | None
    numbers: I64
    sides: Sides
    cuts: I32

    @property
    def is_mask(self) -> bool:
        return self.pixels.kind is Kind.MASK

    def measure(self, i: int) -> int:
        """Return how many bytes a sample takes on the shelf, if it has colours."""
        width, height, channels = int(self.sides[0][i]), int(self.sides[1][i]), int(self.out.shape[3])
        return width * height * channels + measure_table(width, height, channels, BLOCK_BYTES)

    def part(self, at: I64) -> Places:
        return Places(self.places.pack, self.places.rows[at], self.places.positions[at])

    def for_each(self, work: Callable[[int], None], at: Sequence[int]) -> None:
        _for_each(self.pool, work, at)


def _for_each(pool: kernel.Pool | None, work: Callable[[int], None], at: Sequence[int]) -> None:
    if pool is None or len(at) == 1:
        for i in at:
            work(i)
    else:
        pool.map(work, at)


def make_job(
    places: Places, pixels: Field, geometry: Geometry, out: U8, pool: kernel.Pool | None, *, numbers: I64,
    keeps_results: bool,
) -> Job:  # fmt: skip
    if keeps_results:
        sides = np.full(len(numbers), out.shape[2]), np.full(len(numbers), out.shape[1])
        return Job(places, pixels, geometry, out, pool, numbers, sides, whole(*sides))
    sides, cuts = read_sides(pixels, places.rows), geometry.boxes_on(pixels, places.rows)
    return Job(places, pixels, geometry, out, pool, numbers, sides, cuts)


def is_worth_keeping_results(pack: Pack, reference: Field | None, image: ImageOp | None) -> bool:
    """Say whether an operation always makes the same of an image, and something smaller.

    Looks at some images of the pack, the same ones in every process.
    """
    if reference is None or not isinstance(image, (CenterCrop, Resize)) or not len(pack):
        return False
    rows, statuses = pack.rows(pick(len(pack), _SAMPLED, 0), [reference.name])
    widths, heights = read_sides(reference, rows[statuses == 0])
    height, width = image.out_size
    return bool(len(widths)) and height * width < float((widths * heights).mean())


def keep_whole(job: Job, at: I64, shelf: SampleCache, tally: Tally) -> list[int]:
    """Decode whole images and put them on the shelf, while it has room; returns what must not go there."""
    numbers = job.numbers[at].tolist()
    refused = decode_whole(
        job.part(at), job.pixels, job.out.shape[3], job.pool, tally,
        has_room=lambda i: shelf.has_room(job.measure(int(at[i]))),
        keep=lambda i, pixels, source_bytes, mark: _put(shelf, numbers[i], pixels, source_bytes, mark),
    )  # fmt: skip
    return [numbers[i] for i in refused]


def decode_whole(
    places: Places,
    pixels: Field,
    channels: int,
    pool: kernel.Pool | None,
    tally: Tally,
    *,
    has_room: Callable[[int], bool],
    keep: Callable[[int, U8, int, int], bool],
) -> list[int]:
    """Decode whole images or masks, each in a thread of its own; return which of them must not be kept.

    Args:
        has_room: looks whether it is worth the while.
        keep: gets the number of one, its pixels (height x width x channels), how many bytes it was made of,
            and a mark, 0 or BY_PILLOW; says whether it kept them.
    """
    is_mask, is_raw = pixels.kind is Kind.MASK, pixels.coding is Coding.RAW
    files, images, entries = places.pack.find_values(
        pixels.name, places.rows, places.positions, with_entries=not is_mask
    )
    widths, heights = read_sides(pixels, places.rows)
    boxes = whole(widths, heights)
    refused: list[int] = []

    def decode(i: int) -> None:
        if not has_room(i):
            return
        one, width, height = np.array([i]), int(widths[i]), int(heights[i])
        if width * height > kernel.TRUSTED_PIXELS:
            status, _ = kernel.check_size(files, take_ranges(images, one), (width, height), raw=is_raw)
            if status:
                refused.extend([] if status in _MAY_BE_BETTER_LATER else [i])
                return
        out = np.empty((1, height, width, channels), np.uint8)
        report = kernel.decode_batch(
            files, take_ranges(images, one), out, boxes=boxes[i : i + 1], flips=np.zeros(1, np.bool_),
            entries=None if entries is None else take_ranges(entries, one), nearest=is_mask, raw=is_raw,
        )  # fmt: skip
        if report.statuses[0] in _MAY_BE_BETTER_LATER:
            return
        # Damage that Pillow decodes: of crops that do not show it, the kernel's pixels count.
        if report.statuses[0] or DAMAGED_BUT_DECODED in (report.pillow_reasons or {}):
            refused.append(i)
        elif keep(i, out[0], int(images.length[i]), BY_PILLOW if report.by_pillow else 0):
            tally.count(report)

    _for_each(pool, decode, range(len(boxes)))
    return refused


def keep_results(job: Job, at: I64, shelf: SampleCache, tally: Tally) -> list[int]:
    """Make what the operation makes of images, not yet mirrored, and put it on the shelf."""
    pixels = np.empty((len(at), *job.out.shape[1:]), np.uint8)
    geometry = replace(job.geometry.take(at), flips=np.zeros(len(at), np.bool_))
    part = job.part(at)
    report = decode_pixels(part, job.pixels, geometry, pixels, job.pool)
    tally.count(report)
    lengths = part.rows[f"{job.pixels.name}.length"]
    refused: list[int] = []
    for i, number in enumerate(job.numbers[at].tolist()):
        if report.statuses[i]:
            if report.statuses[i] not in _MAY_BE_BETTER_LATER:
                refused.append(number)
        elif not _put(shelf, number, pixels[i], int(lengths[i]), 0):
            break
    return refused


def _put(shelf: SampleCache, number: int, pixels: U8, source_bytes: int, mark: int) -> bool:
    rows = without_colour(pixels)
    table = dump_bare_table(rows, BLOCK_BYTES)
    return shelf.put(number, table, rows.reshape(-1), source_bytes=source_bytes, mark=mark)


def without_colour(pixels: U8) -> U8:
    """Return H x W of an image that holds no colours, and of a mask: a third of the room; else all of it."""
    if pixels.shape[2] == 1:
        return pixels[..., 0]
    for part in (pixels[::16, ::16], pixels):  # of almost every photograph the first look is enough
        if (part[..., 0] != part[..., 1]).any() or (part[..., 0] != part[..., 2]).any():
            return pixels
    return np.ascontiguousarray(pixels[..., 0])
