# SPDX-License-Identifier: Apache-2.0
"""Images by way of the cache's tier on the GPU: decoded whole the first time, cropped there from then on.

```
maker    decodes whole what is not there and has room: on the GPU what that takes, the rest on the CPU
maker    queues the crops of all that is there: the host reads nothing for them, and waits for nothing
maker    lets the others come as without the tier, and puts them beside these
```

Pixels are those of the CPU path, byte for byte; what might differ is not kept (see keeping.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate.filters import FILTERS
from feedrate.format.fields import Field, Kind
from feedrate.kernel import I32, I64, U8, DecodeReport, pillow
from feedrate.kernel.cuda import batch, stored
from feedrate.kernel.cuda.driver import OUT_OF_MEMORY, DriverError
from feedrate.loader.cached_pixels import BY_PILLOW, LARGEST_BYTES, decode_whole, without_colour
from feedrate.loader.device import transfer
from feedrate.loader.device.gpu_decode import UNSURE_BIT, GpuDecoder, PackRequest, put_samples
from feedrate.loader.device.gpu_tier import GpuTier
from feedrate.loader.geometry import Geometry, Places, Tally, read_sides
from feedrate.loader.image import whole
from feedrate.loader.pipeline import Meter

# Buffers between the kernels take no more for crops: a large batch is made in parts.
MOST_CROP_BYTES = 512 << 20
# Whole images on the host, on their way to the GPU.
MOST_HOST_BYTES = 256 << 20
Pixels = U8 | transfer.DevicePixels
Mask = npt.NDArray[np.bool_]


class StoredPixels:
    """The images that a loader wants, and the tier of its cache on the GPU; for one iteration, in any thread.

    Args:
        decodes_there: what is not in the tier yet may be decoded on the GPU.
    """

    def __init__(self, tier: GpuTier, decoder: GpuDecoder, meter: Meter, *, decodes_there: bool) -> None:
        self._tier, self._decoder, self._meter = tier, decoder, meter
        self._decodes_there = decodes_there
        self._stream = decoder.stream

    def count_memory(self) -> int:
        """Return how many bytes of the device the tier has."""
        return self._tier.memory_bytes

    def takes(self, field: Field, size: tuple[int, int, int]) -> bool:
        """Return whether a field's images may come from the tier."""
        return field.kind is Kind.IMAGE and self._tier.takes(field.name) and max(size[:2]) <= stored.MAX_SIDE

    def decode(
        self, request: PackRequest, decode_others: Callable[[I64], tuple[Pixels, DecodeReport]]
    ) -> tuple[Pixels, DecodeReport]:
        """Decode an image field; return the pixels, on the host where none came from the tier.

        Args:
            decode_others: decodes some of the samples as without the tier.
        """
        import torch

        name, positions = request.field.name, request.places.positions
        boxes = request.geometry.boxes_on(request.field, request.places.rows)
        tally, made = Tally(len(positions)), None
        memory = self._tier.hold()  # a loader that ends must not free what kernels are about to read
        held, images = self._find(name, positions, boxes)
        hits = int(held.sum())
        try:
            if not held.all() and self._fill(request, boxes, ~held, tally):
                memory = self._tier.hold()
                held, images = self._find(name, positions, boxes)
            if held.any():
                made = self._crop(request, boxes, images, np.flatnonzero(held))
        except (torch.cuda.OutOfMemoryError, DriverError) as error:
            if isinstance(error, DriverError) and error.result != OUT_OF_MEMORY:
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

    def _find(self, name: str, positions: I64, boxes: I32) -> tuple[Mask, Any]:
        """Return which samples' crops can be made in the tier, and its images."""
        held, images = self._tier.find(name, positions)
        return held & _lies_inside(boxes, images["width"], images["height"]), images

    def _crop(self, request: PackRequest, boxes: I32, images: Any, at: I64) -> tuple[Any, Callable[[], I64]]:
        """Queue the crops of some samples; return all samples' output, and what tells which are not in it."""
        import torch

        count, device, size = len(boxes), self._tier.device, request.size
        filters, flips = request.geometry.filter_each(), request.geometry.flips
        with torch.cuda.stream(self._stream):
            out = torch.empty((count, *size), dtype=torch.uint8, device=device)
            statuses = torch.zeros((count,), dtype=torch.int32, device=device)
        for part in stored.split_crops(boxes[at], size[:2], MOST_CROP_BYTES):
            some = at[part]
            plan = stored.plan_crops(
                images[some], boxes=boxes[some], flips=flips[some], filters=filters[some], size=size[:2],
                samples=some,
            )  # fmt: skip
            staged = transfer.pin(torch.from_numpy(plan.staged))
            with self._decoder.queueing(plan.buffer_bytes()) as buffers:
                buffers["staged"][: len(staged)].copy_(staged, non_blocking=True)
                stored.run_crops(plan, self._decoder.launch, buffers, out, statuses, size[2])
        if not np.isin(filters[at], stored.BY_SINE).any():  # of other filters every weight is sure
            return out, lambda: np.zeros(0, np.int64)
        with torch.cuda.stream(self._stream):
            here = transfer.make_pinned((count,), torch.int32)
            here.copy_(statuses, non_blocking=True)
            event = self._stream.record_event(torch.cuda.Event(blocking=True))

        def find_unsure() -> I64:
            event.synchronize()
            return np.flatnonzero(here.numpy())

        return out, find_unsure

    def _fill(self, request: PackRequest, boxes: I32, missing: Mask, tally: Tally) -> bool:
        """Decode whole, and keep, what is not in the tier and has room there; return whether any did."""
        name, positions = request.field.name, request.places.positions
        widths, heights = read_sides(request.field, request.places.rows)
        sizes = widths * heights * request.size[2]
        wanted = missing & _lies_inside(boxes, widths, heights) & (sizes <= LARGEST_BYTES)
        _, firsts = np.unique(positions, return_index=True)
        firsts = np.sort(firsts[wanted[firsts]])
        chosen = firsts[self._tier.claim(name, positions[firsts], sizes[firsts])]
        try:
            left = chosen
            if self._decodes_there and self._decoder.takes(request.field):
                left = left[~self._fill_there(_ask_whole(request, left), tally)]
            self._fill_here(_ask_whole(request, left), sizes[left], tally)
        finally:
            self._tier.release(name, positions[chosen])
        return bool(chosen.size)

    def _fill_there(self, request: PackRequest, tally: Tally) -> Mask:
        """Let the GPU decode into the tier what it takes; return which are kept."""
        places, kept = request.places, np.zeros(len(request.places.positions), np.bool_)
        lengths = places.rows[f"{request.field.name}.length"].astype(np.int64)
        left = np.arange(len(kept))
        # What the buffers have no room for at once is decoded in turns.
        while left.size:
            part = _take(request, left)
            chosen, _ = part.choose(1.0)
            job = self._decoder.begin(part, chosen, partial(self._store, part)) if len(chosen) else None
            if job is None:
                break
            tally.count(DecodeReport(np.empty(0, np.int32), {}, 0, {}, job.bytes_read))
            job.event.synchronize()
            images = job.out
            is_good = job.taken & ((job.statuses.numpy() & ~UNSURE_BIT) == 0) & (images["address"] != 0)
            good = left[is_good]
            self._tier.keep(request.field.name, places.positions[good], images[is_good], lengths[good])
            kept[good] = True
            left = left[~job.taken]
        self._meter.add_gpu(int(kept.sum()), {})
        return kept

    def _store(
        self, request: PackRequest, plan: batch.BatchPlan, buffers: Mapping[str, Any], statuses: Any
    ) -> Any:
        """Queue the kernels that decode into the tier; return where images will be (rows of IMAGE)."""
        components = plan.components(len(statuses))
        images = np.zeros(len(components), stored.IMAGE)
        images["width"], images["height"] = read_sides(request.field, request.places.rows)
        images["channels"] = np.where(components == 1, 1, request.size[2])
        for i in np.flatnonzero(components).tolist():
            _, width, height, channels = images[i].tolist()
            room = self._tier.reserve(width * height * channels)
            images["address"][i] = 0 if room is None else room.data_ptr()
        addresses = transfer.send(images["address"].copy(), self._tier.device)
        batch.run_whole(plan, self._decoder.launch, buffers, addresses, statuses, request.size[2])
        return images

    def _fill_here(self, request: PackRequest, sizes: I64, tally: Tally) -> None:
        """Decode the others on the CPU, and copy them to the tier."""
        ends, start = np.cumsum(sizes), 0
        while start < len(sizes):
            limit = (int(ends[start - 1]) if start else 0) + MOST_HOST_BYTES
            stop = max(int(np.searchsorted(ends, limit, "right")), start + 1)
            self._copy_whole(_take(request, np.arange(start, stop)), tally)
            start = stop

    def _copy_whole(self, request: PackRequest, tally: Tally) -> None:
        import torch

        name, positions = request.field.name, request.places.positions
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
            request.places, request.field, request.size[2], request.pool, tally,
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
            image = np.array([(room.data_ptr(), width, height, 1 if rows.ndim == 2 else 3)], stored.IMAGE)
            self._tier.keep(name, positions[[i]], image, np.array([source_bytes]))


def _lies_inside(boxes: I32, widths: Any, heights: Any) -> Mask:
    """Return which boxes are not empty, and inside of their images."""
    left, top, right, bottom = boxes.T
    is_box = (left >= 0) & (top >= 0) & (left < right) & (top < bottom)
    inside: Mask = is_box & (right <= widths) & (bottom <= heights)
    return inside


def _take(request: PackRequest, at: I64) -> PackRequest:
    places = Places(request.places.pack, request.places.rows[at], request.places.positions[at])
    return replace(request, places=places, geometry=request.geometry.take(at))


def _ask_whole(request: PackRequest, at: I64) -> PackRequest:
    """Return a request for some of the images as they are; the smallest output, since none is made."""
    part = _take(request, at)
    sides = read_sides(part.field, part.places.rows)
    geometry = Geometry(whole(*sides), np.zeros(len(at), np.bool_), sides, filters=(FILTERS["nearest"],))
    return replace(part, geometry=geometry, size=(1, 1, part.size[2]))
