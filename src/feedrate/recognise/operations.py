# SPDX-License-Identifier: Apache-2.0
"""The operations of torchvision, timm and albumentations in one vocabulary: one table for each library.

A transform comes in as the hook describes it: its class, and the attributes that it stores. Their names are
those of torchvision 0.28 (v1 and v2), timm 1.0 and albumentations 2.0; where earlier ones differ
(albumentations' height and width), both are read. A class that is derived from one of theirs may do anything,
so it is the script's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Held = Mapping[str, Any]  # attributes by name

LEFT_OUT = "left-out"  # the kind of what has no word here
# Kinds that decide which pixels of an image there are; "resize-short": the shorter side, the ratio is kept.
GEOMETRY = ("resized-crop", "resize", "resize-short", "center-crop", "random-crop")
FLOATS = ("float32", "float16", "bfloat16")  # types of values from 0 to 1
PILLOW_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
OPENCV_FILTERS = ("nearest", "bilinear", "bicubic", "box", "lanczos")
# What reading a value raises that another version, or the script, has put there.
UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)
_USUAL_RATIO = (3 / 4, 4 / 3)
_LARGEST = 1e6
_IN_BORDER = "images smaller than the crop lie anywhere in their black border, not in its middle"
_CONTAINERS = ("Compose", "Sequential", "ModuleList")


@dataclass(frozen=True)
class Operation:
    """One thing that is done to a sample.

    Attributes:
        kind: a kind of GEOMETRY, "flip", "float" (values of 0 to 1), "bytes", "normalize", "gray" (one
            channel), "grayscale", "jitter", "blur", "solarize", "erase", "mixup", "cutmix", "nothing",
            LEFT_OUT.
        name: the script's word for it.
        values: its arguments in feedrate's words; a filter that has none is "".
        p: the share of samples that it is done to.
        remarks: what feedrate does otherwise.
        is_own: it is the script's own code.
    """

    kind: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    p: float = 1.0
    remarks: tuple[str, ...] = ()
    is_own: bool = False


class NotCarried(ValueError):
    """The object does what no kind stands for; the text is added to its name."""


# Reads one argument off the attributes; the name is feedrate's word for it.
Argument = Callable[[Held, str], Any]


@dataclass(frozen=True)
class Row:
    """An operation of a library.

    Attributes:
        kind: or what tells it from the attributes.
        arguments: how each is read, by feedrate's word for it; what is read as None is left away.
        share: the attribute with the share of samples; empty: it is done to all.
    """

    kind: str | Callable[[Held], str]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    share: str = ""
    remarks: Callable[[Held], tuple[str, ...]] = lambda _: ()

    def read(self, name: str, held: Held) -> Operation:
        """Return the operation with an object's arguments; LEFT_OUT where they are no known ones."""
        try:
            return self.make(name, held)
        except NotCarried as error:
            return Operation(LEFT_OUT, f"{name}{error}")
        except UNREADABLE:
            return Operation(LEFT_OUT, name)

    def make(self, name: str, held: Held) -> Operation:
        """Return the operation; raises NotCarried, or one of UNREADABLE."""
        read = ((word, argument(held, word)) for word, argument in self.arguments.items())
        values = {word: value for word, value in read if value is not None}
        kind = self.kind if isinstance(self.kind, str) else self.kind(held)
        step = Operation(kind, name, values, remarks=self.remarks(held))
        return _seldom(step, held[self.share]) if self.share else step


def read_operations(described: Any) -> list[Operation]:
    """Return what a described transform does, in order; of one that is None: nothing."""
    if not isinstance(described, Mapping):
        return []
    is_function = "function" in described
    module, _, name = str(described.get("function" if is_function else "class", "?")).rpartition(".")
    rows = _FUNCTIONS.get(module.partition(".transforms.")[0], {}) if is_function else _rows_of(module)
    if rows is None or (is_function and name not in rows):
        own = name if module in ("__main__", "") else f"{module}.{name}"
        return [Operation(LEFT_OUT, own, is_own=True)]
    held = described.get("held")
    held = held if isinstance(held, Mapping) else {}
    if name in _CONTAINERS or name == "RandomApply":
        inner = _listed(held.get("transforms", described.get("modules")))
        # albumentations' have a share of their own.
        share = held.get("p", None if name == "RandomApply" else 1.0)
        return _share_out(name, [step for one in inner for step in read_operations(one)], share)
    if name not in rows:
        return [Operation(LEFT_OUT, name)]
    step = rows[name].read(name, held)
    return [_seldom(step, held.get("p", 1.0)) if rows is _ALBUMENTATIONS else step]


def is_container(described: Any) -> bool:
    """Return whether this is several transforms, one after the other."""
    whole = described.get("class", "") if isinstance(described, Mapping) else ""
    module, _, name = str(whole).rpartition(".")
    return name in _CONTAINERS and _rows_of(module) is not None


def _rows_of(module: str) -> Mapping[str, Row] | None:
    return next((rows for prefixes, rows in LIBRARIES if module.startswith(prefixes)), None)


def plain(value: Any) -> Any:
    """Return the value of an enumeration's member; others are as they are."""
    return value.get("value") if isinstance(value, Mapping) else value


def _listed(inner: Any) -> Sequence[Any]:
    inner = inner.get("modules") if isinstance(inner, Mapping) else inner  # a ModuleList
    return inner if isinstance(inner, list) else []


def _seldom(step: Operation, p: Any) -> Operation:
    if not isinstance(p, (int, float)):
        return Operation(LEFT_OUT, step.name)
    return replace(step, p=step.p * float(p))


def _share_out(name: str, steps: list[Operation], p: Any) -> list[Operation]:
    """Return the steps of a container that is gone through for a share of the samples."""
    if p == 1:
        return steps
    seldom = [_seldom(step, p) for step in steps]
    if len(seldom) < 2:
        return seldom
    remark = f"drawn by itself here, together with {len(steps) - 1} more in {name}"
    return [replace(step, remarks=(*step.remarks, remark)) for step in seldom]


# Arguments -----------------------------------------------------------------------------------------------


def read_filter(value: Any, numbers: Sequence[str] = PILLOW_FILTERS) -> str | tuple[str, ...] | None:
    """Return the word of a filter that a script named in its library's way; None: there is none such."""
    if isinstance(value, list):
        words = [read_filter(one, numbers) for one in value]
        return tuple(str(word) for word in words) if words and None not in words else None
    if isinstance(value, Mapping):
        told, name = value.get("value"), str(value.get("enum", "")).lower()
        value = told if isinstance(told, str) else name
    if isinstance(value, int):
        return numbers[value] if 0 <= value < len(numbers) else None
    word = "nearest" if value == "nearest-exact" else value
    return word if isinstance(word, str) and word in PILLOW_FILTERS else None


def rounded(value: float) -> float:
    """Return a number as somebody would have written it: float32 and logarithms leave a tail of digits."""
    short = float(f"{float(value):.6g}")
    if not abs(short) <= _LARGEST:
        raise ValueError(f"{value} is no argument of a transform")
    return int(short) if short.is_integer() and abs(short) > 1 else short


def read_size(value: Any) -> int | tuple[int, int]:
    """Return a side, or height and width; a square's as one number."""
    sides = [value, value] if isinstance(value, int) else [int(one) for one in value]
    height, width = sides * 2 if len(sides) == 1 else sides
    if not 0 < min(sides) <= max(sides) <= _LARGEST:
        raise ValueError(f"{value} is no size of an image")
    return height if height == width else (height, width)


def _size(held: Held, _: str) -> Any:
    if held.get("size") is None and "height" in held:  # earlier ones of albumentations
        return read_size([held["height"], held["width"]])
    return read_size(held["size"])


def _short_or_size(held: Held, _: str) -> Any:
    if held.get("max_size") is not None:
        raise NotCarried
    return read_size(held["size"])


def _pair(held: Held, word: str) -> tuple[float, float]:
    low, high = held[word]
    return rounded(low), rounded(high)


def _ratio(held: Held, word: str) -> tuple[float, float]:
    pair = _pair(held, word)
    return _USUAL_RATIO if pair == tuple(map(rounded, _USUAL_RATIO)) else pair


def _number(held: Held, word: str) -> float:
    return rounded(held[word])


def _pillow_filter(held: Held, word: str) -> Any:
    return read_filter(held[word]) or ""


def _opencv_filter(held: Held, word: str) -> Any:
    return read_filter(held[word], OPENCV_FILTERS) or ""


def _padding(held: Held, _: str) -> Any:
    padding = held.get("padding")
    if isinstance(padding, list):
        edges = tuple(int(one) for one in padding)
        padding = edges[0] if len(set(edges)) == 1 else edges
    return padding or None


def _spread(middle: float) -> Argument:
    """Read how far a factor may be from the middle, or lowest and highest where these are not even."""

    def read(held: Held, word: str) -> float | tuple[float, float] | None:
        given = held.get(word)
        if given is None or isinstance(given, (int, float)):
            return float(given) if given else None
        low, high = _pair(held, word)
        reach = rounded(high - middle)
        is_even = math.isclose(low, max(0.0, 1 - reach) if middle else -reach, abs_tol=1e-6)
        return (reach or None) if is_even else (low, high)

    return read


def _filling(held: Held, _: str) -> Any:
    value = held["value"]
    if isinstance(value, list):
        value = tuple(rounded(one) for one in value)
        return value[0] if len(set(value)) == 1 else value
    return "random" if value in (None, "random") else rounded(value)  # v2 has None for it


def _channels(held: Held, word: str) -> tuple[float, ...]:
    numbers = held[word] if isinstance(held[word], list) else [held[word]]
    while numbers and isinstance(numbers[0], list):  # 3 x 1 x 1
        numbers = [one for row in numbers for one in row]
    return tuple(rounded(one) for one in numbers)


def _plain_channels(held: Held, word: str) -> tuple[float, ...]:
    """albumentations' Normalize: by mean and std of values of 0 to 255, or in other ways."""
    if held.get("normalization", "standard") != "standard" or held.get("max_pixel_value", 255) != 255:
        raise NotCarried
    return _channels(held, word)


def _type(held: Held, word: str) -> str | None:
    """ToDtype and ConvertImageDtype: the second always scales to 0 to 1."""
    name = str(held[word]).removeprefix("torch.")
    if name == "uint8":
        return None
    if held.get("scale", True) is not True or name not in FLOATS:
        raise NotCarried
    return name


def _smallest_side(held: Held, _: str) -> int:
    sides = held["max_size"] if isinstance(held["max_size"], list) else [held["max_size"]]
    if len(sides) > 1:
        raise NotCarried(f" to one of {len(sides)} sizes")
    return int(sides[0])


def _pads_black(held: Held, _: str) -> bool:
    # 0: cv2.BORDER_CONSTANT
    is_black = all(held.get(word) in (None, 0, [0], [0, 0, 0]) for word in ("border_mode", "fill"))
    if held.get("pad_if_needed") and not is_black:
        raise NotCarried(" with a border of its own")
    return bool(held.get("pad_if_needed"))


def _remark_opencv(held: Held) -> tuple[str, ...]:
    """OpenCV's filters do not look at all pixels when they make an image smaller; ours do."""
    is_same = read_filter(held["interpolation"], OPENCV_FILTERS) in ("box", "nearest")
    return () if is_same else ("OpenCV resizes without antialiasing, feedrate with it: pixels differ",)


def _remark_boxes(held: Held) -> tuple[str, ...]:
    noise = ["one colour for each box becomes noise"] if held["mode"] == "rand" else []
    many = int(held.get("max_count") or 1)
    return (*noise, *([f"up to {held['max_count']} boxes become one"] if many > 1 else []))


# The tables ----------------------------------------------------------------------------------------------

_CROP: Mapping[str, Argument] = {"size": _size, "scale": _pair, "ratio": _ratio}
_FLOAT, _BYTES, _NOTHING = Row("float"), Row("bytes"), Row("nothing")
_JITTER = Row(
    "jitter",
    {**dict.fromkeys(("brightness", "contrast", "saturation"), _spread(1.0)), "hue": _spread(0.0)},
)
_TO_TYPE = Row(lambda held: "bytes" if str(held["dtype"]).endswith("uint8") else "float", {"dtype": _type})
_MIXED: Mapping[str, Argument] = {"alpha": _number, "num_classes": lambda held, word: held.get(word)}
_TORCHVISION: Mapping[str, Row] = {
    "RandomResizedCrop": Row("resized-crop", {**_CROP, "interpolation": _pillow_filter}),
    "Resize": Row(
        lambda held: "resize-short" if isinstance(held["size"], int) or len(held["size"]) == 1 else "resize",
        {"size": _short_or_size, "interpolation": _pillow_filter},
    ),
    "CenterCrop": Row("center-crop", {"size": _size}),
    "RandomCrop": Row(
        "random-crop",
        {
            "size": _size, "padding": _padding,
            "padding_mode": lambda held, word: str(plain(held.get(word, "constant"))),
            "pad_if_needed": lambda held, word: bool(held.get(word)),
            "fill": lambda held, word: 0 if held.get(word) is None else held[word],
        },
    ),
    "RandomHorizontalFlip": Row("flip", share="p"),
    "ColorJitter": _JITTER,
    "RandomGrayscale": Row("grayscale", share="p"),
    "Grayscale": Row(lambda held: "gray" if held["num_output_channels"] == 1 else "grayscale"),
    "GaussianBlur": Row(
        "blur", {"kernel_size": lambda held, word: read_size(held[word]), "sigma": _pair}
    ),
    "RandomSolarize": Row("solarize", {"threshold": _number}, share="p"),
    "RandomErasing": Row("erase", {"scale": _pair, "ratio": _pair, "value": _filling}, share="p"),
    "Normalize": Row("normalize", {"mean": _channels, "std": _channels}),
    "ToTensor": _FLOAT,
    "PILToTensor": _BYTES,
    "ToImage": _BYTES,
    "ToImageTensor": _BYTES,
    "ToDtype": _TO_TYPE,
    "ConvertImageDtype": _TO_TYPE,
    "ConvertDtype": _TO_TYPE,
    "ToPureTensor": _NOTHING,
    "Identity": _NOTHING,
    "RGB": _NOTHING,
    "MixUp": Row("mixup", _MIXED),
    "CutMix": Row("cutmix", _MIXED),
}  # fmt: skip
_TIMM: Mapping[str, Row] = {
    "RandomResizedCropAndInterpolation": _TORCHVISION["RandomResizedCrop"],
    "ToNumpy": _BYTES,
    "MaybePILToTensor": _BYTES,
    "MaybeToTensor": _FLOAT,
    "RandomErasing": Row(
        "erase",
        {
            "scale": lambda held, _: (rounded(held["min_area"]), rounded(held["max_area"])),
            "ratio": lambda held, _: tuple(rounded(math.exp(one)) for one in held["log_aspect_ratio"]),
            "value": lambda held, _: 0 if held["mode"] == "const" else "random",
        },
        "probability", _remark_boxes,
    ),
}  # fmt: skip
_ALBUMENTATIONS: Mapping[str, Row] = {
    "RandomResizedCrop": Row(
        "resized-crop", {**_CROP, "interpolation": _opencv_filter}, remarks=_remark_opencv
    ),
    "Resize": Row("resize", {"size": _size, "interpolation": _opencv_filter}, remarks=_remark_opencv),
    "SmallestMaxSize": Row(
        "resize-short", {"size": _smallest_side, "interpolation": _opencv_filter}, remarks=_remark_opencv
    ),
    "CenterCrop": Row("center-crop", {"size": _size}),
    "RandomCrop": Row(
        "random-crop",
        {"size": _size, "pad_if_needed": _pads_black},
        remarks=lambda held: (_IN_BORDER,) if held.get("pad_if_needed") else (),
    ),
    "HorizontalFlip": Row("flip"),
    "ColorJitter": _JITTER,
    "ToGray": Row("grayscale"),
    "Normalize": Row("normalize", {"mean": _plain_channels, "std": _plain_channels}),
    "ToTensorV2": _NOTHING,
    "NoOp": _NOTHING,
}
LIBRARIES = (
    (("torchvision.transforms.", "torch.nn.modules."), _TORCHVISION),
    (("timm.data.",), _TIMM),
    (("albumentations.",), _ALBUMENTATIONS),
)
_FUNCTIONS: Mapping[str, Mapping[str, Row]] = {"torchvision": {"to_tensor": _FLOAT, "pil_to_tensor": _BYTES}}


def read_prefetcher(given: Held) -> list[Operation]:
    """Return what timm's PrefetchLoader does where batches arrive, from its arguments."""
    name = "PrefetchLoader"
    word = str(given.get("img_dtype") or "").removeprefix("torch.")
    word = "float16" if given.get("fp16") else word
    steps = [Operation("float", name, {"dtype": word})] if word in FLOATS[1:] else []
    if word and word not in FLOATS:
        steps = [Operation(LEFT_OUT, f"{name}'s img_dtype={word}")]
    steps.append(_TORCHVISION["Normalize"].make(name, given))
    if given.get("re_prob"):
        held = {
            "probability": given["re_prob"], "mode": given.get("re_mode") or "const", "min_area": 0.02,
            "max_area": 1 / 3, "log_aspect_ratio": [math.log(0.3), math.log(1 / 0.3)],
            "max_count": given.get("re_count"),
        }  # fmt: skip
        steps.append(_TIMM["RandomErasing"].make("RandomErasing", held))
    return steps


def read_timm_mixing(held: Held) -> list[Operation]:
    """Return what timm's Mixup and FastCollateMixup do; `prob` is shared out between both."""
    p, switch = float(held.get("mix_prob", 1.0)), float(held.get("switch_prob", 0.5))
    alphas = {"mixup": held.get("mixup_alpha") or 0, "cutmix": held.get("cutmix_alpha") or 0}
    used = [kind for kind, alpha in alphas.items() if alpha > 0]
    remarks = ["mixed for each sample, not for whole batches"] if held.get("mode") == "batch" else []
    if held.get("label_smoothing"):
        remarks.append(f"label_smoothing={held['label_smoothing']} is not carried over")
    if len(used) == 2 and switch != 0.5:
        remarks.append(f"switch_prob={switch} becomes 0.5")
    if held.get("cutmix_minmax") is not None:
        remarks.append(f"cutmix_minmax={held['cutmix_minmax']} is not carried over")
    classes = held.get("num_classes")
    return [
        Operation(kind, "Mixup", {"alpha": alphas[kind], "num_classes": classes}, p, tuple(remarks))
        for kind in used
    ]
