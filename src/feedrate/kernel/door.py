# SPDX-License-Identifier: Apache-2.0
"""The native module itself, its threads and its statuses, and the checks that stand before every call."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

try:
    from feedrate import _native
except ImportError as error:
    if "FEEDRATE_SIMD" in str(error):
        raise
    raise ImportError(
        f"feedrate's C++ kernel cannot be loaded ({error}); build it with `make build` or `pip install .`"
    ) from error

native = _native

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_NONE = np.empty(0, np.uint8)


class Status(enum.IntEnum):
    """How one sample ended."""

    OK = 0
    UNREADABLE = 1  # the file cannot be opened or read
    CUT_SHORT = 2  # the file ends before the range does
    CRC_MISMATCH = 3  # the bytes are not those that were packed
    NOT_TAKEN = 4  # a kind of image the kernel leaves to Pillow (never leaves `decode_batch`)
    CORRUPT = 5  # the image is damaged; neither the kernel nor Pillow decodes it
    BAD_BOX = 6  # the crop box is empty or not inside the image
    BAD_ENTRIES = 7  # the entry points do not describe this file


class Pool:
    """Native threads that take samples one by one; shared by any number of concurrent calls.

    Threads start with the first call. A child process made by fork starts its own.

    Attributes:
        threads: how many there are at the most.
        limit: how many of them work.
    """

    def __init__(self, threads: int, *, nice: int = 0) -> None:
        """Make a pool of `threads`, which leave a core to others sooner by `nice`, as nice(1) counts."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.threads = self.limit = threads
        self._native = native.Pool(threads, nice)
        self._closed = False
        self._executor: tuple[int, int, ThreadPoolExecutor] | None = None

    def set_limit(self, limit: int) -> None:
        """Let so many threads work from now on; one that is in the middle of a sample finishes it."""
        if not 1 <= limit <= self.threads:
            raise ValueError(f"limit must be from 1 to {self.threads}, the pool's threads, got {limit}")
        self.limit = limit
        self._native.set_limit(limit)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the native threads took, each until it last had nothing to do."""
        return self._native.cpu_seconds()

    def cancel(self) -> None:
        """Let samples be that nobody has begun yet: calls that wait for them end with a ValueError."""
        self._closed = True
        self._native.cancel()

    def close(self) -> None:
        """Let queued batches end, then stop the threads. May be called twice."""
        self._closed = True
        self._native.close()
        executor, self._executor = self._executor, None
        if executor and executor[0] == os.getpid():
            executor[2].shutdown()

    def map(self, work: Callable[[int], None], samples: Sequence[int]) -> None:
        """Call `work` for every sample in Python threads: for what goes through Pillow, for whole images."""
        from concurrent.futures import ThreadPoolExecutor

        # The executor's threads do not survive a fork; the process number tells. Two callers at once may make
        # two executors: the one that is not kept ends with its work. So does one of another size.
        executor, wanted = self._executor, (os.getpid(), self.limit)
        if executor is None or executor[:2] != wanted:
            executor = self._executor = (*wanted, ThreadPoolExecutor(self.limit, "feedrate-pillow"))
        list(executor[2].map(lambda i: None if self._closed else work(i), samples))
        if self._closed:
            raise ValueError("the pool is closed")


def simd_level() -> str:
    """Return which vector code runs: the best of `simd_levels()`, or what FEEDRATE_SIMD named at import."""
    return native.simd_level()


def simd_levels() -> list[str]:
    """Return the levels of vector code that this machine can run, best first; all give the same pixels."""
    return native.simd_levels()


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of `data`, continuing from `value`."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"value must be a 32-bit number, got {value}")
    return native.crc32c(as_bytes(data), value)


def as_bytes(data: Any) -> npt.NDArray[Any]:
    view = memoryview(data)
    return np.frombuffer(view, np.uint8) if view.nbytes else _NONE


def checked(array: Any, dtype: Any, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return `array`, C-contiguous; a copy only where it was not."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        is_array = isinstance(array, np.ndarray)
        kind = f"{array.dtype} of shape {array.shape}" if is_array else type(array).__name__
        raise ValueError(f"{name} must be {np.dtype(dtype)} of shape {shape}, got {kind}")
    return np.ascontiguousarray(array)
