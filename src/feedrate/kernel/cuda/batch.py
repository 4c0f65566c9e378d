# SPDX-License-Identifier: Apache-2.0
"""How a batch of JPEGs is decoded on a GPU: the bytes that are staged, the buffers, and the kernels in order.

    plan = BatchPlan()
    taken = plan.look(Inputs(images, entries), boxes=..., flips=..., size=(224, 224))
    plan.fill(staged)  # staged and plan.words: pinned memory of the host, which is then copied to the device
    run(plan, launch, buffers, out, statuses)

`launch` starts a kernel by its name: a GPU's launcher, or that of the tests, which runs the same source on
the CPU. Pixels are those of `kernel.decode_batch`, byte for byte. That one decodes the samples that were not
taken, and those whose status is not 0 afterwards: it has the reason in words, and asks Pillow.

Crops of whole images that are kept on the GPU are planned and made in the same way:

    plan = plan_crops(images, boxes=..., flips=..., filters=..., size=(224, 224), samples=...)
    buffers["staged"][: len(plan.staged)] = plan.staged
    run_crops(plan, launch, buffers, out, statuses, channels)

An image is kept as its rows, one byte per channel, at an address of the device, which the kernels trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from feedrate.arrays import Flags
from feedrate.filters import BILINEAR, FILTERS
from feedrate.kernel.binding import (
    I32,
    I64,
    U8,
    Files,
    Inputs,
    Pool,
    Ranges,
    arrays_of,
    checked,
    native,
    split_by_size,
)
from feedrate.kernel.decoding import WITH_LOBES, is_pillow_older

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

SOURCES = ("layout.h", "prepare.cu", "huffman.cu", "idct.cu", "pixels.cu", "stored.cu")
# Weights must be those of the CPU to the last bit, so that no product may be fused with a sum.
COMPILE_OPTIONS = ("--fmad=false",)
MAX_IMAGES = 65535  # a grid's second dimension
MOST_MEMORY = 4 << 30
# As in layout.h.
_GROUP_ITEMS = 160
_TABLE_WORDS = 2 * ((1 << 9) + (1 << 11) + 2 * 82)
_ALIGNMENT = 256
_READ_AHEAD = 512
_IS_TAKEN, _HAS_NO_ROOM = 1, 2  # as native/gpu_plan.h has it


class Launch(Protocol):
    """Starts a kernel: blocks, threads of a block, arguments: arrays or tensors, and numpy's numbers."""

    def __call__(self, name: str, grid: tuple[int, int], block: int, args: Sequence[Any], /) -> None: ...


class Crops(TypedDict, total=False):
    """The crops that a batch makes of its files.

    Attributes:
        boxes: N x 4: left, top, right, bottom.
        flips: mirror left to right, after the resize.
        size: height and width of the output, 1 to 16384 each.
        file_of: for each crop the number of its file, which is decoded once; None: one crop per file.
        samples: which part of the output, and which status, each crop is; None: in this order.
        filters: Pillow's number of each crop's filter; None: bilinear.
        before_13: the order of passes before Pillow 13; None: as the CPU path has it here.
        most_memory: bytes that `buffer_bytes` may come to; samples beyond that are not taken.
        pool: threads to use; None: the calling thread.
    """

    boxes: Required[I32]
    flips: Required[Flags]
    size: Required[tuple[int, int]]
    file_of: I32 | None
    samples: I32 | None
    filters: U8 | None
    before_13: bool | None
    most_memory: int
    pool: Pool | None


class Sizes(NamedTuple):
    """A plan's sizes: numbers of things, and the byte of the staged buffer at which each part begins."""

    images: int
    groups: int
    tiles: int
    groups_at: int
    tiles_at: int
    items_at: int
    staged: int  # bytes in all
    words: int  # bytes, too
    blocks: int  # of coefficients
    samples: int
    pixels: int
    between: int  # pixels between the two passes of the resize
    weights: int


def source() -> str:
    """Return the CUDA source, all of it; it includes nothing."""
    folder = Path(__file__).parent
    texts = ((folder / name).read_text() for name in SOURCES)
    return "\n".join(text.replace("#pragma once\n", "") for text in texts)


class BatchPlan:
    """What the GPU does for one batch. May be used again for the next, which then takes less memory anew.

    Attributes:
        words: the entropy-coded bytes under the crops, as they go to the device.
        waiting: the crops for which there was no room beside the others.
    """

    def __init__(self, lend: Callable[[int], U8] = lambda size: np.empty(size, np.uint8)) -> None:
        """Make a plan of nothing; `lend` returns so many bytes of memory for `words`, aligned to 16."""
        self._native, self._lend = native.GpuPlan(), lend
        self.words = np.empty(0, np.uint8)
        self.waiting = np.empty(0, np.int64)
        self.sizes = Sizes(*self._native.sizes())
        self.size = (0, 0)

    def look(
        self, inputs: Inputs, *, bytes_per_entry: int = 0, most_pixels: int = 0, **crops: Unpack[Crops]
    ) -> Flags:
        """Read headers and entry points, and decide which crops the GPU decodes; return that.

        Args:
            inputs: the image files; those on disk are read by the pool's threads.
            bytes_per_entry: how far apart entry points are where they are to be found; 0: they are not.
            most_pixels: not 0: whole images are wanted, of no more pixels than this; `boxes` is written to.
            crops: the crops to make of them.
        """
        file_of, pool = crops.get("file_of"), crops.get("pool")
        numbers = np.arange(len(inputs), dtype=np.int32) if file_of is None else file_of
        size_bytes = inputs.load(numbers, pool)
        return self._plan(
            crops,
            self._native.look,
            size_bytes,
            inputs=inputs._native,
            bytes_per_entry=bytes_per_entry,
            most_pixels=most_pixels,
        )

    def read(self, files: Files, images: Ranges, entries: Ranges, **crops: Unpack[Crops]) -> Flags:
        """Do the same with files that are on disk: each is read, checked and planned by one thread, at once.

        A file that cannot be read, or differs from its checksum, is not taken.
        """
        n = len(images)
        return self._plan(
            crops,
            self._native.read,
            int(np.maximum(images.length, 0).sum()),
            files=files._native,
            images=arrays_of(images, n),
            entries=arrays_of(entries, n),
        )

    def _plan(self, crops: Crops, look: Callable[..., None], size_bytes: int, **where: Any) -> Flags:
        n, pool = len(crops["boxes"]), crops.get("pool")
        if n > MAX_IMAGES:
            raise ValueError(f"a batch for the GPU has at most {MAX_IMAGES} crops, got {n}")
        # A row of MCUs is padded to whole words; headers, which are left out, have more bytes than that.
        taken, words = np.zeros(n, np.uint8), self._lend(size_bytes + 64 * n + _READ_AHEAD)
        filters, before_13 = crops.get("filters"), crops.get("before_13")
        filters = np.full(n, BILINEAR, np.uint8) if filters is None else filters
        given = (crops.get("file_of"), crops.get("samples"))
        file_of, samples = (np.arange(n, dtype=np.int32) if one is None else one for one in given)
        look(
            **where,
            crops=(
                checked(file_of, np.int32, (n,), "file_of"),
                checked(samples, np.int32, (n,), "samples"),
                checked(crops["boxes"], np.int32, (n, 4), "boxes").reshape(-1),
                checked(crops["flips"], np.bool_, (n,), "flips").view(np.uint8),
                checked(filters, np.uint8, (n,), "filters"),
            ),
            before_13=is_pillow_older(filters) if before_13 is None else before_13,
            shape=crops["size"],
            most_memory=crops.get("most_memory", MOST_MEMORY),
            words=words,
            pool=None if pool is None else pool._native,
            taken=taken,
        )
        self.sizes = Sizes(*self._native.sizes())
        self.size, self.words = crops["size"], words[: self.sizes.words]
        self.waiting = np.flatnonzero(taken == _HAS_NO_ROOM)
        is_taken: Flags = taken == _IS_TAKEN
        return is_taken

    def fill(self, staged: U8, pool: Pool | None = None) -> None:
        """Write the kernels' other input, `sizes.staged` bytes."""
        self._native.fill(pool=None if pool is None else pool._native, staged=staged)

    def components(self, samples: int) -> U8:
        """Return of each sample that was taken whether it is gray (1) or has colours (3); of others 0."""
        found = np.zeros(samples, np.uint8)
        self._native.components(found)
        return found

    def buffer_bytes(self) -> dict[str, int]:
        """Return how large each buffer on the device must be; larger ones will do."""
        sizes, (height, width) = self.sizes, self.size
        needed = {
            "staged": sizes.staged,
            "words": sizes.words,
            "coefficients": max(sizes.blocks * 128, (sizes.pixels + sizes.between) * 4 + _ALIGNMENT),
            "samples": sizes.samples,
            "tables": sizes.images * _TABLE_WORDS * 4,
            "bounds": sizes.images * (height + width) * 8,
            "weights": sizes.weights * 4,
        }
        return {name: round_up(max(size, 1)) for name, size in needed.items()}


def run(
    plan: BatchPlan, launch: Launch, buffers: Mapping[str, Any], out: Any, statuses: Any, channels: int = 3
) -> None:
    """Start all kernels of a batch, in order.

    Args:
        plan: filled; what was filled is copied to `buffers["staged"]`, and its words to `buffers["words"]`.
        launch: starts one kernel, after those before it.
        buffers: arrays of bytes on the device, as `BatchPlan.buffer_bytes` names them, aligned to 256 bytes.
        out: bytes for N x height x width x channels, aligned to 4 bytes; those of samples that were not taken
            are left alone.
        statuses: N x int32; 0 where pixels are good, else bits of layout.h, and the pixels are zero. Those of
            samples that were not taken are left alone.
        channels: 3 (RGB) or 1 (gray, as Pillow's "L").
    """
    if not plan.sizes.images:
        return
    images, tiles = _run_to_samples(plan, launch, buffers, statuses)
    # Once blocks have become samples, their coefficients are not needed any more: pixels take that buffer.
    samples, pixels = buffers["samples"], buffers["coefficients"]
    launch(
        "convert_pixels", (plan.sizes.tiles, 1), 128, [images, tiles, samples, pixels, np.int32(channels)]
    )  # fmt: skip
    _resize(plan.sizes, plan.size, launch, buffers, images, tiles, out, statuses, channels)


def run_whole(
    plan: BatchPlan, launch: Launch, buffers: Mapping[str, Any], addresses: Any, statuses: Any, channels: int
) -> None:
    """Start the kernels that decode whole images into memory of the device that stays, in order.

    Args:
        plan: as for `run`; its boxes are those of whole images.
        addresses: N x int64: where the pixels of each go, one byte for each of its channels (1 where
            `BatchPlan.components` says so); 0: nowhere.
        statuses: as for `run`; pixels are good where they are 0, or kGpuUnsure: no weight is used here.
    """
    if not plan.sizes.images:
        return
    images, tiles = _run_to_samples(plan, launch, buffers, statuses)
    launch(
        "store_pixels", (plan.sizes.tiles, 1), 128,
        [images, tiles, buffers["samples"], addresses, np.int32(channels)],
    )  # fmt: skip


def _run_to_samples(
    plan: BatchPlan, launch: Launch, buffers: Mapping[str, Any], statuses: Any
) -> tuple[Any, Any]:
    """Start the kernels before the conversion to pixels; return the images and tiles on the device."""
    sizes, (height, width) = plan.sizes, plan.size
    staged = buffers["staged"]
    starts = (0, sizes.groups_at, sizes.tiles_at, sizes.items_at)
    images, groups, tiles, items = (staged[start:] for start in starts)
    words, tables, coefficients = buffers["words"], buffers["tables"], buffers["coefficients"]
    n, shape = sizes.images, (np.int32(width), np.int32(height))
    launch("prepare", (n, 1), 128, [images, tables, buffers["bounds"], buffers["weights"], statuses, *shape])
    launch(
        "read_coefficients", (sizes.groups, 1), _GROUP_ITEMS,
        [images, groups, items, words, tables, coefficients, statuses],
    )  # fmt: skip
    launch("transform_blocks", (16, n), 128, [images, coefficients, buffers["samples"], statuses])
    return images, tiles


def _resize(
    counts: Sizes | CropPlan, size: tuple[int, int], launch: Launch, buffers: Mapping[str, Any], images: Any,
    tiles: Any, out: Any, statuses: Any, channels: int,
) -> None:  # fmt: skip
    """Start the two passes of the resize, of the pixels in `buffers["coefficients"]`."""
    pixels, bounds, weights = buffers["coefficients"], buffers["bounds"], buffers["weights"]
    between = pixels[round_up(counts.pixels * 4) :]  # the first pass writes behind the pixels
    shape = (np.int32(size[1]), np.int32(size[0]))
    launch("resize_first", (counts.tiles, 1), 128, [images, tiles, pixels, bounds, weights, between, *shape])
    launch(
        "resize_last", (32, counts.images), 128,
        [images, between, bounds, weights, statuses, out, *shape, np.int32(channels)],
    )  # fmt: skip


def round_up(size: int) -> int:
    """Return a number of bytes as parts of buffers are aligned."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# An image that is kept: where it begins, its size, and bytes of a pixel: 3, or 1 for gray.
IMAGE = np.dtype([("address", "<i8"), ("width", "<i4"), ("height", "<i4"), ("channels", "<i4")])
# A crop of one, as struct GpuCrop of stored.cu.
CROP = np.dtype(
    [
        ("address", "<i8"), ("pixels", "<i8"), ("between", "<i8"), ("weights", "<i8", 2), ("stride", "<i4"),
        ("channels", "<i4"), ("box", "<i4", 4), ("flip", "<i4"), ("filter", "<i4"), ("down_first", "<i4"),
        ("taps", "<i4", 2), ("sample", "<i4"),
    ]
)  # fmt: skip
MAX_SIDE = 16384  # of the output
_IMAGE_ROOM = 2048  # as in stored.cu: at least a GpuImage
_TILE_PIXELS = 4096  # as in layout.h
# How far a filter reaches, by Pillow's numbers; nearest takes one pixel.
_SUPPORTS = np.array([0.0, 3.0, 1.0, 2.0, 0.5, 1.0])
# Weights of these are computed with a sine, which may differ between devices (`unsure` in prepare.cu).
BY_SINE = (FILTERS["lanczos"], FILTERS["hamming"])


class CropPlan(NamedTuple):
    """How the GPU makes some crops.

    Attributes:
        staged: the kernels' input, as bytes; tiles begin at `tiles_at`.
        size: height and width of the output.
        between, weights: how many there are, in pixels and in numbers.
    """

    staged: U8
    images: int
    tiles: int
    tiles_at: int
    pixels: int
    between: int
    weights: int
    size: tuple[int, int]

    def buffer_bytes(self) -> dict[str, int]:
        """Return how large each buffer on the device must be; larger ones will do."""
        needed = {
            "staged": len(self.staged),
            "images": self.images * _IMAGE_ROOM,
            "coefficients": round_up(self.pixels * 4) + self.between * 4,
            "bounds": self.images * sum(self.size) * 8,
            "weights": self.weights * 4,
        }
        return {name: round_up(size) for name, size in needed.items()}


def plan_crops(
    images: npt.NDArray[Any],
    *,
    boxes: I32,
    flips: Flags,
    filters: U8,
    size: tuple[int, int],
    samples: I64,
    before_13: bool | None = None,
) -> CropPlan:
    """Plan crops of images that are kept, MAX_IMAGES at the most and one at least.

    Args:
        images: rows of IMAGE.
        boxes: N x 4: left, top, right, bottom; inside of the images, and not empty.
        flips: mirror left to right, after the resize.
        filters: Pillow's number of each crop's filter.
        size: height and width of the output, 1 to MAX_SIDE each.
        samples: which part of the output each crop is.
        before_13: the order of passes before Pillow 13; None: as the CPU path has it here.
    """
    widths, heights, crops = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1], np.zeros(len(boxes), CROP)
    is_inside = (boxes[:, :2] >= 0).all(axis=1) & (boxes[:, 2] <= images["width"])
    if not (is_inside & (boxes[:, 3] <= images["height"]) & (np.minimum(widths, heights) > 0)).all():
        raise ValueError("boxes must lie inside of their images, and not be empty")
    height, width = size
    if before_13 is None:
        before_13 = is_pillow_older(filters)
    for name in ("address", "channels"):
        crops[name] = images[name]
    crops["stride"], crops["sample"] = images["width"], samples
    crops["flip"], crops["filter"] = flips, filters
    crops["box"] = np.stack([boxes[:, 0], boxes[:, 1], widths, heights], axis=1)
    down_first = _is_down_first(heights - height, widths - width, filters, before_13)
    crops["down_first"] = down_first
    taps = np.stack([_count_taps(widths, width, filters), _count_taps(heights, height, filters)], axis=1)
    crops["taps"] = taps
    pixels = widths.astype(np.int64) * heights
    # Whole quadruples, which are one load.
    between = np.where(down_first, widths.astype(np.int64) * height, heights.astype(np.int64) * width)
    between = between + 3 & ~3
    weights = taps * np.array([width, height])
    for name, counts in (("pixels", pixels), ("between", between), ("weights", weights.reshape(-1))):
        crops[name] = (np.cumsum(counts) - counts).reshape(crops[name].shape)
    tiles = _lay_tiles(widths, heights)
    tiles_at = round_up(crops.nbytes)
    staged = np.zeros(tiles_at + tiles.nbytes, np.uint8)
    staged[: crops.nbytes], staged[tiles_at:] = crops.view(np.uint8), tiles.reshape(-1).view(np.uint8)
    totals = int(pixels.sum()), int(between.sum()), int(weights.sum())
    return CropPlan(staged, len(crops), len(tiles), tiles_at, *totals, size)


def split_crops(boxes: I32, size: tuple[int, int], most_memory: int) -> Iterator[slice]:
    """Return parts of a batch of which each takes about so many bytes of buffers, or is one crop."""
    widths, heights = (boxes[:, 2:] - boxes[:, :2]).astype(np.int64).T
    # Between the passes, the larger one of the two orders.
    between = np.maximum(widths * size[0], heights * size[1])
    sizes = 4 * (widths * heights + between) + 64 * (widths + heights + sum(size)) + _IMAGE_ROOM
    return split_by_size(sizes, most_memory, MAX_IMAGES)


def run_crops(
    plan: CropPlan, launch: Launch, buffers: Mapping[str, Any], out: Any, statuses: Any, channels: int
) -> None:
    """Start the kernels that make crops of images that are kept, in order.

    Args:
        buffers: as `CropPlan.buffer_bytes` names them; the plan was copied to `buffers["staged"]`.
        out: as for `run`.
        statuses: N x int32; of these crops' samples 0, or kGpuUnsure, where pixels are zero.
        channels: 3 (RGB), or 1 (gray) for images that are kept as gray.
    """
    (height, width), staged, images = plan.size, buffers["staged"], buffers["images"]
    tiles = staged[plan.tiles_at :]
    launch(
        "prepare_crops", (plan.images, 1), 128,
        [staged, images, buffers["bounds"], buffers["weights"], statuses, np.int32(width), np.int32(height)],
    )  # fmt: skip
    launch("take_pixels", (plan.tiles, 1), 128, [staged, tiles, buffers["coefficients"]])
    _resize(plan, plan.size, launch, buffers, images, tiles, out, statuses, channels)


def _is_down_first(fewer_rows: I32, fewer_columns: I32, filters: U8, before_13: bool) -> Flags:
    """Return which pass comes first: the rule of native/resize.cpp."""
    is_tall = (fewer_rows > 0) & (fewer_rows > 2 * fewer_columns)
    if before_13:
        is_tall &= ~np.isin(filters, [*WITH_LOBES])
    down_first: Flags = (fewer_rows != 0) & ((fewer_columns == 0) | is_tall)
    return down_first


def _count_taps(in_sizes: I32, out_size: int, filters: U8) -> I64:
    """Return how many weights a pixel of the output has at the most: as native/gpu_plan.cpp has it."""
    reach = np.ceil(_SUPPORTS[filters] * np.maximum(in_sizes / out_size, 1.0)).astype(np.int64) * 2 + 1
    return np.where((in_sizes == out_size) | (filters == FILTERS["nearest"]), 1, reach)


def _lay_tiles(widths: I32, heights: I32) -> I32:
    """Return the tiles of all crops: crop, first line, lines; an even number of these, as in the planner."""
    lines = np.maximum(_TILE_PIXELS // widths // 2, 1) * 2
    counts = -(-heights // lines)
    crop = np.repeat(np.arange(len(widths)), counts)
    first = (np.arange(len(crop)) - np.repeat(np.cumsum(counts) - counts, counts)) * lines[crop]
    return np.stack([crop, first, np.minimum(lines[crop], heights[crop] - first)], axis=1).astype(np.int32)
