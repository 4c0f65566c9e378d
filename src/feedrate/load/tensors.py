# SPDX-License-Identifier: Apache-2.0
"""From numpy to what the user trains with, without a copy; and collating samples that a transform made."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from feedrate.errors import MissingExtra
from feedrate.format.fields import Kind
from feedrate.load.options import Output


def choose_output(output: Output | None) -> Output:
    """Return what batches are made of: as asked, else torch where it is installed."""
    is_there = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    if output == "torch" and not is_there:
        raise MissingExtra(
            'output="torch" needs torch, which is not installed', hint="pip install 'feedrate[torch]'"
        )
    if output == "numpy" or not is_there:
        return "numpy"
    # Here, in the user's thread: later, its seconds would look like a slow first batch.
    import torch  # noqa: F401

    return "torch"


def to_torch(value: Any, kind: Kind | None) -> Any:
    """Return arrays as tensors that share their memory; images as N,C,H,W in channels-last memory."""
    import torch

    if isinstance(value, list):
        return [to_torch(v, None) for v in value] if kind in (Kind.BOXES, Kind.ARRAY) else value
    from feedrate.load.device.transfer import DevicePixels, find_pinned

    if isinstance(value, DevicePixels):
        return value.tensor.permute(0, 3, 1, 2)
    if not isinstance(value, np.ndarray):
        return value

    try:
        pinned = find_pinned(value)
        tensor = (
            pinned
            if pinned is not None
            else torch.from_numpy(value if value.flags.writeable else value.copy())
        )
    except TypeError:  # a dtype that torch does not have: text, dates, long double
        return value
    return tensor.permute(0, 3, 1, 2) if kind is Kind.IMAGE else tensor


def make_collate(output: Output) -> Callable[[list[Any]], Any]:
    return _collate_torch if output == "torch" else _collate_numpy


def _collate_numpy(samples: list[Any]) -> Any:
    return _collate(samples, to_tensor=None)


def _collate_torch(samples: list[Any]) -> Any:
    import torch

    return _collate(samples, to_tensor=torch.from_numpy)


def _collate(samples: list[Any], to_tensor: Callable[[Any], Any] | None) -> Any:
    """Stack what stacks; go into dicts, tuples and lists of equal make; leave the rest a list."""
    first = samples[0]
    if any(type(s) is not type(first) for s in samples):
        return samples
    if isinstance(first, dict) and all(s.keys() == first.keys() for s in samples):
        return {name: _collate([s[name] for s in samples], to_tensor) for name in first}
    if isinstance(first, (tuple, list)) and all(len(s) == len(first) for s in samples):
        columns = [_collate(list(column), to_tensor) for column in zip(*samples, strict=True)]
        if isinstance(first, tuple):
            return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
        return columns
    if isinstance(first, (bool, int, float, np.number, np.bool_)):
        return _finish(np.asarray(samples), to_tensor)
    if isinstance(first, np.ndarray) and all(
        (s.shape, s.dtype) == (first.shape, first.dtype) for s in samples
    ):
        return _finish(np.stack(samples), to_tensor)
    if type(first).__module__.startswith("torch") and hasattr(first, "new_empty"):
        import torch

        return torch.stack(samples) if all(s.shape == first.shape for s in samples) else samples
    return samples


def _finish(array: Any, to_tensor: Callable[[Any], Any] | None) -> Any:
    if to_tensor is None or array.dtype.kind not in "biuf":
        return array
    return to_tensor(array)
