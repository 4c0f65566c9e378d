# SPDX-License-Identifier: Apache-2.0
"""`feedrate.decode_batch`: crops of images, without a pack, to one tensor on the GPU or the CPU.

Arguments become arrays, threads read and measure the files, and the GPU decoder of the Loader, or the kernel,
makes the crops: the pixels are the same.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.arrays import I32, I64, U8, U32
from feedrate.errors import FeedrateError, GpuError, NotFound, StorageError, UsageError
from feedrate.filters import FILTERS, Filter, check_filter
from feedrate.format.fields import GPU as BYTES_PER_ENTRY
from feedrate.format.fields import Kind
from feedrate.kernel import Crops, DecodeReport, Status, pillow
from feedrate.kernel.cuda import batch as kernels
from feedrate.kernel.cuda.launcher import why_not
from feedrate.kernel.depth import Depth
from feedrate.loader.arguments import Size, as_pair, check_choice, check_depth, check_size, options_by_name
from feedrate.loader.device.gpu_decode import (
    MOST_READ_BYTES,
    NO_ENTRIES,
    GpuDecoder,
    Planned,
    open_decoder,
    put_samples,
)
from feedrate.loader.device.transfer import DevicePixels, Transfer, choose_placement, send
from feedrate.loader.geometry import Tally
from feedrate.loader.image import BYTES, Source, read_source
from feedrate.loader.pipeline import Meter
from feedrate.loader.values import choose_output, explain_status, to_torch
from feedrate.machine.cpu import count_rank_cores

# Of the output: what a plan for the GPU takes.
_LONGEST_SIDE = 16384
_LARGEST_EDGE = 2**31 - 1


class Wanted(NamedTuple):
    """The checked arguments.

    Attributes:
        has_boxes: the user gave crops; else the boxes are zero until the images are measured.
        size: height and width.
        entries: one per image; b"": none.
        depth: the way of gray of more than 8 bits to pixels.
    """

    images: Sequence[Source]
    crops: Crops
    has_boxes: bool
    size: Size
    entries: list[bytes]
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
    for i, image in enumerate(listed):
        if not isinstance(image, (str, os.PathLike, *BYTES)):
            raise UsageError(
                f"images[{i}] must be a path or an image file's bytes, got {type(image).__name__}"
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


def _check_entries(entries: Any, count: int) -> list[bytes]:
    if entries is None:
        return [b""] * count
    if isinstance(entries, BYTES):
        raise UsageError("entries must be a list, bytes for each image, got bytes")
    _check_length("entries", entries, count, "image")
    for i, one in enumerate(entries):
        if one is not None and not isinstance(one, BYTES):
            raise UsageError(f"entries[{i}] must be bytes, b'' or None, got {type(one).__name__}")
    return [bytes(one or b"") for one in entries]


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
    opened = None if place is None else _open(place)
    sources = _read_sources(wanted, is_for_gpu=opened is not None, raises=on_error == "raise")
    if sources.faults and on_error == "raise":
        number = min(sources.faults)
        raise UsageError(f"{_name(number, wanted)} cannot be decoded: {sources.faults[number].reason}")
    pixels, report = (
        _decode_here(wanted, sources) if opened is None else _decode_there(opened, wanted, sources)
    )
    found = [_conclude(i, report, wanted, sources) for i in range(len(report.statuses))]
    for i, one in enumerate(found):
        is_too_deep = report.statuses[i] == Status.TOO_DEEP  # a setting is missing, and no image is bad
        if one.status != "ok" and (is_too_deep or on_error == "raise"):
            raise _make_error(i, one, wanted)
    return (pixels, found) if on_error == "status" else pixels


@dataclass(slots=True)
class _Sources:
    """The images' bytes.

    Attributes:
        entries: entry points; b"": none.
        faults: images that cannot be read or measured, and why.
    """

    data: list[bytes]
    entries: list[bytes]
    crcs: U32
    faults: dict[int, CropStatus]


def _read_sources(wanted: Wanted, *, is_for_gpu: bool, raises: bool) -> _Sources:
    """Read the images, and find the boxes and entry points that were not given."""
    count = len(wanted.images)
    sources = _Sources([b""] * count, wanted.entries, np.zeros(count, np.uint32), {})

    def read(i: int) -> None:
        try:
            data = read_source(wanted.images[i])[1]
            if not wanted.has_boxes:
                wanted.crops.boxes[wanted.crops.image == i] = (0, 0, *_measure(data))
        except (NotFound, StorageError) as error:
            if raises:
                raise type(error)(f"image {i}: {error.message}", hint=error.hint) from error
            sources.faults[i] = CropStatus("unreadable", error.message)
            return
        except ValueError as error:
            sources.faults[i] = CropStatus("corrupt", str(error))
            return
        sources.data[i] = data
        if is_for_gpu:
            sources.entries[i] = sources.entries[i] or kernel.find_entry_points(data, BYTES_PER_ENTRY)
            sources.crcs[i] = kernel.crc32c(data)

    used = np.unique(wanted.crops.image).tolist()
    if len(used) == 1:
        read(used[0])
    else:
        _find_pool().map(read, used)
    return sources


def _measure(data: bytes) -> tuple[int, int]:
    width, height = kernel.measure(data)
    if width * height > pillow.most_pixels():
        raise ValueError(pillow.say_too_large(width, height))
    return width, height


def _decode_here(wanted: Wanted, sources: _Sources) -> tuple[Any, DecodeReport]:
    out = np.empty((len(wanted.crops.image), *wanted.size, 3), np.uint8)
    report = kernel.decode_crops(sources.data, sources.entries, wanted.crops, out, _find_pool(), wanted.depth)
    return (to_torch(out, Kind.IMAGE) if choose_output(None) == "torch" else out), report


def _decode_there(
    opened: tuple[Transfer, GpuDecoder], wanted: Wanted, sources: _Sources
) -> tuple[Any, DecodeReport]:
    import torch

    placement, decoder = opened
    size = (*wanted.size, 3)
    with torch.cuda.device(placement.device):
        request = _Request(
            sources,
            wanted.crops,
            size,
            lambda count: placement.lend((count, *size)),
            _find_pool(),
            wanted.depth,
        )
        parts = list(_split([len(one) for one in sources.data], wanted.crops.image))
        if len(parts) == 1:
            pixels, report = decoder.decode(request)
        else:
            pixels, report = _decode_parts(decoder, request, parts)
        if isinstance(pixels, DevicePixels):
            tensor, stream = pixels.tensor, torch.cuda.current_stream(placement.device)
            stream.wait_event(placement.stream.record_event())
            tensor.record_stream(stream)
        else:
            tensor = send(pixels, placement.device)
    return tensor.permute(0, 3, 1, 2), report


def _split(sizes: Sequence[int], image: I32) -> Iterator[I64]:
    """Return crops, those of an image together, of so many bytes of files as are planned at once."""
    order = np.argsort(image, kind="stable")
    is_first = np.diff(image[order], prepend=-1) > 0
    counted = np.where(is_first, np.asarray(sizes, np.int64)[image[order]], 0)
    return (order[part] for part in kernel.split_by_size(counted, MOST_READ_BYTES, kernels.MAX_IMAGES))


def _decode_parts(
    decoder: GpuDecoder, request: _Request, parts: Sequence[I64]
) -> tuple[DevicePixels, DecodeReport]:
    import torch

    tally = Tally(len(request))
    with torch.cuda.stream(decoder.stream):
        out = torch.empty((len(request), *request.size), dtype=torch.uint8, device=decoder.device)
    for at in parts:
        pixels, report = decoder.decode(replace(request, crops=request.crops.take(at)))
        tally.add(report, at=at)
        put_samples(pixels, at, out, decoder.stream)
    return DevicePixels(out, decoder.stream), tally.report()


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the GPU decoder (gpu_decode.Request)."""

    sources: _Sources
    crops: Crops
    size: tuple[int, int, int]
    lend: Callable[[int], U8]
    pool: kernel.Pool
    depth: Depth | None

    def __len__(self) -> int:
        return len(self.crops.image)

    def choose(self, share: float) -> tuple[I64, Counter[str]]:
        del share  # all of them are wanted
        has_entries = np.array([len(one) > 0 for one in self.sources.entries])
        chosen = np.flatnonzero(has_entries[self.crops.image])
        return chosen, Counter({NO_ENTRIES: len(self) - len(chosen)})

    def plan(self, plan: kernels.BatchPlan, chosen: I64, *, most_memory: int) -> Planned:
        crops, used = self.crops, set(self.crops.image[chosen].tolist())
        data, starts = _join_used(self.sources.data, used)
        packed, entry_starts = _join_used(self.sources.entries, used)
        boxes = np.zeros_like(crops.boxes)  # others have no box, and so are not taken
        boxes[chosen] = crops.boxes[chosen]
        taken = plan.look(
            data, starts, self.sources.crcs, packed, entry_starts,
            boxes=boxes, flips=crops.flips, filters=crops.filters, file_of=crops.image,
            size=self.size[:2], most_memory=most_memory, pool=self.pool,
        )  # fmt: skip
        return Planned(data, taken, 0)

    def decode(self, at: I64) -> tuple[U8, DecodeReport]:
        out, sources, crops = self.lend(len(at)), self.sources, self.crops.take(at)
        return out, kernel.decode_crops(sources.data, sources.entries, crops, out, self.pool, self.depth)


def _join_used(texts: Sequence[bytes], used: set[int]) -> tuple[U8, I64]:
    """Return the texts with these numbers one behind the other, and where each begins; others are empty."""
    parts = [text if i in used else b"" for i, text in enumerate(texts)]
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return np.frombuffer(b"".join(parts), np.uint8), starts


def _conclude(i: int, report: DecodeReport, wanted: Wanted, sources: _Sources) -> CropStatus:
    fault = sources.faults.get(int(wanted.crops.image[i]))
    if fault is not None:
        return fault
    status = Status(report.statuses[i])
    if status is Status.OK:
        return CropStatus("ok", "")
    return CropStatus(status.name.lower(), report.reasons.get(i) or explain_status(status))


def _make_error(i: int, found: CropStatus, wanted: Wanted) -> FeedrateError:
    name = _name(int(wanted.crops.image[i]), wanted)
    if found.status == "bad_box":
        return UsageError(f"crop {i}, {tuple(wanted.crops.boxes[i].tolist())}, of {name}: {found.reason}")
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
