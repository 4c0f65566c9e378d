# SPDX-License-Identifier: Apache-2.0
"""Output buffers that are used again, but only when nobody can see them any more.

A buffer is FREE (in the ring) or LENT. Lending wraps it in a `_Lease`; every numpy view, torch tensor or
DLPack capsule made from the array keeps that lease alive, and only the lease's end puts the buffer back. So a
batch that the user keeps stays valid without a copy, and one that they drop costs no new memory.

No locks: a lease can end inside a garbage collection, in any thread, also while this thread is taking a
buffer, and in a forked child. `deque.append` and `deque.pop` are atomic, which is all that is needed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from feedrate.kernel import U8

# One batch in the kernel, one queued there; with the one that the loop holds, three buffers are in use.
DEFAULT_PREFETCH = 2
PREFETCH_BYTES = 2**30


def choose_prefetch(batch_bytes: int, makers: int) -> int:
    """Return how many batches to make ahead for so many threads that make them, while memory allows."""
    return max(2, min(max(DEFAULT_PREFETCH, makers), PREFETCH_BYTES // max(1, batch_bytes)))


class Ring:
    """Lends uint8 arrays of up to `shape`; keeps at most `spare` free ones."""

    def __init__(self, shape: tuple[int, ...], spare: int) -> None:
        self.shape = shape
        self.spare = spare
        self.made = 0  # buffers allocated so far
        self._free: deque[U8] = deque()

    def lend(self, count: int) -> U8:
        """Return an array of shape (count, *shape[1:]) whose contents are arbitrary."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(math.prod(self.shape), np.uint8)
            self.made += 1
        array: U8 = np.asarray(_Lease(buffer, self))
        return array[: count * math.prod(self.shape[1:])].reshape(count, *self.shape[1:])

    def take_back(self, buffer: U8) -> None:
        # The user kept many batches and then dropped them: the memory goes back to the system.
        if len(self._free) < self.spare:
            self._free.append(buffer)


class _Lease:
    """The owner of lent memory. Not an ndarray: numpy would look through it to the buffer behind."""

    __slots__ = ("__array_interface__", "_buffer", "_ring")

    def __init__(self, buffer: U8, ring: Ring) -> None:
        self._buffer = buffer
        self._ring = ring
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__

    def __del__(self) -> None:
        self._ring.take_back(self._buffer)
