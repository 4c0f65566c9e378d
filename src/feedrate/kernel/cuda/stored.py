# SPDX-License-Identifier: Apache-2.0
"""How crops are made on a GPU of whole images that are kept there: what is staged, which kernels run.

    plan = plan_crops(images, boxes=..., flips=..., filters=..., size=(224, 224), samples=...)
    buffers["staged"][: len(plan.staged)] = plan.staged
    run_crops(plan, launch, buffers, out, statuses, channels)

An image is kept as its rows, one byte per channel, at an address of the device, which the kernels trust. The
resize is that of batch.py, and so are the pixels: `kernel.decode_batch`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.filters import FILTERS
from feedrate.kernel.cuda.batch import MAX_IMAGES, Launch, resize, round_up
from feedrate.kernel.decoding import is_pillow_older
from feedrate.kernel.door import I32, I64, U8

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
_WITH_LOBES = (FILTERS["bicubic"], FILTERS["lanczos"])
# Weights of these are computed with a sine, which may differ between devices (`unsure` in prepare.cu).
BY_SINE = (FILTERS["lanczos"], FILTERS["hamming"])


class CropPlan(NamedTuple):
    """What the GPU does for some crops.

    Attributes:
        staged: what the kernels read, as bytes; tiles begin at `tiles_at`.
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
    flips: npt.NDArray[np.bool_],
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
    crops["stride"], crops["sample"], crops["flip"], crops["filter"] = (
        images["width"],
        samples,
        flips,
        filters,
    )
    crops["box"] = np.stack([boxes[:, 0], boxes[:, 1], widths, heights], axis=1)
    down_first = _is_down_first(heights - height, widths - width, filters, before_13)
    crops["down_first"] = down_first
    taps = np.stack([_count_taps(widths, width, filters), _count_taps(heights, height, filters)], axis=1)
    crops["taps"] = taps
    pixels = widths.astype(np.int64) * heights
    # Whole quadruples, which are one load.
    between = (
        np.where(down_first, widths.astype(np.int64) * height, heights.astype(np.int64) * width) + 3 & ~3
    )
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
    widths, heights = (
        (boxes[:, 2] - boxes[:, 0]).astype(np.int64),
        (boxes[:, 3] - boxes[:, 1]).astype(np.int64),
    )
    # Between the passes, what is the larger one of the two orders.
    between = np.maximum(widths * size[0], heights * size[1])
    sizes = 4 * (widths * heights + between) + 64 * (widths + heights + sum(size)) + _IMAGE_ROOM
    start, ends = 0, np.cumsum(sizes)
    while start < len(boxes):
        limit = (int(ends[start - 1]) if start else 0) + most_memory
        stop = min(max(int(np.searchsorted(ends, limit, "right")), start + 1), start + MAX_IMAGES)
        yield slice(start, stop)
        start = stop


def run_crops(
    plan: CropPlan, launch: Launch, buffers: Mapping[str, Any], out: Any, statuses: Any, channels: int
) -> None:
    """Start the kernels that make crops of images that are kept, in order.

    Args:
        buffers: as `CropPlan.buffer_bytes` names them; the plan was copied to `buffers["staged"]`.
        out: as for `batch.run`.
        statuses: N x int32; of these crops' samples 0, or kGpuUnsure, where pixels are zero.
        channels: 3 (RGB), or 1 (gray) for images that are kept as gray.
    """
    (height, width), staged = plan.size, buffers["staged"]
    tiles, images, pixels = staged[plan.tiles_at :], buffers["images"], buffers["coefficients"]
    bounds, weights = buffers["bounds"], buffers["weights"]
    launch(
        "prepare_crops", (plan.images, 1), 128, 0,
        [staged, images, bounds, weights, statuses, np.int32(width), np.int32(height)],
    )  # fmt: skip
    launch("take_pixels", (plan.tiles, 1), 128, 0, [staged, tiles, pixels])
    resize(
        launch, (plan.images, plan.tiles, plan.pixels), (images, tiles, pixels, bounds, weights, statuses),
        out, (height, width, channels),
    )  # fmt: skip


def _is_down_first(
    fewer_rows: I32, fewer_columns: I32, filters: U8, before_13: bool
) -> npt.NDArray[np.bool_]:
    """Return which pass comes first: the rule of native/resize.cpp."""
    is_tall = (fewer_rows > 0) & (fewer_rows > 2 * fewer_columns)
    if before_13:
        is_tall &= ~np.isin(filters, _WITH_LOBES)
    down_first: npt.NDArray[np.bool_] = (fewer_rows != 0) & ((fewer_columns == 0) | is_tall)
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
