# SPDX-License-Identifier: Apache-2.0
"""`Loader(dtype=..., normalize=..., on_device=...)`: what is done to a batch once its pixels are there.

```
colours      ours and the user's functions, as they stand in the list; float32 from 0 to 1
dtype        the type that was asked for, normalised in the same step; else back to uint8
erasing      in units of the batch as the user gets it
mixing       with the sample before it; labels become soft
```

`Finish.plan` draws on the host, `Finish.run` computes where the batch is: on the stream of its copy, or on
the host. Plain torch and few passes over memory: a compiled version would cost seconds of every start. Images
come and go as N,C,H,W in channels-last memory; colours are worked on channel by channel, contiguous, and what
comes after them on rows of W*C values, which is how they lie in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from feedrate.draws import F64, Purpose, draw_uniforms, make_key
from feedrate.errors import UsageError
from feedrate.loader.batch import Batch, Origin
from feedrate.loader.device.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
from feedrate.loader.device.mixing import CutMix, MixUp, Noise, RandomErasing, mix_labels, plan_mix
from feedrate.loader.device.operation import Array, Work, send_arrays
from feedrate.loader.image import Size

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
    """What is done to every batch.

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

    def renew(self) -> Finish:
        """Return the same for a forked child: its locks may be held by threads that are not there."""
        return replace(self, noise=Noise(self.seed), calls=threading.Lock())

    def plan(self, batch: Batch) -> Plan:
        """Return what is to do for a batch on the host: all draws, and labels that can be mixed."""
        assert batch.origin is not None
        plan = Plan(list(batch.data))
        if self.normalize is not None:
            plan.scale_at = len(plan.arrays)
            mean, deviation = (np.array(one, np.float64) for one in self.normalize)
            plan.arrays += [(1 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32)]
        drawn = [self._draw(op, at, batch.origin) for at, op in enumerate(self.operations)]
        mixed = [(op, own) for op, own in zip(self.operations, drawn, strict=True) if isinstance(op, MIXING)]
        for op, own in zip(self.operations, drawn, strict=True):
            if isinstance(op, RandomErasing):
                plan.add(plan.erasing, op.plan(own, self.size, self.channels, self.noise))
            elif isinstance(op, COLOURS):
                plan.add(plan.colours, op.plan(own, self.channels))
            elif not isinstance(op, MIXING):
                plan.colours.append(op)
        if mixed:
            choices = self._uniforms(Purpose.MIX, 0, 1, batch.origin)[:, 0]
            operations, numbers = zip(*mixed, strict=True)
            work, shares = plan_mix(operations, numbers, choices, self.size, self.channels)
            plan.add(plan.mixing, work)
            plan.shares_at = len(plan.arrays)
            plan.arrays.append(shares)
            self._check_labels(plan.data)
        return plan

    def _draw(self, op: Any, at: int, origin: Origin) -> F64:
        if not isinstance(op, OURS):
            return np.empty((0, 0))
        # How many of its kind stand before it: what else is in the list does not change its draws.
        before = sum(type(other) is type(op) for other in self.operations[:at])
        return self._uniforms(op.purpose, before, op.uniforms, origin)

    def _uniforms(self, purpose: Purpose, ordinal: int, count: int, origin: Origin) -> F64:
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
            arrays = send_arrays(plan.arrays, send)
            values = list(data)
            for at in self.places:
                rows = self._run_colours(data[at], plan, arrays)
                for step in [*plan.erasing, *plan.mixing]:
                    rows = step.apply(rows, arrays)
                values[at] = _from_rows(rows, self.channels)
            if self.label is not None:
                values[self.label.at] = mix_labels(
                    data[self.label.at], arrays[plan.shares_at], self.label.classes
                )
        return tuple(values)

    def _run_colours(self, images: Any, plan: Plan, arrays: list[Any]) -> Any:
        """Return images with their last colours, in the type that the user gets, as rows."""
        import torch

        is_ours = False  # not what a function of the user's returned, and may still hold
        was_bytes = False  # float32 because an operation of ours needed that
        for step in plan.colours:
            if isinstance(step, _Step):
                was_bytes = was_bytes or images.dtype == torch.uint8
                images = step.apply(images if is_ours else _to_planes(images), arrays)
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
        # The plain case, and one pass: from bytes straight to what was asked for.
        rows = _to_rows(images)
        out = torch.empty_like(rows, dtype=self.dtype)
        if normal is None:
            return torch.div(rows, torch.tensor(255.0, dtype=torch.float32), out=out)
        scale, offset = (one.repeat(images.shape[3]) for one in normal)
        return torch.addcmul(offset, rows, scale, value=1 / 255, out=out)

    def count_bytes(self, data: Sequence[Any]) -> int:
        """Return what a batch takes when it is finished."""
        import torch

        wide = 1 if self.dtype is None else self.dtype.itemsize
        tensors = [(at, one) for at, one in enumerate(data) if isinstance(one, torch.Tensor)]
        return sum(one.nbytes * (wide if at in self.places else 1) for at, one in tensors)


class _Step(NamedTuple):
    """An operation's work; its arrays are those from `first` to `last` of the plan's."""

    work: Work
    first: int
    last: int

    def apply(self, images: Any, arrays: list[Any]) -> Any:
        return self.work.apply(images, *arrays[self.first : self.last])


@dataclass(slots=True)
class Plan:
    """What is to do for one batch.

    Attributes:
        data: the batch on the host.
        arrays: what was drawn: it goes to the device in one copy.
        colours: steps, and functions of the user's.
    """

    data: list[Any]
    arrays: list[Array] = field(default_factory=list)
    colours: list[Any] = field(default_factory=list)
    erasing: list[_Step] = field(default_factory=list)
    mixing: list[_Step] = field(default_factory=list)
    scale_at: int | None = None
    shares_at: int = 0

    def add(self, steps: list[Any], work: Work | None) -> None:
        if work is not None:
            first = len(self.arrays)
            self.arrays += work.arrays
            steps.append(_Step(work, first, len(self.arrays)))


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
    """Return what a function of the user's makes of images."""
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
