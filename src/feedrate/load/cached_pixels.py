# SPDX-License-Identifier: Apache-2.0
"""Images and masks by way of a shelf: decoded the first time, cropped from there every further time.

The kernel reads the rows under the crop alone, and checks what it reads. Pixels are those that the pack
itself would give, bit for bit; what might differ is not kept (see keeping.py).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedrate import kernel, pillow
from feedrate.cache.limits import margin_of
from feedrate.cache.store import Located, SampleCache
from feedrate.cache.table import Rows
from feedrate.filters import find_filters
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import I64, U8, DecodeReport, Ranges, Status
from feedrate.load.cache import Cache
from feedrate.load.geometry import Artist, Geometry, Places, decode_pixels
from feedrate.load.image import Size
from feedrate.load.keeping import (
    BY_PILLOW,
    LARGEST_BYTES,
    Job,
    is_worth_keeping_results,
    keep_results,
    keep_whole,
    make_job,
)
from feedrate.load.options import Wanted
from feedrate.load.state import fingerprint
from feedrate.load.tally import Tally
from feedrate.machine.memory import MemoryGauge
from feedrate.results.load import CacheStats

if TYPE_CHECKING:
    from feedrate.load.device.gpu_tier import GpuTier

VERSION = 1
# A field and, where results are kept, their size and a view's own filter.
_Slot = tuple[Any, ...]
_BAD_BYTES = (Status.UNREADABLE, Status.CUT_SHORT, Status.CRC_MISMATCH, Status.BAD_ENTRIES)


class CachedPixels:
    """The images and masks that a loader wants, and their shelf. Counts hits and misses of one epoch."""

    def __init__(self, pack: Pack, cache: Cache, wanted: Sequence[Wanted], artist: Artist | None) -> None:
        self._pack = pack
        image = artist.image if artist else None
        filters = find_filters(image)
        self._keeps_results = all(len(w.filters or filters) == 1 for w in wanted) and (
            is_worth_keeping_results(pack, artist.reference if artist else None, image)
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
        key = f"{VERSION} {fingerprint(pack.manifest)} {what} {slots}{gray}"
        self._shelf: SampleCache = cache.open_shelf(
            key, len(self._slots) * len(pack), _count_bytes_to_keep(pack)
        )
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
        wanted: _Slot = (pixels.name, None)
        if self._keeps_results:
            wanted = _slot_of(pixels, (out.shape[1], out.shape[2]), geometry.filters, self._filters)
        slot = self._slots.get(wanted)
        if slot is None:
            return decode_pixels(places, pixels, geometry, out, pool)
        numbers = slot * len(self._pack) + places.positions
        job = make_job(
            places, pixels, geometry, out, pool, numbers=numbers, keeps_results=self._keeps_results
        )
        tally = Tally(len(numbers))
        located = self._shelf.locate(numbers)
        self._count(located)
        if self._fill(job, located, tally):
            located = self._shelf.locate(numbers)
        if job.is_mask:
            again = np.union1d(self._crop_by_pillow(job, located), np.flatnonzero(~located.found))
        else:
            again = self._decode_images(job, located, tally)
        if again.size:
            self._decode_from_pack(job, again, tally)
        return tally.report()

    def has(self, field: str, positions: I64) -> npt.NDArray[np.bool_]:
        """Return which samples of a field are on the shelf, so that their bytes are not needed."""
        slots = [number for (name, *_), number in self._slots.items() if name == field]
        there = np.full(len(positions), bool(slots))
        for slot in slots:
            there &= self._shelf.locate(slot * len(self._pack) + positions).found
        return there

    def _count(self, located: Located) -> None:
        tiers = located.rows["tier"][located.found]
        with self._lock:
            self._misses += len(located.found) - len(tiers)
            for tier in range(len(self._hits)):
                self._hits[tier] += int((tiers == tier).sum())

    def _fill(self, job: Job, located: Located, tally: Tally) -> bool:
        """Put what is missing on the shelf, while it has room."""
        sizes = job.sides[0] * job.sides[1] * job.out.shape[3]
        _, firsts = np.unique(job.numbers, return_index=True)
        missing = firsts[~located.found[firsts] & (sizes[firsts] > 0) & (sizes[firsts] <= LARGEST_BYTES)]
        at = np.array([i for i in missing.tolist() if int(job.numbers[i]) not in self._refused], np.int64)
        if not at.size or not self._shelf.has_room(job.measure(int(at[sizes[at].argmin()]))):
            return False
        keep = keep_results if self._keeps_results else keep_whole
        self._refused.update(keep(job, at, self._shelf, tally))
        return True

    def _decode_images(self, job: Job, located: Located, tally: Tally) -> I64:
        """Let the kernel take what is on the shelf from there and the rest from the pack, in one go.

        Returns which must come from the pack once more.
        """
        found, rows = located.found, located.rows
        places = [np.array(rows["tier"]), rows["offset"] + rows["head"], rows["length"] - rows["head"]]
        tables = [np.array(rows["tier"]), np.array(rows["offset"]), rows["head"].astype(np.int64)]
        crc32c, boxes, files = np.zeros(len(found), np.uint32), job.cuts.copy(), None
        left = np.flatnonzero(~found)
        if left.size:
            part, name, shift = job.part(left), job.pixels.name, len(self._shelf.paths)
            files, images, entries = part.pack.find_values(name, part.rows, part.positions, with_entries=True)
            assert entries is not None
            for whole_batch, ranges in ((places, images), (tables, entries)):
                whole_batch[0][left] = ranges.file + shift
                whole_batch[1][left], whole_batch[2][left] = ranges.offset, ranges.length
            crc32c[left] = 0 if images.crc32c is None else images.crc32c
            boxes[left] = job.geometry.take(left).boxes_on(job.pixels, part.rows)
        filters = job.geometry.filter_each()
        report = kernel.decode_batch(
            self._join(files), Ranges(places[0], places[1], places[2], crc32c), job.out, boxes=boxes,
            flips=job.geometry.flips, filters=filters, entries=Ranges(tables[0], tables[1], tables[2]),
            raw=found, pool=job.pool,
        )  # fmt: skip
        failed = np.flatnonzero(found & (report.statuses != 0))
        for i in failed.tolist():
            if report.statuses[i] in _BAD_BYTES:
                self._discard(rows[i])
        if left.size and part.pack.turn_to_source(name, part.rows, part.positions, report.statuses[left]):
            failed = np.union1d(failed, left[report.statuses[left] != 0])
        tally.add(report, failed)
        if not pillow.resizes_as_kernel():
            by_pillow = found & (rows["mark"] == BY_PILLOW)
            failed = np.union1d(failed, self._crop_by_pillow(job, replace(located, found=by_pillow)))
        return failed

    def _crop_by_pillow(self, job: Job, located: Located) -> I64:
        """Crop what is on the shelf as Pillow does; returns which could not be."""
        failed: list[int] = []
        filters = job.geometry.filter_each()

        def crop(i: int) -> None:
            data = self._shelf.get(int(job.numbers[i]))
            left, top, right, bottom = box = tuple(job.cuts[i].tolist())
            width, height = (int(side[i]) for side in job.sides)
            if data is None or not (0 <= left < right <= width and 0 <= top < bottom <= height):
                failed.append(i)
                return
            pixels = np.frombuffer(data, np.uint8, offset=int(located.rows["head"][i]))
            shape = (height, width) if len(pixels) == height * width else (height, width, 3)
            filter_ = None if job.is_mask else int(filters[i])
            cropped = pillow.crop_rows(pixels.reshape(shape), box, job.out.shape[1:], filter_)
            job.out[i] = cropped[:, ::-1] if job.geometry.flips[i] else cropped

        at = np.flatnonzero(located.found).tolist()
        if at:
            job.for_each(crop, at)
        return np.array(sorted(failed), np.int64)

    def _decode_from_pack(self, job: Job, at: I64, tally: Tally) -> None:
        out = np.empty((len(at), *job.out.shape[1:]), np.uint8)
        geometry = job.geometry.take(at)
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

    def _discard(self, row: Rows) -> None:
        # Given back for want of memory is no damage.
        if self._shelf.discard(row) and not self._is_damage_told:
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
        shelf = self._shelf
        tiers = shelf.tier_stats(numbers)
        with self._lock:
            counted = tuple(replace(tier, hits=hits) for tier, hits in zip(tiers, self._hits, strict=True))
            samples = len(slots) * len(positions)
            return CacheStats(samples, counted, self._misses, shelf.damaged, shelf.returned_bytes)

    def close(self) -> None:
        """Close files; what is on the shelf stays there."""
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
