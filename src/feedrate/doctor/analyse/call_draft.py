# SPDX-License-Identifier: Apache-2.0
"""A Loader's arguments about images, put together from the steps of a script's own transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedrate.doctor.analyse.transform_steps import FLOATS, Step
from feedrate.errors import UsageError
from feedrate.loader.device.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
from feedrate.loader.device.mixing import CutMix, MixUp, RandomErasing
from feedrate.loader.image import CenterCrop, ImageOp, RandomCrop, RandomResizedCrop, Resize

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_BEYOND = 0.1  # of the range of values: filters overshoot
_OWN = "it is the script's own code, which feedrate.Dataset('PACK', transform=...) in the DataLoader keeps"


@dataclass(frozen=True)
class BatchImages:
    """The images of a batch as the run had them."""

    at: int  # among its tensors
    height: int
    width: int
    channels: int
    dtype: str
    is_channels_last: bool  # N, H, W, C
    between: tuple[float, float] | None  # lowest and highest value that was seen


def find_images(batch: Mapping[str, Any]) -> BatchImages | None:
    """Return what is known of a batch's images; None: it has none."""
    ranges = batch.get("ranges") or ()
    for at, tensor in enumerate(batch.get("tensors") or ()):
        shape = [int(side) for side in tensor.get("shape") or ()]
        if len(shape) != 4:
            continue
        is_last = shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4)
        height, width, channels = shape[1:] if is_last else (shape[2], shape[3], shape[1])
        if channels not in (1, 3, 4) or min(height, width) < 2:
            continue
        seen = ranges[at] if at < len(ranges) else None
        between = (float(seen[0]), float(seen[1])) if seen else None
        return BatchImages(at, height, width, channels, str(tensor.get("dtype")), is_last, between)
    return None


def _range_of(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[float, float]:
    """Return the lowest and the highest value of images of 0 to 1 that are normalised so."""
    rows = list(zip(mean, std, strict=True))
    return min((0 - m) / s for m, s in rows), max((1 - m) / s for m, s in rows)


class Draft:
    """A Loader's arguments while they are put together, and what is left out."""

    def __init__(self, images: BatchImages) -> None:
        self.left_out: list[str] = []
        self.dropped: list[str] = []  # operations of libraries
        self._seen = images
        self._image: ImageOp | None = None
        self._short: Step | None = None  # a resize of the shorter side that waits for its crop
        self._flip = 0.0
        self._mode = "RGB"
        self._dtype: str | None = None
        self._normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self._colours: list[Any] = []
        self._erasing: list[Any] = []
        self._mixing: list[Any] = []

    @property
    def mixes(self) -> bool:
        """Return whether labels are mixed, too: they are shares of the classes then, here as in the run."""
        return bool(self._mixing)

    @property
    def has_size(self) -> bool:
        """Return whether a step said how images get their size."""
        return self._image is not None or self._short is not None

    def leave(self, sentence: str) -> None:
        self.left_out.append(sentence)

    def take(self, step: Step) -> None:
        """Take a step over, or say why not."""
        for remark in step.remarks:
            self.leave(f"{step.name}: {remark}")
        take = getattr(self, f"_take_{step.kind.replace('-', '_')}", None)
        if take is None or step.values.get("interpolation", "") is None:
            why = _OWN if step.is_own else "feedrate.Loader has no such operation"
            self.leave(f"{step.name} is not carried over: {why}")
            if not step.is_own:
                self.dropped.append(step.name)
            return
        try:
            take(step)
        except UsageError as error:
            self.leave(f"{step.name} is not carried over: {error.message}")

    def _take_resized_crop(self, step: Step) -> None:
        if self._is_seldom(step) or self._has_geometry(step):
            return
        if self._short is not None:
            self.leave(
                f"{self._short.name} before {step.name}: the part is cut from the image as it is stored"
            )
            self._short = None
        self._image = RandomResizedCrop(**step.values)

    def _take_resize(self, step: Step) -> None:
        if not (self._is_seldom(step) or self._has_geometry(step)):
            self._image = Resize(**step.values)

    def _take_resize_short(self, step: Step) -> None:
        if not (self._is_seldom(step) or self._has_geometry(step)):
            self._short = step

    def _take_center_crop(self, step: Step) -> None:
        short, self._short = self._short, None
        if self._is_seldom(step) or self._has_geometry(step):
            return
        if short is None:
            self._image = CenterCrop(**step.values)
            self.leave("CenterCrop: an image that is smaller than the crop is a bad sample, not padded")
            return
        self.leave(
            f"{short.name} and {step.name} are one step, at whole pixels of the file: up to half a pixel off"
        )
        self._image = CenterCrop(
            **step.values, resize=short.values["size"], interpolation=short.values["interpolation"]
        )

    def _take_random_crop(self, step: Step) -> None:
        short, self._short = self._short, None
        if self._is_seldom(step) or self._has_geometry(step):
            return
        self._image = RandomCrop(**step.values)
        if short is not None:
            side = short.values["size"]
            self.leave(
                f"{short.name} before {step.name}: add --resize {side} to feedrate pack, which does it once"
            )

    def _take_flip(self, step: Step) -> None:
        self._flip = self._flip * (1 - step.p) + step.p * (1 - self._flip)

    def _take_float(self, step: Step) -> None:
        self._dtype = str(step.values.get("dtype") or "float32")

    def _take_bytes(self, _: Step) -> None:
        self._dtype = None

    def _take_normalize(self, step: Step) -> None:
        if self._is_seldom(step):
            return
        mean, std = (tuple(step.values[name]) for name in ("mean", "std"))
        named = f"{step.name}(mean={mean}, std={std}) is not carried over"
        are_known = {len(mean), len(std)} <= {1, 3}
        if not are_known or min(std) < 1e-6 or min(mean) < 0 or max(mean) > 1:
            self.leave(f"{named}: not in units of 0 to 1")
        elif max(std) > 1 and self._dtype is None:
            self.leave(f"{named}: what makes values of 0 to 1 before it was not seen")
        elif self._normalize is not None:
            self.leave(f"{named}: values are normalised once")
        else:
            self._normalize = (mean, std)

    def _take_gray(self, step: Step) -> None:
        if not self._is_seldom(step):
            self._mode = "L"

    def _take_nothing(self, _: Step) -> None:
        pass

    def _take_jitter(self, step: Step) -> None:
        self._colour(step, ColorJitter(**step.values, p=step.p))

    def _take_grayscale(self, step: Step) -> None:
        self._colour(step, Grayscale(p=step.p))

    def _take_blur(self, step: Step) -> None:
        if self._image is None:
            self.leave(f"{step.name} blurs after the resize here, not before it")
        self._colour(step, GaussianBlur(**step.values, p=step.p))

    def _take_solarize(self, step: Step) -> None:
        threshold = step.values["threshold"] * (255 if self._dtype else 1)
        self._colour(step, Solarize(threshold, p=step.p))

    def _colour(self, step: Step, operation: Any) -> None:
        if self._normalize is not None:
            self.leave(f"{step.name} after Normalize is not carried over: colours are changed before it here")
        else:
            self._colours.append(operation)

    def _take_erase(self, step: Step) -> None:
        self._erasing.append((RandomErasing(**step.values, p=step.p), self._normalize is None))

    def _take_mixup(self, step: Step) -> None:
        self._mixing.append(MixUp(**step.values, p=step.p))

    def _take_cutmix(self, step: Step) -> None:
        self._mixing.append(CutMix(**step.values, p=step.p))

    def _is_seldom(self, step: Step) -> bool:
        if step.p < 1:
            self.leave(f"{step.name} is not carried over: it is done to {step.p:.0%} of the samples only")
        return step.p < 1

    def _has_geometry(self, step: Step) -> bool:
        if self._image is not None:
            self.leave(f"{step.name} is not carried over: images are cut and resized once")
        return self._image is not None

    def trust_steps(self) -> bool:
        """Take the steps' size for that of batches which nobody has seen; return whether they tell one."""
        if self._image is None:
            return False
        height, width = self._image.out_size
        self._seen = replace(self._seen, height=height, width=width)
        return True

    def finish_geometry(self) -> None:
        """Settle the size of images: what the steps do not say, the run's batches do."""
        seen = self._seen
        size = seen.height if seen.height == seen.width else (seen.height, seen.width)
        short, self._short = self._short, None
        if self._image is None and short is not None:
            # Images of one batch have one size, so all have the shape that this resize kept.
            self._image = Resize(size, short.values["interpolation"])
        elif self._image is None:
            self._image = Resize(size)
            self.leave(
                "how images get their size was not seen: they are resized, whole, to that of the batches"
            )
        elif self._image.out_size != (seen.height, seen.width) and isinstance(self._image, Resize):
            height, width = self._image.out_size
            self._image = replace(self._image, size=size)
            self.leave(
                f"images are resized to the {seen.width}x{seen.height} pixels of the run's batches, not to "
                f"{width}x{height}"
            )
        elif self._image.out_size != (seen.height, seen.width):
            height, width = self._image.out_size
            self.leave(
                f"images of the run's batches had {seen.width}x{seen.height} pixels, these have "
                f"{width}x{height}: something else changes their size"
            )
        if seen.channels == 1:
            self._mode = "L"
        elif seen.channels == 4 or (self._mode == "L" and seen.channels == 3):
            self.leave(f"images of the run's batches had {seen.channels} channels")
            self._mode = "RGB"
        if seen.is_channels_last:
            self.leave("batches were N, H, W, C; these are N, C, H, W (channels-last in memory)")

    def finish_values(self) -> None:
        """Settle type and range of the values, with what the run's batches had."""
        seen, between = self._seen, self._seen.between
        if self._normalize is not None:
            self._normalize = self._by_channel(*self._normalize)
        if seen.dtype in FLOATS:
            self._dtype = seen.dtype
        elif seen.dtype != "uint8":
            self.leave(f"images of the run's batches were {seen.dtype}")
        if between is None or seen.dtype == "uint8":
            return
        low, high = (f"{value:.3g}" for value in between)
        if self._normalize is not None:
            lowest, highest = _range_of(*self._normalize)
            beyond = _BEYOND * (highest - lowest)
            is_noisy = any(erasing.is_random for erasing, _ in self._erasing)
            if not is_noisy and (between[0] < lowest - beyond or between[1] > highest + beyond):
                self.leave(
                    f"values of the run's images went from {low} to {high}; with this normalize= they go "
                    f"from {lowest:.3g} to {highest:.3g}"
                )
            return
        if between[0] < 0 or between[1] > 255:
            self.leave(
                f"values of the run's images went from {low} to {high}: add normalize=(mean, std), with what "
                "the script normalises by"
            )
        elif between[1] > 1:
            self.leave(f"values of the run's images went from {low} to {high}; these go from 0 to 1")

    def _by_channel(
        self, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return mean and std with a number for each channel of the images."""
        channels = 1 if self._mode == "L" else 3
        rows = [row[:1] * channels if len(set(row)) == 1 else row for row in (mean, std)]
        if any(len(row) != channels for row in rows):
            self.leave(f"Normalize(mean={mean}, std={std}) is not carried over: images have one channel")
            return None
        return rows[0], rows[1]

    def options(self) -> dict[str, Any]:
        """Return the arguments of Loader's that are about images, without those that say nothing."""
        on_device = [*self._colours, *(self._in_batch_units(*one) for one in self._erasing), *self._mixing]
        dtype = None if self._normalize is not None and self._dtype == "float32" else self._dtype
        given = {
            "image": self._image,
            "flip": round(self._flip, 4) or None,
            "mode": "L" if self._mode == "L" else None,
            "dtype": dtype,
            "normalize": "imagenet" if self._normalize == _IMAGENET else self._normalize,
            "on_device": on_device or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _in_batch_units(self, erasing: RandomErasing, is_before: bool) -> RandomErasing:
        """A box that is filled before the values are normalised holds other values afterwards."""
        if not is_before or self._normalize is None or erasing.is_random:
            return erasing
        mean, std = self._normalize
        values = erasing.value if isinstance(erasing.value, tuple) else (erasing.value,) * len(mean)
        if len(values) != len(mean):
            return erasing  # Loader refuses it, with a sentence
        moved = tuple(float(f"{(float(v) - m) / s:.6g}") for v, m, s in zip(values, mean, std, strict=True))
        return replace(erasing, value=moved)
