# SPDX-License-Identifier: Apache-2.0
"""Images and masks by way of a cache: decoded the first time, cropped from there every further time.

Whole images are kept or, where an operation is not random, what it makes of them: rows of pixels, with the
table of checksums that `pack --raw` stores too. The kernel reads the rows under the crop alone, and checks
what it reads. Pixels are those that the pack itself would give, bit for bit; what might differ is not kept.
With depth "uint16", gray of more than 8 bits is kept in its values, and all else in the 8 bits that it has.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrate import kernel
from feedrate.arrays import I32, I64, Flags, Pixels
from feedrate.cache.limits import margin_of
from feedrate.cache.results import CacheStats
from feedrate.cache.store import SampleCache
from feedrate.cache.table import Located, Rows
from feedrate.draws import pick
from feedrate.filters import find_filters
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.format.raw import dump_bare_table, measure_table
from feedrate.kernel import DAMAGED_BUT_DECODED, DecodeReport, Ranges, Status, pillow
from feedrate.kernel.depth import Depth
from feedrate.loader.arguments import Size
from feedrate.loader.cache import Cache
from feedrate.loader.geometry import CropSampler, FieldCrops, Sides, Tally, decode_pixels, read_sides
from feedrate.loader.image import CenterCrop, ImageOp, Resize, whole
from feedrate.loader.options import Wanted
from feedrate.loader.order import fingerprint
from feedrate.loader.pipeline import when_taken
from feedrate.machine.memory import MemoryGauge

if TYPE_CHECKING:
    from feedrate.loader.device.gpu_tier import GpuTier

# A checksum each: memory is read fast, so blocks are larger than on a disk.
BLOCK_BYTES = 32768
LARGEST_BYTES = 256 << 20  # a larger image would take too much memory on its way to the cache
# Marks: the kernel does not decode this kind of file; or its pixels have 16 bits, which it does not crop.
BY_PILLOW, WIDE = 1, 2
_SAMPLED = 256
# Another try may find the bytes elsewhere: in the source of a scratch copy.
_MAY_BE_BETTER_LATER = (Status.UNREADABLE, Status.CUT_SHORT, Status.CRC_MISMATCH)


@dataclass(frozen=True, slots=True)
class Job:
    """Crops to decode into `out`.

    Attributes:
        numbers: the samples' numbers in the cache.
        sides, cuts: sizes of the images that the cache keeps of them, and the crops' boxes in those.
    """

    crops: FieldCrops
    out: Pixels
    pool: kernel.Pool | None
    numbers: I64
    sides: Sides
    cuts: I32

    @property
    def is_mask(self) -> bool:
        return self.crops.field.kind is Kind.MASK

    def measure(self, i: int) -> int:
        """Return how many bytes a sample takes in the cache, if it has colours."""
        width, height, channels = int(self.sides[0][i]), int(self.sides[1][i]), int(self.out.shape[3])
        # Of 16 bits there is one channel, so that three of 8 bits have room for it.
        channels = max(channels, self.out.dtype.itemsize)
        return width * height * channels + measure_table(width, height, channels, BLOCK_BYTES)


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


def keep_whole(job: Job, at: I64, store: SampleCache, tally: Tally) -> list[int]:
    """Decode whole images and put them into the cache, while it has room; return those it must not have."""
    numbers = job.numbers[at].tolist()
    refused = decode_whole(
        job.crops.take(at), job.out.shape[3], job.pool, tally,
        has_room=lambda i: store.opened.has_room(job.measure(int(at[i]))),
        keep=lambda i, pixels, source_bytes, mark: _put(store, numbers[i], pixels, source_bytes, mark),
    )  # fmt: skip
    return [numbers[i] for i in refused]


def decode_whole(
    crops: FieldCrops, channels: int, pool: kernel.Pool | None, tally: Tally, *,
    has_room: Callable[[int], bool], keep: Callable[[int, Pixels, int, int], bool],
) -> list[int]:  # fmt: skip
    """Decode the whole images or masks of crops, each in one thread; return those that must not be kept.

    Args:
        has_room: says whether decoding one is worth the while.
        keep: gets the number of one, its pixels (height x width x channels), the bytes of its file, and a
            mark, 0 or BY_PILLOW; says whether it kept them.
    """
    places, field, depth = crops.places, crops.field, crops.geometry.depth
    is_mask, is_raw = field.kind is Kind.MASK, field.coding is Coding.RAW
    files, images, entries = places.pack.find_values(
        field.name, places.rows, places.positions, with_entries=not is_mask
    )
    widths, heights = crops.sides
    boxes = whole(widths, heights)
    refused: list[int] = []

    def decode(i: int) -> None:
        if not has_room(i):
            return
        one, width, height = np.array([i]), int(widths[i]), int(heights[i])
        if width * height > kernel.TRUSTED_PIXELS:
            status, _ = kernel.check_size(files, images.take(one), (width, height), raw=is_raw)
            if status:
                refused.extend([] if status in _MAY_BE_BETTER_LATER else [i])
                return

        def make(channels: int, depth: Depth | None) -> tuple[Pixels, DecodeReport]:
            out = np.empty((1, height, width, channels), np.uint16 if depth == "uint16" else np.uint8)
            return out, kernel.decode_batch(
                files, images.take(one), out, boxes=boxes[i : i + 1], flips=np.zeros(1, np.bool_),
                entries=None if entries is None else entries.take(one), nearest=is_mask, raw=is_raw,
                depth=depth,
            )  # fmt: skip

        out, report = make(channels, None if depth == "uint16" else depth)
        if depth == "uint16" and report.statuses[0] == Status.TOO_DEEP:
            out, report = make(1, depth)
        if report.statuses[0] in _MAY_BE_BETTER_LATER:
            return
        # Damage that Pillow decodes: of crops that do not show it, the kernel's pixels count.
        if report.statuses[0] or DAMAGED_BUT_DECODED in report.pillow_reasons:
            refused.append(i)
        elif keep(i, out[0], int(images.length[i]), BY_PILLOW if report.by_pillow else 0):
            tally.count(report)

    kernel.for_each(decode, range(len(boxes)), pool)
    return refused


def keep_results(job: Job, at: I64, store: SampleCache, tally: Tally) -> list[int]:
    """Make the operation's results, not yet mirrored, and put them into the cache; return as `keep_whole`."""
    pixels = np.empty((len(at), *job.out.shape[1:]), job.out.dtype)
    part = job.crops.take(at)
    part = replace(part, geometry=replace(part.geometry, flips=np.zeros(len(at), np.bool_)))
    report = decode_pixels(part, pixels, job.pool)
    tally.count(report)
    lengths = part.places.rows[f"{part.field.name}.length"]
    refused: list[int] = []
    for i, number in enumerate(job.numbers[at].tolist()):
        if report.statuses[i]:
            if report.statuses[i] not in _MAY_BE_BETTER_LATER:
                refused.append(number)
        elif not _put(store, number, pixels[i], int(lengths[i]), 0):
            break
    return refused


def _put(store: SampleCache, number: int, pixels: Pixels, source_bytes: int, mark: int) -> bool:
    rows = without_colour(pixels)
    if rows.dtype == np.uint16:
        return store.put(number, rows.reshape(-1), source_bytes=source_bytes, mark=WIDE)
    table = dump_bare_table(rows, BLOCK_BYTES)
    return store.put(number, table, rows.reshape(-1), source_bytes=source_bytes, mark=mark)


def without_colour(pixels: Pixels) -> Pixels:
    """Return H x W of an image that holds no colours, and of a mask: a third of the room; else all of it."""
    if pixels.shape[2] == 1:
        return pixels[..., 0]
    for part in (pixels[::16, ::16], pixels):  # of almost every photograph the first look is enough
        if (part[..., 0] != part[..., 1]).any() or (part[..., 0] != part[..., 2]).any():
            return pixels
    return np.ascontiguousarray(pixels[..., 0])


VERSION = 1
# A field and, where results are kept, their size and a view's own filter.
_Slot = tuple[Any, ...]
_BAD_BYTES = (Status.UNREADABLE, Status.CUT_SHORT, Status.CRC_MISMATCH, Status.BAD_ENTRIES)


class CachedPixels:
    """The images and masks that a loader wants, and their cache. Counts hits and misses of one epoch."""

    def __init__(
        self, pack: Pack, cache: Cache, wanted: Sequence[Wanted], sampler: CropSampler | None
    ) -> None:
        self._pack = pack
        image = sampler.image if sampler else None
        filters = find_filters(image)
        self._keeps_results = all(len(w.filters or filters) == 1 for w in wanted) and (
            is_worth_keeping_results(pack, sampler.reference if sampler else None, image)
        )
        # Raw pixels have nothing to decode: the page cache serves them as well.
        fields = [f for f in pack.fields if f.has_pixels and f.coding is not Coding.RAW]
        slots: list[_Slot] = [(field.name, None) for field in fields]
        if self._keeps_results:
            shown = [(w, w.field) for w in wanted if w.field in fields and w.field is not None]
            slots = sorted({_slot_of(field, w.out_size, w.filters or filters, filters) for w, field in shown})
        self._filters = filters
        self._slots = {slot: number for number, slot in enumerate(slots)}
        what = f"{image!r} of" if self._keeps_results else "whole"
        gray = " L" if any(w.mode == "L" for w in wanted) else ""
        depths = "".join(f" {depth}" for depth in {w.depth for w in wanted} if depth is not None)
        key = f"{VERSION} {fingerprint(pack.manifest)} {what} {slots}{gray}{depths}"
        self._store: SampleCache = cache.open_store(
            key, len(self._slots) * len(pack), _count_bytes_to_keep(pack)
        )
        self._refused: set[int] = set()
        self._joined: tuple[tuple[str, ...], kernel.Files] | None = None
        self._lock = threading.Lock()
        self._is_damage_told = False
        self.begin_epoch()

    def begin_epoch(self) -> None:
        with self._lock:
            self._hits, self._misses = [0] * len(self._store.tiers), 0

    def decode(self, crops: FieldCrops, out: Pixels, pool: kernel.Pool | None) -> DecodeReport:
        """Decode an image or mask field into `out`: as `decode_pixels` does, from the cache where it can."""
        wanted: _Slot = (crops.field.name, None)
        if self._keeps_results:
            size = out.shape[1], out.shape[2]
            wanted = _slot_of(crops.field, size, crops.geometry.filters, self._filters)
        slot = self._slots.get(wanted)
        if slot is None:
            return decode_pixels(crops, out, pool)
        numbers = slot * len(self._pack) + crops.places.positions
        sides, cuts = crops.sides, crops.boxes
        if self._keeps_results:
            sides = np.full(len(numbers), out.shape[2]), np.full(len(numbers), out.shape[1])
            cuts = whole(*sides)
        job = Job(crops, out, pool, numbers, sides, cuts)
        tally = Tally(len(numbers))
        located = self._store.opened.locate(numbers)
        self._count(located)
        if self._fill(job, located, tally):
            located = self._store.opened.locate(numbers)
        if job.is_mask:
            failed = self._crop_by_pillow(job, located.rows, located.found)
            again = np.union1d(failed, np.flatnonzero(~located.found))
        else:
            again = self._decode_images(job, located, tally)
        if again.size:
            anew = np.empty((len(again), *out.shape[1:]), out.dtype)
            tally.add(decode_pixels(crops.take(again), anew, pool), at=again)
            out[again] = anew
        return tally.report()

    def has(self, field: str, positions: I64) -> Flags:
        """Return which samples of a field are in the cache, so that their bytes are not needed."""
        slots = [number for (name, *_), number in self._slots.items() if name == field]
        there = np.full(len(positions), bool(slots))
        for slot in slots:
            there &= self._store.opened.locate(slot * len(self._pack) + positions).found
        return there

    def _count(self, located: Located) -> None:
        hits = np.bincount(located.rows["tier"][located.found], minlength=len(self._hits)).tolist()
        misses = len(located.found) - sum(hits)

        def count() -> None:
            with self._lock:
                self._misses += misses
                self._hits = [so_far + more for so_far, more in zip(self._hits, hits, strict=True)]

        when_taken(count)

    def _fill(self, job: Job, located: Located, tally: Tally) -> bool:
        sizes = job.sides[0] * job.sides[1] * job.out.shape[3]
        _, firsts = np.unique(job.numbers, return_index=True)
        missing = firsts[~located.found[firsts] & (sizes[firsts] > 0) & (sizes[firsts] <= LARGEST_BYTES)]
        at = np.array([i for i in missing.tolist() if int(job.numbers[i]) not in self._refused], np.int64)
        if not at.size or not self._store.opened.has_room(job.measure(int(at[sizes[at].argmin()]))):
            return False
        keep = keep_results if self._keeps_results else keep_whole
        self._refused.update(keep(job, at, self._store, tally))
        return True

    def _decode_images(self, job: Job, located: Located, tally: Tally) -> I64:
        """Let the kernel take what is in the cache from there and the rest from the pack, in one go.

        Returns which must come from the pack once more.
        """
        found, rows = located.found, located.rows
        places = [np.array(rows["tier"]), rows["offset"] + rows["head"], rows["length"] - rows["head"]]
        tables = [np.array(rows["tier"]), np.array(rows["offset"]), rows["head"].astype(np.int64)]
        crc32c, boxes, files = np.zeros(len(found), np.uint32), job.cuts.copy(), None
        left = np.flatnonzero(~found)
        if left.size:
            part, shift = job.crops.take(left), len(self._store.opened.paths)
            pack, in_pack = part.places.pack, (part.field.name, part.places.rows, part.places.positions)
            files, images, entries = pack.find_values(*in_pack, with_entries=True)
            assert entries is not None
            for whole_batch, ranges in ((places, images), (tables, entries)):
                whole_batch[0][left] = ranges.file + shift
                whole_batch[1][left], whole_batch[2][left] = ranges.offset, ranges.length
            crc32c[left] = 0 if images.crc32c is None else images.crc32c
            boxes[left] = part.boxes
        geometry, wide = job.crops.geometry, found & (rows["mark"] == WIDE)
        boxes[wide] = 0
        report = kernel.decode_batch(
            self._join(files), Ranges(places[0], places[1], places[2], crc32c), job.out, boxes=boxes,
            flips=geometry.flips, filters=geometry.filter_each(),
            entries=Ranges(tables[0], tables[1], tables[2]), raw=found, depth=geometry.depth, pool=job.pool,
        )  # fmt: skip
        failed = np.flatnonzero(found & ~wide & (report.statuses != 0))
        for i in failed.tolist():
            if report.statuses[i] in _BAD_BYTES:
                self._discard(rows[i])
        if left.size and pack.turn_to_source(*in_pack, report.statuses[left]):
            failed = np.union1d(failed, left[report.statuses[left] != 0])
        tally.add(report, np.union1d(failed, np.flatnonzero(wide)))
        failed = np.union1d(failed, self._crop_by_pillow(job, rows, wide))
        if not pillow.resizes_as_kernel():
            by_pillow = found & (rows["mark"] == BY_PILLOW)
            failed = np.union1d(failed, self._crop_by_pillow(job, rows, by_pillow))
        return failed

    def _crop_by_pillow(self, job: Job, rows: Rows, chosen: Flags) -> I64:
        """Crop the chosen samples, which the cache has, as Pillow does; return those that failed."""
        failed: list[int] = []
        filters, flips = job.crops.geometry.filter_each(), job.crops.geometry.flips

        def crop(i: int) -> None:
            data = self._store.get(int(job.numbers[i]))
            left, top, right, bottom = box = tuple(job.cuts[i].tolist())
            width, height = (int(side[i]) for side in job.sides)
            if data is None or not (0 <= left < right <= width and 0 <= top < bottom <= height):
                failed.append(i)
                return
            dtype = np.uint16 if rows["mark"][i] == WIDE else np.uint8
            pixels = np.frombuffer(data, dtype, offset=int(rows["head"][i]))
            shape = (height, width) if len(pixels) == height * width else (height, width, 3)
            filter_ = None if job.is_mask else int(filters[i])
            cropped = pillow.crop_rows(pixels.reshape(shape), box, job.out.shape[1:], filter_)
            job.out[i] = cropped[:, ::-1] if flips[i] else cropped

        kernel.for_each(crop, np.flatnonzero(chosen).tolist(), job.pool)
        return np.array(sorted(failed), np.int64)

    def _join(self, files: kernel.Files | None) -> kernel.Files:
        """Return the cache's files and, behind them, others."""
        paths = self._store.opened.paths
        if files is not None and files is not self._pack.files:
            return kernel.Files([*paths, *files.paths])
        joined = self._joined
        if joined is None or joined[0] != paths:
            joined = self._joined = paths, kernel.Files([*paths, *self._pack.files.paths])
        return joined[1]

    def _discard(self, row: Rows) -> None:
        # Given back for want of memory is no damage.
        if self._store.opened.discard(row) and not self._is_damage_told:
            self._is_damage_told = True
            warnings.warn(
                "samples in the cache are not what was put there: they come from the pack again "
                "(stats().cache.damaged counts them)",
                RuntimeWarning,
                stacklevel=2,
            )

    def stats(self, positions: I64, wanted: Sequence[Wanted], tier: GpuTier | None = None) -> CacheStats:
        """Return what is cached of some samples, and the hits of this epoch.

        What is in a tier on the GPU as well is counted there alone.
        """
        names = {w.field.name for w in wanted if w.field is not None}
        slots = [(name, number) for (name, *_), number in self._slots.items() if name in names]
        parts = [np.zeros(0, np.int64)]
        for name, slot in slots:
            others = positions if tier is None else positions[~tier.has(name, positions)]
            parts.append(slot * len(self._pack) + others)
        numbers = np.concatenate(parts)
        store = self._store.opened
        tiers = store.tier_stats(numbers)
        with self._lock:
            counted = tuple(replace(tier, hits=hits) for tier, hits in zip(tiers, self._hits, strict=True))
            samples = len(slots) * len(positions)
            return CacheStats(samples, counted, self._misses, store.damaged, store.returned_bytes)

    def close(self) -> None:
        """Close files; what is in the cache stays there."""
        if self._joined is not None:
            self._joined[1].close()


def _slot_of(pixels: Field, size: Size | None, filters: tuple[int, ...], usual: tuple[int, ...]) -> _Slot:
    """Return what tells results of one operation apart; `usual` are the filters of the operation itself."""
    if filters == usual or pixels.kind is Kind.MASK:
        return (pixels.name, size)
    return (pixels.name, size, *filters)


def _count_bytes_to_keep(pack: Pack) -> int:
    """Return the page cache that the pack itself needs: a sample there takes a fraction of a decoded one.

    A pack that does not fit in memory is read from its disk anyway.
    """
    size_bytes = pack.manifest.shard_bytes
    room = MemoryGauge().measure()
    return size_bytes if size_bytes <= room.free_bytes - margin_of(room.limit_bytes) else 0
