# SPDX-License-Identifier: Apache-2.0
# What native/module.cpp offers. Only feedrate.kernel calls it; arrays are one-dimensional and contiguous.
from typing import Any

import numpy as np
import numpy.typing as npt

_U8 = npt.NDArray[np.uint8]
_I32 = npt.NDArray[np.int32]
_I64 = npt.NDArray[np.int64]
_U32 = npt.NDArray[np.uint32]
_F32 = npt.NDArray[np.float32]
_Ranges = tuple[_I32, _I64, _I64, _U32]  # file, offset, length, crc32c (empty: not checked)
_Crops = tuple[_I32, _I32, _I32, _U8, _U8]  # file_of, samples, boxes, flips, filters

class Files:
    def __init__(self, paths: list[bytes], /) -> None: ...
    def close(self) -> None: ...

class Pool:
    def __init__(self, threads: int, nice: int, /) -> None: ...
    def set_limit(self, limit: int, /) -> None: ...
    def cpu_seconds(self) -> float: ...
    def cancel(self) -> None: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...

class Inputs:
    def __init__(self, images: list[Any], entries: list[Any], /) -> None: ...
    def load(self, numbers: _I32, pool: Pool | None) -> int: ...
    def measure(self, numbers: _I64, pool: Pool | None, facts: _I32) -> None: ...
    def at(self, number: int, /) -> tuple[_U8, _U8]: ...

class GpuPlan:
    def __init__(self) -> None: ...
    def look(
        self,
        inputs: Inputs,
        bytes_per_entry: int,
        most_pixels: int,
        crops: _Crops,
        before_13: bool,
        shape: tuple[int, int],
        most_memory: int,
        words: _U8,
        pool: Pool | None,
        taken: _U8,
    ) -> None: ...
    def read(
        self,
        files: Files,
        images: _Ranges,
        entries: _Ranges,
        crops: _Crops,
        before_13: bool,
        shape: tuple[int, int],
        most_memory: int,
        words: _U8,
        pool: Pool | None,
        taken: _U8,
    ) -> None: ...
    def sizes(self) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]: ...
    def components(self, out: _U8) -> None: ...
    def fill(self, pool: Pool | None, staged: _U8) -> None: ...

def simd_level() -> str: ...
def simd_levels() -> list[str]: ...
def words(status: int, why: int, a: int, b: int, /) -> str: ...
def crc32c(data: npt.NDArray[Any], value: int, /) -> int: ...
def crc32c_by_table(data: npt.NDArray[Any], value: int, /) -> int: ...
def probe(data: npt.NDArray[Any], /) -> tuple[int, str, int, int]: ...
def scan(data: npt.NDArray[Any], bytes_per_entry: int, /) -> tuple[int, str, int, int, str, bytes, int]: ...
def to_baseline(data: npt.NDArray[Any], orientation: int, /) -> tuple[int, str, bytes]: ...
def decode_one(
    data: npt.NDArray[Any],
    entries: npt.NDArray[Any],
    box: tuple[int, int, int, int],
    out: _U8,
    shape: tuple[int, int, int],
    flip: bool,
    filter_: int,
    before_13: bool,
    /,
) -> tuple[int, str]: ...
def resize_one(
    pixels: _U8,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    out: _U8,
    shape: tuple[int, int],
    flip: bool,
    filter_: int,
    before_13: bool,
    /,
) -> None: ...
def draw(
    data: npt.NDArray[Any],
    entries: npt.NDArray[Any],
    recipe: tuple[Any, ...],
    across_first: bool,
    out: _U8,
    /,
) -> tuple[int, str]: ...
def draw_from(
    pixels: _U8, size: tuple[int, int], recipe: tuple[Any, ...], across_first: bool, out: _U8, /
) -> None: ...
def apply_table(pixels: _U8, channels: int, table: _F32, planar: bool, out: _F32, /) -> None: ...
def profile_one(
    data: npt.NDArray[Any],
    entries: npt.NDArray[Any],
    box: tuple[int, int, int, int],
    out: _U8,
    shape: tuple[int, int],
    repeats: int,
    filter_: int,
    /,
) -> tuple[int, str, list[float]]: ...
def decode_batch(
    files: Files,
    images: _Ranges,
    entries: _Ranges | None,
    boxes: _I32,
    flips: _U8,
    filters: _U8,
    before_13: bool,
    out: _U8,
    shape: tuple[int, int, int],
    raw: _U8,
    pool: Pool | None,
    bytes_read: _I64,
    details: _I64,
) -> None: ...
def check_ranges(files: Files, ranges: _Ranges, pool: Pool | None, details: _I64) -> None: ...
def read_ranges(
    files: Files, ranges: _Ranges, starts: _I64, buffer: _U8, pool: Pool | None, details: _I64
) -> None: ...
def gather_rows(
    files: Files, file: _I32, row: _I64, bases: _I64, strides: _I64, sizes: _I64, out: _U8, details: _I64, /
) -> None: ...
def list_folder(
    path: bytes, suffixes: list[bytes], most_threads: int, stop: bytes | bytearray, /
) -> tuple[int, bytes, bytes, bytes, bytes, bytes]: ...
def hash_stems(paths: _U8, starts: _I64, out: npt.NDArray[np.uint64], /) -> None: ...
def find_first(texts: _U8, starts: _I64, /) -> int: ...
def join_pieces(data: _U8, starts: _I64, lengths: _I64, before: bytes, out: _U8, /) -> None: ...
def crc32c_rows(rows: _U8, width: int, out: _U32, /) -> None: ...
def crc32c_texts(texts: _U8, starts: _I64, out: _U32, /) -> None: ...
def make_members(
    root: bytes,
    paths: _U8,
    path_starts: _I64,
    sizes: _I64,
    labels: _I64 | None,
    header: _U8,
    scan: bool,
    bytes_per_entry: int,
    starts: _I64,
    out: _U8,
    pool: Pool | None,
    facts: _I64,
) -> tuple[bytes, bytes]: ...
