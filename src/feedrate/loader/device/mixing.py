# SPDX-License-Identifier: Apache-2.0
"""Erasing a part of an image, and mixing images of a batch with their labels: the steps after normalising.

A box is drawn on the batch's first image field and scaled to the size of others, as crops are. Boxes are
left, top, right, bottom in pixels; an empty one erases, or takes over, nothing. Images are N,H,W*C here: as
they are in memory, without an innermost axis of three values, which would be slow to go through.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from feedrate.arrays import F64
from feedrate.draws import Purpose, draw_uniforms, make_key
from feedrate.errors import UsageError
from feedrate.loader.arguments import Range, Size, as_range, check_share, is_number, is_whole
from feedrate.loader.device.operation import Array, Work, scale_to

_TRIES = 10  # to find a box that fits, as torchvision
_GAMMA_TRIES = 8  # each is good with a probability above 0.95
# Noise of one sample begins at one of so many places of a table, which are so far apart.
_NOISE_PLACES, _NOISE_STEP = 1 << 16, 13


@dataclass(frozen=True)
class RandomErasing:
    """A box of the image is filled; torchvision's rule.

    Args:
        p: the share of samples that are changed.
        scale: the box's share of the image's area, lowest and highest.
        ratio: its height over its width, lowest and highest.
        value: what it is filled with, in units of the batch as you get it (after `normalize`): a number, one
            for each channel, or "random" for normal noise, in float batches alone.
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: float | tuple[float, ...] | str = 0
    purpose: ClassVar[Purpose] = Purpose.ERASE
    uniforms: ClassVar[int] = 4 + 2 * _TRIES  # whether; left, top; the noise; areas and ratios of the tries

    def __post_init__(self) -> None:
        check_share("RandomErasing", self.p)
        scale, ratio = as_range(self.scale), as_range(self.ratio)
        if scale is None or scale[0] < 0 or scale[1] > 1:
            raise UsageError(
                f"RandomErasing: scale must be two numbers with 0 <= low <= high <= 1, got {self.scale!r}"
            )
        if ratio is None or ratio[0] <= 0:
            raise UsageError(
                f"RandomErasing: ratio must be two numbers with 0 < low <= high, got {self.ratio!r}"
            )
        if isinstance(self.value, list):
            object.__setattr__(self, "value", tuple(self.value))
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        if self.value != "random" and not (values and all(is_number(one) for one in values)):
            raise UsageError(
                'RandomErasing: value must be a number, one number for each channel, or "random", '
                f"got {self.value!r}"
            )

    @property
    def is_random(self) -> bool:
        return self.value == "random"

    def place(self, uniforms: F64, size: Size) -> F64:
        """Return a box for each sample: the first try that is smaller than the image."""
        height, width = size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        areas = scale_to(uniforms[:, 4 : 4 + _TRIES], self.scale) * (height * width)
        ratios = np.exp(scale_to(uniforms[:, 4 + _TRIES :], (low, high)))
        heights, widths = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (heights < height) & (widths < width)
        first, every = fits.argmax(axis=1), np.arange(len(uniforms))
        is_drawn = (uniforms[:, 0] < self.p) & fits[every, first]
        tall = np.where(is_drawn, heights[every, first], 0)
        wide = np.where(is_drawn, widths[every, first], 0)
        left = np.floor(uniforms[:, 1] * (width - wide + 1))
        top = np.floor(uniforms[:, 2] * (height - tall + 1))
        return np.stack([left, top, left + wide, top + tall], axis=1)

    def plan(self, uniforms: F64, size: Size, channels: int, noise: Noise) -> Work | None:
        """Return the work for samples with these numbers; None: there is none."""
        boxes = self.place(uniforms, size)
        if not (boxes[:, 2] > boxes[:, 0]).any():
            return None
        if self.is_random:
            filling: Array = (uniforms[:, 3] * _NOISE_PLACES).astype(np.int64)
        else:
            filling = np.broadcast_to(np.array(self.value, np.float32), (channels,))

        def apply(rows: Any, boxes: Any, filling: Any) -> Any:
            import torch

            width = rows.shape[2] // channels
            values = noise.read(rows, filling) if self.is_random else filling.to(rows.dtype).repeat(width)
            return torch.where(_find_inside(rows, boxes, size, channels), values, rows)

        return Work((boxes.astype(np.float32), filling), apply)


def _find_inside(rows: Any, boxes: Any, size: Size, channels: int) -> Any:
    """Return which values of images are in boxes that were drawn for images of a size."""
    import torch

    flags = []
    for axis, each in ((1, 1), (2, channels)):
        length, drawn = rows.shape[axis] // each, size[axis - 1]
        low, high = boxes[:, 2 - axis, None], boxes[:, 4 - axis, None]
        if length != drawn:
            low, high = (low * (length / drawn)).round(), (high * (length / drawn)).round()
        places = torch.arange(length * each, device=rows.device, dtype=torch.float32)
        flags.append((places >= low * each) & (places < high * each))
    down, across = flags
    return down[:, :, None] & across[:, None, :]


class Noise:
    """Normal numbers that follow from the seed: a table, made once, of which each sample reads a part."""

    def __init__(self, seed: int) -> None:
        self._key = make_key(seed, Purpose.NOISE)
        self._lock = threading.Lock()
        self._tables: dict[Any, Any] = {}

    def read(self, images: Any, starts: Any) -> Any:
        """Return noise of the images' shape and type; `starts`: where each sample's begins."""
        count = math.prod(images.shape[1:])
        table = self._find_table(images.device, (_NOISE_PLACES - 1) * _NOISE_STEP + count)
        rows = table.unfold(0, count, _NOISE_STEP).index_select(0, starts)
        return rows.view(images.shape).to(images.dtype)

    def _find_table(self, device: Any, length: int) -> Any:
        import torch

        with self._lock:  # two threads make batches
            table = self._tables.get(device)
            if table is None or len(table) < length:
                made = torch.from_numpy(self._make(length))
                if device.type == "cuda":
                    made = made.pin_memory()  # a copy from other memory is one that the host waits for
                table = self._tables[device] = made.to(device, non_blocking=True)
        return table

    def _make(self, length: int) -> Array:
        uniforms = draw_uniforms(self._key, np.arange(-(-length // 2)), 2)
        radius, angle = np.sqrt(-2 * np.log1p(-uniforms[:, 0])), 2 * np.pi * uniforms[:, 1]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return both.astype(np.float32).reshape(-1)[:length]


class Mix(NamedTuple):
    """How each sample is mixed with its partner.

    Attributes:
        share: of its own in its label.
        whole: of its own in its pixels, outside of the box.
        boxes: where the partner's pixels stand alone.
    """

    share: F64
    whole: F64
    boxes: F64


@dataclass(frozen=True)
class _Mixing:
    alpha: float = 1.0
    num_classes: int | None = None
    p: float = 1.0
    uniforms: ClassVar[int] = 5 + 2 * 3 * _GAMMA_TRIES

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_share(name, self.p)
        if not is_number(self.alpha) or self.alpha <= 0:
            raise UsageError(f"{name}: alpha must be a number above 0, got {self.alpha!r}")
        if self.num_classes is not None and not is_whole(self.num_classes, 1):
            raise UsageError(
                f"{name}: num_classes must be a whole number from 1 on, got {self.num_classes!r}"
            )

    def _draw_shares(self, uniforms: F64) -> F64:
        return np.where(uniforms[:, 0] < self.p, draw_beta(uniforms[:, 3:], self.alpha), 1.0)


@dataclass(frozen=True)
class MixUp(_Mixing):
    """Images and labels become weighted means of a sample and the one before it in the batch.

    Args:
        alpha: shares are drawn from Beta(alpha, alpha), one for each sample.
        num_classes: of the soft labels; None: as many as the pack has.
        p: the share of samples that are mixed.
    """

    purpose: ClassVar[Purpose] = Purpose.MIXUP

    def mix(self, uniforms: F64, size: Size) -> Mix:
        del size
        share = self._draw_shares(uniforms)
        return Mix(share, share, np.zeros((len(uniforms), 4)))


@dataclass(frozen=True)
class CutMix(_Mixing):
    """A box of the image comes from the sample before it in the batch; labels are mixed by its area.

    Args:
        alpha: shares are drawn from Beta(alpha, alpha), one for each sample.
        num_classes: of the soft labels; None: as many as the pack has.
        p: the share of samples that are mixed.
    """

    purpose: ClassVar[Purpose] = Purpose.CUTMIX

    def mix(self, uniforms: F64, size: Size) -> Mix:
        height, width = size
        half = 0.5 * np.sqrt(1 - self._draw_shares(uniforms))
        edges = []
        for column, length in ((1, width), (2, height)):
            middle, reach = np.floor(uniforms[:, column] * length), np.floor(half * length)
            edges.append((np.maximum(middle - reach, 0), np.minimum(middle + reach, length)))
        (left, right), (top, bottom) = edges
        share = 1 - (right - left) * (bottom - top) / (height * width)
        return Mix(share, np.ones(len(uniforms)), np.stack([left, top, right, bottom], axis=1))


def draw_beta(uniforms: F64, alpha: float) -> F64:
    """Return a number from Beta(alpha, alpha) for each row of 2 + 6 * 8 uniforms.

    X / (X + Y) of two gamma variates, in logarithms: with a small alpha both may be too small for a float.
    """
    columns = 1 + 3 * _GAMMA_TRIES
    logs = [_log_gamma_variate(uniforms[:, at : at + columns], alpha) for at in (0, columns)]
    with np.errstate(over="ignore"):  # exp gives inf, and the share is 0
        share: F64 = 1 / (1 + np.exp(logs[1] - logs[0]))
    return share


def _log_gamma_variate(uniforms: F64, alpha: float) -> F64:
    """Return logarithms of Gamma(alpha) by Marsaglia and Tsang: of alpha + 1, then made smaller."""
    # 1 - u is never 0, which has no logarithm.
    smaller = np.log1p(-uniforms[:, 0]) / alpha
    first, angle, choice = (uniforms[:, 1 + k :: 3] for k in range(3))
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * angle)
    d = alpha + 1 - 1 / 3
    base = 1 + normal / math.sqrt(9 * d)
    volume = np.maximum(base, 1e-30) ** 3
    is_good = (base > 0) & (np.log1p(-choice) < 0.5 * normal**2 + d - d * volume + d * np.log(volume))
    chosen = is_good.argmax(axis=1)  # none is good once in 10**11 samples: then the first will do
    logs: F64 = np.log(d * volume[np.arange(len(uniforms)), chosen]) + smaller
    return logs


def plan_mix(mixes: Sequence[Mix], choices: F64, size: Size, channels: int) -> tuple[Work | None, Array]:
    """Return how a batch's images are mixed (None: not at all), and each sample's share of its label.

    Args:
        mixes: one of each operation.
        choices: a number for each sample that says which of the operations it gets.
    """
    which = (choices * len(mixes)).astype(np.int64)
    every = np.arange(len(which))
    share, whole, boxes = (
        np.stack(parts)[which, every].astype(np.float32) for parts in zip(*mixes, strict=True)
    )
    has_whole = bool((whole < 1).any())
    has_boxes = bool(((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])).any())
    if not has_whole and not has_boxes:
        return None, share
    arrays = (*([whole] if has_whole else []), *([boxes] if has_boxes else []))

    def apply(rows: Any, *arrays: Any) -> Any:
        import torch

        left, partners = list(arrays), rows.roll(1, 0)
        weights = left.pop(0).view(-1, 1, 1) if has_whole else None
        inside = _find_inside(rows, left.pop(0), size, channels) if has_boxes else None
        if weights is None:
            return torch.where(inside, partners, rows)
        if inside is not None:
            weights = weights * ~inside
        if rows.dtype != torch.uint8:
            return torch.lerp(partners, rows, weights.to(rows.dtype))
        return torch.lerp(partners.float(), rows.float(), weights).add_(0.5).to(torch.uint8)

    return Work(arrays, apply), share


def mix_labels(labels: Any, shares: Any, classes: int) -> Any:
    """Return float32 labels, N x classes: each sample's mixed with that of the one before it.

    Args:
        labels: numbers of classes, or 0 and 1 for each class.
    """
    import torch

    if labels.ndim == 1:
        labels = labels[:, None] == torch.arange(classes, device=labels.device)
    labels = labels.to(torch.float32)
    return torch.lerp(labels.roll(1, 0), labels, shares[:, None])
