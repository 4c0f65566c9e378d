# SPDX-License-Identifier: Apache-2.0
"""What the operations of `Loader(on_device=...)` have in common, and how their arguments are checked.

An operation draws on the host, in numpy, and computes on the device. What it has drawn (factors, boxes, the
numbers of the samples that it changes) goes there as small arrays, so that nobody ever asks the device for a
value and waits for it. Each operation names the purpose of its draws and how many uniform numbers a sample
takes; its `plan` makes of them what is to do.

What the user asked batches to be finished with, checked: on its own, and against images and labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedrate.errors import UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader.device.colour import GaussianBlur
from feedrate.loader.device.finish import MIXING, OURS, Finish, Label
from feedrate.loader.device.mixing import Noise, RandomErasing
from feedrate.loader.device.operation import is_number
from feedrate.loader.image import Size
from feedrate.loader.options import Options, Wanted

_TYPES = ("float32", "float16", "bfloat16")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_ORDER = "colours and functions, then RandomErasing, then MixUp and CutMix"


def check_finish(options: Options, wanted: Sequence[Wanted], pack: Pack, output: str) -> Finish | None:
    """Return what is to do with batches; None: nothing.

    Raises:
        UsageError: what was asked for makes no sense, or not with these images and labels.
    """
    asked = {name: getattr(options, name) for name in ("dtype", "normalize", "on_device")}
    given = [name for name, value in asked.items() if value is not None and not _is_empty(value)]
    if not given:
        return None
    words = " and ".join(f"{name}=" for name in given)
    s = "s" if len(given) == 1 else ""
    if options.transform is not None or options.collate is not None:
        one = "transform" if options.transform is not None else "collate"
        raise UsageError(
            f"{words} work{s} on the batch's images, and {one}= decides what a batch is",
            hint=f"leave out {one}, or do there what {words} would",
        )
    if output != "torch":
        raise UsageError(
            f'{words} make{s} torch tensors, and output="numpy" gives arrays',
            hint=f"leave out {words}, or output; torch must be installed",
        )
    places = [at for at, w in enumerate(wanted) if w.field is not None and w.field.kind is Kind.IMAGE]
    if not places:
        shown = ", ".join(w.name for w in wanted)
        raise UsageError(f"{words} work{s} on images, and fields has none: {shown}")
    sizes, channels = [wanted[at].out_size for at in places], wanted[places[0]].channels
    size = sizes[0]
    assert size is not None
    operations = _check_operations(options.on_device)
    normalize = _check_normalize(options.normalize, channels)
    dtype = _check_type(options.dtype, is_normalized=normalize is not None)
    for op in operations:
        if isinstance(op, RandomErasing):
            # A function of the user's may have given images another type.
            has_function = any(not isinstance(other, OURS) for other in operations)
            _check_value(op, channels, is_float=dtype is not None or has_function)
        if isinstance(op, GaussianBlur):
            _check_kernel(op, [one for one in sizes if one is not None])
    mixing = [op for op in operations if isinstance(op, MIXING)]
    label = _find_label(mixing, wanted, pack) if mixing else None
    return Finish(
        dtype, normalize, operations, tuple(places), size, channels, label, options.seed, Noise(options.seed)
    )


def _is_empty(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


def _check_operations(given: Any) -> tuple[Any, ...]:
    operations = tuple(given) if isinstance(given, (list, tuple)) else () if given is None else (given,)
    reached, last = 0, ""
    for op in operations:
        if isinstance(op, type):
            raise UsageError(f"on_device holds the class {op.__name__}: write {op.__name__}(...)")
        stage = 2 if isinstance(op, MIXING) else 1 if isinstance(op, RandomErasing) else 0
        if not isinstance(op, OURS) and not callable(op):
            raise UsageError(
                f"on_device takes operations such as ColorJitter() and functions on images, got {op!r}"
            )
        name = getattr(op, "__name__", None) or type(op).__name__
        if stage < reached:
            raise UsageError(f"on_device: {name} stands behind {last}; the order is {_ORDER}")
        reached, last = stage, name
    return operations


def _check_type(dtype: Any, *, is_normalized: bool) -> Any:
    import torch

    if dtype is None:
        return torch.float32 if is_normalized else None
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else ""
    if name not in _TYPES:
        raise UsageError(
            f"dtype must be torch.float32, torch.float16 or torch.bfloat16, or its name, got {dtype!r}",
            hint="without dtype and normalize, images are uint8",
        )
    return getattr(torch, name)


def _check_normalize(given: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given != "imagenet":
            raise UsageError(f'normalize must be (mean, std) or "imagenet", got {given!r}')
        if channels != 3:
            raise UsageError(
                'normalize="imagenet" has numbers for three colours, and mode="L" gives one channel',
                hint="normalize=((0.449,), (0.226,))",
            )
        return _IMAGENET
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UsageError(f'normalize must be (mean, std) or "imagenet", got {given!r}')
    pair = []
    for name, values in zip(("mean", "std"), given, strict=True):
        row = tuple(values) if isinstance(values, (tuple, list, np.ndarray)) else (values,)
        if len(row) != channels or not all(is_number(value) for value in row):
            many = "one number" if channels == 1 else f"{channels} numbers"
            raise UsageError(f"normalize: {name} must hold {many}, one for each channel, got {values!r}")
        pair.append(tuple(float(value) for value in row))
    mean, deviation = pair
    if min(deviation) <= 0:
        raise UsageError(f"normalize: std must be above 0, got {given[1]!r}")
    if min(mean) < 0 or max(mean) > 1:
        raise UsageError(
            f"normalize: mean is in units of 0 to 1, got {given[0]!r}", hint="divide mean and std by 255"
        )
    return mean, deviation


def _check_value(op: RandomErasing, channels: int, *, is_float: bool) -> None:
    if isinstance(op.value, tuple) and len(op.value) not in (1, channels):
        raise UsageError(f"{op!r}: value must hold one number for each of {channels} channels")
    if is_float:
        return
    if op.is_random:
        raise UsageError(
            'RandomErasing(value="random") fills with normal noise, which uint8 images cannot hold',
            hint='add normalize="imagenet", or dtype=torch.float32',
        )
    values: Any = op.value if isinstance(op.value, tuple) else (op.value,)
    if any(not 0 <= value <= 255 or value != math.floor(value) for value in values):
        raise UsageError(
            f"RandomErasing: value must be a whole number from 0 to 255 in uint8 images, got {op.value!r}"
        )


def _check_kernel(op: GaussianBlur, sizes: Sequence[Size]) -> None:
    across, down = op.sides
    for height, width in sizes:
        if across // 2 >= width or down // 2 >= height:
            raise UsageError(
                f"GaussianBlur: kernel_size={op.kernel_size!r} reaches beyond images of {width}x{height} "
                f"pixels, which are mirrored once at their edges",
                hint=f"at most {2 * min(height, width) - 1}",
            )


def _find_label(mixing: Sequence[Any], wanted: Sequence[Wanted], pack: Pack) -> Label:
    """Return where the labels stand that are to be mixed."""
    name = type(mixing[0]).__name__
    found = pack.manifest.field("label") or pack.manifest.field("labels")
    if found is None:
        raise UsageError(f"{name} mixes labels, and this pack has no field 'label' or 'labels'")
    at = next((at for at, w in enumerate(wanted) if w.field is found), None)
    if at is None:
        raise UsageError(
            f"{name} mixes labels, too, and fields has none", hint=f"add '{found.name}' to fields"
        )
    asked = {op.num_classes for op in mixing} - {None}
    if len(asked) > 1:
        raise UsageError(f"MixUp and CutMix give one label, and num_classes differ: {sorted(asked)}")
    if found.kind is Kind.NUMBER and found.dtype == "int64":
        classes = asked.pop() if asked else len(found.classes or ())
        if not classes:
            raise UsageError(
                f"{name}: the pack does not say how many classes field '{found.name}' has",
                hint=f"{name}(num_classes=1000)",
            )
        return Label(found.name, at, int(classes))
    if found.kind is Kind.ARRAY and found.shape is not None and len(found.shape) == 1:
        (classes,) = found.shape
        if asked - {classes}:
            raise UsageError(f"{name}: num_classes is {asked.pop()}, and labels here have {classes} classes")
        return Label(found.name, at, classes)
    kind = f"{found.dtype} numbers" if found.kind is Kind.NUMBER else str(found.kind)
    raise UsageError(f"{name} mixes labels that are classes; field '{found.name}' holds {kind}")
