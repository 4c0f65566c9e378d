# SPDX-License-Identifier: Apache-2.0
"""Files that are written to a folder to measure its disk, and read: one large one, then many small ones.

All lie in a folder of our own below the folder that was named (files/own_folder.py).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from feedrate.errors import NotFound, StorageError, suggest_path
from feedrate.figures import ASSUMED, Figure
from feedrate.files.atomic import sync_file_system, writing
from feedrate.lab.store import call_patiently, measure_store
from feedrate.machine.disk import describe_storage, measure_room, measure_scratch, try_to_reserve
from feedrate.machine.memory import MemoryGauge
from feedrate.machine.results import StoreSpeed
from feedrate.units import format_bytes, format_count

GB = 1_000_000_000
_BLOCK_BYTES = 1 << 20
_CHUNK_BYTES = 32 << 20  # written through to the disk at once, so that time runs with the bytes
_CHUNK_FILES = 100
_NEW_FILES, _NEW_BYTES = 100, 10_000  # that tell how long making one takes


class Sizes(NamedTuple):
    """How much is written: a large file, small ones of `each_bytes` on average; seconds for each step."""

    file_bytes: int
    files: int
    each_bytes: int
    seconds: float
    read_s: float

    def divided(self, by: int) -> Sizes:
        return self._replace(file_bytes=self.file_bytes // by, files=max(1, self.files // by))


FULL = Sizes(GB, 10_000, 100_000, 6.0, 4.0)
QUICK = Sizes(GB // 8, 1_000, 100_000, 1.5, 1.5)
BRIEF = Sizes(48 << 20, 120, 16 << 10, 1.0, 1.0)  # what a plan has time for


def check_store(folder: Path) -> None:
    """Raise what keeps a folder from being measured, as far as looking tells.

    Raises:
        NotFound: it is not there.
        StorageError: it is no folder, cannot be written to, or does not answer.
    """
    if not call_patiently(str(folder), folder.exists):
        raise NotFound(f"no folder at {folder}", hint=suggest_path(folder))
    if not folder.is_dir():
        raise StorageError(f"{folder} is not a folder", hint="name a folder on the file system to measure")
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise StorageError(
            f"cannot write to {folder}: {error.strerror or error}",
            hint="to measure a store, files are written, read and removed: name a folder there that you may "
            "write to; 'feedrate plan DATASET' measures with the dataset's own files",
        ) from error


def choose_sizes(folder: Path, wanted: Sizes) -> Sizes:
    """Return how much may be written there: less than wanted, where room, quota or memory ask for it.

    Raises:
        StorageError: there is too little room.
    """
    is_memory, why = describe_storage(folder).is_memory, ""
    for by in (1, 4, 16):
        sizes = wanted.divided(by)
        needed = max(sizes.file_bytes, sizes.files * sizes.each_bytes)
        with writing(folder / "files", needed):
            why = _find_lack(folder, sizes, needed, is_memory=is_memory)
        if not why:
            return sizes
    raise StorageError(f"too little room at {folder}: {why}", hint="make room there, or name another folder")


def _find_lack(folder: Path, sizes: Sizes, needed: int, *, is_memory: bool) -> str:
    room = measure_room(folder)
    if room.free_bytes < needed + needed // 4:
        return f"{format_bytes(room.free_bytes)} free"
    if room.free_files is not None and room.free_files < 3 * sizes.files:
        return f"{room.free_files:,} more files may be made"
    if is_memory:
        free = MemoryGauge().measure().free_bytes
        return f"it lies in memory, which has {format_bytes(free)} free" if free < 4 * needed else ""
    failed = try_to_reserve(folder, needed)  # as quotas show
    return (failed.strerror or str(failed)).lower() if failed else ""


def measure_files(inside: Path, sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> StoreSpeed:
    """Write files into a folder of our own, and read them from the disk.

    Raises:
        StorageError: the disk said no.
    """
    with writing(inside / "files"):
        say(f"one file of {format_bytes(sizes.file_bytes)}, written, read")
        large = inside / "large"
        written = _write_large(large, sizes)
        whole = measure_store(str(inside), [(str(large), written)], seconds=sizes.read_s)
        large.unlink()
        say(f"{sizes.files:,} files of {format_bytes(sizes.each_bytes)}, written, read")
        small = _write_small(inside / "small", sizes)
        files = [(str(path), size) for path, size in small]
        apart = measure_store(str(inside), files, seconds=sizes.read_s)
        shutil.rmtree(inside / "small")
        rate, create_s = measure_writes(str(inside), seconds=sizes.read_s / 2)
    speed = _combine(whole, apart, sizes.each_bytes)
    return replace(speed, write_bytes_per_s=rate, create_s=create_s)


def measure_writes(folder: str, *, seconds: float = 2.0) -> tuple[Figure, Figure]:
    """Return the bytes per second of writing one file to the disk, and the seconds of making a small one.

    Raises:
        StorageError: the folder cannot be written to, has no room, or does not answer.
    """
    call_patiently(folder, lambda: os.path.exists(folder))
    rates = [measure_scratch(folder, seconds=seconds / 8).write_bytes_per_s for _ in range(4)]
    times, data = [], os.urandom(_NEW_BYTES)
    deadline = time.perf_counter() + seconds / 4
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="feedrate-bench-") as inside:
            for number in range(_NEW_FILES):
                began = time.perf_counter()
                with open(os.path.join(inside, str(number)), "xb", buffering=0) as file:
                    file.write(data)
                times.append(time.perf_counter() - began)
                if time.perf_counter() > deadline:
                    break
    except OSError as error:
        raise StorageError(f"cannot make files in {folder}: {error.strerror or error}") from error
    return Figure.of_mean(rates), Figure.of_mean(times, format_count(len(times), "file"))


def _combine(whole: StoreSpeed, apart: StoreSpeed, each_bytes: int) -> StoreSpeed:
    """Return the rates of the large file, and the time per file that is left of the small ones'.

    From memory, small files have a rate of their own, since they stay in the caches of the CPU.
    """
    file_s = _take_off(apart.file_s, each_bytes, apart.stream_bytes_per_s, whole.stream_bytes_per_s)
    warm_file_s, warm = apart.warm_file_s, apart.warm_bytes_per_s
    if warm_file_s and warm and whole.warm_bytes_per_s and warm.origin == ASSUMED:
        warm_file_s = _take_off(warm_file_s, each_bytes, warm, whole.warm_bytes_per_s)
        warm = whole.warm_bytes_per_s
    return replace(
        whole, file_s=file_s, warm_file_s=warm_file_s, warm_bytes_per_s=warm, files_per_s=apart.files_per_s,
        stat_s=apart.stat_s,
    )  # fmt: skip


def _take_off(file_s: Figure, each_bytes: int, at: Figure, instead: Figure) -> Figure:
    change = each_bytes / at.value - each_bytes / instead.value
    return file_s.moved(change, 0.5 * file_s.value)  # a file is not opened in no time


def _write_large(path: Path, sizes: Sizes) -> int:
    """Write one file through to the disk, for as long as there is time, and drop it from memory."""
    block = random.randbytes(_BLOCK_BYTES)
    deadline, written = time.perf_counter() + sizes.seconds, 0
    with open(path, "xb", buffering=0) as file:
        while written < sizes.file_bytes and time.perf_counter() < deadline:
            for _ in range(min(_CHUNK_BYTES, sizes.file_bytes - written) // _BLOCK_BYTES or 1):
                written += file.write(block)
            os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return written


def _write_small(folder: Path, sizes: Sizes) -> list[tuple[Path, int]]:
    """Write files of different sizes into folders of 100, and drop them from memory."""
    block, made = random.randbytes(2 * sizes.each_bytes), list[tuple[Path, int]]()
    deadline = time.perf_counter() + sizes.seconds
    for number in range(sizes.files):
        path = folder / f"{number // _CHUNK_FILES:03d}" / f"{number:05d}"
        if not number % _CHUNK_FILES:
            path.parent.mkdir(parents=True)
        size = round(sizes.each_bytes * (0.5 + (number * 0.618) % 1))  # spread from half to one and a half
        path.write_bytes(memoryview(block)[:size])
        made.append((path, size))
        if time.perf_counter() > deadline:
            break
    sync_file_system(folder)
    for path, _ in made:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return made
