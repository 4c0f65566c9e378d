# SPDX-License-Identifier: Apache-2.0
"""`feedrate ls`: what is in a pack, by whole columns of the index and never by a shard. `feedrate stage
--warm`: load a pack into the page cache, as fast as the disk is and as far as memory goes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import PackError, UsageError
from feedrate.format.containers import FILES
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import Status
from feedrate.machine.cpu import PROC, ROOT
from feedrate.machine.memory import MemoryGauge, measure_residency, open_quietly
from feedrate.packing.check.quality_report import read_quality
from feedrate.packing.recode import describe_pixels
from feedrate.packing.results import FieldSummary, PackDescription, SampleLine, WarmResult
from feedrate.progress import Tick
from feedrate.remote.addresses import is_url
from feedrate.units import format_bytes, printable, shell_quote

# Several reads at once: one alone waits for every answer of a file server, and a flash disk likes a queue.
_THREADS = 8
_BLOCK_BYTES = 1 << 20
# Of what memory could hold, this share stays free: the training has not begun yet, and the memory that it
# takes drives out what was loaded.
_SPARED_SHARE = 0.125
_ROWS = 1 << 14
_LOOKED_AT = 200


class _File(NamedTuple):
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
    with closing(Pack(pack)) as opened:
        remote = next((s for s in opened.manifest.shards if s.is_remote), None)
        if remote is not None:
            raise UsageError(
                f"{pack} is an index of files that are not on this machine: {remote.folder}",
                hint=f"copy them to this node first: feedrate stage {shell_quote(pack)}",
            )
        samples = len(opened)
        files = [_File(path, _measure(path, opened.path)) for path in list_paths(opened)]
    paths = [file.path for file in files]
    size_bytes = sum(file.size_bytes for file in files)
    before = measure_residency(paths)
    room, reason = find_room() if limit_bytes is None else (limit_bytes, "as you asked for")
    fitting: list[_File] = []
    left = room
    for file in files:  # the first ones, as far as there is room: of the last one, its beginning
        if left > 0:
            fitting.append(_File(file.path, min(file.size_bytes, left)))
            left -= file.size_bytes
    total = sum(file.size_bytes for file in fitting)

    def report(done_bytes: int) -> None:
        done, all_samples = (samples * part // max(size_bytes, 1) for part in (done_bytes, total))
        watch(Tick("loading", done, all_samples, done_bytes, total))

    loaded = _read_all(fitting, report)
    whole = sum(a == b for a, b in zip(files, fitting, strict=False))
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
        left_out=tuple(file.path.name for file in files[whole:]),
        left_out_bytes=size_bytes - total,
        seconds=time.monotonic() - began,
    )


def measure_pack_residency(pack: Pack) -> float | None:
    """Return the share of a pack's bytes that are in the page cache, of samples' own files from a few.

    None where it cannot be said: also of files that are not on this machine.
    """
    if any(shard.is_remote for shard in pack.manifest.shards):
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
        with open(open_quietly(path), "rb", buffering=0) as file:
            done = 0
            while done < len(buffer):
                got = os.preadv(file.fileno(), [buffer[done:]], offset + done)
                if not got:
                    break  # it became shorter meanwhile; whoever loads samples will say so
                done += got
            return done
    except OSError as error:
        raise PackError(f"{path} cannot be read: {error.strerror}") from error


def describe(pack: str | os.PathLike[str], *, samples: int = 0, quality: bool = False) -> PackDescription:
    """Sum up a pack, and list its first `samples` samples.

    Args:
        quality: read what packing found out, too.

    Raises:
        NotFound: there is no pack, or no quality.json in it where that is asked for.
        PackError: its manifest or its index is damaged.
    """
    if samples < 0:
        raise UsageError(f"samples must be at least 0, got {samples}")
    with closing(Pack(pack)) as opened:
        manifest = opened.manifest
        rejected = manifest.settings.get("rejected", 0)
        return PackDescription(
            pack=str(pack),
            samples=len(opened),
            fields=tuple(_summarise(opened, field) for field in opened.fields),
            class_counts=_count_classes(opened, manifest.field("label")),
            column_counts={
                field.name: _count_classes(opened, field)
                for field in opened.fields
                if field.classes is not None and field.kind is Kind.NUMBER and field.name != "label"
            },
            shards=len(manifest.shards),
            shard_bytes=manifest.shard_bytes,
            entries=_list_entries(opened),
            index_bytes=manifest.index_bytes + sum(p.size_bytes for p in manifest.parts),
            rejected=rejected if isinstance(rejected, int) else 0,
            settings=dict(manifest.settings),
            pixels=describe_pixels(manifest.settings),
            first_samples=_list_samples(opened, min(samples, len(opened))),
            resident_share=measure_pack_residency(opened),
            quality=read_quality(pack) if quality else None,
        )


def _list_entries(pack: Pack) -> tuple[int, ...]:
    """Return how far apart entry points are, in bytes: packs that were joined may differ."""
    has_any = any(f.kind is Kind.IMAGE and f.coding is not Coding.RAW for f in pack.manifest.fields)
    if not has_any or not pack.manifest.settings.get("scan", True):
        return ()
    return tuple(sorted({shard.index.entries for shard in pack.manifest.shards}))


def _summarise(pack: Pack, field: Field) -> FieldSummary:
    summary: dict[str, Any] = {
        "name": field.name, "kind": field.kind.value, "dtype": field.dtype, "shape": field.shape,
        "coding": field.coding.value, "size_bytes": 8 * len(pack),
    }  # fmt: skip
    if field.kind is not Kind.NUMBER:
        summary["size_bytes"] = int(pack.column(f"{field.name}.length").sum())
    if field.has_pixels and len(pack):
        for side in ("width", "height"):
            summary[f"mean_{side}"] = float(pack.column(f"{field.name}.{side}").mean())
        # Without a scan there are no entry points to tell by.
        if field.kind is Kind.IMAGE and pack.manifest.settings.get("scan", True):
            entries = pack.column(f"{field.name}.entries")
            summary["kernel_share"] = float((entries[:, 1] > entries[:, 0]).mean())
    return FieldSummary(**summary)


def _count_classes(pack: Pack, field: Field | None) -> dict[str, int]:
    if field is None or field.classes is None:
        return {}
    counts = Counter(pack.column(field.name).tolist())
    return {name: counts[number] for number, name in enumerate(field.classes)}


def _list_samples(pack: Pack, count: int) -> tuple[SampleLine, ...]:
    if not count:
        return ()
    positions = np.arange(count, dtype=np.int64)
    rows, statuses = pack.rows(positions)
    if statuses.any():
        bad = int(np.flatnonzero(statuses)[0])
        raise PackError(
            f"{pack.path}: the index is damaged at sample {bad} ({Status(int(statuses[bad])).name.lower()})",
            hint=f"feedrate verify {shell_quote(pack.path)}",
        )
    keys = pack.texts("key", positions)
    paths = pack.texts("image.path", positions) if pack.manifest.field("image") else [b""] * count
    label = pack.manifest.field("label")
    sizes = [name for name in pack.dtype.names or () if name.endswith(".length")]
    return tuple(
        SampleLine(
            key=keys[i].decode("ascii", "replace"),
            path=printable(paths[i]),
            number=int(rows["number"][i]),
            size_bytes=sum(int(rows[name][i]) for name in sizes),
            label=None if label is None else _label_text(label, rows["label"][i].item()),
        )
        for i in range(count)
    )


def _label_text(label: Field, value: int | float) -> str:
    if label.classes is not None and isinstance(value, int) and 0 <= value < len(label.classes):
        return label.classes[value]
    return str(value)
