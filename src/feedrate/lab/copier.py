# SPDX-License-Identifier: Apache-2.0
"""What `feedrate stage` gets of a file system: its own walk and its own copier, on some of the files."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from feedrate.calls import map_in_time
from feedrate.errors import SourceError
from feedrate.figures import Figure, combine
from feedrate.files.own_folder import own_folder
from feedrate.files.tree import walk_paths
from feedrate.lab.store import NO_ANSWER_S, NOT_IN_MEMORY, find_rate
from feedrate.machine.memory import measure_file_residency
from feedrate.remote.addresses import Place
from feedrate.remote.copier import Incoming
from feedrate.remote.transfer import STREAMS, Transfer
from feedrate.units import format_count

_MOST_BYTES = 8 << 20  # of one file
_LEAST_COPIED = 3


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
    """Return what a name takes in the walk over folders, and whether its file is then asked for its time.

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
