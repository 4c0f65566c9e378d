# SPDX-License-Identifier: Apache-2.0
"""A call of feedrate.Loader: its arguments about images, put together from operations, and its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, NamedTuple

from feedrate.errors import UsageError
from feedrate.loader.device.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
from feedrate.loader.device.mixing import CutMix, MixUp, RandomErasing
from feedrate.loader.image import CenterCrop, ImageOp, RandomCrop, RandomResizedCrop, Resize
from feedrate.recognise.operations import FLOATS, GEOMETRY, LEFT_OUT, Operation

TRAIN_PACK, VALIDATION_PACK = "train.pack", "val.pack"
_IMAGES: Mapping[str, Callable[..., ImageOp]] = {
    "resized-crop": RandomResizedCrop, "resize": Resize, "center-crop": CenterCrop, "random-crop": RandomCrop,
}  # fmt: skip
_ON_DEVICE: Mapping[str, Callable[..., Any]] = {
    "jitter": ColorJitter, "grayscale": Grayscale, "blur": GaussianBlur, "solarize": Solarize,
    "erase": RandomErasing, "mixup": MixUp, "cutmix": CutMix,
}  # fmt: skip
_MIXING = ("mixup", "cutmix")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_BEYOND = 0.1  # of the range of values: filters overshoot
_OWN = "it is the script's own code, which feedrate.Dataset('PACK', transform=...) in the DataLoader keeps"
_WIDTH = 78  # of 80 columns, indented
# Above the code for gray of more than 8 bits: what a user may choose.
_DEPTHS = '# depth: "uint16" keeps values, (low, high) scales a range, "clip" cuts at 255'


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


class Draft:
    """A Loader's arguments while they are put together, and what is left out."""

    def __init__(self, images: BatchImages) -> None:
        self.left_out: list[str] = []
        self.dropped: list[str] = []  # operations of libraries
        self._seen = images
        self._image: ImageOp | None = None
        self._short: Operation | None = None  # a resize of the shorter side that waits for its crop
        self._flip = 0.0
        self._mode = "RGB"
        self._dtype: str | None = None
        self._normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self._colours: list[Any] = []
        self._erasing: list[Any] = []  # each with whether values are normalised afterwards
        self._mixing: list[Any] = []

    @property
    def mixes(self) -> bool:
        """Return whether labels are mixed, too: they are shares of the classes then, here as in the run."""
        return bool(self._mixing)

    @property
    def has_size(self) -> bool:
        """Return whether an operation said how images get their size."""
        return self._image is not None or self._short is not None

    def leave(self, sentence: str) -> None:
        self.left_out.append(sentence)

    def take(self, step: Operation) -> None:
        """Take an operation over, or say why not."""
        for remark in step.remarks:
            self.leave(f"{step.name}: {remark}")
        why = ""
        if step.kind == LEFT_OUT or step.values.get("interpolation") == "":
            why = _OWN if step.is_own else "feedrate.Loader has no such operation"
            self.dropped += [] if step.is_own else [step.name]
        elif step.p < 1 and step.kind in (*GEOMETRY, "normalize", "gray"):
            why = f"it is done to {step.p:.0%} of the samples only"
        elif self._image is not None and step.kind in GEOMETRY:
            why = "images are cut and resized once"
        else:
            try:
                self._add(step)
            except UsageError as error:
                why = error.message
        if step.kind in ("center-crop", "random-crop"):
            self._short = None
        if why:
            self.leave(f"{step.name} is not carried over: {why}")

    def _add(self, step: Operation) -> None:
        if step.kind == "resize-short":
            self._short = step
        elif step.kind in _IMAGES:
            self._image = _IMAGES[step.kind](**{**step.values, **self._join_short(step)})
        elif step.kind == "flip":
            self._flip = self._flip * (1 - step.p) + step.p * (1 - self._flip)
        elif step.kind in ("float", "bytes"):
            self._dtype = str(step.values.get("dtype") or "float32") if step.kind == "float" else None
        elif step.kind == "normalize":
            self._add_normalize(step)
        elif step.kind == "gray":
            self._mode = "L"
        elif step.kind in _ON_DEVICE:
            self._add_on_device(step)

    def _join_short(self, step: Operation) -> Mapping[str, Any]:
        """Say what becomes of a resize before a crop; return what of it is the crop's."""
        short = self._short
        if step.kind == "center-crop" and short is None:
            self.leave("CenterCrop: an image that is smaller than the crop is a bad sample, not padded")
        if short is None or step.kind == "resize":
            return {}
        if step.kind == "center-crop":
            self.leave(
                f"{short.name} and {step.name} are one step, at whole pixels of the file: up to half a pixel "
                "off"
            )
            return {"resize": short.values["size"], "interpolation": short.values["interpolation"]}
        side, self._short = short.values["size"], None
        kept = (
            f"add --resize {side} to feedrate pack, which does it once"
            if step.kind == "random-crop"
            else "the part is cut from the image as it is stored"
        )
        self.leave(f"{short.name} before {step.name}: {kept}")
        return {}

    def _add_normalize(self, step: Operation) -> None:
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

    def _add_on_device(self, step: Operation) -> None:
        values = dict(step.values)
        if step.kind == "blur" and self._image is None:
            self.leave(f"{step.name} blurs after the resize here, not before it")
        if step.kind == "solarize":
            values["threshold"] *= 255 if self._dtype else 1
        operation = _ON_DEVICE[step.kind](**values, p=step.p)
        if step.kind in _MIXING:
            self._mixing.append(operation)
        elif step.kind == "erase":
            self._erasing.append((operation, self._normalize is None))
        elif self._normalize is not None:
            self.leave(f"{step.name} after Normalize is not carried over: colours are changed before it here")
        else:
            self._colours.append(operation)

    def trust_steps(self) -> bool:
        """Take the operations' size for that of batches that nobody has seen; return whether there is one."""
        if self._image is None:
            return False
        height, width = self._image.out_size
        self._seen = replace(self._seen, height=height, width=width)
        return True

    def finish_geometry(self) -> None:
        """Settle the size of images: what the operations do not say, the run's batches do."""
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
            rows = list(zip(*self._normalize, strict=True))  # of images of 0 to 1
            lowest, highest = min((0 - m) / s for m, s in rows), max((1 - m) / s for m, s in rows)
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


def write_code(
    options: Mapping[str, Any], validation: Mapping[str, Any] | None = None, *, has_own_pack: bool = False
) -> str:
    """Return the call with these arguments as lines to paste, and the head of the loop over it.

    Args:
        validation: the arguments of a second one; has_own_pack: which reads another pack.
    """
    call = _write_call("loader", TRAIN_PACK if has_own_pack else "PACK", options)
    if validation is not None:
        call += _write_call("validation_loader", VALIDATION_PACK if has_own_pack else "PACK", validation)
    call = [_DEPTHS, *call] if "depth" in options else call
    names = "(images,)" if options.get("fields") == ["image"] else "images, labels"
    return "\n".join(["import feedrate", "", *call, f"for {names} in loader:", "    ...  # as before", ""])


def add_depth(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments for files of which some are gray of more than 8 bits: nothing is clipped."""
    is_float = not {"dtype", "normalize"}.isdisjoint(options)
    return {**options, "depth": (0, 65535) if "on_device" in options and not is_float else "uint16"}


class _Call(NamedTuple):
    name: str
    arguments: Sequence[tuple[str, Any]]  # each with what stands before it: "", "size="


def _write_call(name: str, pack: str, options: Mapping[str, Any]) -> list[str]:
    given = [("", pack), *((f"{option}=", value) for option, value in options.items())]
    return _lay_out(f"{name} = ", _Call("feedrate.Loader", given))


def _take_apart(value: Any) -> tuple[str, Sequence[tuple[str, Any]], str]:
    """Return a call, a list or a tuple as its beginning, parts and end; of a plain value nothing."""
    if isinstance(value, _Call):
        return f"{value.name}(", value.arguments, ")"
    if isinstance(value, (list, tuple)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return opening, [("", one) for one in value], closing
    if not hasattr(value, "__dataclass_fields__"):
        return "", (), ""
    given = []
    for at, one in enumerate(fields(value)):  # without the arguments that are the default
        held = getattr(value, one.name)
        if one.default is MISSING or held != one.default:
            given.append(("" if at == 0 and one.default is MISSING else f"{one.name}=", held))
    return f"feedrate.{type(value).__name__}(", given, ")"


def _word(value: Any) -> str:
    opening, parts, closing = _take_apart(value)
    if not opening:
        return f'"{value}"' if isinstance(value, str) else repr(value)  # ours: no quote in it
    inner = ", ".join(f"{before}{_word(one)}" for before, one in parts)
    return f"{opening}{inner}{',' if opening == '(' and len(parts) == 1 else ''}{closing}"


def _lay_out(head: str, value: Any, indent: str = "", tail: str = "") -> list[str]:
    """Return a call or a list on one line, or with as many of its parts on a line as fit."""
    line, (opening, parts, closing) = f"{indent}{head}{_word(value)}{tail}", _take_apart(value)
    if len(line) <= _WIDTH or not opening:
        return [line]
    lines, inner = [f"{indent}{head}{opening}"], f"{indent}    "
    is_open = False  # the last line takes more
    for before, one in parts:
        word = f"{before}{_word(one)},"
        if is_open and len(lines[-1]) + len(word) + 1 <= _WIDTH:
            lines[-1] += f" {word}"
        elif is_open := len(inner) + len(word) <= _WIDTH:
            lines.append(f"{inner}{word}")
        else:
            lines += _lay_out(before, one, inner, ",")
    return [*lines, f"{indent}{closing}{tail}"]
