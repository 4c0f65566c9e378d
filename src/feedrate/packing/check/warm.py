# SPDX-License-Identifier: Apache-2.0
"""`feedrate warm`: load a pack into the page cache, as fast as the disk is and as far as memory goes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedrate.errors import PackError, UsageError
from feedrate.format.containers import FILES
from feedrate.format.pack import Pack
from feedrate.machine.cgroup import PROC, ROOT
from feedrate.machine.memory import MemoryGauge
from feedrate.machine.residency import measure_residency, open_quietly
from feedrate.packing.results import WarmResult
from feedrate.progress import Tick
from feedrate.remote.addresses import is_url
from feedrate.units import format_bytes, shell_quote

# Several reads at once: one alone waits for every answer of a file server, and a flash disk likes a queue.
_THREADS = 8
_BLOCK_BYTES = 1 << 20
# Of what memory could hold, this share stays free: the training has not begun yet, and the memory that it
# takes drives out what was loaded.
_SPARED_SHARE = 0.125
_ROWS = 1 << 14
_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size_bytes: int


def warm(
    pack: str | os.PathLike[str],
    *,
    limit_bytes: int | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
) -> WarmResult:
    """Read a pack's files, the index first, until all are in memory or there is no room for more.

    Args:
        limit_bytes: load at most this; None: what the machine and the job's memory limit leave.

    Raises:
        NotFound: there is no pack.
        PackError: a file of it cannot be read.
    """
    if is_url(os.fspath(pack)):
        raise UsageError(
            f"{pack} is not on this machine: the page cache holds what lies on a disk or a mounted server",
            hint=f"copy it to this node first: feedrate stage {shell_quote(pack)}",
        )
    began = time.monotonic()
    opened = Pack(pack)
    elsewhere = next((s for s in opened.manifest.shards if s.is_elsewhere), None)
    if elsewhere is not None:
        opened.close()
        raise UsageError(
            f"{pack} is an index of files that are not on this machine: {elsewhere.folder}",
            hint=f"copy them to this node first: feedrate stage {shell_quote(pack)}",
        )
    try:
        samples = len(opened)
        files = [_File(path, _measure(path, opened.path)) for path in list_paths(opened)]
    finally:
        opened.close()
    paths = [file.path for file in files]
    size_bytes = sum(file.size_bytes for file in files)
    before = measure_residency(paths)
    room, reason = find_room() if limit_bytes is None else (limit_bytes, "as you asked for")
    fitting = _choose(files, room)
    total = sum(file.size_bytes for file in fitting)

    def report(done_bytes: int) -> None:
        done, all_samples = (samples * part // max(size_bytes, 1) for part in (done_bytes, total))
        watch(Tick("loading", done, all_samples, done_bytes, total))

    loaded = _read_all(fitting, report)
    whole = sum(a == b for a, b in zip(files, fitting, strict=False))
    left_out = files[whole:]
    return WarmResult(
        pack=str(pack),
        files=len(files),
        size_bytes=size_bytes,
        loaded_files=whole,
        loaded_bytes=loaded,
        limit_bytes=room,
        limit_reason=reason,
        resident_before=before,
        resident_after=measure_residency(paths),
        left_out=tuple(file.path.name for file in left_out),
        left_out_bytes=size_bytes - total,
        seconds=time.monotonic() - began,
    )


def measure_pack_residency(pack: Pack) -> float | None:
    """Return the share of a pack's bytes that lie in the page cache, of samples' own files from a few.

    None where it cannot be said: also of files that are not on this machine.
    """
    if any(shard.is_elsewhere for shard in pack.manifest.shards):
        return None
    return measure_residency(list_paths(pack, loose_step=max(1, len(pack) // _LOOKED_AT)))


def list_paths(pack: Pack, *, loose_step: int = 1) -> list[Path]:
    """Return what loading reads: the parts of the index, then the shards, each file once.

    Args:
        loose_step: where values are files of their own, those of every so manieth sample.
    """
    manifest = pack.manifest
    index = [*(pack.locate_file(s.index) for s in manifest.shards), *map(pack.locate_file, manifest.parts)]
    shards = [pack.locate_file(s) for s in manifest.shards if s.container != FILES]
    return list(dict.fromkeys([*index, *shards, *_loose_files(pack, loose_step)]))


def _loose_files(pack: Pack, step: int) -> Iterator[Path]:
    start = 0
    for shard in pack.manifest.shards:
        names = [f.name for f in pack.manifest.fields if f"{f.name}.path" in shard.index.columns]
        stop = start + shard.samples
        for first in range(start, stop if shard.container == FILES else start, _ROWS * step):
            positions = np.arange(first, min(first + _ROWS * step, stop), step, dtype=np.int64)
            prefix = f"{shard.prefix}/".encode() if shard.prefix else b""
            for text in (text for name in names for text in pack.texts(f"{name}.path", positions)):
                path = text.removeprefix(prefix)
                if path and not path.startswith(b"/") and b".." not in path.split(b"/"):
                    yield pack.locate_file(shard) / os.fsdecode(path)
        start = stop


def _measure(path: Path, pack: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise PackError(
            f"{path} cannot be read: {error.strerror}", hint=f"feedrate verify {shell_quote(pack)}"
        ) from error


def _choose(files: list[_File], room: int) -> list[_File]:
    """Return the first files, as far as there is room: of the last one, its beginning."""
    fitting = []
    for file in files:
        if room <= 0:
            break
        fitting.append(_File(file.path, min(file.size_bytes, room)))
        room -= file.size_bytes
    return fitting


def find_room(proc: Path = PROC, root: Path = ROOT) -> tuple[int, str]:
    """Return how many bytes of files memory can hold, less a margin, and who says so.

    Memory that is free counts, and that of other files, which give way; what processes hold does not.
    """
    found = MemoryGauge(proc, root).measure()
    limit, room = format_bytes(found.limit_bytes), max(0, found.free_bytes)
    reason = f"memory is limited to {limit} here, and {format_bytes(room)} of it can hold files"
    return int(room * (1 - _SPARED_SHARE)), f"{reason}; an eighth of that stays free"


def _read_all(files: list[_File], report: Callable[[int], None]) -> int:
    """Read the files with several threads, block by block; return how many bytes there were."""
    blocks = [
        (file.path, offset, min(_BLOCK_BYTES, file.size_bytes - offset))
        for file in files
        for offset in range(0, file.size_bytes, _BLOCK_BYTES)
    ]
    local = threading.local()

    def read(block: tuple[Path, int, int]) -> int:
        path, offset, length = block
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(_BLOCK_BYTES))
        return _read_block(path, offset, local.buffer[:length])

    done = 0
    report(done)
    with ThreadPoolExecutor(_THREADS, "feedrate-warm") as pool:
        for got in pool.map(read, blocks):
            done += got
            report(done)
    return done


def _read_block(path: Path, offset: int, buffer: memoryview) -> int:
    try:
        descriptor = open_quietly(path)
        try:
            done = 0
            while done < len(buffer):
                got = os.preadv(descriptor, [buffer[done:]], offset + done)
                if not got:
                    break  # it became shorter meanwhile; whoever loads samples will say so
                done += got
            return done
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PackError(f"{path} cannot be read: {error.strerror}") from error
