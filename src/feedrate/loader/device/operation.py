# SPDX-License-Identifier: Apache-2.0
"""What the operations of `Loader(on_device=...)` have in common, and how their arguments are checked.

An operation draws on the host, in numpy, and computes on the device. What it has drawn (factors, boxes, the
numbers of the samples that it changes) goes there as small arrays, so that nobody ever asks the device for a
value and waits for it. Each operation names the purpose of its draws and how many uniform numbers a sample
takes; its `plan` makes of them what is to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.draws import F64
from feedrate.errors import UsageError
from feedrate.kernel import I64

Array = npt.NDArray[Any]


Range = tuple[float, float]


class Work(NamedTuple):
    """What an operation does to one batch.

    Attributes:
        arrays: what it has drawn.
        apply: called with images and these arrays as tensors on the images' device; returns the images.
    """

    arrays: tuple[Array, ...]
    apply: Callable[..., Any]


def change_rows(rows: I64, samples: int, work: Work) -> Work:
    """Return work that does to some samples of a batch what `work` does to a batch of these alone."""
    if len(rows) == samples:
        return work

    def apply(images: Any, at: Any, *arrays: Any) -> Any:
        return images.index_copy_(0, at, work.apply(images.index_select(0, at), *arrays))

    return Work((rows.astype(np.int64), *work.arrays), apply)


def send_arrays(arrays: Sequence[Array], send: Callable[[Any], Any]) -> list[Any]:
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


def is_number(value: object) -> bool:
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]


def check_share(name: str, p: object) -> None:
    if not is_number(p) or not 0 <= p <= 1:  # type: ignore[operator]
        raise UsageError(f"{name}: p must be a probability from 0 to 1, got {p!r}")


def as_range(value: Any) -> Range | None:
    """Return two numbers of which the second is not the smaller one; None: this is none."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(is_number(one) for one in pair) or pair[0] > pair[1]:
        return None
    return float(pair[0]), float(pair[1])


def scale_to(uniforms: F64, between: Range) -> F64:
    """Return numbers in [0, 1), moved to a range."""
    return between[0] + (between[1] - between[0]) * uniforms
