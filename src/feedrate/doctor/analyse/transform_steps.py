# SPDX-License-Identifier: Apache-2.0
"""A script's transforms in one vocabulary: what the hook read off torchvision's, timm's and albumentations'.

Attribute names are those of torchvision 0.28 (v1 and v2), timm 1.0 and albumentations 2.0; where earlier ones
differ (albumentations' height and width in RandomResizedCrop), both are read. A class that is derived from
one of theirs may do anything, so it is the script's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from feedrate.filters import FILTERS

Described = Mapping[str, Any]  # as the hook's Budget describes an object

# A step that call_draft.py has no word of Loader's for.
LEFT_OUT = "left-out"
# Reading a value that another version, or the script, has put there.
UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)
_PILLOW_FILTERS = {number: word for word, number in FILTERS.items()}
_OPENCV_FILTERS = {0: "nearest", 1: "bilinear", 2: "bicubic", 3: "box", 4: "lanczos"}
_USUAL_RATIO = (3 / 4, 4 / 3)
_LARGEST = 1e6
FLOATS = ("float32", "float16", "bfloat16")  # types that a Loader gives
_CONTAINERS = ("Compose", "Sequential", "ModuleList")


@dataclass(frozen=True)
class Step:
    """One thing that is done to a sample.

    Attributes:
        kind: what it is, in the words of `Draft` in call_draft.py; LEFT_OUT: feedrate has no word for it.
        name: what the script calls it.
        values: its arguments in feedrate's words; None where one could not be read.
        p: the share of samples that it is done to.
        remarks: what feedrate does otherwise.
    """

    kind: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    p: float = 1.0
    remarks: tuple[str, ...] = ()
    is_own: bool = False  # of the script's own code


def read_steps(described: Any) -> list[Step]:
    """Return what a described transform does, in order; of one that is None: nothing."""
    if not isinstance(described, Mapping):
        return []
    if "function" in described:
        return [_function(str(described["function"]))]
    module, _, name = str(described.get("class", "?")).rpartition(".")
    held = described.get("held")
    held = held if isinstance(held, Mapping) else {}
    table = _table(module)
    if table is None:
        return [Step(LEFT_OUT, _own_name(module, name), is_own=True)]
    inner = held.get("transforms", described.get("modules"))
    if name in _CONTAINERS or name == "RandomApply":
        # albumentations' have a share of their own.
        share = held.get("p", None if name == "RandomApply" else 1.0)
        return _share_out(name, [step for one in _listed(inner) for step in read_steps(one)], share)
    make = table.get(name)
    try:
        step = make(name, held) if make is not None else Step(LEFT_OUT, name)
    except UNREADABLE:
        step = Step(LEFT_OUT, name)
    return (
        [step] if module.startswith("torch") or make is None else [_albumentations_share(module, step, held)]
    )


def is_container(described: Any) -> bool:
    """Return whether this is several transforms, one after the other."""
    module, _, name = (
        str(described.get("class", "")).rpartition(".") if isinstance(described, Mapping) else ("",) * 3
    )
    return name in _CONTAINERS and _table(module) is not None


def _table(module: str) -> Mapping[str, Make] | None:
    if module.startswith(("torchvision.transforms.", "torch.nn.modules.")):
        return _TORCHVISION
    if module.startswith("timm.data."):
        return _TIMM
    return _ALBUMENTATIONS if module.startswith("albumentations.") else None


def _function(qualified: str) -> Step:
    module, _, name = qualified.rpartition(".")
    if module.startswith("torchvision.transforms.") and name in ("to_tensor", "pil_to_tensor"):
        return Step("float" if name == "to_tensor" else "bytes", name)
    return Step(LEFT_OUT, _own_name(module, name), is_own=True)


def _own_name(module: str, name: str) -> str:
    return name if module in ("__main__", "") else f"{module}.{name}"


def _listed(inner: Any) -> Sequence[Any]:
    if isinstance(inner, Mapping):  # a ModuleList
        inner = inner.get("modules")
    return inner if isinstance(inner, list) else []


def _seldom(step: Step, p: Any) -> Step:
    share = float(p) if isinstance(p, (int, float)) else None
    return Step(LEFT_OUT, step.name) if share is None else replace(step, p=step.p * share)


def _share_out(name: str, steps: list[Step], p: Any) -> list[Step]:
    """Return the steps of a container that is gone through for a share of the samples."""
    if p == 1:
        return steps
    seldom = [_seldom(step, p) for step in steps]
    if len(seldom) < 2:
        return seldom
    remark = f"drawn by itself here, together with {len(steps) - 1} more in {name}"
    return [replace(step, remarks=(*step.remarks, remark)) for step in seldom]


def _albumentations_share(module: str, step: Step, held: Mapping[str, Any]) -> Step:
    return _seldom(step, held.get("p", 1.0)) if module.startswith("albumentations.") else step


Make = Callable[[str, Mapping[str, Any]], Step]


def read_filter(value: Any, numbers: Mapping[int, str] = _PILLOW_FILTERS) -> str | tuple[str, ...] | None:
    """Return the word of a filter that a script named in its library's way; None: there is none such."""
    if isinstance(value, list):
        words = [read_filter(one, numbers) for one in value]
        return tuple(str(word) for word in words) if words and None not in words else None
    if isinstance(value, Mapping):
        told, name = value.get("value"), str(value.get("enum", "")).lower()
        value = told if isinstance(told, str) else name
    if isinstance(value, int):
        return numbers.get(value)
    word = "nearest" if value == "nearest-exact" else value
    return word if isinstance(word, str) and word in FILTERS else None


def _size(value: Any) -> int | tuple[int, int]:
    """Return a side, or height and width; a square's as one number."""
    sides = [value, value] if isinstance(value, int) else [int(one) for one in value]
    if len(sides) == 1:
        sides *= 2
    height, width = sides
    if not 0 < min(sides) <= max(sides) <= _LARGEST:
        raise ValueError(f"{value} is no size of an image")
    return height if height == width else (height, width)


def _pair(value: Any) -> tuple[float, float]:
    low, high = value
    return rounded(low), rounded(high)


def _ratio(value: Any) -> tuple[float, float]:
    pair = _pair(value)
    return _USUAL_RATIO if pair == tuple(map(rounded, _USUAL_RATIO)) else pair


def rounded(value: float) -> float:
    """Return a number as somebody would have written it: float32 and logarithms leave a tail of digits."""
    short = float(f"{float(value):.6g}")
    if not abs(short) <= _LARGEST:
        raise ValueError(f"{value} is no argument of a transform")
    return int(short) if short.is_integer() and abs(short) > 1 else short


def _of(kind: str, **values: Any) -> Make:
    """Return what makes a step whose arguments do not depend on the object."""
    return lambda name, _: Step(kind, name, values)


def _by_p(kind: str) -> Make:
    return lambda name, held: Step(kind, name, p=float(held["p"]))


def _resized_crop(name: str, held: Mapping[str, Any]) -> Step:
    values = {"size": _size(held["size"]), "scale": _pair(held["scale"]), "ratio": _ratio(held["ratio"])}
    return Step("resized-crop", name, {**values, "interpolation": read_filter(held["interpolation"])})


def _resize(name: str, held: Mapping[str, Any]) -> Step:
    size, filter_ = held["size"], read_filter(held["interpolation"])
    is_short = isinstance(size, int) or len(size) == 1
    if held.get("max_size") is not None or size is None:
        return Step(LEFT_OUT, name)
    values = {"interpolation": filter_}
    if is_short:
        side = _size(size if isinstance(size, int) else size[0])
        return Step("resize-short", name, {"size": side, **values})
    return Step("resize", name, {"size": _size(size), **values})


def _random_crop(name: str, held: Mapping[str, Any]) -> Step:
    padding, fill = held.get("padding"), held.get("fill", 0)
    if isinstance(padding, list):
        edges = tuple(int(one) for one in padding)
        padding = edges[0] if len(set(edges)) == 1 else edges
    values = {
        "size": _size(held["size"]),
        "padding": padding or None,
        "pad_if_needed": bool(held.get("pad_if_needed")),
        "fill": 0 if fill is None else fill,
        "padding_mode": read_word(held.get("padding_mode", "constant")),
    }
    return Step("random-crop", name, values)


def read_word(value: Any) -> str:
    return str(value.get("value") if isinstance(value, Mapping) else value)


def _jitter(name: str, held: Mapping[str, Any]) -> Step:
    values = {
        word: spread
        for word in ("brightness", "contrast", "saturation", "hue")
        if (spread := _spread(held.get(word), 0.0 if word == "hue" else 1.0))
    }
    return Step("jitter", name, values)


def _spread(given: Any, middle: float) -> float | tuple[float, float] | None:
    """Return how far a factor may be from the middle, or lowest and highest where these are not even."""
    if given is None or isinstance(given, (int, float)):
        return float(given) if given else None
    low, high = _pair(given)
    reach = rounded(high - middle)
    is_even = math.isclose(low, max(0.0, 1 - reach) if middle else -reach, abs_tol=1e-6)
    return (reach or None) if is_even else (low, high)


def _blur(name: str, held: Mapping[str, Any]) -> Step:
    return Step("blur", name, {"kernel_size": _size(held["kernel_size"]), "sigma": _pair(held["sigma"])})


def _solarize(name: str, held: Mapping[str, Any]) -> Step:
    return Step("solarize", name, {"threshold": rounded(held["threshold"])}, float(held["p"]))


def _erase(name: str, held: Mapping[str, Any]) -> Step:
    value = held["value"]
    if isinstance(value, list):
        value = tuple(rounded(one) for one in value)
        value = value[0] if len(set(value)) == 1 else value
    else:
        value = "random" if value in (None, "random") else rounded(value)  # v2 has None for it
    values = {"scale": _pair(held["scale"]), "ratio": _pair(held["ratio"]), "value": value}
    return Step("erase", name, values, float(held["p"]))


def _normalize(name: str, held: Mapping[str, Any]) -> Step:
    mean, std = (_channels(held[word]) for word in ("mean", "std"))
    return Step("normalize", name, {"mean": mean, "std": std})


def _channels(value: Any) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else [value]
    while numbers and isinstance(numbers[0], list):  # 3 x 1 x 1
        numbers = [one for row in numbers for one in row]
    return tuple(rounded(one) for one in numbers)


def _to_type(name: str, held: Mapping[str, Any]) -> Step:
    """ToDtype and ConvertImageDtype: the second always scales to 0 to 1."""
    word = str(held["dtype"]).removeprefix("torch.")
    if word == "uint8":
        return Step("bytes", name)
    if held.get("scale", True) is not True or word not in FLOATS:
        return Step(LEFT_OUT, name)
    return Step("float", name, {"dtype": word})


def _gray(name: str, held: Mapping[str, Any]) -> Step:
    return Step("gray", name) if held["num_output_channels"] == 1 else Step("grayscale", name)


def _mix(kind: str) -> Make:
    def make(name: str, held: Mapping[str, Any]) -> Step:
        return Step(kind, name, {"alpha": rounded(held["alpha"]), "num_classes": held.get("num_classes")})

    return make


_TORCHVISION: Mapping[str, Make] = {
    "RandomResizedCrop": _resized_crop,
    "Resize": _resize,
    "CenterCrop": lambda name, held: Step("center-crop", name, {"size": _size(held["size"])}),
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _by_p("flip"),
    "ColorJitter": _jitter,
    "RandomGrayscale": _by_p("grayscale"),
    "Grayscale": _gray,
    "GaussianBlur": _blur,
    "RandomSolarize": _solarize,
    "RandomErasing": _erase,
    "Normalize": _normalize,
    "ToTensor": _of("float"),
    "PILToTensor": _of("bytes"),
    "ToImage": _of("bytes"),
    "ToImageTensor": _of("bytes"),
    "ToDtype": _to_type,
    "ConvertImageDtype": _to_type,
    "ConvertDtype": _to_type,
    "ToPureTensor": _of("nothing"),
    "Identity": _of("nothing"),
    "RGB": _of("nothing"),
    "MixUp": _mix("mixup"),
    "CutMix": _mix("cutmix"),
}


def _timm_erase(name: str, held: Mapping[str, Any]) -> Step:
    low, high = (rounded(math.exp(one)) for one in held["log_aspect_ratio"])
    values = {
        "scale": (rounded(held["min_area"]), rounded(held["max_area"])),
        "ratio": (low, high),
        "value": 0 if held["mode"] == "const" else "random",
    }
    remarks = []
    if held["mode"] == "rand":
        remarks.append("one colour for each box becomes noise")
    if int(held.get("max_count") or 1) > 1:
        remarks.append(f"up to {held['max_count']} boxes become one")
    return Step("erase", name, values, float(held["probability"]), tuple(remarks))


def read_prefetcher(given: Mapping[str, Any]) -> list[Step]:
    """Return what timm's PrefetchLoader does where batches arrive, from its arguments."""
    steps = [_normalize("PrefetchLoader", given)]
    word = str(given.get("img_dtype") or "").removeprefix("torch.")
    if given.get("fp16"):
        word = "float16"
    if word in FLOATS[1:]:
        steps.insert(0, Step("float", "PrefetchLoader", {"dtype": word}))
    elif word and word != FLOATS[0]:
        steps.insert(0, Step(LEFT_OUT, f"PrefetchLoader's img_dtype={word}"))
    if given.get("re_prob"):
        held = {
            "probability": given["re_prob"], "mode": given.get("re_mode") or "const", "min_area": 0.02,
            "max_area": 1 / 3, "log_aspect_ratio": [math.log(0.3), math.log(1 / 0.3)],
            "max_count": given.get("re_count"),
        }  # fmt: skip
        steps.append(_timm_erase("RandomErasing", held))
    return steps


def read_timm_mixing(held: Mapping[str, Any]) -> list[Step]:
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
        Step(kind, "Mixup", {"alpha": alphas[kind], "num_classes": classes}, p, tuple(remarks))
        for kind in used
    ]


_TIMM: Mapping[str, Make] = {
    "RandomResizedCropAndInterpolation": _resized_crop,
    "ToNumpy": _of("bytes"),
    "MaybePILToTensor": _of("bytes"),
    "MaybeToTensor": _of("float"),
    "RandomErasing": _timm_erase,
}


def _sides(held: Mapping[str, Any]) -> int | tuple[int, int]:
    return _size(held["size"]) if held.get("size") is not None else _size([held["height"], held["width"]])


def _opencv(kind: str, name: str, values: Mapping[str, Any], held: Mapping[str, Any]) -> Step:
    """OpenCV's filters do not look at all pixels when they make an image smaller; ours do."""
    word = read_filter(held["interpolation"], _OPENCV_FILTERS)
    remark = "OpenCV resizes without antialiasing, feedrate with it: pixels differ"
    remarks = (remark,) if word not in ("box", "nearest") else ()
    return Step(kind, name, {**values, "interpolation": word}, remarks=remarks)


def _albumentations_normalize(name: str, held: Mapping[str, Any]) -> Step:
    is_plain = held.get("normalization", "standard") == "standard" and held.get("max_pixel_value", 255) == 255
    return _normalize(name, held) if is_plain else Step(LEFT_OUT, name)


def _smallest_side(name: str, held: Mapping[str, Any]) -> Step:
    sides = held["max_size"] if isinstance(held["max_size"], list) else [held["max_size"]]
    if len(sides) > 1:
        return Step(LEFT_OUT, f"{name} to one of {len(sides)} sizes")
    return _opencv("resize-short", name, {"size": int(sides[0])}, held)


def _albumentations_crop(name: str, held: Mapping[str, Any]) -> Step:
    values = {"size": _sides(held), "pad_if_needed": bool(held.get("pad_if_needed"))}
    if not values["pad_if_needed"]:
        return Step("random-crop", name, values)
    # 0: cv2.BORDER_CONSTANT
    if any(held.get(word) not in (None, 0, [0], [0, 0, 0]) for word in ("border_mode", "fill")):
        return Step(LEFT_OUT, f"{name} with a border of its own")
    remark = "images smaller than the crop lie anywhere in their black border, not in its middle"
    return Step("random-crop", name, values, remarks=(remark,))


_ALBUMENTATIONS: Mapping[str, Make] = {
    "RandomResizedCrop": lambda name, held: _opencv(
        "resized-crop", name,
        {"size": _sides(held), "scale": _pair(held["scale"]), "ratio": _ratio(held["ratio"])}, held,
    ),
    "Resize": lambda name, held: _opencv("resize", name, {"size": _sides(held)}, held),
    "SmallestMaxSize": _smallest_side,
    "CenterCrop": lambda name, held: Step("center-crop", name, {"size": _sides(held)}),
    "RandomCrop": _albumentations_crop,
    "HorizontalFlip": _of("flip"),
    "ColorJitter": _jitter,
    "ToGray": _of("grayscale"),
    "Normalize": _albumentations_normalize,
    "ToTensorV2": _of("nothing"),
    "NoOp": _of("nothing"),
}  # fmt: skip
