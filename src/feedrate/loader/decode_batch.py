# SPDX-License-Identifier: Apache-2.0
"""`feedrate.decode_batch`: crops of images, without a pack, to one tensor on the GPU or the CPU.

Arguments become arrays and pointers to bytes that stay where they are. The GPU decoder of the Loader plans a
part of the batch, in the pool's threads, while the GPU decodes the part before; or the kernel makes the
crops. The pixels are the same.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.arrays import I32, I64, U8, Flags
from feedrate.errors import FeedrateError, GpuError, NotFound, StorageError, UsageError
from feedrate.filters import FILTERS, Filter, check_filter
from feedrate.format.fields import GPU as BYTES_PER_ENTRY
from feedrate.format.fields import Kind
from feedrate.kernel import Crops, DecodeReport, Status, pillow
from feedrate.kernel.cuda import batch as kernels
from feedrate.kernel.cuda.launcher import why_not
from feedrate.kernel.depth import Depth
from feedrate.loader.arguments import Size, as_pair, check_choice, check_depth, check_size, options_by_name
from feedrate.loader.device.gpu_decode import GpuDecoder, Planned, note_taken, open_decoder
from feedrate.loader.device.transfer import DevicePixels, Transfer, choose_placement, send
from feedrate.loader.geometry import Tally
from feedrate.loader.image import BYTES, Source
from feedrate.loader.pipeline import Meter
from feedrate.loader.values import choose_output, explain_status, to_torch
from feedrate.machine.cpu import count_rank_cores

# Of the output: what a plan for the GPU takes.
_LONGEST_SIDE = 16384
_LARGEST_EDGE = 2**31 - 1
# A batch is planned in so many parts, each of so many crops at the least: smaller ones leave the GPU idle.
_SLICES, _SLICE = 4, 128


class Wanted(NamedTuple):
    """The checked arguments.

    Attributes:
        has_boxes: the user gave crops; else the boxes are zero until the images are measured.
        size: height and width.
        entries: one per image; None, or an image's b"" or None: there are none.
        depth: the way of gray of more than 8 bits to pixels.
    """

    images: Sequence[Source]
    crops: Crops
    has_boxes: bool
    size: Size
    entries: Sequence[Any] | None
    depth: Depth | None


def check_wanted(
    images: Any, crops: Any, size: Any, flips: Any, interpolation: Any, entries: Any, image_index: Any,
    depth: Any = None,
) -> Wanted:  # fmt: skip
    """Return the arguments in their final form.

    Raises:
        UsageError: one of them makes no sense.
    """
    images = _check_images(images)
    index = _check_index(image_index, len(images))
    count, per = len(index), "image" if image_index is None else "number in image_index"
    height, width = as_pair(check_size(size, "decode_batch"))
    if max(height, width) > _LONGEST_SIDE:
        raise UsageError(f"decode_batch: size must be at most {_LONGEST_SIDE} pixels a side, got {size!r}")
    filter_ = FILTERS[check_filter(interpolation, "decode_batch")]
    boxes = np.zeros((count, 4), np.int32) if crops is None else _check_crops(crops, count, per)
    checked = check_depth(depth)
    if checked == "uint16":
        raise UsageError('decode_batch gives 8 bits, and depth="uint16" is for feedrate.decode and Loader')
    return Wanted(
        images,
        Crops(index, boxes, _check_flips(flips, count, per), np.full(count, filter_, np.uint8)),
        crops is not None,
        (height, width),
        _check_entries(entries, len(images)),
        checked,
    )


def parse_device(device: Any) -> Any:
    """Return a GPU as a torch.device; None: the CPU.

    Raises:
        UsageError: it is neither.
        GpuError: torch is not there.
    """
    if device == "cpu":
        return None
    is_named = isinstance(device, str) and device.partition(":")[0] == "cuda"
    if is_named or type(device).__module__.partition(".")[0] == "torch":
        try:
            import torch
        except (ImportError, OSError) as error:
            raise GpuError(
                f"device={device!r} is used by way of torch, which cannot be imported: {error}",
                hint='pip install torch; device="cpu" needs none',
            ) from error
        with contextlib.suppress(RuntimeError, TypeError):
            found = torch.device(device)
            if found.type in ("cuda", "cpu"):
                return None if found.type == "cpu" else found
    raise UsageError(f'device must be "cuda", "cuda:1", a torch.device of these, or "cpu"; got {device!r}')


def _check_images(images: Any) -> Sequence[Source]:
    if isinstance(images, (str, os.PathLike, *BYTES)) or not _is_sized(images):
        raise UsageError(
            f"images must be a list of paths or of image files' bytes, got {type(images).__name__}",
            hint="for one image: decode_batch([image])",
        )
    listed: list[Source] = list(images)
    if not listed:
        raise UsageError("images is empty: there is nothing to decode")
    i = _find_other(listed, (str, os.PathLike, *BYTES))
    if i is not None:
        raise UsageError(
            f"images[{i}] must be a path or an image file's bytes, got {type(listed[i]).__name__}"
        )
    return listed


def _check_index(index: Any, images: int) -> I32:
    if index is None:
        return np.arange(images, dtype=np.int32)
    array = _to_array(index)
    if array is None or array.ndim != 1 or not (array.dtype.kind in "iu" or not array.size):
        raise UsageError(f"image_index must be whole numbers, one per crop, got {_show(index)}")
    if not array.size:
        raise UsageError("image_index is empty: there is nothing to decode")
    outside = np.flatnonzero((array < 0) | (array >= images))
    if outside.size:
        last = f"0 to {images - 1}" if images > 1 else "0 alone"
        raise UsageError(f"image_index[{outside[0]}] is {array[outside[0]]}: the images have numbers {last}")
    return np.asarray(array, np.int32)


def _check_crops(crops: Any, count: int, per: str) -> I32:
    _check_length("crops", crops, count, per)
    array = _to_array(crops)
    if array is not None and array.ndim == 2 and array.shape[1] == 4 and array.dtype.kind in "iu":
        left, top, right, bottom = array.T
        good = (left >= 0) & (left < right) & (top >= 0) & (top < bottom)
        good &= (right <= _LARGEST_EDGE) & (bottom <= _LARGEST_EDGE)
        if good.all():
            return np.asarray(array, np.int32)
        i = int(np.flatnonzero(~good)[0])
        what = f"crops[{i}] is {tuple(array[i].tolist())}"
    else:
        what = f"got {_show(crops)}"
    raise UsageError(
        "crops must be left, top, right, bottom for each, in whole pixels, not empty and not negative; "
        + what
    )


def _check_flips(flips: Any, count: int, per: str) -> Any:
    if flips is None:
        return np.zeros(count, np.bool_)
    _check_length("flips", flips, count, per)
    array = _to_array(flips)
    if array is None or array.ndim != 1 or array.dtype != np.bool_:
        raise UsageError(f"flips must be True or False for each crop, got {_show(flips)}")
    return array


def _check_entries(entries: Any, count: int) -> Sequence[Any] | None:
    if entries is None:
        return None
    if isinstance(entries, BYTES):
        raise UsageError("entries must be a list, bytes for each image, got bytes")
    _check_length("entries", entries, count, "image")
    listed = list(entries)
    i = _find_other(listed, (*BYTES, type(None)))
    if i is not None:
        raise UsageError(f"entries[{i}] must be bytes, b'' or None, got {type(listed[i]).__name__}")
    return listed


def _find_other(values: Sequence[Any], kinds: tuple[type, ...]) -> int | None:
    """Return the number of the first value that is of none of these types."""
    if all(issubclass(kind, kinds) for kind in set(map(type, values))):  # one look at each type
        return None
    return next(i for i, value in enumerate(values) if not issubclass(type(value), kinds))


def _check_length(name: str, values: Any, count: int, per: str) -> None:
    if not _is_sized(values):
        raise UsageError(f"{name} must be a list, one for each {per}, got {type(values).__name__}")
    if len(values) != count:
        raise UsageError(f"{name} has {len(values)}, and {count} are needed: one for each {per}")


def _is_sized(values: Any) -> bool:
    if isinstance(values, dict) or getattr(values, "ndim", 1) == 0:  # a number in the form of an array
        return False
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


def _to_array(values: Any) -> Any:
    """Return numbers as an array; None: they are none, or of unequal lengths."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(values, torch.Tensor):
            values = values.detach().cpu().numpy()
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # numpy, or no tensor, has such numbers
        return None


def _show(values: Any) -> str:
    text = repr(values)
    return text if len(text) <= 80 else f"{text[:77]}..."


class CropStatus(NamedTuple):
    """How one crop ended.

    Attributes:
        status: "ok", "unreadable", "corrupt", "bad_box" or "bad_entries".
        reason: the fault in words; "" where it is ok.
    """

    status: str
    reason: str


_FINE = CropStatus("ok", "")


@options_by_name
def decode_batch(
    images: Sequence[Source],
    crops: Sequence[Sequence[int]] | None = None,
    size: int | Size = 224,
    *,
    flips: Sequence[bool] | None = None,
    interpolation: Filter = "bilinear",
    entries: Sequence[bytes | None] | None = None,
    image_index: Sequence[int] | None = None,
    depth: Depth | None = None,
    device: Any = "cuda",
    on_error: Literal["raise", "status"] = "raise",
) -> Any:
    """Decode, crop, resize and flip images; return RGB pixels, uint8, as one tensor N,C,H,W on the device.

    Its memory is channels-last, as that of the Loader's batches. With device="cpu", where torch is not
    installed, it is a numpy array N,H,W,C. The bytes are the same on every device: images that the GPU does
    not take (progressive JPEG, PNG, damage) are decoded by the CPU in the same batch.

    Any thread may call this. On a GPU the host waits for the decoding, and the current stream may use the
    pixels at once; buffers on the GPU are kept for the next call, and images for which they have no room at
    once are decoded in turns.

    Args:
        images: paths, or the bytes of image files.
        crops: for each image left, top, right, bottom in whole pixels; None: whole images.
        size: height and width to resize each to; one number: a square.
        flips: for each crop whether to mirror it left to right; None: none.
        interpolation: the filter of the resize: "bilinear", "bicubic", "lanczos", "box", "hamming" or
            "nearest".
        entries: the entry points of each image, as `feedrate.kernel.scan` finds them; None, or b"" for one:
            a GPU needs them, so that they are found first, by a pass of the CPU over the file.
        image_index: for each crop the number of its image, from 0; an image of several crops is decoded once.
            `crops` and `flips` are then as long as this. None: one crop per image.
        depth: the way of gray of more than 8 bits to pixels; it is an error without it, whatever `on_error`
            says: "clip" cuts at 255, as Pillow's `convert("L")` does; (low, high): that range becomes 0 to
            255.
        device: "cuda", "cuda:1", a torch.device, or "cpu".
        on_error: "raise": an image that cannot be decoded is an error. "status": return `(pixels, statuses)`;
            each status has a `status` and a `reason`, and the pixels of those that are not "ok" are zero.

    Raises:
        UsageError: an image cannot be decoded, a crop is not inside of its image, or the arguments make no
            sense.
        NotFound: there is no such file.
        StorageError: a file cannot be read.
        GpuError: nothing can be decoded on that GPU; the message says why.
    """
    check_choice("on_error", on_error, "raise", "status")
    wanted = check_wanted(images, crops, size, flips, interpolation, entries, image_index, depth)
    place = parse_device(device)
    inputs = kernel.Inputs(wanted.images, wanted.entries)
    request = _Request(wanted, inputs, (*wanted.size, 3), _find_pool(), _make_room)
    pixels, report = _decode_here(request) if place is None else _decode_there(_open(place), request)
    found = [_FINE] * len(request)
    for i in np.flatnonzero(report.statuses).tolist():
        found[i] = _conclude(i, report)
        # A setting is missing where an image is too deep, and no image is bad.
        if on_error == "raise" or report.statuses[i] == Status.TOO_DEEP:
            raise _make_error(i, found[i], request)
    return (pixels, found) if on_error == "status" else pixels


def _make_room(shape: tuple[int, ...]) -> U8:
    return np.empty(shape, np.uint8)


def _decode_here(request: _Request) -> tuple[Any, DecodeReport]:
    pixels, report = request.decode(np.arange(len(request)))
    return (to_torch(pixels, Kind.IMAGE) if choose_output(None) == "torch" else pixels), report


def _decode_there(opened: tuple[Transfer, GpuDecoder], request: _Request) -> tuple[Any, DecodeReport]:
    import torch

    placement, decoder = opened
    with torch.cuda.device(placement.device):
        pixels, report = decoder.decode(replace(request, lend=placement.lend))
        if isinstance(pixels, DevicePixels):
            tensor, stream = pixels.tensor, torch.cuda.current_stream(placement.device)
            stream.wait_event(placement.stream.record_event())
            tensor.record_stream(stream)
        else:
            tensor = send(pixels, placement.device)
    return tensor.permute(0, 3, 1, 2), report


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the GPU decoder (gpu_decode.Request), or to the CPU alone.

    Attributes:
        size: height, width and channels.
        lend: returns memory of the host for so many images.
        faults: by their numbers, images that cannot be read, or whose size nobody knows, and why.
    """

    wanted: Wanted
    inputs: kernel.Inputs
    size: tuple[int, int, int]
    pool: kernel.Pool
    lend: Callable[[tuple[int, ...]], U8]
    faults: dict[int, FeedrateError] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.wanted.crops.image)

    def choose(self, share: float) -> tuple[I64, Counter[str]]:
        del share  # all of them are wanted
        # Those of an image together, so that it is decoded once.
        return np.argsort(self.wanted.crops.image, kind="stable"), Counter()

    def split(self, chosen: I64) -> Sequence[I64]:
        count, image = len(chosen), self.wanted.crops.image[chosen]
        if count > kernels.MAX_IMAGES:
            return np.array_split(chosen, -(-count // kernels.MAX_IMAGES))
        parts = max(min(count // _SLICE, _SLICES), 1)
        starts = np.searchsorted(image, image[np.arange(1, parts) * count // parts])  # each with a new image
        return [part for part in np.split(chosen, starts) if len(part)]

    def plan(self, plan: kernels.BatchPlan, chosen: I64, *, most_memory: int) -> Planned:
        crops = self.wanted.crops.take(chosen)
        most_pixels = 0 if self.wanted.has_boxes else min(pillow.most_pixels(), 1 << 62)
        is_taken = plan.look(
            self.inputs, bytes_per_entry=BYTES_PER_ENTRY, most_pixels=int(most_pixels), boxes=crops.boxes,
            flips=crops.flips, filters=crops.filters, file_of=crops.image, samples=chosen.astype(np.int32),
            size=self.size[:2], most_memory=most_memory, pool=self.pool,
        )  # fmt: skip
        return note_taken(plan, len(self), chosen, is_taken)

    def decode(self, at: I64) -> tuple[U8, DecodeReport]:
        crops = self._find_boxes(at)
        is_bad = np.isin(crops.image, [*self.faults])
        if is_bad.any():
            return self._decode_others(at, is_bad)
        used, image = np.unique(crops.image, return_inverse=True)
        files = [self.inputs[number] for number in used.tolist()]
        out = self.lend((len(at), *self.size))
        return out, kernel.decode_crops(
            [file for file, _ in files], [entries for _, entries in files],
            crops._replace(image=image.astype(np.int32)), out, self.pool, self.wanted.depth,
        )  # fmt: skip

    def _decode_others(self, at: I64, is_bad: Flags) -> tuple[U8, DecodeReport]:
        """Decode crops but the bad ones, whose pixels are zero."""
        good, bad, tally = np.flatnonzero(~is_bad), np.flatnonzero(is_bad), Tally(len(at))
        out = self.lend((len(at), *self.size))
        out[bad] = 0
        out[good], report = self.decode(at[good])
        tally.add(report, at=good)
        tally.add(self._report_faults(self.wanted.crops.image[at[bad]]), at=bad)
        return out, tally.report()

    def _report_faults(self, numbers: I32) -> DecodeReport:
        faults = [self.faults[number] for number in numbers.tolist()]
        kinds = [Status.CORRUPT if isinstance(one, UsageError) else Status.UNREADABLE for one in faults]
        return DecodeReport(np.array(kinds, np.int32), {i: one.message for i, one in enumerate(faults)}, {})

    def _find_boxes(self, at: I64) -> Crops:
        """Return crops with the boxes of whole images where these are wanted; and note faults."""
        crops, has_boxes = self.wanted.crops, self.wanted.has_boxes
        numbers, image = np.unique(crops.image[at], return_inverse=True)
        sizes, errors = self.inputs.measure(numbers.astype(np.int64), self.pool)
        for n in np.flatnonzero(errors).tolist():
            self.faults[int(numbers[n])] = _say_unreadable(self.wanted.images[numbers[n]], int(errors[n]))

        def ask_pillow(n: int) -> None:
            try:
                sizes[n] = _measure(self.inputs[int(numbers[n])][0])
            except ValueError as error:
                self.faults[int(numbers[n])] = UsageError(str(error))

        if not has_boxes:
            pixels = sizes.prod(axis=1, dtype=np.int64)
            asked = np.flatnonzero((errors == 0) & ((pixels == 0) | (pixels > pillow.most_pixels())))
            kernel.for_each(ask_pillow, asked.tolist(), self.pool)
            crops.boxes[at, 2:] = sizes[image]
        return crops.take(at)


def _measure(data: U8) -> tuple[int, int]:
    width, height = kernel.measure(data.tobytes())
    if width * height > pillow.most_pixels():
        raise ValueError(pillow.say_too_large(width, height))
    return width, height


def _say_unreadable(source: Any, error: int) -> FeedrateError:
    if error == errno.ENOMEM:
        raise MemoryError(f"out of memory while {os.fspath(source)} was read")
    path = Path(os.fsdecode(source))
    return (
        NotFound(f"no file at {path}")
        if error == errno.ENOENT
        else StorageError(f"cannot read {path}: {os.strerror(error)}")
    )


def _conclude(i: int, report: DecodeReport) -> CropStatus:
    status = Status(report.statuses[i])
    return CropStatus(status.name.lower(), report.reasons.get(i) or explain_status(status))


def _make_error(i: int, found: CropStatus, request: _Request) -> FeedrateError:
    number = int(request.wanted.crops.image[i])
    fault, name = request.faults.get(number), _name(number, request.wanted)
    if found.status == "unreadable" and fault is not None:
        return type(fault)(f"image {number}: {fault.message}", hint=fault.hint)
    if found.status == "bad_box":
        box = tuple(request.wanted.crops.boxes[i].tolist())
        return UsageError(f"crop {i}, {box}, of {name}: {found.reason}")
    return UsageError(f"{name} cannot be decoded: {found.reason}")


def _name(number: int, wanted: Wanted) -> str:
    source = wanted.images[number]
    if isinstance(source, BYTES):
        return f"image {number} ({len(source)} bytes)"
    return f"image {number} ({os.fspath(source)})"


_lock = threading.Lock()
# By process and device: a child process made by fork has none of its parent's.
_opened: dict[tuple[int, int | None], tuple[Transfer, GpuDecoder]] = {}


def _open(device: Any) -> tuple[Transfer, GpuDecoder]:
    """Return the GPU decoder of a device, its kernels compiled the first time.

    Raises:
        GpuError: nothing can be decoded there; with the reason.
    """
    import torch

    index = device.index
    if index is None and torch.cuda.is_available() and not torch.cuda._is_in_bad_fork():
        index = torch.cuda.current_device()
    key = (os.getpid(), index)
    with _lock:
        if key not in _opened:
            reason = why_not(index, kernels.source(), kernels.COMPILE_OPTIONS)
            if reason is not None:
                raise GpuError(
                    f"device='{device}' cannot decode images: {reason}",
                    hint='device="cpu" gives the same pixels',
                )
            placement = choose_placement(device, "torch", prefetch=1, is_plain=True)
            assert isinstance(placement, Transfer)
            decoder = open_decoder(placement, Meter(), is_asked_for=True, is_loading=False)
            assert decoder is not None
            _opened[key] = (placement, decoder)
        return _opened[key]


@lru_cache(maxsize=1)
def _find_pool() -> kernel.Pool:
    """Return the threads of all calls; they start with the first."""
    pool = kernel.Pool(count_rank_cores(1))
    atexit.register(pool.close)
    return pool
