# SPDX-License-Identifier: Apache-2.0
"""The one stopwatch of a file system: it times the calls of a loader, on files that lie there.

Whole files are opened and read, by one reader and by many. A second read of a file is fast, here and on
servers: each part of a measurement reads files, or parts of large files, that no other part has read, in an
order that is new each time. Pages that it brought into memory it drops again. Files that were in memory
before tell nothing of the disk: where there are no others, its figures are assumed, between those of a usual
disk and of memory. The copier of `feedrate stage` is timed in lab/copier.py, a DataLoader's workers in
lab/samples.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import NamedTuple, TypeVar

import numpy as np

from feedrate.calls import map_in_time
from feedrate.errors import StorageError
from feedrate.figures import ASSUMED, Figure, combine
from feedrate.machine.cpu import measure_usable_cores, read_cpuset
from feedrate.machine.disk import describe_storage
from feedrate.machine.memory import average_residency, measure_open_residency
from feedrate.machine.process import find_openers, read_core_times, read_stat
from feedrate.machine.results import Storage, StoreSpeed
from feedrate.stats import median
from feedrate.units import format_count

Result = TypeVar("Result")

NO_ANSWER_S = 15.0  # without an answer, before a store counts as hanging
NOT_SEEN = "all files that were looked at were in memory: the disk itself was not seen"
_FIRST_BYTES = 4096
_BLOCK_BYTES = 1 << 20
_LARGE_BYTES = 4 << 20  # of such a file, each part of the measurement reads another part
_PIECE_BYTES = 8 << 20
_MOST_BYTES = 64 << 20  # of one file, one after another
_READ_BYTES = 8192
_READS, _READS_PER_FILE = 400, 32
_IN_MEMORY, NOT_IN_MEMORY = 0.5, 0.02  # shares of a file's pages
_FULL = 0.7  # of the files per second that can be opened: then they are the limit, not the bytes;
_TINY_BYTES = 16_000  # nor are they for such files, on average
_USUAL_BYTES_PER_S = 1e8  # a link of 1 Gbit/s, a disk that spins
_TOO_SMALL = "the files are too small to show a rate"
_SLOTS = 6  # of time, whose rates give the interval
# Shares of the time: one after another, the same again, opening together, reading together, in an open file.
_ONE, _AGAIN, _OPEN, _TOGETHER, _INSIDE = 0.3, 0.12, 0.16, 0.24, 0.15
_STAT, _MOST_STATS = 0.03, 50
MANY_READERS = 16
_CROWDED = 0.25  # of the cores that this job may use, taken by others


class _UsualDisk(NamedTuple):
    """The figures of a kind of disk, within a factor, where only the page cache was seen."""

    file_s: float
    bytes_per_s: float


_NETWORK, _SPINNING, _FLASH = _UsualDisk(2e-3, 2e8), _UsualDisk(1e-2, 1.5e8), _UsualDisk(3e-4, 6e8)
_USUAL_WITHIN = 5.0


class Neighbours:
    """The cores that other processes take, from its making on: measurements meanwhile take longer.

    Processes that serve a file system on this node (FUSE) are no neighbours: their work is the store's.
    """

    def __init__(self) -> None:
        self._cores = read_cpuset(0)
        self._began, self._before = time.perf_counter(), self._read_others()

    def _read_others(self) -> float:
        busy = math.fsum(core.busy_s for name, core in read_core_times().items() if name in self._cores)
        return busy - math.fsum(os.times()[:4]) - measure_servers()

    def describe(self) -> str:
        """Return a sentence where they take so much that figures err; empty: they do not."""
        seconds, usable = time.perf_counter() - self._began, measure_usable_cores()
        cores = max(self._read_others() - self._before, 0.0) / max(seconds, 1e-3)
        if seconds < 0.2 or cores < _CROWDED * usable:
            return ""
        return f"other processes took {cores:.1f} of {usable:.3g} cores meanwhile"


def measure_servers() -> float:
    """Return the CPU time so far of processes that serve file systems on this node, of those in sight."""
    found = (read_stat(pid) for pid in find_openers("/dev/fuse"))
    return math.fsum(stat.cpu_s for stat in found if stat is not None)


def call_patiently(path: str, function: Callable[[], Result], seconds: float = NO_ANSWER_S) -> Result:
    """Call a function that asks a store, which may never answer, and return its result.

    It runs in a thread that is left behind where it hangs, and does not keep the process from ending.

    Raises:
        StorageError: there was no answer for `seconds`.
    """
    for found in map_in_time(lambda call: call(), [function], threads=1, seconds=seconds, hang_s=0.0):
        return found
    raise StorageError(
        f"{path} did not answer for {seconds:.0f} s: the server or the disk behind it hangs",
        hint="ask who runs the machine, or name a copy on another disk",
    )


def measure_store(
    folder: str, files: Sequence[tuple[str, int]], *, seconds: float = 4.0, streams: int = MANY_READERS
) -> StoreSpeed:
    """Read some of the files, for about `seconds` in all; nothing is written.

    Args:
        files: paths on the file system of `folder`, and their sizes; the more, the better.
        streams: readers at a time, for the rates of all of them together.

    Raises:
        StorageError: no file could be read, or the store does not answer.
    """

    def measure() -> StoreSpeed:
        return _Measurement(folder, files, seconds, streams).run()

    return call_patiently(folder, measure, NO_ANSWER_S + seconds)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _forget(descriptor: int, start: int = 0, stop: int = 0) -> None:
    """Drop pages of a file from memory; stop 0: all from `start` on."""
    os.posix_fadvise(descriptor, start, max(stop - start, 0), os.POSIX_FADV_DONTNEED)


class _Piece(NamedTuple):
    """A part of a file."""

    path: str
    start: int
    stop: int


@dataclass(slots=True)
class _Reading:
    """The times of opening a file and reading a piece of it, block by block: (bytes, seconds)."""

    resident: float | None  # the share of the file that was in memory before; None: unknown
    open_s: float
    blocks: list[tuple[int, float]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.blocks)

    @property
    def read_s(self) -> float:
        return sum(took for _, took in self.blocks)

    @property
    def is_cold(self) -> bool:
        return self.resident is None or self.resident <= _IN_MEMORY

    @property
    def is_ours(self) -> bool:
        """Return whether all its pages are there because of this measurement."""
        return self.resident is not None and self.resident <= NOT_IN_MEMORY


class _Measurement:
    """One measurement: the files dealt out to its parts, and their results."""

    def __init__(self, folder: str, files: Sequence[tuple[str, int]], seconds: float, streams: int) -> None:
        self._folder, self._seconds, self._streams = folder, seconds, streams
        self._files = [(path, size) for path, size in files if size > 0]
        random.shuffle(self._files)
        self._error: OSError | None = None
        self._has_cold = True

    def run(self) -> StoreSpeed:
        storage = describe_storage(self._folder)
        first, opened, together, inside, asked = self._deal()
        stat_s = self._ask_sizes(asked)
        once, again = self._read_one_by_one(first)
        readings = [reading for reading in once if reading.is_cold]
        self._has_cold = bool(readings)
        readings = readings or once
        if not readings:
            raise self._explain()
        file_s, stream = _fit(readings)
        files_per_s = self._open_together(opened) or Figure.within(1 / file_s.value, 3.0, ASSUMED)
        total, opens_per_s = self._read_together(together)
        seen = total or Figure.exactly(0.0)
        each_bytes = seen.value / max(opens_per_s, 1e-9)
        is_full = each_bytes < _BLOCK_BYTES and opens_per_s > _FULL * files_per_s.value
        if is_full or each_bytes < _TINY_BYTES:
            total = None
        if stream is None:
            file_s, stream = _bound(readings, total)
        if total is None:
            most = max(seen.value, stream.value)
            total = Figure(most, seen.low or stream.low, 10 * most, ASSUMED, _TOO_SMALL)
        resident = average_residency((r.size_bytes, r.resident) for r in once if r.resident is not None)
        warm = _fit(again) if again else None
        if warm and stat_s and (storage.is_network or storage.is_fuse):
            # A name that was asked for just now is known for some seconds, and by the next epoch forgotten.
            asking = {"file": warm[0], "asking": stat_s}
            warm = combine(lambda file, asking: file + asking, asking), warm[1]
        note = format_count(len(readings), "file")
        note += ", a virtual disk, which its host may cache" if storage.is_virtual_disk else ""
        speed = StoreSpeed(
            path=self._folder,
            kind=storage.kind,
            file_s=replace(file_s, note=note),
            read_s=self._read_inside(inside)
            or replace(file_s, origin=ASSUMED, note="as long as opening a file"),
            stream_bytes_per_s=replace(stream, note=stream.note or note),
            total_bytes_per_s=replace(total, note=total.note or f"{self._streams} readers"),
            files_per_s=replace(files_per_s, note=files_per_s.note or f"{self._streams} readers"),
            streams=self._streams,
            warm_file_s=warm[0] if warm else None,
            warm_bytes_per_s=(warm[1] or _bound(again, None)[1]) if warm else None,
            keeps_pages=self._find_keeping(readings, again),
            cold_share=None if resident is None else 1 - resident,
            stat_s=stat_s,
        )
        return speed if self._has_cold or storage.is_memory else _assume_cold(speed, storage)

    def _ask_sizes(self, files: list[tuple[str, int]]) -> Figure | None:
        times: list[float] = []
        began = now = time.perf_counter()
        for path, _ in files[:_MOST_STATS]:
            with contextlib.suppress(OSError):
                os.stat(path)
                times.append(time.perf_counter() - now)
            now = time.perf_counter()
            if now - began > _STAT * self._seconds:
                break
        if len(times) < 3:
            return None
        # A few that waited for a core would make the mean of so short answers.
        mean, middle = Figure.of_mean(times[1:], format_count(len(times) - 1, "file")), median(times[1:])
        return replace(mean, value=middle, low=min(mean.low, middle), high=max(mean.high, middle))

    def _deal(self) -> list[list[tuple[str, int]]]:
        files, parts = self._files, 5
        if len(files) >= parts * self._streams:
            return [files[part::parts] for part in range(parts)]
        return [files] * parts  # few: of the large ones, each part reads another range

    def _explain(self) -> StorageError:
        if self._error is None:
            return StorageError(f"there is no file in {self._folder} to measure its speed with")
        path = os.fsdecode(self._error.filename or self._folder)
        return StorageError(f"cannot read {path}: {self._error.strerror or self._error}")

    def _read_one_by_one(self, files: list[tuple[str, int]]) -> tuple[list[_Reading], list[_Reading]]:
        """Return the times of files, and of those that were not in memory, read again at once."""
        once: list[_Reading] = []
        again: list[_Reading] = []
        began, again_s, buffer = time.perf_counter(), 0.0, bytearray(_BLOCK_BYTES)
        for path, size in files:
            if time.perf_counter() - began - again_s > _ONE * self._seconds:
                break
            piece = _Piece(path, 0, min(size // 4, _MOST_BYTES) if size >= _LARGE_BYTES else size)
            deadline = time.perf_counter() + _ONE * self._seconds / 2
            reading = self._read(piece, buffer, deadline, is_dropped=False)
            if reading is None:
                continue
            once.append(reading)
            piece = piece._replace(stop=max(1, reading.size_bytes))
            if not reading.is_cold:
                again.append(reading)
            elif again_s < _AGAIN * self._seconds:
                now = time.perf_counter()
                second = self._read(piece, buffer, math.inf, is_dropped=reading.is_ours)
                again += [second] if second else []
                again_s += time.perf_counter() - now
            elif reading.is_ours:
                self._drop(piece)
        return once, again

    def _read(
        self,
        piece: _Piece,
        buffer: bytearray,
        deadline: float,
        *,
        is_dropped: bool | None,
        count: Callable[[int], None] = lambda _: None,
    ) -> _Reading | None:
        """Read a piece until the deadline; None: that failed. `is_dropped`: None: if the pages are ours."""
        try:
            began = time.perf_counter()
            with _opened(piece.path) as descriptor:
                size = os.fstat(descriptor).st_size
                open_s = time.perf_counter() - began
                reading = _Reading(measure_open_residency(descriptor, *piece), open_s)
                if is_dropped is None and self._has_cold and not reading.is_cold:
                    return None
                offset, stop = piece.start, min(piece.stop, size)
                while offset < stop:
                    began = time.perf_counter()
                    got = os.preadv(descriptor, [memoryview(buffer)[: stop - offset]], offset)
                    now = time.perf_counter()
                    reading.blocks.append((got, now - began))
                    count(got)
                    offset += got
                    if not got or now > deadline:
                        break
                if is_dropped or (is_dropped is None and reading.is_ours):
                    _forget(descriptor, piece.start, offset)
        except OSError as error:
            self._error = error
            return None
        return reading if reading.blocks else None

    def _drop(self, piece: _Piece) -> None:
        with contextlib.suppress(OSError), _opened(piece.path) as descriptor:
            _forget(descriptor, piece.start, piece.stop)

    def _open_together(self, files: list[tuple[str, int]]) -> Figure | None:
        chosen = files if len(files) >= self._streams else cycle(files)

        def open_one(file: tuple[str, int], _: bytearray, count: Callable[[int], None]) -> None:
            path, size = file
            with _opened(path) as descriptor:
                # Of large files it takes longer to ask than to open them; their first page may stay.
                resident = measure_open_residency(descriptor, path) if size < _LARGE_BYTES else None
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # the first bytes alone
                os.pread(descriptor, _FIRST_BYTES, 0)
                if resident is not None and resident <= NOT_IN_MEMORY:
                    _forget(descriptor)
            count(1)

        return self._run_together(chosen, open_one, _OPEN)

    def _read_together(self, files: list[tuple[str, int]]) -> tuple[Figure | None, float]:
        """Return the bytes per second of all readers, and the files that they opened per second for that."""
        pieces = []
        for path, size in files:
            if size < _LARGE_BYTES:
                pieces.append(_Piece(path, 0, size))
                continue
            starts = range(size // 4, 3 * size // 4, _PIECE_BYTES)
            pieces += [_Piece(path, start, min(start + _PIECE_BYTES, 3 * size // 4)) for start in starts]
        random.shuffle(pieces)
        opened: list[float] = []
        deadline = time.perf_counter() + _TOGETHER * self._seconds

        def read_one(piece: _Piece, buffer: bytearray, count: Callable[[int], None]) -> None:
            if self._read(piece, buffer, deadline, is_dropped=None, count=count):
                opened.append(time.perf_counter())

        began = time.perf_counter()
        rate = self._run_together(pieces, read_one, _TOGETHER)
        return rate, len(opened) / (opened[-1] - began) if opened else 0.0

    def _run_together(
        self,
        work: Iterable[Result],
        act: Callable[[Result, bytearray, Callable[[int], None]], None],
        share: float,
    ) -> Figure | None:
        """Return the rate at which readers count up, each acting on one piece of work after another."""
        events: list[tuple[float, int]] = []
        left, lock = iter(work), threading.Lock()
        began = time.perf_counter()
        deadline = began + share * self._seconds

        def run() -> None:
            buffer = bytearray(_BLOCK_BYTES)
            while time.perf_counter() < deadline:
                with lock:
                    one = next(left, None)
                if one is None:
                    return
                try:
                    act(one, buffer, lambda count: events.append((time.perf_counter(), count)))
                except OSError as error:
                    self._error = error

        # Daemons: where the store hangs, they are left behind.
        threads = [threading.Thread(target=run, daemon=True) for _ in range(self._streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return find_rate(began, events, self._streams)

    def _read_inside(self, files: list[tuple[str, int]]) -> Figure | None:
        """Return the seconds for a read of a few KB, anywhere in a file that is open."""
        times: list[float] = []
        buffer = bytearray(_READ_BYTES)
        deadline = time.perf_counter() + _INSIDE * self._seconds
        for path, _ in files:
            try:
                with _opened(path) as descriptor:
                    size = os.fstat(descriptor).st_size
                    # Of a large file its last quarter, which no other part reads.
                    start = 3 * size // 4 if size >= _LARGE_BYTES else 0
                    resident = measure_open_residency(descriptor, path, start, size)
                    if self._has_cold and resident is not None and resident > _IN_MEMORY:
                        continue
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                    blocks = range(-(-start // _READ_BYTES), size // _READ_BYTES) if start else range(1)
                    count = max(_READS_PER_FILE, _READS // len(files))
                    # Each once: a block that was read before is in memory.
                    for block in random.sample(blocks, min(count, len(blocks))):
                        began = time.perf_counter()
                        os.preadv(descriptor, [buffer], block * _READ_BYTES)
                        times.append(time.perf_counter() - began)
                        if time.perf_counter() > deadline:
                            break
                    if resident is not None and resident <= NOT_IN_MEMORY:
                        _forget(descriptor, start)
            except OSError as error:
                self._error = error
            if time.perf_counter() > deadline:
                break
        return Figure.of_mean(times, format_count(len(times), "read")) if times else None

    def _find_keeping(self, readings: list[_Reading], again: list[_Reading]) -> bool | None:
        if not (again and self._has_cold):
            return None if self._has_cold else True
        once, twice = (
            sum(one.read_s for one in some) / sum(one.size_bytes for one in some)
            for some in (readings, again)
        )
        return twice < once / 2


def find_rate(began: float, events: list[tuple[float, int]], streams: int) -> Figure | None:
    if not events:
        return None
    events.sort()
    end = events[-1][0]
    slot_s = (end - began) / _SLOTS
    if len(events) < 4 * streams or slot_s <= 0:
        rate = sum(count for _, count in events) / max(end - began, 1e-9)
        return Figure.within(rate, 1.3, "measured", f"{format_count(len(events), 'read')}, {streams} readers")
    slots = [0] * _SLOTS
    for at, count in events:
        slots[min(int((at - began) / slot_s), _SLOTS - 1)] += count
    return Figure.of_mean([count / slot_s for count in slots[1:]])  # in the first, readers begin


def _fit(readings: Sequence[_Reading]) -> tuple[Figure, Figure | None]:
    """Return seconds per file and bytes per second, so that `file + bytes / rate` is the time of readings.

    Bytes per second: None: the files are too small, or too much alike, to tell.
    """
    steady = [block for reading in readings for block in reading.blocks[1:]]
    rate = _find_ratio(steady) if sum(size for size, _ in steady) >= _LARGE_BYTES else None
    if rate is None and (slope := _find_slope(readings)) is not None:
        rate = Figure(1 / slope.value, 1 / slope.high, 1 / slope.low)
    return _find_file_s(readings, rate.value if rate else math.inf), rate


def _find_file_s(readings: Sequence[_Reading], rate: float) -> Figure:
    left = [reading.open_s + reading.read_s - reading.size_bytes / rate for reading in readings]
    return Figure.of_mean(left).moved(0.0, math.fsum(reading.open_s for reading in readings) / len(readings))


def _find_ratio(blocks: Sequence[tuple[int, float]]) -> Figure:
    """Return the bytes per second of blocks, within two standard errors of a ratio."""
    seconds = math.fsum(took for _, took in blocks)
    rate = sum(size for size, _ in blocks) / max(seconds, 1e-9)
    squares = math.fsum((took - size / rate) ** 2 for size, took in blocks)
    error = min(max(2 * math.sqrt(squares) / max(seconds, 1e-9), 0.03), 0.9)
    return Figure(rate, rate * (1 - error), rate * (1 + error))


def _find_slope(readings: Sequence[_Reading]) -> Figure | None:
    """Return seconds per byte from files of different sizes; None: it does not stand out from the noise."""
    sizes = np.array([r.size_bytes for r in readings], float)
    if len(readings) < 8 or np.ptp(sizes) == 0:
        return None
    took = np.array([r.open_s + r.read_s for r in readings])
    # Errors grow with the time.
    (slope, _), variances = np.polyfit(sizes, took, 1, w=1 / took, cov=True)
    error = 2 * math.sqrt(variances[0, 0])
    return Figure(slope, slope - error, slope + error) if error < slope / 2 else None


def _bound(readings: Sequence[_Reading], total: Figure | None) -> tuple[Figure, Figure]:
    """Bound an unknown rate by that of one reader and that of many; return seconds per file with it."""
    low = sum(r.size_bytes for r in readings) / max(math.fsum(r.read_s for r in readings), 1e-9)
    value = max(math.sqrt(low * total.value) if total else _USUAL_BYTES_PER_S, 2 * low)
    rate = Figure(value, low, max(total.value if total else 0.0, 5 * value), ASSUMED, _TOO_SMALL)
    return _find_file_s(readings, rate.value), rate


def _assume_cold(speed: StoreSpeed, storage: Storage) -> StoreSpeed:
    """Replace the figures of memory by those of a usual disk: no faster than memory, which was seen."""
    kind = _NETWORK if storage.is_network or storage.is_fuse else _SPINNING if storage.rotational else _FLASH

    def slower(seen: Figure, usual_s: float) -> Figure:
        value = max(usual_s, seen.value)
        return Figure(value, max(value / _USUAL_WITHIN, seen.low), value * _USUAL_WITHIN, ASSUMED, NOT_SEEN)

    def rate(seen: Figure, usual_per_s: float) -> Figure:
        value = min(usual_per_s, seen.value)
        return Figure(value, value / _USUAL_WITHIN, min(value * _USUAL_WITHIN, seen.high), ASSUMED, NOT_SEEN)

    return replace(
        speed, file_s=slower(speed.file_s, kind.file_s), read_s=slower(speed.read_s, kind.file_s / 2),
        stat_s=speed.stat_s and slower(speed.stat_s, kind.file_s / 3),
        stream_bytes_per_s=rate(speed.stream_bytes_per_s, kind.bytes_per_s),
        total_bytes_per_s=rate(speed.total_bytes_per_s, 1.5 * kind.bytes_per_s),
        files_per_s=rate(speed.files_per_s, speed.streams / kind.file_s / 2),
    )  # fmt: skip
