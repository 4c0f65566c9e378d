# SPDX-License-Identifier: Apache-2.0
"""The common form of all operations of `Loader(on_device=...)`.

An operation draws on the host, in numpy, and computes on the device. Its draws (factors, boxes, the numbers
of the samples that it changes) go there as small arrays, so that the host never waits for a value from the
device. Each operation names the purpose of its draws and how many uniform numbers a sample takes; its `plan`
makes the work of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedrate.arrays import F64, I64
from feedrate.loader.arguments import Range

Array = npt.NDArray[Any]


class Work(NamedTuple):
    """An operation's work on one batch.

    Attributes:
        arrays: its draws.
        apply: called with images and these arrays as tensors on the images' device; returns the images.
    """

    arrays: tuple[Array, ...]
    apply: Callable[..., Any]


def change_rows(rows: I64, samples: int, work: Work) -> Work:
    """Return `work`, which is for a batch of these samples alone, as work on the whole batch."""
    if len(rows) == samples:
        return work

    def apply(images: Any, at: Any, *arrays: Any) -> Any:
        return images.index_copy_(0, at, work.apply(images.index_select(0, at), *arrays))

    return Work((rows.astype(np.int64), *work.arrays), apply)


def scale_to(uniforms: F64, between: Range) -> F64:
    """Return numbers in [0, 1), moved to a range."""
    return between[0] + (between[1] - between[0]) * uniforms
