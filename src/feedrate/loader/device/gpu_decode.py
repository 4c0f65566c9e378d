# SPDX-License-Identifier: Apache-2.0
"""Decode images of a batch on the device that trains on them: `Loader(decode="gpu")`, `decode_batch`.

```
maker    reads the files of its batch and checks their checksums, as ever; plans; fills pinned memory with the
         bytes that the crops need; queues, on the loader's side stream, their copy and the kernels
maker    decodes meanwhile on the CPU the samples that the GPU does not take, and copies them beside these
maker    waits for the statuses; samples that the GPU found damaged are decoded on the CPU, which decides
```

Pixels are those of the CPU path, byte for byte, so which way a sample goes is a matter of speed alone.

Buffers between the kernels are shared by all batches: kernels of one batch are queued under a lock, on one
stream, so that the next batch finds them when the one before is through.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from feedrate import kernel
from feedrate.arrays import I64, U8, Flags
from feedrate.errors import FeedrateError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.kernel import DecodeReport
from feedrate.kernel.cuda import batch as kernels
from feedrate.kernel.cuda.launcher import compile_source, is_out_of_memory, why_not
from feedrate.loader.device import transfer
from feedrate.loader.geometry import FieldCrops, Tally, decode_pixels
from feedrate.loader.pipeline import Meter
from feedrate.units import format_bytes

NO_ENTRIES = "no entry points: progressive, not a JPEG, or packed without them"
NO_MEMORY = "the GPU has no memory left to decode"
NOT_PLANNED = "damaged, of an unusual kind, or too large for the GPU's buffers"
FOUND_BAD = "the GPU found it damaged"
UNSURE = "a weight of the resize so close to a rounding border that GPUs may differ"
UNSURE_BIT = 16  # as in kernel/cuda/layout.h
# Of the GPU's memory, buffers take at most this part.
_MEMORY_PART = 8
# Of a batch, so much is read at once. The CPU path reads one file per thread, whatever an index claims.
MOST_READ_BYTES = 1 << 30

log = logging.getLogger("feedrate")

# Starts the kernels of a plan that is filled and copied, with the buffers and statuses; returns their output.
Run = Callable[[kernels.BatchPlan, Mapping[str, Any], Any], Any]


class Planned(NamedTuple):
    """The samples that a plan took of a batch, and those for which it had no room beside them."""

    taken: Flags
    waiting: I64
    bytes_read: int


class Request(Protocol):
    """A request to decode a batch of images."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Height, width and channels of the output."""

    @property
    def pool(self) -> kernel.Pool | None:
        """Threads for the CPU's part."""

    def __len__(self) -> int: ...

    def choose(self, share: float) -> tuple[I64, Counter[str]]:
        """Return which samples to try on the GPU, and why they are fewer than such a share of all."""

    def split(self, chosen: I64) -> Sequence[I64]:
        """Return parts of the chosen samples: one is planned while the GPU decodes the one before it."""

    def plan(self, plan: kernels.BatchPlan, chosen: I64, *, most_memory: int) -> Planned:
        """Read and plan some of the chosen samples."""

    def decode(self, at: I64) -> tuple[U8, DecodeReport]:
        """Decode some of the samples on the CPU."""


@dataclass(frozen=True, slots=True)
class PackRequest:
    """An image field of a batch of a pack.

    Attributes:
        lend: returns memory of the host for so many images of the size.
    """

    crops: FieldCrops
    size: tuple[int, int, int]
    lend: Callable[[int], U8]
    pool: kernel.Pool | None

    def __len__(self) -> int:
        return len(self.crops)

    def take(self, at: I64) -> PackRequest:
        """Return a request for some of the samples."""
        return replace(self, crops=self.crops.take(at))

    def choose(self, share: float) -> tuple[I64, Counter[str]]:
        places, name = self.crops.places, self.crops.field.name
        wanted = round(share * len(self))
        if len(self) > kernels.MAX_IMAGES:
            return np.empty(0, np.int64), Counter({NOT_PLANNED: wanted})
        entries = places.pack.entries(name, places.rows, places.positions)
        found = np.flatnonzero(entries.length > 0)[:wanted]
        # No number of these is above the limit, so that their sum stays within 64 bits.
        lengths = (places.rows[f"{name}.length"][found], entries.length[found])
        size_bytes = sum(np.clip(one, 0, MOST_READ_BYTES + 1).astype(np.int64) for one in lengths)
        fits = size_bytes <= MOST_READ_BYTES
        chosen = found[fits & (np.cumsum(np.where(fits, size_bytes, 0)) <= MOST_READ_BYTES)]
        return chosen, Counter({NO_ENTRIES: wanted - len(found), NOT_PLANNED: len(found) - len(chosen)})

    def split(self, chosen: I64) -> Sequence[I64]:
        return [chosen]

    def plan(self, plan: kernels.BatchPlan, chosen: I64, *, most_memory: int) -> Planned:
        places, geometry = self.crops.places, self.crops.geometry
        files, images, entries = places.pack.find_values(
            self.crops.field.name, places.rows[chosen], places.positions[chosen], with_entries=True
        )
        assert entries is not None
        is_taken = plan.read(
            files, images, entries, boxes=self.crops.boxes[chosen], flips=geometry.flips[chosen],
            filters=geometry.filter_each()[chosen], samples=chosen.astype(np.int32), size=self.size[:2],
            most_memory=most_memory, pool=self.pool,
        )  # fmt: skip
        bytes_read = int(images.length[is_taken].sum() + entries.length[is_taken].sum())
        return note_taken(plan, len(self), chosen, is_taken, bytes_read)

    def decode(self, at: I64) -> tuple[U8, DecodeReport]:
        out = self.lend(len(at))
        return out, decode_pixels(self.crops.take(at), out, self.pool)


def note_taken(
    plan: kernels.BatchPlan, samples: int, chosen: I64, is_taken: Flags, bytes_read: int = 0
) -> Planned:
    """Return which of all samples a plan took, when it was asked for the chosen ones."""
    taken = np.zeros(samples, np.bool_)
    taken[chosen[is_taken]] = True
    return Planned(taken, chosen[plan.waiting], bytes_read)


class _Job(NamedTuple):
    """A batch whose kernels are queued; `event` comes when `statuses`, in pinned memory, are there.

    `out` is what `Run` returned.
    """

    out: Any
    taken: Flags
    waiting: I64
    statuses: Any
    event: Any
    bytes_read: int


class GpuDecoder:
    """Decodes images on a GPU for one iteration. Any thread may call it.

    Attributes:
        stream, launch: where its kernels run, and the function that starts one there.
        share: how much of each batch the GPU is to decode, from 0 to 1.
        is_off: there was no memory for it, so that nothing is decoded there any more.
    """

    def __init__(
        self,
        device: Any,
        stream: Any,
        launch: kernels.Launch,
        meter: Meter,
        *,
        most_memory: int = kernels.MOST_MEMORY,
        is_asked_for: bool = True,
        is_loading: bool = True,
    ) -> None:
        """Make a decoder.

        Args:
            stream: the one of the loader's copies to the device.
            launch: starts a kernel on that stream.
            most_memory: bytes of the device that the buffers may take.
            is_asked_for: samples left to the CPU cause a warning, and a lack of memory an error; else the CPU
                decodes in silence, and a lack of memory causes a warning.
            is_loading: it works for a loader, so that messages are in the words of its options.
        """
        self.device, self.share = device, 1.0
        self.stream, self.launch, self._meter = stream, launch, meter
        self._most_memory, self._is_asked_for, self._is_loading = most_memory, is_asked_for, is_loading
        self._lock = threading.Lock()
        self._buffers: dict[str, Any] = {}
        self._plans: deque[kernels.BatchPlan] = deque()  # with memory for the next batches
        self.is_off = False

    def set_share(self, share: float) -> None:
        """Let so much of each batch be decoded there from now on, from 0 to 1."""
        self.share = 0.0 if self.is_off else share

    def close(self) -> None:
        """Give the memory of the buffers back, until something is decoded again."""
        with self._lock:
            self._buffers.clear()
        self._plans.clear()

    @property
    def buffer_bytes(self) -> int:
        """How much of the GPU's memory its buffers take now, the batches aside."""
        return sum(len(buffer) for buffer in list(self._buffers.values()))

    def takes(self, field: Field) -> bool:
        """Return whether a field's pixels may come from the GPU."""
        return field.kind is Kind.IMAGE and field.coding is not Coding.RAW

    def decode(self, request: Request) -> tuple[U8 | transfer.DevicePixels, DecodeReport]:
        """Decode images; return the pixels, on the host where the GPU took none of them.

        For a loader, the CPU decodes the images for which the buffers have no room at once; else they have
        their turn there.
        """
        chosen, left = request.choose(self.share)
        jobs: list[_Job] = []
        try:
            parts = deque(request.split(chosen) if len(chosen) else ())
            while parts:
                out = jobs[0].out if jobs else None
                job = self.begin(request, parts.popleft(), partial(self._run, request.size, out))
                if job is None:
                    continue
                jobs.append(job)
                if len(job.waiting) and not self._is_loading:
                    parts.append(job.waiting)
            if jobs:
                return self._complete(request, jobs, len(chosen), left)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._note_out_of_memory(error)
        left[NO_MEMORY if self.is_off else NOT_PLANNED] += len(chosen)
        self._count(0, left)
        return request.decode(np.arange(len(request)))

    def begin(self, request: Request, chosen: I64, run: Run) -> _Job | None:
        """Read and plan the chosen samples, and queue their kernels; None: none of them is taken."""
        try:
            plan = self._plans.pop()
        except IndexError:
            plan = kernels.BatchPlan(_lend_pinned)
        planned = request.plan(plan, chosen, most_memory=self._most_memory)
        if not planned.taken.any():
            return None  # without the plan, which may hold many bytes that it read in vain
        job = self._queue(request, plan, planned, run)
        self._plans.append(plan)
        return job

    def _queue(self, request: Request, plan: kernels.BatchPlan, planned: Planned, run: Run) -> _Job:
        import torch

        staged = transfer.make_pinned((plan.sizes.staged,), torch.uint8)
        plan.fill(staged.numpy(), request.pool)
        words, count = transfer.find_pinned(plan.words), len(planned.taken)
        plan.words = plan.words[:0].copy()  # torch knows when that memory may serve again
        with self.queueing(plan.buffer_bytes()) as buffers:
            # None of the kernels' own, so that a sample without a status of theirs does not pass for good.
            statuses = torch.full((count,), -1, dtype=torch.int32, device=self.device)
            buffers["staged"][: len(staged)].copy_(staged, non_blocking=True)
            buffers["words"][: len(words)].copy_(words, non_blocking=True)
            out = run(plan, buffers, statuses)
            here = transfer.make_pinned((count,), torch.int32)
            here.copy_(statuses, non_blocking=True)
            # Blocking: a thread that spins while it waits would take a core from the decoder.
            event = self.stream.record_event(torch.cuda.Event(blocking=True))
        return _Job(out, planned.taken, planned.waiting, here, event, planned.bytes_read)

    def _run(
        self,
        size: tuple[int, int, int],
        out: Any,
        plan: kernels.BatchPlan,
        buffers: Mapping[str, Any],
        statuses: Any,
    ) -> Any:
        import torch

        if out is None:
            out = torch.empty((len(statuses), *size), dtype=torch.uint8, device=self.device)
        kernels.run(plan, self.launch, buffers, out, statuses, size[2])
        return out

    @contextlib.contextmanager
    def queueing(self, needed: Mapping[str, int]) -> Iterator[Mapping[str, Any]]:
        """Lend buffers that are so large, on the stream, while no other user queues kernels that use them."""
        import torch

        with self._lock, torch.cuda.stream(self.stream):
            self._make_room(needed)
            yield self._buffers

    def _make_room(self, needed: Mapping[str, int]) -> None:
        """Let buffers be as large as needed, and no larger than allowed, all together."""
        import torch

        sizes = {name: len(buffer) for name, buffer in self._buffers.items()}
        if sum(max(size, sizes.get(name, 0)) for name, size in needed.items()) > self._most_memory:
            sizes = {}
            self._buffers.clear()
        # With some room to spare: torch keeps the old buffers of a batch that needs a little more.
        roomy = {name: max(size * 5 // 4, sizes.get(name, 0)) for name, size in needed.items()}
        is_roomy = sum(roomy.values()) <= self._most_memory
        for name, size in needed.items():
            if sizes.get(name, 0) < size:
                self._buffers.pop(name, None)  # so that its memory may become part of the larger one
                size_bytes = roomy[name] if is_roomy else size
                # One made in inference mode could not be written to outside of it.
                with torch.inference_mode(False):
                    self._buffers[name] = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def _complete(
        self, request: Request, jobs: Sequence[_Job], chosen: int, left: Counter[str]
    ) -> tuple[transfer.DevicePixels, DecodeReport]:
        """Decode the rest on the CPU, then the samples with a bad status."""
        out, is_taken = jobs[0].out, np.logical_or.reduce([job.taken for job in jobs])
        tally = Tally(len(is_taken))
        tally.count(DecodeReport(np.empty(0, np.int32), {}, {}, sum(job.bytes_read for job in jobs)))
        self._decode_here(request, out, np.flatnonzero(~is_taken), tally)
        jobs[-1].event.synchronize()  # the last of all, on one stream
        statuses = np.zeros(len(is_taken), np.int32)
        for job in jobs:
            statuses[job.taken] = job.statuses.numpy()[job.taken]
        bad = np.flatnonzero(statuses)
        self._decode_here(request, out, bad, tally)
        taken = int(is_taken.sum())
        left.update(UNSURE if status == UNSURE_BIT else FOUND_BAD for status in statuses[bad].tolist())
        left[NOT_PLANNED] += chosen - taken
        self._count(taken - len(bad), left)
        return transfer.DevicePixels(out, self.stream), tally.report()

    def _decode_here(self, request: Request, out: Any, at: I64, tally: Tally) -> None:
        if at.size:
            pixels, report = request.decode(at)
            tally.add(report, at=at)
            put_samples(pixels, at, out, self.stream)

    def _count(self, decoded: int, left: Counter[str]) -> None:
        left = +left  # without those of which there is none
        is_first = self._meter.add_gpu(decoded, left)
        if left and is_first and self._is_asked_for and self._is_loading:
            why = "; ".join(f"{count}: {reason}" for reason, count in left.most_common())
            log.warning(
                'decode="gpu": %d of the %d images of a batch are decoded on the CPU, with the same pixels '
                "(%s). stats().cpu_reasons counts them",
                left.total(), decoded + left.total(), why,
            )  # fmt: skip

    def _note_out_of_memory(self, error: Exception) -> None:
        taken = format_bytes(self.buffer_bytes)
        words = f"{self.device} has no memory left to decode images: its buffers take {taken} now"
        first = str(error).splitlines()[0]
        if self._is_asked_for:
            hint = 'device="cpu" needs none; or ask for fewer images at a time'
            if self._is_loading:
                hint = 'decode="cpu" needs none; or lower batch_size, prefetch, or what the model takes'
            raise FeedrateError(
                f"{words}, at most {format_bytes(self._most_memory)} ({first})", hint=hint
            ) from error
        with self._lock:
            self._buffers.clear()
            is_first, self.is_off, self.share = not self.is_off, True, 0.0
        if is_first:
            log.warning("%s; the CPU decodes from now on (%s)", words, first)


def open_decoder(
    placement: transfer.Transfer,
    meter: Meter,
    *,
    is_asked_for: bool,
    is_needed: bool = False,
    is_loading: bool = True,
) -> GpuDecoder | None:
    """Return a decoder for a placement, its kernels compiled; None, with a warning: it is not possible.

    Args:
        is_needed: the loader cannot do without its kernels.
        is_loading: as `GpuDecoder` has it.

    Raises:
        GpuError: it was asked for, or is needed, and is not possible.
    """
    import torch

    device = placement.device
    source, options = kernels.source(), kernels.COMPILE_OPTIONS
    if not is_asked_for and not is_needed:
        reason = why_not(device.index, source, options)
        if reason is not None:
            _tell_once(f"images are decoded on the CPU, since the GPU cannot: {reason}")
            return None
    module = compile_source(source, options, device=device.index)
    launch = partial(module.launch, stream=placement.stream)
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    decoder = GpuDecoder(
        device, placement.stream, launch, meter,
        most_memory=min(kernels.MOST_MEMORY, total_bytes // _MEMORY_PART), is_asked_for=is_asked_for,
        is_loading=is_loading,
    )  # fmt: skip
    placement.beside["decoding"] = lambda: decoder.buffer_bytes
    return decoder


def put_samples(pixels: U8 | transfer.DevicePixels, at: I64, out: Any, stream: Any) -> None:
    """Queue the copy of some samples' pixels, from wherever they are, to their places in a batch there."""
    import torch

    with torch.cuda.stream(stream):
        if isinstance(pixels, transfer.DevicePixels):
            there = pixels.tensor
        else:
            there = transfer.send(pixels, out.device)
        out.index_copy_(0, transfer.send(at, out.device), there)


def _lend_pinned(size_bytes: int) -> U8:
    import torch

    memory: U8 = transfer.make_pinned((size_bytes,), torch.uint8).numpy()
    return memory


@functools.cache
def _tell_once(words: str) -> None:
    log.warning(words)
