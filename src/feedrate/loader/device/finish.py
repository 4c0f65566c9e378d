# SPDX-License-Identifier: Apache-2.0
"""`Loader(dtype=..., normalize=..., on_device=...)`: the work on a batch once its pixels are there.

```
colours      ours and the user's functions, as they stand in the list; float32 from 0 to 1
dtype        the type that was asked for, normalised in the same step; else back to uint8
erasing      in units of the batch as the user gets it
mixing       with the sample before it; labels become soft
```

`Finish.plan` draws on the host, `Finish.run` computes where the batch is: on the stream of its copy, or on
the host. Plain torch and few passes over memory: a compiled version would cost seconds of every start. Images
come and go as N,C,H,W in channels-last memory; colours are worked on channel by channel, contiguous, and
later steps on rows of W*C values, as they are in memory.

`check_finish` checks the user's options: on their own, and against images and labels.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from feedrate.arrays import F64
from feedrate.draws import Purpose, draw_uniforms, make_key
from feedrate.errors import UsageError
from feedrate.format.fields import Kind
from feedrate.format.pack import Pack
from feedrate.loader.arguments import Size, as_plain, is_number
from feedrate.loader.batch import Batch, Origin
from feedrate.loader.device.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
from feedrate.loader.device.mixing import CutMix, Mix, MixUp, Noise, RandomErasing, mix_labels, plan_mix
from feedrate.loader.device.operation import Array, Work
from feedrate.loader.options import Options, Wanted

COLOURS = (ColorJitter, Grayscale, GaussianBlur, Solarize)
MIXING = (MixUp, CutMix)
OURS = (*COLOURS, RandomErasing, *MIXING)


class Label(NamedTuple):
    """Where labels stand in a batch, and how many classes they have."""

    name: str
    at: int
    classes: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The work on every batch.

    Attributes:
        dtype: the torch type of images; None: uint8.
        normalize: mean and deviation of each channel, in units of 0 to 1.
        places: where images stand in a batch.
        size: height and width of the first of them.
        calls: held while a function of the user's runs: two threads make batches, and modules keep notes.
    """

    dtype: Any
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None
    operations: tuple[Any, ...]
    places: tuple[int, ...]
    size: Size
    channels: int
    label: Label | None
    seed: int
    noise: Noise
    calls: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_functions(self) -> bool:
        """Whether functions of the user's are called."""
        return any(not isinstance(op, OURS) for op in self.operations)

    def renew(self) -> Finish:
        """Return the same for a forked child: its locks may be held by threads that are not there."""
        return replace(self, noise=Noise(self.seed), calls=threading.Lock())

    def plan(self, batch: Batch) -> Plan:
        """Return the steps for a batch on the host: all draws are made, and its labels can be mixed."""
        assert batch.origin is not None
        plan = Plan(list(batch.data))
        if self.normalize is not None:
            plan.scale_at = len(plan.arrays)
            mean, deviation = (np.array(one, np.float64) for one in self.normalize)
            plan.arrays += [(1 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32)]
        mixed: list[Mix] = []
        for at, op in enumerate(self.operations):
            if not isinstance(op, OURS):
                plan.colours.append(op)
                continue
            # How many of its kind stand before it: other operations in the list do not change its draws.
            ordinal = sum(type(other) is type(op) for other in self.operations[:at])
            drawn = self._draw(op.purpose, ordinal, op.uniforms, batch.origin)
            if isinstance(op, MIXING):
                mixed.append(op.mix(drawn, self.size))
            elif isinstance(op, RandomErasing):
                plan.add(plan.late, op.plan(drawn, self.size, self.channels, self.noise))
            else:
                plan.add(plan.colours, op.plan(drawn, self.channels))
        if mixed:
            choices = self._draw(Purpose.MIX, 0, 1, batch.origin)[:, 0]
            work, shares = plan_mix(mixed, choices, self.size, self.channels)
            plan.add(plan.late, work)
            plan.shares_at = len(plan.arrays)
            plan.arrays.append(shares)
            self._check_labels(plan.data)
        return plan

    def _draw(self, purpose: Purpose, ordinal: int, count: int, origin: Origin) -> F64:
        key = make_key(self.seed, origin.epoch, purpose, ordinal)
        return draw_uniforms(key, origin.numbers, count, origin.slots)

    def _check_labels(self, data: list[Any]) -> None:
        """See that labels are numbers of classes; on the host, where that is no wait."""
        import torch

        assert self.label is not None
        name, at, classes = self.label
        if isinstance(data[at], list):  # where one sample of a batch is bad, arrays come as a list
            data[at] = torch.stack(data[at])
        labels = data[at].numpy()
        if labels.ndim == 1 and (labels.min() < 0 or labels.max() >= classes):
            wrong = labels[(labels < 0) | (labels >= classes)][0]
            raise UsageError(
                f"field '{name}' holds the class {wrong}, and soft labels have classes 0 to {classes - 1}",
                hint=f"num_classes={labels.max() + 1}" if wrong >= 0 else None,
            )

    def run(self, data: Sequence[Any], plan: Plan, send: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Return a batch, finished where it is; `send` moves a tensor there."""
        import torch

        with torch.no_grad():
            arrays = _send_arrays(plan.arrays, send)
            values = list(data)
            for at in self.places:
                rows = self._run_colours(_from_16_bits(data[at]), plan, arrays)
                for step in plan.late:
                    rows = step.apply(rows, *arrays[step.inputs])
                values[at] = _from_rows(rows, self.channels)
            if self.label is not None:
                values[self.label.at] = mix_labels(
                    data[self.label.at], arrays[plan.shares_at], self.label.classes
                )
        return tuple(values)

    def _run_colours(self, images: Any, plan: Plan, arrays: list[Any]) -> Any:
        """Return images with their last colours, in the type that the user gets, as rows."""
        import torch

        is_ours = False  # not a result of the user's function, which may still hold it
        was_bytes = False  # float32 because an operation of ours needed that
        for step in plan.colours:
            if isinstance(step, _Step):
                was_bytes = was_bytes or images.dtype == torch.uint8
                images = step.apply(images if is_ours else _to_planes(images), *arrays[step.inputs])
                is_ours = True
                continue
            if self.dtype is not None:
                images = _to_float(images)
            elif was_bytes:
                images = _to_bytes(images)
            images = images.contiguous(memory_format=torch.channels_last)
            with self.calls:
                images = _call(step, images)
            is_ours = was_bytes = False
        if self.dtype is not None:
            return self._to_type(images, plan, arrays)
        return _to_rows(_to_bytes(images) if was_bytes else images)

    def _to_type(self, images: Any, plan: Plan, arrays: list[Any]) -> Any:
        """Return images normalised and in the type that was asked for, as rows."""
        import torch

        normal = None if plan.scale_at is None else arrays[plan.scale_at : plan.scale_at + 2]
        if images.dtype != torch.uint8:
            if normal is not None:
                scale, offset = normal
                images = torch.addcmul(offset.view(-1, 1, 1), images, scale.view(-1, 1, 1))
            return _to_rows(images.to(self.dtype, memory_format=torch.channels_last))
        # The plain case, and one pass: from bytes straight to the type that was asked for.
        rows = _to_rows(images)
        out = torch.empty_like(rows, dtype=self.dtype)
        if normal is None:
            return torch.div(rows, torch.tensor(255.0, dtype=torch.float32), out=out)
        scale, offset = (one.repeat(images.shape[3]) for one in normal)
        return torch.addcmul(offset, rows, scale, value=1 / 255, out=out)

    def count_bytes(self, data: Sequence[Any]) -> int:
        """Return the bytes of a finished batch."""
        import torch

        return sum(
            one.nbytes if self.dtype is None or at not in self.places else one.numel() * self.dtype.itemsize
            for at, one in enumerate(data)
            if isinstance(one, torch.Tensor)
        )


class _Step(NamedTuple):
    """An operation's work, and which of the plan's arrays it takes."""

    apply: Callable[..., Any]
    inputs: slice


@dataclass(slots=True)
class Plan:
    """The steps for one batch.

    Attributes:
        data: the batch on the host.
        arrays: all draws: they go to the device in one copy.
        colours: steps, and functions of the user's.
        late: steps behind the colours: erasing, then mixing.
        scale_at, shares_at: where in `arrays` the numbers of `normalize`, and the labels' shares, are.
    """

    data: list[Any]
    arrays: list[Array] = field(default_factory=list)
    colours: list[Any] = field(default_factory=list)
    late: list[_Step] = field(default_factory=list)
    scale_at: int | None = None
    shares_at: int = 0

    def add(self, steps: list[Any], work: Work | None) -> None:
        if work is not None:
            first = len(self.arrays)
            self.arrays += work.arrays
            steps.append(_Step(work.apply, slice(first, len(self.arrays))))


def _send_arrays(arrays: Sequence[Array], send: Callable[[Any], Any]) -> list[Any]:
    """Return arrays as tensors on a device, by way of one copy; `send` moves a tensor there."""
    import torch

    if not arrays:
        return []
    starts = np.cumsum([0] + [-(-array.nbytes // 16) * 16 for array in arrays])
    together = np.zeros(starts[-1], np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        together[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = send(torch.from_numpy(together))
    types = {"f": torch.float32, "i": torch.int64}
    return [
        sent[start : start + array.nbytes].view(types[array.dtype.kind]).reshape(array.shape)
        for start, array in zip(starts.tolist(), arrays, strict=False)
    ]


def _from_16_bits(images: Any) -> Any:
    """Return images of 16 bits as floats from 0 to 1: torch computes with no others; all else as it is."""
    import torch

    if images.dtype != getattr(torch, "uint16", None):
        return images
    return images.to(torch.float32, memory_format=torch.channels_last).div_(65535)


def _to_rows(images: Any) -> Any:
    """Return N,C,H,W as N,H,W*C: a view of channels-last memory."""
    return images.permute(0, 2, 3, 1).flatten(2)


def _from_rows(rows: Any, channels: int) -> Any:
    return rows.unflatten(2, (-1, channels)).permute(0, 3, 1, 2)


def _to_planes(images: Any) -> Any:
    """Return float32 from 0 to 1 of our own, in which each channel is contiguous."""
    import torch

    planes = torch.empty(images.shape, dtype=torch.float32, device=images.device).copy_(images)
    return planes.div_(255) if images.dtype == torch.uint8 else planes


def _to_float(images: Any) -> Any:
    import torch

    if images.dtype != torch.uint8:
        return images.to(torch.float32)
    return torch.div(images, torch.tensor(255.0, dtype=torch.float32))


def _to_bytes(images: Any) -> Any:
    import torch

    levels = (images * 255).add_(0.5)
    return levels.to(torch.uint8, memory_format=torch.channels_last)


def _call(function: Callable[[Any], Any], given: Any) -> Any:
    import torch

    made = function(given)
    name = getattr(function, "__name__", None) or type(function).__name__
    if not isinstance(made, torch.Tensor):
        raise UsageError(f"on_device: {name} returned {type(made).__name__}, and images must come back")
    if made.ndim != 4 or made.shape[:2] != given.shape[:2]:
        raise UsageError(
            f"on_device: {name} returned a tensor of shape {tuple(made.shape)} for images of shape "
            f"{tuple(given.shape)}; the number of samples and of channels must stay"
        )
    if made.dtype != torch.uint8 and not made.is_floating_point():
        raise UsageError(f"on_device: {name} returned {made.dtype}; images are uint8 or floats")
    return made


_TYPES = ("float32", "float16", "bfloat16")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_ORDER = "colours and functions, then RandomErasing, then MixUp and CutMix"


def check_finish(options: Options, wanted: Sequence[Wanted], pack: Pack, output: str) -> Finish | None:
    """Return the work on batches; None: there is none.

    Raises:
        UsageError: the options make no sense, or not with these images and labels.
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
    if options.depth == "uint16" and dtype is None:
        raise UsageError(
            'on_device= works on floats or on 8 bits, and depth="uint16" gives 16: add dtype=torch.float32'
        )
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
    given = as_plain(given)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UsageError(f'normalize must be (mean, std) or "imagenet", got {given!r}')
    pair = []
    for name, values in zip(("mean", "std"), given, strict=True):
        row = tuple(values) if isinstance(values, (tuple, list)) else (values,)
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
