# SPDX-License-Identifier: Apache-2.0
"""Times feedrate's own readers: the walk and the copier of `stage` on some files, requests to an address."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from feedrate.calls import map_in_time
from feedrate.errors import SourceError, StorageError
from feedrate.figures import MEASURED, Figure, combine
from feedrate.files.own_folder import own_folder
from feedrate.files.tree import walk_paths
from feedrate.lab.store import (
    MANY_READERS,
    NO_ANSWER_S,
    NOT_IN_MEMORY,
    call_patiently,
    find_rate,
    measure_store,
)
from feedrate.machine.memory import measure_file_residency
from feedrate.machine.results import StoreSpeed
from feedrate.remote.addresses import Place
from feedrate.remote.copier import Incoming
from feedrate.remote.transfer import STREAMS, Transfer
from feedrate.units import format_count

_MOST_BYTES = 8 << 20  # of one file
_LEAST_COPIED = 3
_SMALL_REQUEST, _LARGE_REQUEST = 16 << 10, 4 << 20


def measure_source(
    folder: str,
    timed: Sequence[tuple[str, int]],
    copied: Sequence[str],
    into: str | Path,
    *,
    seconds: float,
    copying_s: float,
) -> StoreSpeed:
    """Return how a file system answers reads of the `timed` files, and what a copy of others `into` takes.

    Raises:
        StorageError: no file could be read, or the store does not answer.
    """
    speed = measure_store(folder, timed, seconds=seconds)
    rate = call_patiently(folder, lambda: try_copier(copied, into, seconds=copying_s))
    return replace(speed, copy_bytes_per_s=rate)


def try_copier(paths: Sequence[str], into: str | Path, *, seconds: float) -> Figure | None:
    """Return the bytes per second that `feedrate stage` gets of files like these, of those not in memory.

    Its own walk over folders, and its own copier: files are asked for their times, read, checked, and written
    into a folder of our own below `into`, as many at a time as in a long copy. None: too few of them are not
    in memory.

    Raises:
        StorageError: the copies cannot be written.
    """
    names_s, is_asked = _try_walk(paths, seconds / 3)
    cold = [
        path for path in paths if not (found := measure_file_residency(path)) or found[1] <= NOT_IN_MEMORY
    ]
    if len(cold) < _LEAST_COPIED:
        return None
    place, deadline = Place("/"), time.perf_counter() + seconds / 2

    def describe(path: str) -> Incoming:
        info, real = os.stat(path), os.path.abspath(path)
        # Of a large file its beginning, which is no version of the whole that could be looked at again.
        size, is_part = min(info.st_size, _MOST_BYTES), info.st_size > _MOST_BYTES
        name = f"{random.getrandbits(64):016x}"
        return Incoming(name, place, os.fsencode(real[1:]), size, mtime_ns=0 if is_part else info.st_mtime_ns)

    def open_part(file: Incoming) -> int:
        return os.open(inside / file.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bring(count: int) -> tuple[Figure | None, float]:
        chosen, events = [cold.pop() for _ in range(count)], list[tuple[float, int]]()
        began = time.perf_counter()
        files = list(map_in_time(describe, chosen, threads=STREAMS, seconds=NO_ANSWER_S))
        asked_s, began = 0.0 if is_asked else time.perf_counter() - began, time.perf_counter()

        def arrived(file: Incoming, fd: int, _: int) -> None:
            os.close(fd)
            events.append((time.perf_counter(), file.size_bytes))

        # One by one: of a long copy all streams are busy nearly to its end.
        Transfer(group_files=1).carry(files, open_part, arrived)
        rate, size_bytes = find_rate(began, events, STREAMS), sum(size for _, size in events)
        took_s = time.perf_counter() - began
        if rate is None or not size_bytes:
            return None, took_s
        count, each_bytes = len(events), size_bytes / len(events)
        both = combine(
            lambda rate, names_s: 1 / (1 / rate + (asked_s / count + names_s) / each_bytes),
            {"rate": rate, "names_s": names_s},
        )
        return replace(both, note=format_count(count, "file")), took_s

    with own_folder(into, "feedrate-copy-") as inside:
        try:
            rate, took_s = bring(min(2 * STREAMS, len(cold)))
            more = min(int(2 * STREAMS * (deadline - time.perf_counter()) / took_s), len(cold))
            if more > STREAMS:
                rate = bring(more)[0] or rate
        except (SourceError, OSError):  # changed, or gone meanwhile
            return None
    return rate


def _try_walk(paths: Sequence[str], seconds: float) -> tuple[Figure, bool]:
    """Return the seconds for a name in the walk over folders, and whether its file is asked for its time.

    Some file systems tell with a name whether it is a folder; of others each is asked, one by one.
    """
    fresh, times, is_asked = {os.fsencode(path) for path in paths}, list[float](), False
    until = time.perf_counter() + seconds
    for folder in {os.path.dirname(path) for path in fresh}:
        names = walk_paths(folder, enters_links=True)
        while (began := time.perf_counter()) < until and (found := next(names, None)) is not None:
            if found[1].path in fresh:  # others were asked for just now, and are known
                times.append(time.perf_counter() - began)
                began = time.perf_counter()
                with contextlib.suppress(OSError):
                    found[1].stat()
                is_asked = time.perf_counter() - began < times[-1] / 10
    return (Figure.of_mean(times) if times else Figure.exactly(0.0)), is_asked


def measure_address(address: str, files: Sequence[tuple[str, bytes, int]], seconds: float) -> StoreSpeed:
    """Return how an address answers: a request counts as opening a file does on a disk.

    Args:
        files: address of a folder, file in it, size.

    Raises:
        StorageError: nothing came in time.
    """

    def fetch(most_bytes: int) -> tuple[int, float]:
        root, name, size_bytes = random.choice(files)
        length = min(most_bytes, size_bytes)
        began = time.perf_counter()
        got = Place(root).read(name, random.randint(0, size_bytes - length), length)
        return len(got), time.perf_counter() - began

    def fetch_for(share: float, most_bytes: int, threads: int = 1) -> tuple[list[tuple[int, float]], float]:
        began = time.perf_counter()
        calls = map_in_time(fetch, repeat(most_bytes), threads=threads, seconds=share * seconds)
        return list(calls), time.perf_counter() - began

    fetch(_SMALL_REQUEST)  # connects
    (small, _), (large, _) = fetch_for(0.3, _SMALL_REQUEST), fetch_for(0.3, _LARGE_REQUEST)
    many, many_s = fetch_for(0.2, _SMALL_REQUEST, MANY_READERS)
    wide, wide_s = fetch_for(0.2, _LARGE_REQUEST // 4, MANY_READERS)
    if not (small and large and many and wide):
        raise StorageError(f"{address} did not answer in time", hint="is the server there?")
    request_s = Figure.of_mean([took for _, took in small], format_count(len(small), "request"))
    rate = sum(size for size, _ in large) / max(sum(took - request_s.value for _, took in large), 1e-6)
    note = f"{MANY_READERS} at a time"
    together = Figure.within(sum(size for size, _ in wide) / wide_s, 1.3, MEASURED, note)
    stream = Figure.within(max(rate, together.value / MANY_READERS), 1.3, MEASURED)
    return StoreSpeed(
        path=address, kind=address.partition(":")[0], file_s=request_s,
        read_s=request_s, stream_bytes_per_s=stream, total_bytes_per_s=together,
        files_per_s=Figure.within(len(many) / many_s, 1.3, MEASURED, note), streams=MANY_READERS,
        keeps_pages=False, cold_share=1.0,
    )  # fmt: skip
