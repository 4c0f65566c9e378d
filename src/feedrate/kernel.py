# SPDX-License-Identifier: Apache-2.0
"""The only door to the C++ kernel: typed, and everything is checked before a pointer crosses.

What the kernel does not decode goes through Pillow (pillow.py) in the same call, and is counted.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feedrate import pillow
from feedrate.pillow import Box

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

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

MAX_CROP_PIXELS = 512 << 20  # as in native/jpeg.h
DAMAGED_BUT_DECODED = "damaged, decoded by Pillow"  # one of `DecodeReport.pillow_reasons`
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


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over an image file found."""

    width: int
    height: int
    sampling: str  # "4:4:4", "4:2:0", "gray", ...; "" when the kernel does not take the file
    reason: str | None  # why the kernel does not take it, in words; None when it does
    damaged: bool  # the reason is damage, not kind
    entries: bytes  # entry points, opaque; b"" when the kernel does not take the file


@dataclass(frozen=True, slots=True)
class Ranges:
    """Byte ranges in files, one per sample; arrays of equal length."""

    file: I32
    offset: I64
    length: I64
    crc32c: U32 | None = None  # None: not checked

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """How a batch ended: a status per sample, words for each bad one, and how many went through Pillow."""

    statuses: I32
    reasons: dict[int, str]
    by_pillow: int
    pillow_reasons: dict[str, int] | None = None  # why, in words -> how many
    bytes_read: int = 0


class Files:
    """Files that the kernel reads by number; opened when first needed, at most a bounded number at a time."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [os.fspath(path) for path in paths]
        # As bytes: a name need not be valid UTF-8.
        self._native = _native.Files([os.fsencode(path) for path in self.paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __reduce__(self) -> tuple[type[Files], tuple[list[str]]]:
        return Files, (self.paths,)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        self._native.close()


class Pool:
    """Native threads that take samples one by one; shared by any number of concurrent calls.

    Threads start with the first call. A child process made by fork starts its own.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.threads = threads
        self._native = _native.Pool(threads)
        self._closed = False
        self._executor: tuple[int, ThreadPoolExecutor] | None = None

    def close(self) -> None:
        """Let queued batches end, then stop the threads. May be called twice."""
        self._closed = True
        self._native.close()
        executor, self._executor = self._executor, None
        if executor and executor[0] == os.getpid():
            executor[1].shutdown()

    def map(self, work: Callable[[int], None], samples: Sequence[int]) -> None:
        """Call `work` for every sample in Python threads: for what goes through Pillow, for whole images."""
        from concurrent.futures import ThreadPoolExecutor

        # The executor's threads do not survive a fork; the process number tells. Two callers at once may make
        # two executors: the one that is not kept ends with its work.
        executor = self._executor
        if executor is None or executor[0] != os.getpid():
            executor = self._executor = (os.getpid(), ThreadPoolExecutor(self.threads, "feedrate-pillow"))
        list(executor[1].map(work, samples))


def simd_level() -> str:
    """Return which vector code runs: the best of `simd_levels()`, or what FEEDRATE_SIMD named at import."""
    return _native.simd_level()


def simd_levels() -> list[str]:
    """Return the levels of vector code that this machine can run, best first; all give the same pixels."""
    return _native.simd_levels()


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of `data`, continuing from `value`."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"value must be a 32-bit number, got {value}")
    return _native.crc32c(_as_bytes(data), value)


def scan(data: bytes) -> Scan:
    """Look at an image file once: geometry, whether the kernel decodes it, its entry points.

    Never raises for bad bytes: `reason` and `damaged` say what is wrong. What the kernel does not take is
    decoded once by Pillow, to know its size and whether it is whole.
    """
    status, words, width, height, sampling, entries = _native.scan(_as_bytes(data))
    if status == Status.OK:
        return Scan(width, height, sampling, None, False, entries)
    if status != Status.NOT_TAKEN:
        return Scan(width, height, "", words, True, b"")
    try:
        width, height = pillow.check(data)
    except pillow.Undecodable as error:
        return Scan(width, height, "", f"{words}; {error}", True, b"")
    return Scan(width, height, "", words, False, b"")


def scan_headers(data: bytes) -> Scan:
    """Look at the headers of an image file alone: no entry points, and damage in its pixels is not seen."""
    status, words, width, height = _native.probe(_as_bytes(data))
    if status == Status.OK:
        return Scan(width, height, "", None, False, b"")
    if status != Status.NOT_TAKEN:
        return Scan(width, height, "", words, True, b"")
    try:
        width, height, _ = pillow.measure(data)
    except pillow.Undecodable as error:
        return Scan(width, height, "", f"{words}; {error}", True, b"")
    return Scan(width, height, "", words, False, b"")


def to_baseline(data: bytes, orientation: int = 1) -> bytes | None:
    """Return a Huffman-coded JPEG, progressive or not, as baseline JPEG with the very same coefficients.

    With `orientation` (EXIF, 1 to 8) the image is turned upright. Application data and comments are kept as
    they are. None: it is none of these, it is damaged, or it cannot be turned without loss, since an edge is
    not a whole block.
    """
    if not 1 <= orientation <= 8:
        raise ValueError(f"orientation must be 1 to 8, got {orientation}")
    status, _, file = _native.to_baseline(_as_bytes(data), orientation)
    return file if status == Status.OK and file else None


def gather_rows(files: Files, file: I32, row: I64, bases: I64, strides: I64, dtype: np.dtype[Any]) -> Any:
    """Read rows of a columnar table straight from its file, and check each row's last column.

    Column `c` of row `r` lies at `bases[i, c] + r * strides[c]` in `files[file[i]]`. Returns `(rows,
    statuses)`: `rows` is a structured array of `dtype` (packed, one field per column); its last field holds
    the CRC-32C of the bytes before it. `bases` has one row per *sample*. A bad row is zeroed.
    """
    if dtype.names is None or dtype.fields is None:
        raise ValueError(f"dtype must have one field per column, got {dtype}")
    sizes = np.array([dtype.fields[name][0].itemsize for name in dtype.names], np.int64)
    if sizes.sum() != dtype.itemsize or sizes[-1] != 4:
        raise ValueError(f"dtype must be packed and end with a field of 4 bytes, got {dtype}")
    n, columns = len(file), len(sizes)
    file, row = _checked(file, np.int32, (n,), "file"), _checked(row, np.int64, (n,), "row")
    bases = _checked(bases, np.int64, (n, columns), "bases")
    strides = _checked(strides, np.int64, (columns,), "strides")
    rows, details = np.zeros(n, dtype), np.zeros((n, 4), np.int64)
    _native.gather_rows(
        files._native, file, row, bases.reshape(-1), strides, sizes, rows.view(np.uint8), details.reshape(-1)
    )
    return rows, details[:, 0].astype(np.int32)


def read_ranges(files: Files, ranges: Ranges, pool: Pool | None = None) -> tuple[U8, I64, I32]:
    """Read ranges one behind the other into one buffer: `(buffer, starts, statuses)`, `starts` of length N+1.

    A range that cannot be read leaves its part of the buffer zeroed.
    """
    buffer, starts, details = _read(files, ranges, pool)
    return buffer, starts, details[:, 0].astype(np.int32)


def decode_batch(
    files: Files,
    images: Ranges,
    out: U8,
    *,
    boxes: I32,
    flips: npt.NDArray[np.bool_],
    entries: Ranges | None = None,
    nearest: bool = False,
    raw: bool | npt.NDArray[np.bool_] = False,
    pool: Pool | None = None,
) -> DecodeReport:
    """Read, check, decode, crop, resize and flip images into `out`.

    Args:
        files: the files that `images` and `entries` count.
        images: where the image files lie. Of raw images only the rows under the crop are read: their blocks
            have checksums of their own, and that of the whole file is not looked at.
        out: uint8, C-contiguous, N x H x W x C; C is 3 (RGB) or 1 (gray, as Pillow's "L").
        boxes: N x 4: left, top, right, bottom in pixels of the image, inside it, not empty.
        flips: mirror left to right, after the resize.
        entries: where the entry points lie (length 0: none); None: decode from the top.
        nearest: nearest neighbour and stored values as they are (palette indices, 8-bit), for masks.
        raw: the images are stored as rows of pixels, and `entries` are their tables (native/raw.h); an array
            says it of each.
        pool: threads to use; None: the calling thread.

    Pixels are those of Pillow: `convert(mode).crop(box).resize((W, H), BILINEAR)`. A sample whose status is
    not OK leaves its part of `out` zeroed.
    """
    _check_out(out)
    n, height, width, channels = out.shape
    if len(images) != n:
        raise ValueError(f"out has room for {n} images, images has {len(images)} ranges")
    if pool is not None and pool._closed:
        raise ValueError("the pool is closed")
    boxes = _checked(boxes, np.int32, (n, 4), "boxes")
    flips = _checked(flips, np.bool_, (n,), "flips")
    is_raw = np.full(n, raw) if isinstance(raw, bool) else _checked(raw, np.bool_, (n,), "raw")
    details, bytes_read = np.zeros((n, 4), np.int64), np.zeros(n, np.int64)
    if is_raw.any() and (nearest or entries is None):
        raise ValueError("raw images need entries, and are not masks")
    if nearest:
        by_pillow = dict.fromkeys(range(n), "mask")
    else:
        _native.decode_batch(
            files=files._native,
            images=_arrays(images, n),
            entries=None if entries is None else _arrays(entries, n),
            boxes=boxes.reshape(-1),
            flips=flips.view(np.uint8),
            out=out.reshape(-1),
            shape=(height, width, channels),
            raw=is_raw.view(np.uint8),
            pool=None if pool is None else pool._native,
            bytes_read=bytes_read,
            details=details.reshape(-1),
        )
        # Pillow is asked about damage too: what it decodes without complaint is what users get today.
        found = details[:, 0]
        left_over = np.flatnonzero(((found == Status.NOT_TAKEN) | (found == Status.CORRUPT)) & ~is_raw)
        by_pillow = {int(i): _native.words(*map(int, details[i])) for i in left_over}
    statuses = details[:, 0].astype(np.int32)
    reasons = {
        int(i): _say_outcome(files, images, int(i), details[i])
        for i in np.flatnonzero(statuses)
        if int(i) not in by_pillow
    }
    if not by_pillow:
        return DecodeReport(statuses, reasons, 0, {}, int(bytes_read.sum()))
    decoded: list[str] = []  # why each went through Pillow; append() is safe in threads, counting is not

    def decode(i: int) -> None:
        counted = by_pillow[i]
        data, found = _read_one(files, images, i)
        if found[0]:
            statuses[i], reasons[i] = int(found[0]), _say_outcome(files, images, i, found)
            return
        bytes_read[i] += len(data)
        damaged = statuses[i] == Status.CORRUPT
        box: Box = tuple(boxes[i].tolist())
        statuses[i], words = _fill_by_pillow(data, out[i], box, bool(flips[i]), nearest)
        if statuses[i] == Status.OK:
            decoded.append(DAMAGED_BUT_DECODED if damaged else counted)
        else:
            reasons[i] = counted if damaged else words

    if pool is None or len(by_pillow) == 1:
        for i in by_pillow:
            decode(i)
    else:
        pool.map(decode, list(by_pillow))
    counts = dict(Counter(decoded))
    return DecodeReport(statuses, dict(sorted(reasons.items())), len(decoded), counts, int(bytes_read.sum()))


def decode_one(
    data: bytes,
    *,
    box: Box | None = None,
    size: tuple[int, int] | None = None,
    flip: bool = False,
    mode: str = "RGB",
    nearest: bool = False,
    entries: bytes = b"",
) -> U8:
    """Decode one image in memory to H x W x C (`size` is height, width); the rest as in `decode_batch`.

    Raises:
        ValueError: the image is damaged, or the box is not inside it; in words.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode must be "RGB" or "L", got {mode!r}')
    if size is not None and (size[0] < 1 or size[1] < 1):
        raise ValueError(f"size must be at least 1 x 1, got {size[0]} x {size[1]}")
    array = _as_bytes(data)
    status, words, width, height = _native.probe(array)
    channels = 3 if mode == "RGB" and not nearest else 1
    if nearest or width == 0 or status == Status.CORRUPT:
        try:
            width, height, stored_mode = pillow.measure(data)
        except pillow.Undecodable as error:
            raise ValueError(words if status == Status.CORRUPT else str(error)) from error
        channels = 3 if nearest and stored_mode == "RGB" else channels
    left, top, right, bottom = box or (0, 0, width, height)
    _check_box((left, top, right, bottom), width, height)
    rows, columns = size or (bottom - top, right - left)
    out = np.empty((rows, columns, channels), np.uint8)
    if not nearest and (status == Status.OK or len(entries)):
        status, words = _native.decode_one(
            array, _as_bytes(entries), (left, top, right, bottom), out.reshape(-1), out.shape, flip
        )
        if status == Status.OK:
            return out
        if status == Status.BAD_ENTRIES:
            raise ValueError(words)
    filled, said = _fill_by_pillow(data, out, (left, top, right, bottom), flip, nearest)
    if filled != Status.OK:
        raise ValueError(words if status == Status.CORRUPT else said)
    return out


STAGES = ("checksum", "headers", "huffman", "idct", "colour", "resize")


def profile_decode(
    data: bytes, entries: bytes, *, box: Box, size: tuple[int, int], repeats: int = 5
) -> dict[str, float]:
    """Return the seconds of processor time that each of `STAGES` takes for one crop of an image in memory.

    A stage's time is what it adds: decodes that stop after each stage are run in turn, `repeats` times, and
    the least of each counts. "headers" includes the tables and the check of the entry points.

    Raises:
        ValueError: the kernel does not decode this; in words.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    out = np.empty(size[0] * size[1] * 3, np.uint8)
    status, words, sums = _native.profile_one(_as_bytes(data), _as_bytes(entries), box, out, size, repeats)
    if status != Status.OK:
        raise ValueError(words)
    befores = [0.0, *sums[:-1]]
    return {name: max(s - before, 0.0) for name, s, before in zip(STAGES, sums, befores, strict=True)}


class Entry(enum.IntEnum):
    """What lies in a folder."""

    WANTED = 0  # a regular file with one of the suffixes that were asked for
    OTHER = 1  # another regular file
    FOLDER = 2
    ODD = 3
    UNKNOWN = 4  # it cannot be looked at: its size is the errno


@dataclass(frozen=True, slots=True)
class FolderList:
    """What lies in a folder, sorted by name; name `i` is `names[starts[i]:starts[i + 1]]`."""

    names: bytes
    starts: I64
    sizes: I64
    times_ns: I64
    kinds: U8


def list_folder(path: bytes, suffixes: Sequence[str]) -> FolderList:
    """List a folder; links are followed, names that begin with a dot are left out.

    Raises:
        OSError: it cannot be listed.
    """
    error, names, *arrays = _native.list_folder(path, [suffix.encode() for suffix in suffixes])
    if error:
        raise OSError(error, os.strerror(error), os.fsdecode(path))
    starts, sizes, times_ns = (np.frombuffer(array, np.int64) for array in arrays[:3])
    return FolderList(names, starts, sizes, times_ns, np.frombuffer(arrays[3], np.uint8))


def hash_stems(paths: bytes, starts: I64) -> npt.NDArray[np.uint64]:
    """Return a hash of each path without its suffix, dots of its last part written as '_'."""
    out = np.zeros(len(starts) - 1, np.uint64)
    _native.hash_stems(np.frombuffer(paths, np.uint8), np.ascontiguousarray(starts, np.int64), out)
    return out


def begin_writeback(fd: int) -> None:
    """Have the disk begin with what was written to a file, so that a later fsync has less to wait for."""
    _native.begin_writeback(fd)


def join_pieces(data: bytes | U8, starts: I64, lengths: I64, before: bytes = b"") -> bytes:
    """Return pieces of `data` one behind the other, each with `before` in front of it."""
    out = np.empty(int(lengths.sum()) + len(before) * len(lengths), np.uint8)
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int64)
    _native.join_pieces(_as_bytes(data), starts, lengths, before, out)
    return out.tobytes()


def crc32c_rows(rows: np.ndarray[Any, np.dtype[Any]]) -> U32:
    """Return the CRC-32C of each row of a structured array, without its last four bytes."""
    out = np.zeros(len(rows), np.uint32)
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    _native.crc32c_rows(raw, rows.dtype.itemsize, out)
    return out


class ImageKind(enum.IntEnum):
    """What `make_members` takes; of PNGs: the kinds of pixels that need no second look."""

    JPEG = 0
    GRAY_JPEG = 1
    PNG_GRAY = 2
    PNG_RGB = 3
    PNG_PALETTE = 4
    PNG_GRAY_ALPHA = 5
    PNG_RGB_ALPHA = 6
    PNG_BITS = 7


TAR_BLOCK_BYTES = 512
_MEMBER_FACTS = ("left", "crc32c", "width", "height", "kind", "has_exif", "key_bytes", "entries_bytes")


@dataclass(frozen=True, slots=True)
class Members:
    """Image files as members of a tar. `facts` has a column per name and a row per sample.

    The members of sample `i` are `buffer[starts[i]:starts[i + 1]]`, unless `left` says that it is for the
    caller; `keys` and `entries` of the others lie one behind the other.
    """

    buffer: U8
    starts: I64
    facts: dict[str, I64]
    keys: bytes
    entries: bytes


def make_members(
    root: bytes,
    paths: bytes,
    path_starts: I64,
    sizes: I64,
    labels: I64 | None,
    *,
    header: bytes,
    scan: bool = True,
    pool: Pool | None = None,
    memory: U8 | None = None,
) -> Members:
    """Read image files, look at each, and lay them out as members of a tar: KEY.jpg, and KEY.cls with labels.

    Args:
        paths: relative to `root`; path `i` is `paths[path_starts[i]:path_starts[i + 1]]`.
        header: a tar header for an empty name and size 0.
        scan: note entry points; else only the headers of JPEGs are read.
        memory: for the members, if it is large enough: pages that were used before cost nothing.

    A sample is left to the caller when anything about it is out of the ordinary: its name, its size, its
    image.
    """
    if pool is not None and pool._closed:
        raise ValueError("the pool is closed")
    sizes = np.ascontiguousarray(sizes, np.int64)
    rooms = TAR_BLOCK_BYTES + -(-sizes // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
    rooms += 0 if labels is None else 2 * TAR_BLOCK_BYTES
    starts = np.concatenate(([0], np.cumsum(rooms))).astype(np.int64)
    room = int(starts[-1])
    buffer = memory[:room] if memory is not None and len(memory) >= room else np.empty(room, np.uint8)
    facts = np.zeros((len(sizes), len(_MEMBER_FACTS)), np.int64)
    keys, entries = _native.make_members(
        root,
        _as_bytes(paths),
        np.ascontiguousarray(path_starts, np.int64),
        sizes,
        None if labels is None else np.ascontiguousarray(labels, np.int64),
        np.frombuffer(header, np.uint8),
        scan,
        starts,
        buffer,
        None if pool is None else pool._native,
        facts.reshape(-1),
    )
    return Members(buffer, starts, dict(zip(_MEMBER_FACTS, facts.T, strict=True)), keys, entries)


def _as_bytes(data: Any) -> npt.NDArray[Any]:
    view = memoryview(data)
    return np.frombuffer(view, np.uint8) if view.nbytes else _NONE


def _checked(array: Any, dtype: Any, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return `array`, C-contiguous; a copy only where it was not."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        is_array = isinstance(array, np.ndarray)
        kind = f"{array.dtype} of shape {array.shape}" if is_array else type(array).__name__
        raise ValueError(f"{name} must be {np.dtype(dtype)} of shape {shape}, got {kind}")
    return np.ascontiguousarray(array)


def _check_out(out: Any) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8 or out.ndim != 4:
        raise ValueError("out must be a uint8 array of shape N x H x W x C")
    if out.shape[3] not in (1, 3) or out.shape[1] < 1 or out.shape[2] < 1:
        raise ValueError(f"out must be N x H x W x C with C 1 or 3, got {' x '.join(map(str, out.shape))}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be C-contiguous and writeable")


def _check_box(box: Box, width: int, height: int) -> None:
    left, top, right, bottom = box
    if left >= right or top >= bottom:
        raise ValueError(f"the crop box {box} is empty")
    if left < 0 or top < 0 or right > width or bottom > height:
        raise ValueError(f"the crop box {box} is not inside the image of {width} x {height} pixels")
    if (right - left) * (bottom - top) > MAX_CROP_PIXELS:
        raise ValueError(f"the crop box {box} has more than {MAX_CROP_PIXELS} pixels")


def _arrays(ranges: Ranges, n: int) -> tuple[I32, I64, I64, U32]:
    crc = np.empty(0, np.uint32) if ranges.crc32c is None else ranges.crc32c
    return (
        _checked(ranges.file, np.int32, (n,), "file"),
        _checked(ranges.offset, np.int64, (n,), "offset"),
        _checked(ranges.length, np.int64, (n,), "length"),
        _checked(crc, np.uint32, (0,) if ranges.crc32c is None else (n,), "crc32c"),
    )


def _say_outcome(files: Files, ranges: Ranges, i: int, detail: I64) -> str:
    words = _native.words(*map(int, detail))
    number = int(ranges.file[i])
    if detail[0] == Status.UNREADABLE and 0 <= number < len(files):
        return f"{files.paths[number]} {words}"
    return words


def _read(files: Files, ranges: Ranges, pool: Pool | None) -> tuple[U8, I64, I64]:
    n = len(ranges)
    arrays = _arrays(ranges, n)
    lengths = arrays[2]
    if n and int(lengths.min()) < 0:
        raise ValueError(f"length must not be negative, got {int(lengths.min())}")
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    details = np.zeros((n, 4), np.int64)
    buffer = np.empty(int(starts[-1]), np.uint8)
    native = None if pool is None else pool._native
    _native.read_ranges(files._native, arrays, starts, buffer, native, details.reshape(-1))
    return buffer, starts, details


def _read_one(files: Files, ranges: Ranges, i: int) -> tuple[bytes, I64]:
    crc = None if ranges.crc32c is None else ranges.crc32c[i : i + 1]
    one = Ranges(ranges.file[i : i + 1], ranges.offset[i : i + 1], ranges.length[i : i + 1], crc)
    buffer, _, details = _read(files, one, None)
    return buffer.tobytes(), details[0]


def _fill_by_pillow(data: bytes, out: U8, box: Box, flip: bool, nearest: bool) -> tuple[Status, str]:
    """Decode with Pillow into `out` (H x W x C); zeroes it when that fails."""
    out[:] = 0
    try:
        width, height, _ = pillow.measure(data)
        try:
            _check_box(box, width, height)
        except ValueError as error:
            return Status.BAD_BOX, str(error)
        pixels = (pillow.decode_mask if nearest else pillow.decode)(data, box, out.shape)
    except pillow.Undecodable as error:
        return Status.CORRUPT, str(error)
    out[:] = pixels[:, ::-1] if flip else pixels
    return Status.OK, ""
