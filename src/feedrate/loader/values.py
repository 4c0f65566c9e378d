# SPDX-License-Identifier: Apache-2.0
"""The fields of a sample that are not pixels: numbers, arrays, text, JSON, bytes and boxes.

And what becomes of all fields: tensors without a copy, and batches of samples that a transform made.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedrate import kernel
from feedrate.arrays import F32, I64, U8
from feedrate.errors import MissingExtra, UsageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.raw import read_npy
from feedrate.kernel import Status
from feedrate.kernel.depth import Depth
from feedrate.loader.geometry import Places
from feedrate.loader.options import Output, Wanted

STATUS_WORDS = {
    Status.UNREADABLE: "the shard cannot be opened or read",
    Status.CUT_SHORT: "the file ends before this sample does",
    Status.CRC_MISMATCH: "the bytes are not those that were packed (checksum)",
    Status.CORRUPT: "the image is damaged",
    Status.BAD_BOX: "the crop is empty or not inside the image",
    Status.BAD_ENTRIES: "the entry points in the index do not describe this image",
}


def explain_status(status: int) -> str:
    return STATUS_WORDS.get(Status(status), f"status {status}")


@dataclass(slots=True)
class Values:
    """One field of a batch: an array or a list, and why some of its samples are bad."""

    data: Any
    bad: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0


def read_values(wanted: Wanted, places: Places, pool: kernel.Pool | None) -> Values:
    """Read what is not pixels: a field, or what the index itself holds."""
    pack, rows, positions, stored = places.pack, places.rows, places.positions, wanted.field
    if stored is None and wanted.name == "key":
        return Values(*pack.keys(positions))
    if stored is None or stored.kind is Kind.NUMBER:
        # Not `ascontiguousarray`: to numpy, one value is contiguous whatever its stride; torch refuses it.
        return Values(rows[wanted.name].copy())
    while True:
        files, ranges, _ = pack.find_values(stored.name, rows, positions)
        buffer, starts, statuses = kernel.read_ranges(files, ranges, pool)
        if not pack.turn_to_source(stored.name, rows, positions, statuses):
            break
    read = Values([], bytes_read=len(buffer))
    if statuses.any():
        read.bad = {int(i): explain_status(statuses[i]) for i in np.flatnonzero(statuses)}
    elif stored.kind is Kind.ARRAY and (stacked := _stack_arrays(stored, buffer, starts)) is not None:
        read.data = stacked
        return read
    _parse_each(stored, buffer, starts, read)
    return read


def _parser(wanted: Field) -> Callable[[bytes], Any]:
    if wanted.kind is not Kind.ARRAY or wanted.coding is not Coding.RAW:
        return _PARSERS[wanted.kind]
    dtype, shape = np.dtype(wanted.dtype), wanted.shape or ()
    return lambda data: np.frombuffer(data, dtype).reshape(shape).copy()


def _parse_each(wanted: Field, buffer: U8, starts: I64, read: Values) -> None:
    parse = _parser(wanted)
    view = buffer.data
    for i, (start, stop) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        value = None
        if i not in read.bad:
            try:
                value = parse(bytes(view[start:stop]))
            except MemoryError:
                raise
            except Exception as error:  # numpy raises whatever it likes on a bad header
                read.bad[i] = f"is not {wanted.kind} ({error})"
        read.data.append(value)
    is_whole = wanted.kind is Kind.ARRAY and not read.bad
    if is_whole and len({(a.dtype, a.shape) for a in read.data}) == 1:
        read.data = np.stack(read.data)


def _stack_arrays(wanted: Field, buffer: U8, starts: I64) -> npt.NDArray[Any] | None:
    """Return arrays that share one .npy header without looking at each in Python; None when they do not."""
    lengths = np.diff(starts)
    if wanted.shape is None or wanted.dtype is None or not len(lengths) or (lengths != lengths[0]).any():
        return None
    dtype = np.dtype(wanted.dtype)
    header = int(lengths[0]) - dtype.itemsize * int(np.prod(wanted.shape, dtype=np.int64))
    table = buffer.reshape(len(lengths), -1)
    if wanted.coding is Coding.RAW:
        return None if header or dtype.hasobject else buffer.view(dtype).reshape(len(lengths), *wanted.shape)
    if header < 10 or dtype.hasobject or (table[:, :header] != table[0, :header]).any():
        return None
    try:
        first = read_npy(table[0].tobytes())
    except Exception:  # the slow way names the sample
        return None
    if first.dtype != dtype or first.shape != wanted.shape or not first.flags.c_contiguous:
        return None
    values: npt.NDArray[Any] = table[:, header:].copy().view(dtype)
    return values.reshape(len(lengths), *wanted.shape)


def _parse_boxes(data: bytes) -> F32:
    boxes = read_npy(data).astype(np.float32)
    if boxes.ndim != 2 or boxes.shape[1] < 4:
        raise ValueError(f"a table of shape {boxes.shape}; rows of left, top, right, bottom are needed")
    return boxes


_PARSERS: dict[Kind, Callable[[bytes], Any]] = {
    Kind.ARRAY: read_npy,
    Kind.TEXT: lambda data: data.decode("utf-8"),
    Kind.JSON: json.loads,
    Kind.BYTES: lambda data: data,
    Kind.BOXES: _parse_boxes,
}


def choose_output(output: Output | None, depth: Depth | None = None) -> Output:
    """Return what batches are made of: as asked, else torch where it is installed.

    Raises:
        MissingExtra: torch was asked for, and is not there.
        UsageError: it has no numbers for that depth.
    """
    is_there = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    if output == "torch" and not is_there:
        raise MissingExtra(
            'output="torch" needs torch, which is not installed', hint="pip install 'feedrate[torch]'"
        )
    if output == "numpy" or not is_there:
        return "numpy"
    # Here, in the user's thread: later, its seconds would look like a slow first batch.
    import torch

    if depth == "uint16" and not hasattr(torch, "uint16"):
        raise UsageError(
            f'depth="uint16": torch {torch.__version__} has no uint16, which came with 2.3',
            hint='install a newer torch, or take output="numpy"',
        )
    return "torch"


def to_torch(value: Any, kind: Kind | None) -> Any:
    """Return arrays as tensors that share their memory; images as N,C,H,W in channels-last memory."""
    import torch

    if isinstance(value, list):
        return [to_torch(v, None) for v in value] if kind in (Kind.BOXES, Kind.ARRAY) else value
    from feedrate.loader.device.transfer import DevicePixels, find_pinned

    if isinstance(value, DevicePixels):
        return value.tensor.permute(0, 3, 1, 2)
    if not isinstance(value, np.ndarray):
        return value

    try:
        tensor = find_pinned(value)
        if tensor is None:
            tensor = torch.from_numpy(value if value.flags.writeable else value.copy())
    except TypeError:  # a dtype that torch does not have: text, dates, long double
        return value
    return tensor.permute(0, 3, 1, 2) if kind is Kind.IMAGE else tensor


def make_collate(output: Output) -> Callable[[list[Any]], Any]:
    if output != "torch":
        return partial(_collate, to_tensor=None)
    import torch

    return partial(_collate, to_tensor=torch.from_numpy)


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
