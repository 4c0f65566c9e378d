# SPDX-License-Identifier: Apache-2.0
"""Images and masks by way of a shelf: decoded whole the first time, cropped from there every further time.

What lies on the shelf are rows of pixels with the table of checksums that `pack --raw` stores too, so that
the kernel reads the rows under the crop alone and checks what it reads. Pixels are those that the pack itself
would give, bit for bit: an image that might differ (its file is damaged, and only some crops show it) is not
kept.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feedrate import kernel, pillow
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.format.raw import dump_bare_table
from feedrate.kernel import DAMAGED_BUT_DECODED, I32, I64, U8, DecodeReport, Ranges, Status
from feedrate.load.cache import Cache
from feedrate.load.geometry import Geometry, Places, decode_pixels, read_sides
from feedrate.load.image import whole
from feedrate.load.samples import choose, take_ranges
from feedrate.load.state import fingerprint
from feedrate.load.tally import Tally
from feedrate.probe.memory import measure_memory_room
from feedrate.results import CacheStats
from feedrate.store.budget import margin_of
from feedrate.store.shelf import Located, Shelf

# A checksum each: memory is read fast, so blocks are larger than on a disk.
BLOCK_BYTES = 32768
LARGEST_BYTES = 256 << 20  # a larger image would take too much memory on its way to the shelf
BY_PILLOW = 1  # a mark: the kernel does not decode this kind of file
VERSION = 1
_BAD_BYTES = (Status.UNREADABLE, Status.CUT_SHORT, Status.CRC_MISMATCH, Status.BAD_ENTRIES)


@dataclass(frozen=True, slots=True)
class Job:
    """What one call of `decode` is about; `numbers`: of the samples, on the shelf."""

    places: Places
    pixels: Field
    geometry: Geometry
    boxes: I32
    out: U8
    pool: kernel.Pool | None
    numbers: I64

    def part(self, at: I64) -> Places:
        return Places(self.places.pack, self.places.rows[at], self.places.positions[at])

    def for_each(self, work: Callable[[int], None], at: Sequence[int]) -> None:
        if self.pool is None or len(at) == 1:
            for i in at:
                work(i)
        else:
            self.pool.map(work, at)


class CachedPixels:
    """The images and masks of a pack, and the shelf for them. Counts hits and misses of one epoch."""

    def __init__(self, pack: Pack, cache: Cache) -> None:
        self._pack = pack
        # Raw pixels have nothing to decode: the page cache serves them as well.
        fields = [f.name for f in pack.fields if f.has_pixels and f.coding is not Coding.RAW]
        self._fields = {name: number for number, name in enumerate(fields)}
        key = f"pixels {VERSION} {fingerprint(pack.manifest)} {','.join(fields)}"
        self._shelf: Shelf = cache.open_shelf(key, len(fields) * len(pack), _count_bytes_to_keep(pack))
        self._refused: set[int] = set()
        self._joined: tuple[tuple[str, ...], kernel.Files] | None = None
        self._lock = threading.Lock()
        self._is_damage_told = False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        with self._lock:
            self._hits, self._misses = [0] * len(self._shelf.tiers), 0

    def decode(
        self, places: Places, pixels: Field, geometry: Geometry, out: U8, pool: kernel.Pool | None
    ) -> DecodeReport:
        """Decode an image or mask field into `out`: as `decode_pixels` does, from the shelf where it can."""
        if pixels.name not in self._fields:
            return decode_pixels(places, pixels, geometry, out, pool)
        numbers = self._fields[pixels.name] * len(self._pack) + places.positions
        job = Job(places, pixels, geometry, geometry.boxes_on(pixels, places.rows), out, pool, numbers)
        tally = Tally(len(numbers))
        located = self._shelf.locate(numbers)
        self._count(located)
        if self._fill(job, located, tally):
            located = self._shelf.locate(numbers)
        if pixels.kind is Kind.MASK:
            again = np.union1d(self._crop_by_pillow(job, located), np.flatnonzero(~located.found))
        else:
            again = self._decode_images(job, located, tally)
        if again.size:
            self._decode_from_pack(job, again, tally)
        return tally.report()

    def _count(self, located: Located) -> None:
        tiers = located.rows["tier"][located.found]
        with self._lock:
            self._misses += len(located.found) - len(tiers)
            for tier in range(len(self._hits)):
                self._hits[tier] += int((tiers == tier).sum())

    def _fill(self, job: Job, located: Located, tally: Tally) -> bool:
        """Decode what is missing as whole images and put them on the shelf, while it has room."""
        widths, heights = read_sides(job.pixels, job.places.rows)
        channels = 3 if job.pixels.kind is Kind.IMAGE else 1
        sizes = widths * heights * channels
        _, firsts = np.unique(job.numbers, return_index=True)
        wanted = np.array(
            [i for i in firsts.tolist()
             if not located.found[i] and 0 < sizes[i] <= LARGEST_BYTES and int(job.numbers[i]) not in
             self._refused],
            np.int64,
        )  # fmt: skip
        if not wanted.size or not self._shelf.has_room(int(sizes[wanted].min())):
            return False
        part = job.part(wanted)
        files, images, _ = part.pack.find_values(job.pixels.name, part.rows, part.positions)
        boxes = whole(widths[wanted], heights[wanted])

        def keep(i: int) -> None:
            at = int(wanted[i])
            if not self._shelf.has_room(int(sizes[at])):
                return
            out = np.empty((1, int(heights[at]), int(widths[at]), channels), np.uint8)
            report = kernel.decode_batch(
                files, take_ranges(images, np.array([i])), out, boxes=boxes[i : i + 1],
                flips=np.zeros(1, np.bool_), nearest=job.pixels.kind is Kind.MASK,
            )  # fmt: skip
            number = int(job.numbers[at])
            if report.statuses[0] or DAMAGED_BUT_DECODED in (report.pillow_reasons or {}):
                self._refused.add(number)
                return
            rows = _without_colour(out[0])
            mark = BY_PILLOW if report.by_pillow else 0
            table = dump_bare_table(rows, BLOCK_BYTES)
            if self._shelf.put(number, table, rows.reshape(-1), source_bytes=int(images.length[i]), mark=mark):
                tally.count(report)

        job.for_each(keep, range(len(wanted)))
        return True

    def _decode_images(self, job: Job, located: Located, tally: Tally) -> I64:
        """Let the kernel take what is on the shelf from there and the rest from the pack, in one go.

        Returns which must come from the pack once more.
        """
        found, rows = located.found, located.rows
        left = np.flatnonzero(~found)
        places = [np.array(rows["tier"]), rows["offset"] + rows["head"], rows["length"] - rows["head"]]
        tables = [np.array(rows["tier"]), np.array(rows["offset"]), rows["head"].astype(np.int64)]
        crc32c = np.zeros(len(found), np.uint32)
        files = None
        if left.size:
            part = job.part(left)
            name = job.pixels.name
            files, images, entries = part.pack.find_values(name, part.rows, part.positions, with_entries=True)
            assert entries is not None
            shift = len(self._shelf.paths)
            for all_of_them, ranges in ((places, images), (tables, entries)):
                all_of_them[0][left] = ranges.file + shift
                all_of_them[1][left], all_of_them[2][left] = ranges.offset, ranges.length
            crc32c[left] = 0 if images.crc32c is None else images.crc32c
        report = kernel.decode_batch(
            self._join(files), Ranges(places[0], places[1], places[2], crc32c), job.out, boxes=job.boxes,
            flips=job.geometry.flips, entries=Ranges(tables[0], tables[1], tables[2]), raw=found, pool=job.pool,
        )  # fmt: skip
        failed = np.flatnonzero(found & (report.statuses != 0))
        for i in failed.tolist():
            if report.statuses[i] in _BAD_BYTES:
                self._discard(rows[i])
        tally.add(report, failed)
        if not pillow.resizes_as_kernel():
            by_pillow = found & (rows["mark"] == BY_PILLOW)
            failed = np.union1d(failed, self._crop_by_pillow(job, replace(located, found=by_pillow)))
        return failed

    def _crop_by_pillow(self, job: Job, located: Located) -> I64:
        """Crop what is on the shelf as Pillow does; returns which could not be."""
        failed: list[int] = []

        def crop(i: int) -> None:
            data, row = self._shelf.get(int(job.numbers[i])), located.rows[i]
            left, top, right, bottom = box = tuple(job.boxes[i].tolist())
            width, height = (int(side[i]) for side in read_sides(job.pixels, job.places.rows))
            is_inside = 0 <= left < right <= width and 0 <= top < bottom <= height
            if data is None or not is_inside:
                failed.append(i)
                return
            pixels = np.frombuffer(data, np.uint8, offset=int(row["head"]))
            shape = (height, width) if len(pixels) == height * width else (height, width, 3)
            is_mask = job.pixels.kind is Kind.MASK
            cropped = pillow.crop_rows(pixels.reshape(shape), box, job.out.shape[1:], is_mask=is_mask)
            job.out[i] = cropped[:, ::-1] if job.geometry.flips[i] else cropped

        at = np.flatnonzero(located.found).tolist()
        if at:
            job.for_each(crop, at)
        return np.array(sorted(failed), np.int64)

    def _decode_from_pack(self, job: Job, at: I64, tally: Tally) -> None:
        out = np.empty((len(at), *job.out.shape[1:]), np.uint8)
        geometry = choose(job.geometry, at)
        tally.add(decode_pixels(job.part(at), job.pixels, geometry, out, job.pool), at=at)
        job.out[at] = out

    def _join(self, files: kernel.Files | None) -> kernel.Files:
        """Return the shelf's files and, behind them, others."""
        paths = self._shelf.paths
        if files is not None and files is not self._pack.files:
            return kernel.Files([*paths, *files.paths])
        joined = self._joined
        if joined is None or joined[0] != paths:
            joined = self._joined = paths, kernel.Files([*paths, *self._pack.files.paths])
        return joined[1]

    def _discard(self, row: np.ndarray[tuple[int, ...], np.dtype[np.void]]) -> None:
        # Given back for want of memory is no damage.
        if self._shelf.discard(row) and not self._is_damage_told:
            self._is_damage_told = True
            warnings.warn(
                "samples in the cache are not what was put there: they come from the pack again "
                "(stats().cache.damaged counts them)",
                RuntimeWarning,
                stacklevel=2,
            )

    def stats(self, names: Sequence[str], positions: I64) -> CacheStats:
        """Return what is cached of some fields and samples, and the hits of this epoch."""
        fields = [self._fields[name] for name in dict.fromkeys(names) if name in self._fields]
        numbers = np.concatenate([np.zeros(0, np.int64), *(f * len(self._pack) + positions for f in fields)])
        tiers = self._shelf.tier_stats(numbers)
        with self._lock:
            counted = tuple(replace(tier, hits=hits) for tier, hits in zip(tiers, self._hits, strict=True))
            shelf = self._shelf
            return CacheStats(len(numbers), counted, self._misses, shelf.damaged, shelf.returned_bytes)

    def close(self) -> None:
        """Close files; what is on the shelf stays there."""
        if self._joined is not None:
            self._joined[1].close()


def _count_bytes_to_keep(pack: Pack) -> int:
    """Return the page cache that the pack itself needs: a sample there takes a fraction of a decoded one.

    A pack that does not fit in memory is read from its disk anyway.
    """
    size_bytes = sum(shard.size_bytes for shard in pack.manifest.shards)
    room = measure_memory_room()
    return size_bytes if size_bytes <= room.free_bytes - margin_of(room.limit_bytes) else 0


def _without_colour(pixels: U8) -> U8:
    """Return H x W of an image that holds no colours, and of a mask: a third of the room; else all of it."""
    if pixels.shape[2] == 1:
        return pixels[..., 0]
    for part in (pixels[::16, ::16], pixels):  # of almost every photograph the first look is enough
        if (part[..., 0] != part[..., 1]).any() or (part[..., 0] != part[..., 2]).any():
            return pixels
    return np.ascontiguousarray(pixels[..., 0])
