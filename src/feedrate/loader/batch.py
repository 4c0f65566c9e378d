# SPDX-License-Identifier: Apache-2.0
"""One batch: index rows, draws, pixels, other fields, transform and collate, in any thread; and its buffers.

A buffer is FREE (in the ring) or LENT. Lending wraps it in a `_Lease`; every numpy view, torch tensor or
DLPack capsule made from the array keeps that lease alive, and only the lease's end puts the buffer back. So a
batch that the user keeps stays valid without a copy, and one that they drop costs no new memory.

No locks: a lease can end inside a garbage collection, in any thread, also while this thread is taking a
buffer, and in a forked child. `deque.append` and `deque.pop` are atomic, which is all that is needed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from feedrate import kernel
from feedrate.arrays import I64, U8, Flags, Pixels
from feedrate.errors import BadSample, FeedrateError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader.geometry import (
    CropSampler,
    FieldCrops,
    Geometry,
    Places,
    check_depths,
    decode_crops,
    decode_pixels,
)
from feedrate.loader.options import Output, Wanted
from feedrate.loader.pipeline import FeedStopped, Meter
from feedrate.loader.values import explain_status, read_values, to_torch

if TYPE_CHECKING:
    from feedrate.loader.cached_pixels import CachedPixels
    from feedrate.loader.device.gpu_decode import GpuDecoder, PackRequest
    from feedrate.loader.device.gpu_tier import StoredPixels

# One batch in the kernel, one queued there; with the one that the loop holds, three buffers are in use.
DEFAULT_PREFETCH = 2
PREFETCH_BYTES = 2**30


def choose_prefetch(batch_bytes: int, makers: int) -> int:
    """Return how many batches to make ahead for so many threads that make them, while memory allows."""
    return max(2, min(max(DEFAULT_PREFETCH, makers), PREFETCH_BYTES // max(1, batch_bytes)))


_BYTES = np.dtype(np.uint8)


class Ring:
    """Lends arrays of up to `shape`, uint8 or uint16; keeps at most `spare` free ones."""

    def __init__(self, shape: tuple[int, int, int, int], spare: int, dtype: np.dtype[Any] = _BYTES) -> None:
        self.shape, self.dtype = shape, dtype
        self.spare = spare
        self.made = 0  # buffers allocated so far
        self._free: deque[Any] = deque()

    def lend(self, count: int) -> Pixels:
        """Return an array of shape (count, *shape[1:]) whose contents are arbitrary."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(math.prod(self.shape), self.dtype)
            self.made += 1
        array: Pixels = np.asarray(_Lease(buffer, self))
        return array[: count * math.prod(self.shape[1:])].reshape(count, *self.shape[1:])

    def take_back(self, buffer: Pixels) -> None:
        # The user kept many batches and then dropped them: the memory goes back to the system.
        if len(self._free) < self.spare:
            self._free.append(buffer)


class _Lease:
    """The owner of lent memory. Not an ndarray: numpy would look through it to the buffer behind."""

    __slots__ = ("__array_interface__", "_buffer", "_ring")

    def __init__(self, buffer: Pixels, ring: Ring) -> None:
        self._buffer = buffer
        self._ring = ring
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__

    def __del__(self) -> None:
        self._ring.take_back(self._buffer)


class Origin(NamedTuple):
    """Which samples a batch holds: what their draws follow from.

    Attributes:
        numbers: in the source.
        slots: their places in the epoch's order, when a sample can come several times; else None.
    """

    epoch: int
    numbers: I64
    slots: I64 | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished batch; `data` is None when no sample of it is good."""

    data: Any
    samples: int
    bad: tuple[BadSample, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class BatchInProgress:
    """A batch in the making; `geometry` is None when the pack has no pixels."""

    places: Places
    geometry: Geometry | None
    origin: Origin
    bad: dict[int, tuple[str, str]]  # place in the batch -> field, reason

    @property
    def good(self) -> Flags:
        """Which samples are kept."""
        good = np.ones(len(self.places), np.bool_)
        good[list(self.bad)] = False
        return good


@dataclass(frozen=True, slots=True)
class Assembler:
    """Everything that making a batch needs, apart from which samples."""

    pack: Pack
    wanted: tuple[Wanted, ...]
    sampler: CropSampler | None
    rings: dict[str, Ring]
    output: Output
    transform: Callable[[dict[str, Any]], Any] | None
    collate: Callable[[list[Any]], Any] | None
    raises: bool
    meter: Meter
    pool: kernel.Pool | None = None
    cached: CachedPixels | None = None
    gpu: GpuDecoder | None = None
    stored: StoredPixels | None = None
    lend: Callable[[tuple[int, ...]], U8 | None] = lambda _: None  # other memory than that of the rings
    is_stopping: Callable[[], bool] = lambda: False  # asked before each sample that goes through a transform

    def make(self, epoch: int, positions: I64, slots: I64 | None) -> Batch:
        """Make the batch of these samples.

        Args:
            slots: their places in the epoch's order, when a sample can come several times; else None.

        Raises:
            BadSample: a sample cannot be used, and the policy is to raise.
            StorageError: the storage cannot be read, whatever the policy.
        """
        lost: list[BadSample] = []
        with self.meter.stage("index"):
            draft = self._draft(epoch, positions, slots, lost)
        values = self._read(draft)
        if draft.bad:
            values = self._leave_out_bad(draft, values, lost)
        samples = len(draft.places) - len(draft.bad)
        self.meter.count(
            batches=1, samples=samples, bad_samples=len(lost), empty_batches=int(bool(lost) and not samples)
        )
        if not samples:
            return Batch(None, 0, tuple(lost))
        origin = draft.origin
        if draft.bad:
            epoch, numbers, slots = origin
            origin = Origin(epoch, numbers[draft.good], None if slots is None else slots[draft.good])
        return Batch(self._finish(draft, values, samples), samples, tuple(lost), origin)

    def _draft(self, epoch: int, positions: I64, slots: I64 | None, lost: list[BadSample]) -> BatchInProgress:
        rows, statuses = self.pack.rows(positions, [w.name for w in self.wanted])
        damaged = np.flatnonzero(statuses)
        if damaged.size:
            for i in damaged:
                reason = f"its row of the index cannot be used: {explain_status(statuses[i])}"
                lost.append(self._describe(int(positions[i]), self.wanted[0].name, None, reason))
            good = statuses == 0
            positions, rows, slots = positions[good], rows[good], None if slots is None else slots[good]
        geometry = self.sampler.draw(epoch, rows, slots) if self.sampler else None
        bad = {}
        if geometry is not None and self.sampler is not None:
            bad = {i: (self.sampler.reference.name, reason) for i, reason in geometry.refused.items()}
        origin = Origin(epoch, rows["number"].astype(np.int64), slots)
        return BatchInProgress(Places(self.pack, rows, positions), geometry, origin, bad)

    def _describe(self, position: int, name: str, row: Any, reason: str) -> BadSample:
        error = self.pack.describe_bad(position, name, row, reason)
        if self.raises:
            raise error
        return error

    def _read(self, draft: BatchInProgress) -> list[Any]:
        values: list[Any] = [None] * len(self.wanted)
        with self.meter.stage("read and decode"):
            for i, wanted in enumerate(self.wanted):
                if wanted.field is not None and wanted.field.has_pixels:
                    values[i] = self._decode(wanted, draft)
        with self.meter.stage("other fields"):
            for i, wanted in enumerate(self.wanted):
                if wanted.field is None or not wanted.field.has_pixels:
                    values[i] = self._read_other(wanted, draft)
        return values

    def _decode(self, wanted: Wanted, draft: BatchInProgress) -> Any:
        assert wanted.field is not None
        assert draft.geometry is not None
        if not len(draft.places):
            return self._lend(wanted, 0)
        geometry = draft.geometry
        geometry = replace(geometry, depth=wanted.depth, filters=wanted.filters or geometry.filters)
        crops = FieldCrops(draft.places, wanted.field, geometry)
        out, report = self._decode_field(wanted, crops)
        check_depths(report, crops)
        self.meter.add_report(report)
        if report.statuses.any():
            for i in np.flatnonzero(report.statuses).tolist():
                reason = report.reasons.get(i) or explain_status(report.statuses[i])
                draft.bad.setdefault(i, (wanted.field.name, reason))
        return out[..., 0] if wanted.field.kind is Kind.MASK else out

    def _decode_field(self, wanted: Wanted, crops: FieldCrops) -> tuple[Any, kernel.DecodeReport]:
        if self.stored is None or not self.stored.takes(crops.field, self.rings[wanted.name].shape[1:]):
            return self._decode_anew(wanted, crops)
        return self.stored.decode(
            self._ask(wanted, crops), lambda at: self._decode_anew(wanted, crops.take(at))
        )

    def _decode_anew(self, wanted: Wanted, crops: FieldCrops) -> tuple[Any, kernel.DecodeReport]:
        """Decode a field on the GPU or the CPU, or take it from the host's tiers of the cache."""
        if self.gpu is not None and self.gpu.share and self.gpu.takes(crops.field):
            return self.gpu.decode(self._ask(wanted, crops))
        out = self._lend(wanted, len(crops))
        decode = decode_pixels if self.cached is None else self.cached.decode
        image = None if self.sampler is None else self.sampler.image
        return out, decode_crops(decode, image, crops, out, self.pool)

    def _ask(self, wanted: Wanted, crops: FieldCrops) -> PackRequest:
        from feedrate.loader.device.gpu_decode import PackRequest

        size = self.rings[wanted.name].shape[1:]
        return PackRequest(crops, size, partial(self._lend, wanted), self.pool)

    def _lend(self, wanted: Wanted, count: int) -> Any:
        ring = self.rings[wanted.name]
        *sides, channels = ring.shape[1:]
        special = self.lend((count, *sides, channels * ring.dtype.itemsize)) if count else None
        return ring.lend(count) if special is None else special.view(ring.dtype)

    def _read_other(self, wanted: Wanted, draft: BatchInProgress) -> Any:
        read = read_values(wanted, draft.places, self.pool)
        self.meter.count(bytes_read=read.bytes_read)
        for i, reason in read.bad.items():
            draft.bad.setdefault(i, (wanted.name, reason))
        is_boxes = wanted.field is not None and wanted.field.kind is Kind.BOXES
        if is_boxes and self.sampler is not None and draft.geometry is not None:
            self.sampler.move_boxes(read.data, draft.geometry)
        return read.data

    def _leave_out_bad(self, draft: BatchInProgress, values: list[Any], lost: list[BadSample]) -> list[Any]:
        places = draft.places
        for i, (name, reason) in sorted(draft.bad.items()):
            lost.append(self._describe(int(places.positions[i]), name, places.rows[i], reason))
        good = draft.good
        chosen = np.flatnonzero(good).tolist()
        return [[v[i] for i in chosen] if isinstance(v, list) else v[good] for v in values]

    def _finish(self, draft: BatchInProgress, values: list[Any], samples: int) -> Any:
        if self.transform is None and self.collate is None:
            if self.output == "torch":
                kinds = [w.field.kind if w.field else None for w in self.wanted]
                values = [to_torch(v, kind) for v, kind in zip(values, kinds, strict=True)]
            return tuple(values)
        names = [w.name for w in self.wanted]
        made: list[Any] = [dict(zip(names, (v[i] for v in values), strict=True)) for i in range(samples)]
        if self.transform is not None:
            with self.meter.stage("transform"):
                for i, sample in enumerate(made):
                    if self.is_stopping():
                        raise FeedStopped
                    try:
                        made[i] = self.transform(sample)
                    except Exception as error:
                        self._name_sample(error, draft, i)
        assert self.collate is not None
        with self.meter.stage("collate"):
            return self.collate(made)

    def _name_sample(self, error: Exception, draft: BatchInProgress, place: int) -> NoReturn:
        kept = [i for i in range(len(draft.places)) if i not in draft.bad]
        bad = self.pack.describe_bad(int(draft.places.positions[kept[place]]), "", None, "")
        words = f"in transform, for sample '{bad.key}'"
        if hasattr(error, "add_note"):
            error.add_note(words)
        elif error.__cause__ is None:  # Python 3.10 has no notes
            error.__cause__ = FeedrateError(words)
        raise error
