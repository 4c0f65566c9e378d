# SPDX-License-Identifier: Apache-2.0
"""The tier of a cache that is on the GPU: whole decoded images, filled in the first epoch, never evicted.

```
a sample    ABSENT --claim: a maker decodes it whole--> CLAIMED --keep: its bytes are queued--> HELD
            CLAIMED --release: no room, or another try may do--> ABSENT
            CLAIMED --refuse: its crops must not come from here--> REFUSED
```

It belongs to one loader and one device. Memory is taken in chunks, as it fills, on the stream of the loader's
copies; all kernels that read or write there run on that stream, so that memory which is given back needs no
wait.

By way of it, images are decoded whole the first time, and cropped there from then on:

```
maker    decodes whole the images that are not there and have room: on the GPU where it can, else on the CPU
maker    queues the crops of all images that are there: the host reads nothing for them, and waits for nothing
maker    lets the others come as without the tier, and puts them beside these
```

Pixels are those of the CPU path, byte for byte; images whose pixels might differ are not kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.arrays import I32, I64, U8, Flags
from feedrate.cache.results import TierStats
from feedrate.errors import UsageError
from feedrate.filters import FILTERS
from feedrate.format.fields import Field, Kind
from feedrate.kernel import DecodeReport, pillow
from feedrate.kernel.cuda import batch
from feedrate.kernel.cuda.batch import IMAGE
from feedrate.kernel.cuda.launcher import is_out_of_memory
from feedrate.loader.cache import GpuBudget
from feedrate.loader.cached_pixels import BY_PILLOW, LARGEST_BYTES, decode_whole, without_colour
from feedrate.loader.device import transfer
from feedrate.loader.device.gpu_decode import UNSURE_BIT, GpuDecoder, PackRequest, put_samples
from feedrate.loader.geometry import Geometry, Tally
from feedrate.loader.image import whole
from feedrate.loader.pipeline import Meter, when_taken
from feedrate.units import format_bytes

CHUNK_BYTES = 512 << 20
# So much of the GPU's memory stays free, for the model's later allocations.
LEAST_FREE_BYTES = 1_000_000_000
FREE_PART = 20
ABSENT, CLAIMED, HELD, REFUSED = range(4)
Rows = npt.NDArray[Any]
_ROW = np.dtype([("image", IMAGE), ("source_bytes", "<i8"), ("state", "u1")])

log = logging.getLogger("feedrate")


class GpuTier:
    """Images by field and position, and the memory they are in. Any thread may use it.

    Attributes:
        is_frozen: no more memory is taken.

    Args:
        stream: the one of the loader's copies to the device.
        fields: names of the fields whose images may be kept.
        samples: how many the pack has.

    Raises:
        UsageError: the device has not as much memory as was asked for.
    """

    def __init__(
        self, device: Any, stream: Any, budget: GpuBudget, fields: Sequence[str], samples: int
    ) -> None:
        self.device, self.stream, self._budget = device, stream, budget
        # A garbage collection in a thread that holds it may end the loader, and close this.
        self._lock = threading.RLock()
        self._tables = {name: np.zeros(samples, _ROW) for name in fields}
        self._chunks: list[Any] = []
        self._left = 0  # of the last chunk
        self._unused: list[Any] = []  # parts of chunks that were given back
        self._is_full = self.is_frozen = False  # full: nothing is claimed any more
        self._check_budget()
        self.begin_epoch()

    def _check_budget(self) -> None:
        limit, (free, kept_free) = self._budget.limit_bytes, self._measure_free()
        # Where another loader has filled some of it, training has begun: then what fits is taken, in words.
        if limit is None or self._budget.left < limit or limit <= free - kept_free:
            return
        most = max(free - kept_free, 0) // 1_000_000
        fits = f'gpu="{most}MB" fits now; ' if most else ""
        raise UsageError(
            f"cache=Cache(gpu={self._budget.asked!r}) does not fit: {self.device} has "
            f"{format_bytes(free)} free, of which {format_bytes(kept_free)} stay free for the model",
            hint=f'{fits}gpu="auto" takes what is free, as it fills',
        )

    def _measure_free(self) -> tuple[int, int]:
        """Return how many bytes are free on the device, and how many of them stay free."""
        import torch

        free, total = torch.cuda.mem_get_info(self.device)
        return free, max(LEAST_FREE_BYTES, total // FREE_PART)

    def begin_epoch(self) -> None:
        with self._lock:
            self._hits = self._made = self._others = 0

    def count(self, *, hits: int, made: int, others: int) -> None:
        """Add samples of a batch: that were here, that came here, and that came another way."""

        def add() -> None:
            with self._lock:
                self._hits, self._made, self._others = (
                    self._hits + hits,
                    self._made + made,
                    self._others + others,
                )

        when_taken(add)

    def takes(self, field: str) -> bool:
        return field in self._tables

    def find(self, field: str, positions: I64) -> tuple[Flags, Rows]:
        """Return which images are here, and the rows of `IMAGE` of all of them."""
        with self._lock:
            rows = self._tables[field][positions]
        return rows["state"] == HELD, rows["image"]

    def hold(self) -> list[Any]:
        """Return the memory of all images: while the caller keeps it, `close` does not free it."""
        with self._lock:
            return list(self._chunks)

    def has(self, field: str, positions: I64) -> Flags:
        """Return which samples of a field are here, so that their bytes are not needed."""
        return self.find(field, positions)[0] if self.takes(field) else np.zeros(len(positions), np.bool_)

    def claim(self, field: str, positions: I64, sizes: I64) -> Flags:
        """Return which images the caller is to decode whole, as far as there is room for them; no promise.

        When not even the first one fits, nothing is claimed any more: what is kept stays the same.

        Args:
            positions: each one once.
            sizes: how many bytes each takes, at the most.
        """
        table, limit = self._tables[field], self._budget.limit_bytes
        with self._lock:
            if self._is_full:
                return np.zeros(len(positions), np.bool_)
            claimed: Flags = table["state"][positions] == ABSENT
            if limit is not None:
                claimed &= sizes <= limit
                room = self._left + sum(map(len, self._unused)) + self._budget.left
                fits = np.cumsum(np.where(claimed, sizes, 0)) <= room
                self._is_full = bool(claimed.any()) and not (claimed & fits).any()
                claimed &= fits
            table["state"][positions[claimed]] = CLAIMED
        return claimed

    def reserve(self, size_bytes: int) -> Any:
        """Return memory for an image; None: there is none."""
        with self._lock:
            for i, part in enumerate(self._unused):
                if len(part) >= size_bytes:
                    self._unused[i : i + 1] = [part[size_bytes:]] if len(part) > size_bytes else []
                    return part[:size_bytes]
            if size_bytes > self._left and not self._grow(size_bytes):
                return None
            chunk = self._chunks[-1]
            start = len(chunk) - self._left
            self._left -= size_bytes
            return chunk[start : start + size_bytes]

    def give_back(self, rooms: Sequence[Any]) -> None:
        """Let other images have memory that was reserved, in which nothing was kept."""
        with self._lock:
            self._unused += rooms

    def _grow(self, size_bytes: int) -> bool:
        if self.is_frozen:
            return False
        import torch

        free, kept_free = self._measure_free()
        most = min(CHUNK_BYTES, free - kept_free)
        chunk_bytes = self._budget.take(size_bytes, most)
        if not chunk_bytes:
            words = (
                f"{format_bytes(free)} are free, of which {format_bytes(kept_free)} stay free for the model"
            )
            self.freeze(words if most < size_bytes else None)
            return False
        try:
            with torch.cuda.stream(self.stream):
                chunk = torch.empty(chunk_bytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            self._budget.give(chunk_bytes)
            self.freeze(str(error).splitlines()[0])
            return False
        self._chunks.append(chunk)
        self._left = chunk_bytes
        return True

    def freeze(self, reason: str | None) -> None:
        """Take no more memory, with a warning; without a reason, it is as full as its limit allows."""
        with self._lock:
            if reason is not None and not self.is_frozen:
                log.warning(
                    "the cache takes no more than the %s that it has on %s: %s. What is kept stays, other "
                    "samples come as without it", format_bytes(self.memory_bytes), self.device, reason,
                )  # fmt: skip
            self._is_full = self.is_frozen = True

    def keep(self, field: str, positions: I64, images: Rows, source_bytes: I64) -> None:
        """Publish images whose bytes are queued, as rows of `IMAGE`; the caller claimed them."""
        rows = np.zeros(len(positions), _ROW)
        rows["image"], rows["source_bytes"], rows["state"] = images, source_bytes, HELD
        with self._lock:
            self._tables[field][positions] = rows

    def refuse(self, field: str, positions: I64) -> None:
        """Never take these images into the tier."""
        with self._lock:
            self._tables[field]["state"][positions] = REFUSED

    def release(self, field: str, positions: I64) -> None:
        """Let others claim the images that the caller claimed and neither kept nor refused."""
        states = self._tables[field]["state"]
        with self._lock:
            states[positions[states[positions] == CLAIMED]] = ABSENT

    @property
    def memory_bytes(self) -> int:
        """How much of the device's memory it has."""
        return sum(len(chunk) for chunk in self._chunks)

    def stats(self, positions: I64, fields: Sequence[str]) -> TierStats:
        """Count the images that are here of some samples, and the hits of this epoch."""
        samples = size_bytes = source_bytes = 0
        for name in self._tables.keys() & set(fields):
            with self._lock:
                rows = self._tables[name][positions]
            rows = rows[rows["state"] == HELD]
            image = rows["image"]
            samples += len(rows)
            size_bytes += int((image["width"].astype(np.int64) * image["height"] * image["channels"]).sum())
            source_bytes += int(rows["source_bytes"].sum())
        return TierStats("gpu", samples, size_bytes, source_bytes, self._budget.limit_bytes, self._hits)

    @property
    def misses(self) -> tuple[int, int]:
        """Samples of this epoch that were not here: that came here, and that came another way."""
        with self._lock:
            return self._made, self._others

    def close(self) -> None:
        """Give the memory back, to the device itself: others may wait for it. May be called twice."""
        with self._lock:
            had_memory = bool(self._chunks)
            self._budget.give(self.memory_bytes)
            self._chunks.clear()
            self._unused.clear()
            self._left, self._is_full, self.is_frozen = 0, True, True
            self._tables = {}
        if had_memory:
            import torch

            with contextlib.suppress(RuntimeError):  # the process ends, and CUDA did before
                torch.cuda.empty_cache()


# Buffers between the kernels take no more for crops: a large batch is made in parts.
MOST_CROP_BYTES = 512 << 20
# Whole images on the host, on their way to the GPU.
MOST_HOST_BYTES = 256 << 20
Pixels = U8 | transfer.DevicePixels


class StoredPixels:
    """The images that a loader wants, and the tier of its cache on the GPU; for one iteration, in any thread.

    Args:
        decodes_there: images that are not in the tier yet may be decoded on the GPU.
    """

    def __init__(self, tier: GpuTier, decoder: GpuDecoder, meter: Meter, *, decodes_there: bool) -> None:
        self._tier, self._decoder, self._meter = tier, decoder, meter
        self._decodes_there = decodes_there
        self._stream = decoder.stream

    def takes(self, field: Field, size: tuple[int, int, int]) -> bool:
        """Return whether a field's images may come from the tier."""
        return field.kind is Kind.IMAGE and self._tier.takes(field.name) and max(size[:2]) <= batch.MAX_SIDE

    def decode(
        self, request: PackRequest, decode_others: Callable[[I64], tuple[Pixels, DecodeReport]]
    ) -> tuple[Pixels, DecodeReport]:
        """Decode an image field; return the pixels, on the host where none came from the tier.

        Args:
            decode_others: decodes some of the samples as without the tier.
        """
        crops, boxes = request.crops, request.crops.boxes
        name, positions = crops.field.name, crops.places.positions
        tally, made = Tally(len(positions)), None
        memory = self._tier.hold()  # a loader that ends must not free what kernels are about to read
        held, images = self._find_images(name, positions, boxes)
        hits = int(held.sum())
        try:
            if not held.all() and self._fill(request, boxes, ~held, tally):
                memory = self._tier.hold()
                held, images = self._find_images(name, positions, boxes)
            if held.any():
                made = self._crop(request, boxes, images, np.flatnonzero(held))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._tier.freeze(f"there is no memory left to work with ({str(error).splitlines()[0]})")
            held, made = np.zeros(len(positions), np.bool_), None
        del memory
        count = int(held.sum())
        hits = min(hits, count)
        self._tier.count(hits=hits, made=count - hits, others=len(held) - count)
        if made is None:
            pixels, report = decode_others(np.arange(len(positions)))
            tally.add(report)
            return pixels, tally.report()
        out, unsure = made
        for find_others in (lambda: np.flatnonzero(~held), unsure):  # the latter waits for the GPU
            others = find_others()
            if others.size:
                pixels, report = decode_others(others)
                tally.add(report, at=others)
                put_samples(pixels, others, out, self._stream)
        return transfer.DevicePixels(out, self._stream), tally.report()

    def _find_images(self, name: str, positions: I64, boxes: I32) -> tuple[Flags, Any]:
        """Return which samples' crops can be made in the tier, and its images."""
        held, images = self._tier.find(name, positions)
        return held & _lies_inside(boxes, images["width"], images["height"]), images

    def _crop(self, request: PackRequest, boxes: I32, images: Any, at: I64) -> tuple[Any, Callable[[], I64]]:
        """Queue some samples' crops; return all samples' output, and a function that finds failed ones."""
        import torch

        count, device, size = len(boxes), self._tier.device, request.size
        filters, flips = request.crops.geometry.filter_each(), request.crops.geometry.flips
        with torch.cuda.stream(self._stream):
            out = torch.empty((count, *size), dtype=torch.uint8, device=device)
            statuses = torch.zeros((count,), dtype=torch.int32, device=device)
        for part in batch.split_crops(boxes[at], size[:2], MOST_CROP_BYTES):
            some = at[part]
            plan = batch.plan_crops(
                images[some], boxes=boxes[some], flips=flips[some], filters=filters[some], size=size[:2],
                samples=some,
            )  # fmt: skip
            staged = transfer.pin(torch.from_numpy(plan.staged))
            with self._decoder.queueing(plan.buffer_bytes()) as buffers:
                buffers["staged"][: len(staged)].copy_(staged, non_blocking=True)
                batch.run_crops(plan, self._decoder.launch, buffers, out, statuses, size[2])
        if not np.isin(filters[at], batch.BY_SINE).any():  # of other filters every weight is sure
            return out, lambda: np.zeros(0, np.int64)
        with torch.cuda.stream(self._stream):
            here = transfer.make_pinned((count,), torch.int32)
            here.copy_(statuses, non_blocking=True)
            event = self._stream.record_event(torch.cuda.Event(blocking=True))

        def find_unsure() -> I64:
            event.synchronize()
            return np.flatnonzero(here.numpy())

        return out, find_unsure

    def _fill(self, request: PackRequest, boxes: I32, missing: Flags, tally: Tally) -> bool:
        """Decode whole, and keep, missing images that have room in the tier; return whether any had."""
        crops = request.crops
        name, positions, (widths, heights) = crops.field.name, crops.places.positions, crops.sides
        sizes = widths * heights * request.size[2]
        wanted = missing & _lies_inside(boxes, widths, heights) & (sizes <= LARGEST_BYTES)
        _, firsts = np.unique(positions, return_index=True)
        firsts = np.sort(firsts[wanted[firsts]])
        chosen = firsts[self._tier.claim(name, positions[firsts], sizes[firsts])]
        try:
            left = chosen
            if self._decodes_there and self._decoder.takes(crops.field):
                left = left[~self._fill_there(_ask_whole(request, left), tally)]
            here = _ask_whole(request, left)
            for part in kernel.split_by_size(sizes[left], MOST_HOST_BYTES, len(left)):
                self._copy_whole(here.take(np.arange(part.start, part.stop)), tally)
        finally:
            self._tier.release(name, positions[chosen])
        return bool(chosen.size)

    def _fill_there(self, request: PackRequest, tally: Tally) -> Flags:
        """Let the GPU decode images into the tier; return which are kept."""
        name, places = request.crops.field.name, request.crops.places
        lengths, kept = places.rows[f"{name}.length"].astype(np.int64), np.zeros(len(places), np.bool_)
        left = np.arange(len(kept))
        # Images for which the buffers have no room at once are decoded in turns.
        while left.size:
            part = request.take(left)
            chosen, _ = part.choose(1.0)
            job = self._decoder.begin(part, chosen, partial(self._store, part)) if len(chosen) else None
            if job is None:
                break
            tally.count(DecodeReport(np.empty(0, np.int32), {}, {}, job.bytes_read))
            job.event.synchronize()
            images, rooms = job.out
            is_good = job.taken & ((job.statuses.numpy() & ~UNSURE_BIT) == 0) & (images["address"] != 0)
            good = left[is_good]
            self._tier.keep(name, places.positions[good], images[is_good], lengths[good])
            kept[good] = True
            # The CPU is to decode the others, and asks for room of its own.
            self._tier.give_back([room for i, room in rooms.items() if not is_good[i]])
            left = left[~job.taken]
        self._meter.add_gpu(int(kept.sum()), {})
        return kept

    def _store(
        self, request: PackRequest, plan: batch.BatchPlan, buffers: Mapping[str, Any], statuses: Any
    ) -> tuple[Rows, dict[int, Any]]:
        """Queue the kernels that decode into the tier.

        Returns:
            Where images will be, as rows of IMAGE, and the memory of those that have room.
        """
        components = plan.components(len(statuses))
        images = np.zeros(len(components), batch.IMAGE)
        images["width"], images["height"] = request.crops.sides
        images["channels"] = np.where(components == 1, 1, request.size[2])
        rooms = {}
        for i in np.flatnonzero(components).tolist():
            _, width, height, channels = images[i].tolist()
            room = self._tier.reserve(width * height * channels)
            if room is not None:
                rooms[i], images["address"][i] = room, room.data_ptr()
        addresses = transfer.send(images["address"].copy(), self._tier.device)
        batch.run_whole(plan, self._decoder.launch, buffers, addresses, statuses, request.size[2])
        return images, rooms

    def _copy_whole(self, request: PackRequest, tally: Tally) -> None:
        import torch

        name, positions = request.crops.field.name, request.crops.places.positions
        decoded: list[tuple[int, U8, int]] = []
        not_exact: list[int] = []

        def keep(i: int, pixels: U8, source_bytes: int, mark: int) -> bool:
            # An older Pillow's crop may differ in the last bit, also of pixels that are the same.
            is_exact = mark != BY_PILLOW or pillow.resizes_as_kernel()
            if is_exact:
                decoded.append((i, without_colour(pixels), source_bytes))
            else:
                not_exact.append(i)
            return is_exact

        refused = decode_whole(
            request.crops, request.size[2], request.pool, tally,
            has_room=lambda _: not self._tier.is_frozen, keep=keep,
        )  # fmt: skip
        self._tier.refuse(name, positions[[*refused, *not_exact]])
        for i, rows, source_bytes in decoded:
            room = self._tier.reserve(rows.size)
            if room is None:
                continue
            with torch.cuda.stream(self._stream):
                room.copy_(transfer.pin(torch.from_numpy(rows.reshape(-1))), non_blocking=True)
            height, width = rows.shape[:2]
            image = np.array([(room.data_ptr(), width, height, 1 if rows.ndim == 2 else 3)], batch.IMAGE)
            self._tier.keep(name, positions[[i]], image, np.array([source_bytes]))


def _lies_inside(boxes: I32, widths: Any, heights: Any) -> Flags:
    """Return which boxes are not empty, and inside of their images."""
    left, top, right, bottom = boxes.T
    is_box = (left >= 0) & (top >= 0) & (left < right) & (top < bottom)
    inside: Flags = is_box & (right <= widths) & (bottom <= heights)
    return inside


def _ask_whole(request: PackRequest, at: I64) -> PackRequest:
    """Return a request for some of the images as they are; the smallest output, since none is made."""
    crops = request.crops.take(at)
    geometry = Geometry(
        whole(*crops.sides), np.zeros(len(at), np.bool_), crops.sides, filters=(FILTERS["nearest"],)
    )
    return replace(request, crops=replace(crops, geometry=geometry), size=(1, 1, request.size[2]))
