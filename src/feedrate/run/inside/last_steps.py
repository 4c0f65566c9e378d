# SPDX-License-Identifier: Apache-2.0
"""The last steps of a script's pipeline on an image: from pixels to a tensor by one table.

ToTensor, Normalize and their like change each value by itself, so a run of them is a table of 256 values per
channel. The script's own operations make it, of images that hold every value; where their result is anything
else than such a table, they do their work themselves. Images that Pillow holds take the same way.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.arrays import F32, U8
from feedrate.kernel import apply_table
from feedrate.run.inside import switch
from feedrate.run.inside.pending import OPENED, STATE, find_pending

_FIRST = "torchvision.transforms.transforms"
_SECOND = "torchvision.transforms.v2"
MODULES = (_FIRST, f"{_SECOND}._container")  # where Compose stands

_TYPES, _MORE = f"{_SECOND}._type_conversion", f"{_SECOND}._misc"
# Steps that take an image of Pillow's; and those that take a tensor, with the settings they depend on.
_BEGIN = {
    (_FIRST, "ToTensor"), (_FIRST, "PILToTensor"), (f"{_SECOND}._deprecated", "ToTensor"),
    (_TYPES, "PILToTensor"), (_TYPES, "ToImage"),
    ("timm.data.transforms", "MaybeToTensor"), ("timm.data.transforms", "MaybePILToTensor"),
}  # fmt: skip
_FOLLOW: dict[tuple[str, str], tuple[str, ...]] = {
    (_FIRST, "ConvertImageDtype"): ("dtype",), (_FIRST, "Normalize"): ("mean", "std", "inplace"),
    (_MORE, "ConvertImageDtype"): ("dtype",), (_MORE, "Normalize"): ("mean", "std", "inplace"),
    (_MORE, "ToDtype"): ("dtype", "scale"), (_TYPES, "ToPureTensor"): (),
}  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODES = ("RGB", "L")
_MOST_TABLES = 64  # settings that are drawn anew for every image are not worth learning
_RAMPS = ((16, 17), (259, 3))  # width and height


class _Table(NamedTuple):
    """What a run of steps makes of a channel's values, and the tensor that it makes."""

    values: F32 | None  # None: the pixels themselves
    is_planar: bool  # in memory; else as Pillow has them
    kind: Any  # the tensor's class


_tables: dict[Any, tuple[_Table | None, int]] = {}  # and of how many steps it is


def install(module: Any) -> str:
    """Patch the Compose of a module of `MODULES`; return the name of what was replaced, "" for nothing."""
    kind = getattr(module, "Compose", None)
    name = {MODULES[0]: "__call__", MODULES[1]: "forward"}.get(module.__name__, "")
    own = vars(kind).get(name) if isinstance(kind, type) else None
    if getattr(own, "__module__", "") != module.__name__:
        return ""
    setattr(kind, name, _wrap(kind, own))
    return f"{module.__name__}.Compose.{name}"


def _wrap(kind: Any, own: Any) -> Callable[..., Any]:
    @functools.wraps(own)
    def compose(self: Any, *inputs: Any, **named: Any) -> Any:
        steps = self.transforms
        is_plain = type(self) is kind and type(steps) in (list, tuple) and len(inputs) == 1
        if not (switch.here.is_on and is_plain and steps and not named):
            return own(self, *inputs, **named)
        value, at = inputs[0], 0
        while at < len(steps):
            made = _make_tensor(value, steps, at)
            value, at = made or (steps[at](value), at + 1)
        return value

    return compose


def _make_tensor(image: Any, steps: Sequence[Any], at: int) -> tuple[Any, int] | None:
    """Return what the steps from here on make of an image, and the number of the next step."""
    if not type(image).__module__.startswith("PIL.") or not _begins(steps[at]):
        return None
    try:
        if image.mode not in _MODES or min(image.size) < 2:
            return None
        run, key = _read_run(steps, at)
        key = (image.mode, *key)
        if key not in _tables and len(_tables) < _MOST_TABLES:
            _tables[key] = _learn_longest(run, image.mode)
        table, length = _tables.get(key, (None, 0))
    except Exception:  # of settings of any kind: the script's steps meet them
        return None
    pixels = _read_pixels(image) if table else None
    return None if table is None or pixels is None else (_apply(table, pixels), at + length)


def _read_pixels(image: Any) -> U8 | None:
    """Return an image's pixels, H x W x C, which nobody may write to; raise what the script's step would."""
    if image.__dict__.get(STATE) is OPENED:
        image.load()
    pending = find_pending(image)
    if pending is not None:
        return pending.draw()
    pixels = np.asarray(image)
    # Of an image that was closed it is no array of pixels.
    return pixels.reshape(*pixels.shape[:2], -1) if pixels.dtype == np.uint8 else None


def _name(step: Any) -> tuple[str, str]:
    return type(step).__module__, type(step).__qualname__


def _begins(step: Any) -> bool:
    return _name(step) in _BEGIN and _is_as_published(step)


def _is_as_published(step: Any) -> bool:
    """Say whether a step does what its class does, and nobody looks at its values on the way."""
    kind, values = type(step), vars(step)
    module = sys.modules.get(kind.__module__)
    call = vars(kind).get("forward") or vars(kind).get("transform") or vars(kind).get("__call__")
    return (
        getattr(module, kind.__qualname__, None) is kind
        and getattr(call, "__module__", "") == kind.__module__
        and not any(values.get(hooks) for hooks in _HOOKS)
        and values.keys().isdisjoint(("forward", "transform"))
    )


def _read_run(steps: Sequence[Any], at: int) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the steps that a table stands for, and what the table depends on."""
    import torch
    from torch.nn.modules import module

    if any(vars(module).get(f"_global{hooks}") for hooks in _HOOKS):
        raise ValueError("somebody looks at every module's values")
    if torch._C._len_torch_function_stack() or torch.jit.is_tracing():
        raise ValueError("somebody looks at every call of torch's")
    run, key = [steps[at]], [torch.get_default_dtype(), type(steps[at])]
    for step in steps[at + 1 :]:
        names = _FOLLOW.get(_name(step))
        if names is None or not _is_as_published(step):
            break
        settings = [_read_setting(getattr(step, name)) for name in names]
        if None in settings:
            break
        run.append(step)
        key += [type(step), *settings]
    return run, tuple(key)


def _read_setting(value: Any) -> Any:
    """Return a setting as a value that a table is looked up by; None: of some other kind."""
    import torch

    if isinstance(value, (bool, torch.dtype)):
        return value
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.ndim == 1:
        return value.dtype, tuple(value.tolist())
    is_row = type(value) in (list, tuple) and all(isinstance(one, (int, float)) for one in value)
    return tuple(value) if is_row else None


def _learn_longest(run: Sequence[Any], mode: str) -> tuple[_Table | None, int]:
    """Return a table of as many of the steps as are one together, and how many those are."""
    for length in range(len(run), 0, -1):
        with contextlib.suppress(Exception):  # the step meets the same with the script's image
            table = _learn(run[:length], mode)
            if table is not None:
                return table, length
    return None, 0


def _learn(run: Sequence[Any], mode: str) -> _Table | None:
    """Return the table of a run of steps, by what they make of two images; None: they are no table."""
    from PIL import Image

    found: list[_Table] = []
    for number, (width, height) in enumerate(_RAMPS):
        channels = len(mode)
        # Every value in every channel, and no two channels alike.
        ramp = np.arange(width * height * channels, dtype=np.int64).reshape(height, width, channels)
        pixels = ((ramp // channels + 85 * (ramp % channels)) * (1 - 2 * number) % 256).astype(np.uint8)
        value: Any = Image.frombytes(mode, (width, height), pixels.tobytes())
        for step in run:
            value = step(value)
        table = _read_table(value, pixels)
        if table is None:
            return None
        found.append(table)
    first, second = found
    is_same = first[1:] == second[1:] and _as_bytes(first.values) == _as_bytes(second.values)
    return first if is_same else None


def _as_bytes(values: F32 | None) -> bytes:
    return b"" if values is None else values.tobytes()


def _read_table(tensor: Any, pixels: U8) -> _Table | None:
    import torch

    height, width, channels = pixels.shape
    kind = type(tensor)
    is_image = (kind.__module__, kind.__qualname__) == ("torchvision.tv_tensors._image", "Image")
    if kind is not torch.Tensor and not is_image:
        return None
    is_plain = tensor.shape == (channels, height, width) and not tensor.storage_offset()
    if not is_plain or tensor.requires_grad or tensor.device.type != "cpu" or vars(tensor):
        return None
    strides = tensor.stride()
    if strides not in ((height * width, width, 1), (1, width * channels, channels)):
        return None
    made: npt.NDArray[Any] = tensor.as_subclass(torch.Tensor).numpy().transpose(1, 2, 0)
    is_planar = strides[0] != 1
    if made.dtype == np.uint8:
        return _Table(None, is_planar, kind) if np.array_equal(made, pixels) else None
    if made.dtype != np.float32:
        return None
    values = np.empty((channels, 256), np.float32)
    for channel in range(channels):
        values[channel, pixels[:, :, channel]] = made[:, :, channel]
    again = np.stack([values[channel, pixels[:, :, channel]] for channel in range(channels)], -1)
    return _Table(values, is_planar, kind) if again.tobytes() == made.tobytes() else None


def _apply(table: _Table, pixels: U8) -> Any:
    import torch

    made: npt.NDArray[Any]
    if table.values is not None:
        made = apply_table(pixels, table.values, out_planar=table.is_planar)
    else:
        # Nobody may write to these pixels; to a tensor anybody may.
        made = np.array(pixels.transpose(2, 0, 1) if table.is_planar else pixels, order="C")
    tensor = torch.from_numpy(made)
    tensor = tensor if table.is_planar else tensor.permute(2, 0, 1)
    return tensor if table.kind is torch.Tensor else tensor.as_subclass(table.kind)
