# SPDX-License-Identifier: Apache-2.0
"""Operations on colours: torchvision's formulas and argument names, drawn anew for each sample.

Their images are N,C,H,W, float32 from 0 to 1, and may be changed in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from feedrate.arrays import F64
from feedrate.draws import Purpose
from feedrate.errors import UsageError
from feedrate.loader.arguments import Range, as_range, check_share, is_number, is_whole
from feedrate.loader.device.operation import Array, Work, change_rows, scale_to

_GRAY = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_LARGEST_KERNEL = 1023


class _OnSome(ABC):
    """An operation on the share `p` of the samples."""

    p: float

    def __post_init__(self) -> None:
        check_share(type(self).__name__, self.p)

    def plan(self, uniforms: F64, channels: int) -> Work | None:
        """Return the work for samples with these numbers; None: there is none."""
        rows = np.flatnonzero(uniforms[:, 0] < self.p)
        work = self._plan_chosen(uniforms[rows], channels) if rows.size else None
        return None if work is None else change_rows(rows, len(uniforms), work)

    @abstractmethod
    def _plan_chosen(self, drawn: F64, channels: int) -> Work | None:
        """Return the work on a batch of these samples alone."""


@dataclass(frozen=True)
class ColorJitter(_OnSome):
    """Random brightness, contrast, saturation and hue, in an order that is drawn for each sample.

    Args:
        brightness, contrast, saturation: a number b draws factors from max(0, 1 - b) to 1 + b; (low, high)
            from low to high.
        hue: a number up to 0.5 draws shifts from -hue to hue, in turns of the colour circle; or (low, high).
        p: the share of samples that are changed.
    """

    brightness: float | Range = 0
    contrast: float | Range = 0
    saturation: float | Range = 0
    hue: float | Range = 0
    p: float = 1.0
    purpose: ClassVar[Purpose] = Purpose.COLOR_JITTER
    uniforms: ClassVar[int] = 9  # whether; four factors; four numbers that give the order

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            between = as_range(value)
            if not (is_number(value) and value >= 0) and (between is None or between[0] < 0):
                raise UsageError(
                    f"ColorJitter: {name} must be a number from 0 on, or (low, high) with 0 <= low <= high, "
                    f"got {value!r}"
                )
        between = as_range(self.hue)
        if not (is_number(self.hue) and 0 <= self.hue <= 0.5) and (  # type: ignore[operator]
            between is None or between[0] < -0.5 or between[1] > 0.5
        ):
            raise UsageError(
                "ColorJitter: hue must be a number from 0 to 0.5, or (low, high) with "
                f"-0.5 <= low <= high <= 0.5, got {self.hue!r}"
            )

    def _ranges(self) -> list[Range]:
        ranges: list[Range] = []
        given: list[Any] = [self.brightness, self.contrast, self.saturation, self.hue]
        for step, value in enumerate(given):
            middle, least = (0.0, -0.5) if step == _HUE else (1.0, 0.0)
            ranges.append(as_range(value) or (max(least, middle - value), middle + value))
        return ranges

    def _plan_chosen(self, drawn: F64, channels: int) -> Work | None:
        ranges = self._ranges()
        steps = np.array(
            [
                step
                for step, between in enumerate(ranges)
                if between != ((0, 0) if step == _HUE else (1, 1))
                and (channels == 3 or step in (_BRIGHTNESS, _CONTRAST))
            ],
            np.int64,
        )
        if not steps.size:
            return None
        factors = np.stack([scale_to(drawn[:, 1 + step], ranges[step]) for step in range(4)], axis=1)
        orders = steps[np.argsort(drawn[:, 5 + steps], axis=1)]
        passes = [_Pass(orders[:, k], factors, steps) for k in range(len(steps))]

        def apply(images: Any, *arrays: Any) -> Any:
            left = list(arrays)
            for one in passes:
                images = one.apply(images, [left.pop(0) for _ in one.arrays])
            return images

        return Work(tuple(a for one in passes for a in one.arrays), apply)


class _Pass:
    """One of the four steps for each sample, and not the same for all.

    All but hue move colours towards, or away from, something: black, the mean of the gray image, or the gray
    image. So they are one formula with numbers of each sample's own; where the step is hue, the factor is 1,
    which changes nothing.
    """

    def __init__(self, steps: Array, factors: F64, used: Array) -> None:
        mine = factors[np.arange(len(steps)), steps]
        is_hue = steps == _HUE
        self._has_blend, self._has_hue = not is_hue.all(), bool(is_hue.any())
        self._needs_gray = bool(np.isin(used, (_CONTRAST, _SATURATION)).any())
        blend = np.stack([np.where(is_hue, 1, mine), steps == _CONTRAST, steps == _SATURATION])
        arrays: list[Array] = [blend.astype(np.float32)] if self._has_blend else []
        if self._has_hue:
            at = np.flatnonzero(is_hue)
            self._hues = change_rows(at, len(steps), Work(((mine[at] * 6).astype(np.float32),), _turn_hue))
            arrays += self._hues.arrays
        self.arrays = tuple(arrays)

    def apply(self, images: Any, arrays: list[Any]) -> Any:
        if self._has_blend:
            images = self._blend(images, arrays.pop(0))
        return self._hues.apply(images, *arrays) if self._has_hue else images

    def _blend(self, images: Any, blend: Any) -> Any:
        import torch

        factor, is_contrast, is_saturation = (one.view(-1, 1, 1, 1) for one in blend)
        if not self._needs_gray:
            return images.mul_(factor).clamp_(0, 1)
        gray = _to_gray(images)
        mean = gray.mean((1, 2, 3), keepdim=True)
        towards = torch.addcmul(mean * is_contrast, gray, is_saturation)
        return torch.lerp(towards, images, factor, out=images).clamp_(0, 1)


def _to_gray(images: Any) -> Any:
    if images.shape[1] == 1:
        return images
    gray = images[:, 0:1] * _GRAY[0]
    return gray.add_(images[:, 1:2], alpha=_GRAY[1]).add_(images[:, 2:3], alpha=_GRAY[2])


def _turn_hue(images: Any, shifts: Any) -> Any:
    """Return images with their hue shifted by sixths of the circle: to HSV and back, in closed form."""
    import torch

    red, green, blue = images.unbind(1)
    most = torch.maximum(torch.maximum(red, green), blue)
    chroma = most - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    hue = torch.where(
        most == red,
        (green - blue) / divisor,
        torch.where(most == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue += shifts.view(-1, 1, 1)
    for channel, place in enumerate((5, 3, 1)):
        distance = (hue + place).remainder_(6)
        share = torch.minimum(distance, 4 - distance).clamp_(0, 1)
        images[:, channel] = torch.addcmul(most, chroma, share, value=-1)
    return images


@dataclass(frozen=True)
class Grayscale(_OnSome):
    """Gray instead of colours, for a share `p` of the samples; they keep their channels."""

    p: float = 0.1
    purpose: ClassVar[Purpose] = Purpose.GRAYSCALE
    uniforms: ClassVar[int] = 1

    def _plan_chosen(self, drawn: F64, channels: int) -> Work | None:
        del drawn
        return None if channels == 1 else Work((), lambda x: x.copy_(_to_gray(x).expand_as(x)))


@dataclass(frozen=True)
class GaussianBlur(_OnSome):
    """A blur whose width is drawn for each sample; beyond its edges an image goes on mirrored.

    Args:
        kernel_size: pixels, odd; or (width, height), as in torchvision.
        sigma: the standard deviation in pixels, or (low, high) to draw it from.
        p: the share of samples that are changed.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | Range = (0.1, 2.0)
    p: float = 1.0
    purpose: ClassVar[Purpose] = Purpose.GAUSSIAN_BLUR
    uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in self.sides:
            if not is_whole(side, 1, _LARGEST_KERNEL) or side % 2 == 0:
                raise UsageError(
                    "GaussianBlur: kernel_size must be an odd number of pixels, or (width, height), from 1 "
                    f"to {_LARGEST_KERNEL}; got {self.kernel_size!r}"
                )
        between = (self.sigma, self.sigma) if is_number(self.sigma) else as_range(self.sigma)
        if between is None or between[0] <= 0:  # type: ignore[operator]
            raise UsageError(
                "GaussianBlur: sigma must be a number above 0, or (low, high) with 0 < low <= high, got "
                f"{self.sigma!r}"
            )

    @property
    def sides(self) -> tuple[int, int]:
        """Width and height of the kernel."""
        size: Any = self.kernel_size
        pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        return pair if len(pair) == 2 else (0, 0)

    def _plan_chosen(self, drawn: F64, channels: int) -> Work | None:
        del channels
        between = as_range(self.sigma) or (self.sigma, self.sigma)
        sigmas = scale_to(drawn[:, 1], between)  # type: ignore[arg-type]
        across, down = (_find_weights(side, sigmas) for side in self.sides)

        def apply(images: Any, across: Any, down: Any) -> Any:
            return _blur_along(_blur_along(images, across, 3), down, 2)

        return Work((across, down), apply)


def _find_weights(side: int, sigmas: F64) -> Array:
    """Return the weights of a kernel's pixels, a row for each sigma."""
    places = np.arange(side) - (side - 1) / 2
    weights = np.exp(-0.5 * (places / sigmas[:, None]) ** 2)
    shares: Array = weights / weights.sum(1, keepdims=True)
    return shares.astype(np.float32)


def _blur_along(images: Any, weights: Any, axis: int) -> Any:
    """Add up shifted images. Not a convolution: on a GPU that may round to TF32, which shows."""
    import torch

    reach, length = weights.shape[1] // 2, images.shape[axis]
    if not reach:
        return images
    before = images.narrow(axis, 1, reach).flip(axis)
    after = images.narrow(axis, length - 1 - reach, reach).flip(axis)
    wide = torch.cat([before, images, after], axis)
    weights = weights.view(len(weights), -1, 1, 1, 1)
    out = wide.narrow(axis, 0, length) * weights[:, 0]
    for shift in range(1, 2 * reach + 1):
        out.addcmul_(wide.narrow(axis, shift, length), weights[:, shift])
    return out


@dataclass(frozen=True)
class Solarize(_OnSome):
    """Values from `threshold` (of 0 to 255) on are inverted, for a share `p` of the samples."""

    threshold: float = 128
    p: float = 0.5
    purpose: ClassVar[Purpose] = Purpose.SOLARIZE
    uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.threshold) or not 0 <= self.threshold <= 255:
            raise UsageError(f"Solarize: threshold must be a number from 0 to 255, got {self.threshold!r}")

    def _plan_chosen(self, drawn: F64, channels: int) -> Work | None:
        del drawn, channels

        def apply(images: Any) -> Any:
            import torch

            return torch.where(images >= self.threshold / 255, 1 - images, images)

        return Work((), apply)
