# SPDX-License-Identifier: Apache-2.0
"""The native module itself, its threads, statuses and files, and the checks that stand before every call."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedrate.arrays import I32, I64, U8, U32

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

__all__ = [
    "I32", "I64", "U8", "U32", "Files", "Inputs", "Pool", "Ranges", "Status", "crc32c", "for_each",
    "gather_rows", "read_at", "read_ranges", "simd_level", "simd_levels", "split_by_size",
]  # fmt: skip

native = _native
_NONE = np.empty(0, np.uint8)
_MOST_PER_CALL = 1 << 30
_AS_THEY_ARE = {bytes, str, type(None)}  # kinds of inputs


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
    TOO_DEEP = 8  # gray of more than 8 bits, and no depth that says what becomes of them


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

    def rest(self) -> None:
        """End the threads; the next call starts others. No call may be under way."""
        self._native.rest()
        self._end_executor()

    def close(self) -> None:
        """Let queued batches end, then stop the threads. May be called twice."""
        self._closed = True
        self._native.close()
        self._end_executor()

    def _end_executor(self) -> None:
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


def for_each(work: Callable[[int], None], samples: Sequence[int], pool: Pool | None) -> None:
    """Call `work` for every sample, in Python threads where there is a pool and more than one."""
    if pool is not None and len(samples) > 1:
        pool.map(work, samples)
    else:
        for i in samples:
            work(i)


def split_by_size(sizes: Any, most_bytes: int, most: int) -> Iterator[slice]:
    """Yield parts of a list, each of so many bytes and members at the most, but of one member at least."""
    ends, start = np.cumsum(np.asarray(sizes, np.int64)), 0
    while start < len(ends):
        limit = (int(ends[start - 1]) if start else 0) + most_bytes
        stop = min(max(int(np.searchsorted(ends, limit, "right")), start + 1), start + most)
        yield slice(start, stop)
        start = stop


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


@dataclass(frozen=True, slots=True)
class Ranges:
    """Byte ranges in files, one per sample; arrays of equal length."""

    file: I32
    offset: I64
    length: I64
    crc32c: U32 | None = None  # None: not checked

    def __len__(self) -> int:
        return len(self.file)

    def take(self, at: Any) -> Ranges:
        """Return some of them: by numbers, or a slice."""
        crc32c = None if self.crc32c is None else self.crc32c[at]
        return Ranges(self.file[at], self.offset[at], self.length[at], crc32c)


class Files:
    """Files that the kernel reads by number; opened when first needed, at most a bounded number at a time."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [os.fspath(path) for path in paths]
        # As bytes: a name need not be valid UTF-8.
        self._native = native.Files([os.fsencode(path) for path in self.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __reduce__(self) -> tuple[type[Files], tuple[list[str]]]:
        return Files, (self.paths,)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        self._native.close()


def gather_rows(files: Files, file: I32, row: I64, bases: I64, strides: I64, dtype: np.dtype[Any]) -> Any:
    """Read rows of a columnar table straight from its file, and check each row's last column.

    Column `c` of row `r` is at `bases[i, c] + r * strides[c]` in `files[file[i]]`. Returns `(rows,
    statuses)`: `rows` is a structured array of `dtype` (packed, one field per column); its last field holds
    the CRC-32C of the bytes before it. `bases` has one row per *sample*. A bad row is zeroed.
    """
    sizes = _column_sizes(dtype)
    n, columns = len(file), len(sizes)
    file, row = checked(file, np.int32, (n,), "file"), checked(row, np.int64, (n,), "row")
    bases = checked(bases, np.int64, (n, columns), "bases")
    strides = checked(strides, np.int64, (columns,), "strides")
    rows, details = np.zeros(n, dtype), np.zeros((n, 4), np.int64)
    native.gather_rows(
        files._native, file, row, bases.reshape(-1), strides, sizes, rows.view(np.uint8), details.reshape(-1)
    )
    return rows, details[:, 0].astype(np.int32)


@lru_cache(maxsize=64)
def _column_sizes(dtype: np.dtype[Any]) -> I64:
    if dtype.names is None or dtype.fields is None:
        raise ValueError(f"dtype must have one field per column, got {dtype}")
    sizes = np.array([dtype.fields[name][0].itemsize for name in dtype.names], np.int64)
    if sizes.sum() != dtype.itemsize or sizes[-1] != 4:
        raise ValueError(f"dtype must be packed and end with a field of 4 bytes, got {dtype}")
    return sizes


def read_ranges(files: Files, ranges: Ranges, pool: Pool | None = None) -> tuple[U8, I64, I32]:
    """Read ranges one behind the other into one buffer: `(buffer, starts, statuses)`, `starts` of length N+1.

    A range that cannot be read leaves its part of the buffer zeroed; one that is outside of its file has
    no part: lengths are a stranger's claims, so that they are checked before memory is taken for them.
    """
    buffer, starts, details = _read(files, ranges, pool)
    return buffer, starts, details[:, 0].astype(np.int32)


def read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Return so many bytes of an open file from `offset` on; fewer where it ends, nothing where it cannot be.

    Linux reads 2 GB at the most in one call, others refuse more. Memory is taken for what the file holds,
    whatever a stranger's index claims.

    Raises:
        OSError: it cannot be read.
    """
    left_bytes = min(size_bytes, os.fstat(descriptor).st_size - offset) if offset >= 0 else 0
    pieces: list[bytes] = []
    while left_bytes > 0 and (piece := os.pread(descriptor, min(left_bytes, _MOST_PER_CALL), offset)):
        pieces.append(piece)
        left_bytes, offset = left_bytes - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def arrays_of(ranges: Ranges, n: int) -> tuple[I32, I64, I64, U32]:
    crc = np.empty(0, np.uint32) if ranges.crc32c is None else ranges.crc32c
    return (
        checked(ranges.file, np.int32, (n,), "file"),
        checked(ranges.offset, np.int64, (n,), "offset"),
        checked(ranges.length, np.int64, (n,), "length"),
        checked(crc, np.uint32, (0,) if ranges.crc32c is None else (n,), "crc32c"),
    )


def say_outcome(files: Files, ranges: Ranges, i: int, detail: I64) -> str:
    words = native.words(*map(int, detail))
    number = int(ranges.file[i])
    if detail[0] == Status.UNREADABLE and 0 <= number < len(files):
        return f"{files.paths[number]} {words}"
    return words


def _read(files: Files, ranges: Ranges, pool: Pool | None) -> tuple[U8, I64, I64]:
    n = len(ranges)
    file, offset, length, crc32c = arrays_of(ranges, n)
    threads = None if pool is None else pool._native
    claims, details = np.zeros((n, 4), np.int64), np.zeros((n, 4), np.int64)
    native.check_ranges(files._native, (file, offset, length, crc32c), threads, claims.reshape(-1))
    outside = claims[:, 0] != 0
    if outside.any():
        offset, length = np.where(outside, 0, offset), np.where(outside, 0, length)
    total_bytes = float(length.sum(dtype=np.float64))
    if total_bytes >= 2**62:  # each is in its file, but together they would leave 64 bits
        raise MemoryError(f"{n} values of {total_bytes:.3g} bytes together")
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(length, out=starts[1:])
    buffer = np.empty(int(starts[-1]), np.uint8)
    inside = (file, offset, length, crc32c)
    native.read_ranges(files._native, inside, starts, buffer, threads, details.reshape(-1))
    details[outside] = claims[outside]
    return buffer, starts, details


def read_one(files: Files, ranges: Ranges, i: int) -> tuple[bytes, I64]:
    buffer, _, details = _read(files, ranges.take(slice(i, i + 1)), None)
    return buffer.tobytes(), details[0]


class Inputs:
    """Image files of one call, in memory or by their paths, and the entry points of each.

    Files are read by the threads that need them, once. Bytes that nobody may write to are used in place.
    """

    def __init__(self, images: Sequence[Any], entries: Sequence[Any] | None = None) -> None:
        """Take paths or files' bytes, and for each the bytes of its entry points; None: there are none."""
        self._native = native.Inputs(_freeze(images), _freeze(entries or ()))
        self._count = len(images)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[U8, U8]:
        """Return a file's bytes and its entry points, as far as they have been read and found."""
        return self._native.at(number)

    def load(self, numbers: I32, pool: Pool | None = None) -> int:
        """Read files that were not yet; return how many bytes those with these numbers have."""
        return self._native.load(numbers, None if pool is None else pool._native)

    def measure(self, numbers: I64, pool: Pool | None = None) -> tuple[I32, I32]:
        """Read the files with these numbers; return N x 2 widths and heights, and why each cannot be read.

        That is an errno, or 0. A size is 0 where the kernel does not decode the file: Pillow may know.
        """
        facts = np.zeros((len(numbers), 3), np.int32)
        self._native.measure(numbers, None if pool is None else pool._native, facts.reshape(-1))
        return facts[:, :2], facts[:, 2]


def _freeze(values: Sequence[Any]) -> list[Any]:
    listed = list(values)
    return listed if _AS_THEY_ARE.issuperset(map(type, listed)) else [_freeze_one(one) for one in listed]


def _freeze_one(value: Any) -> Any:
    if value is None or isinstance(value, (bytes, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    view = memoryview(value)
    return as_bytes(view) if view.readonly and view.c_contiguous else bytes(view)
