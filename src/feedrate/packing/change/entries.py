# SPDX-License-Identifier: Apache-2.0
"""`feedrate index PACK --entries N`: the entry points of a finished pack, further apart or closer together.

    PACK --new parts in PACK/.reindexing--> --moved into PACK--> --pack.json--> PACK with other entry points

No shard is written to, and until pack.json is replaced the pack is what it was. Parts in `.reindexing` are
whole, so a command that was interrupted goes on there; the folder is removed last. The parts that were
replaced stay: whoever has the pack open reads on in them, and opens them when it first needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError, PackError, SourceError, StorageError, UsageError
from feedrate.files.atomic import explained, free_bytes, is_temporary, sync_folder
from feedrate.format.fields import (
    ROW_BYTES,
    Coding,
    Field,
    Kind,
    dump_entries,
    estimate_share,
    find_entries,
    parse_entries,
)
from feedrate.format.index import Part, parse_part, read_metadata
from feedrate.format.manifest import (
    FILE_NAME,
    PROGRESS_NAME,
    IndexPart,
    Manifest,
    Shard,
    file_path,
    find_index,
)
from feedrate.format.pack import Pack
from feedrate.kernel import I32, I64, U8, Pool
from feedrate.packing.build.shard import describe_part, write_part
from feedrate.packing.change.update import changing, write_manifest
from feedrate.packing.results import EntriesResult
from feedrate.packing.workers import advance, count_threads, finish_tasks
from feedrate.progress import Tick
from feedrate.remote.addresses import Place, is_url
from feedrate.units import format_bytes, shell_quote

# Hidden: it may be in a folder that was indexed in place, and is no part of what is there.
FOLDER_NAME = ".reindexing"
# What is read at a time.
_BLOCK_BYTES = 2**24
_MADE = re.compile(r"[0-9]{5,}-[0-9a-f]{8}-[0-9]+\.arrow")
# Parts of an index as `pack`, `index`, `append` and this module name them.
_PART = re.compile(r"(shard|index)-[0-9]{5,}(\.[0-9a-f]{16})?\.arrow")


@dataclass(frozen=True, slots=True)
class PartTask:
    """A part of the index that is to be written anew: small, picklable, harmless to run twice.

    Attributes:
        place: of its shard in pack.json.
        crc32c: of the part as it is: by it, what an interrupted run has made is known.
    """

    pack: str
    place: int
    crc32c: int
    bytes_per_entry: int
    source_bytes: int
    samples: int

    @property
    def path(self) -> Path:
        name = f"{self.place:05d}-{self.crc32c:08x}-{self.bytes_per_entry}.arrow"
        return Path(self.pack) / FOLDER_NAME / name


def set_entries(
    pack: str | os.PathLike[str],
    entries: str | int,
    *,
    remove_old: bool = False,
    workers: int | None = None,
    watch: Callable[[Tick], None] = lambda _: None,
) -> EntriesResult:
    """Give the JPEGs of a finished pack or index other entry points, or go on with that.

    Args:
        entries: how far apart: `auto`, `gpu`, or a number of bytes.
        remove_old: delete index parts that this replaces, or replaced earlier. Only where nobody reads the
            pack: one that is open in a process of this machine stays, other machines are not seen.

    Raises:
        NotFound: there is no pack.
        UsageError: the pack is not on this machine, or `entries` is no distance.
        SourceError: it has no images with entry points, or its samples are not on this machine.
        PackError: samples, or a part of the index, are not what was packed.
        AlreadyExists: another process is changing the pack.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    begin = time.monotonic()
    bytes_per_entry = parse_entries(entries)
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    check_address(os.fspath(pack))
    with changing(pack) as opened:
        _refuse_unfit(opened, bytes_per_entry)
        before = opened.manifest
        after = _change(opened, bytes_per_entry, workers, watch)
        old = _find_old(opened.path, after)
        removed = _remove_unused(opened.path, old) if remove_old else []
    return EntriesResult(
        pack=str(pack),
        entries=bytes_per_entry,
        entries_before=tuple(sorted({shard.index.entries for shard in before.shards})),
        samples=after.samples,
        parts=len(after.shards),
        changed_parts=sum(a.index != b.index for a, b in zip(after.shards, before.shards, strict=True)),
        index_bytes=after.index_bytes,
        index_bytes_before=before.index_bytes,
        # Several shards may be in one file.
        shard_bytes=sum({(shard.folder, shard.name): shard.size_bytes for shard in after.shards}.values()),
        old_parts=tuple(name for name in old if name not in removed),
        removed_parts=tuple(removed),
        seconds=time.monotonic() - begin,
    )


def find_pack(path: str) -> str | None:
    """Return the finished pack, or index, that a path means: itself, or the index beside it.

    Raises:
        UsageError: it is a pack behind an address.
    """
    if is_url(path):
        is_pack = False
        with contextlib.suppress(FeedrateError):  # a folder of shards, or none that can be asked
            is_pack = Place(path).find(FILE_NAME.encode(), suggest=False) is not None
        if is_pack:
            check_address(path)
        return None
    if (Path(path) / FILE_NAME).exists() and not (Path(path) / PROGRESS_NAME).exists():
        return path
    beside = find_index(path)
    return None if beside is None else str(beside)


def check_address(pack: str) -> None:
    """Refuse a pack behind an address: it would have to be written to there."""
    if is_url(pack):
        raise UsageError(
            f"{pack} is not on this machine, and its index would be written anew there",
            hint=f"change a copy, then bring that back: feedrate stage {shell_quote(pack)}",
        )


def _refuse_unfit(pack: Pack, bytes_per_entry: int) -> None:
    remote = next((shard for shard in pack.manifest.shards if shard.is_remote), None)
    if remote is not None:
        raise SourceError(
            f"{pack.path} is an index of files that are not on this machine: {remote.folder}/{remote.name}",
            hint=f"index them again, into another folder: feedrate index ADDRESS FOLDER "
            f"--entries {bytes_per_entry}",
        )
    if not _list_fields(pack.manifest):
        is_raw = pack.manifest.settings.get("raw")
        why = "it stores rows of pixels" if is_raw else "it has no field of JPEGs"
        raise SourceError(
            f"{pack.path} has no images that could have entry points: {why}",
            hint=f"what it holds: feedrate ls {shell_quote(pack.path)}",
        )


def _list_fields(manifest: Manifest) -> list[Field]:
    """Return the fields that have entry points; of raw images that column is a table of checksums."""
    return [f for f in manifest.fields if f.kind is Kind.IMAGE and f.coding is not Coding.RAW]


def _change(pack: Pack, bytes_per_entry: int, workers: int | None, watch: Callable[[Tick], None]) -> Manifest:
    manifest, folder = pack.manifest, pack.path / FOLDER_NAME
    # Of a pack that was never scanned, no part has any entry points.
    is_scanned = manifest.settings.get("scan", True)
    sizes = [0] * len(manifest.shards)  # of the images that each part of the index is about
    for field in _list_fields(manifest):
        for place, lengths in enumerate(pack.columns(f"{field.name}.length")):
            sizes[place] += int(lengths.sum())
    tasks = [
        PartTask(
            pack=os.path.abspath(pack.path), place=place, crc32c=shard.index.crc32c,
            bytes_per_entry=bytes_per_entry, source_bytes=sizes[place], samples=shard.samples,
        )
        for place, shard in enumerate(manifest.shards)
        if shard.index.entries != bytes_per_entry or not is_scanned
    ]  # fmt: skip
    # Without tasks the pack was scanned.
    settings = {k: v for k, v in manifest.settings.items() if k not in ("entries", "scan")}
    settings |= dump_entries(bytes_per_entry)
    if tasks:
        _check_room(pack.path, [task for task in tasks if not task.path.exists()])
        with explained(pack.path):
            folder.mkdir(exist_ok=True)
            _keep_only(folder, {task.path.name for task in tasks})
        finish_tasks(
            "indexing", make_part, tasks, lambda task: task.path if task.path.exists() else None,
            workers=workers, watch=watch, have_threads=lambda: True,
        )  # fmt: skip
        with explained(pack.path):
            made = {task.place: _place_part(pack.path, task) for task in tasks}
            sync_folder(pack.path)
            manifest = dataclasses.replace(
                manifest,
                shards=tuple(
                    _replace_part(shard, made[place]) if place in made else shard
                    for place, shard in enumerate(manifest.shards)
                ),
                settings=settings,
            )
            write_manifest(pack.path, manifest)
    elif find_entries(manifest.settings) != bytes_per_entry:
        # Joined packs that agree where their settings do not: what is appended shall agree, too.
        manifest = dataclasses.replace(manifest, settings=settings)
        write_manifest(pack.path, manifest)
    if folder.exists():
        with explained(pack.path):
            _keep_only(folder, set())
            with contextlib.suppress(OSError):  # another user's files are in it
                folder.rmdir()
    return manifest


def _check_room(folder: Path, missing: Sequence[PartTask]) -> None:
    needed = sum(
        int(task.source_bytes * estimate_share(task.bytes_per_entry)) + task.samples * ROW_BYTES
        for task in missing
    )
    free = free_bytes(folder)
    if needed > free:
        raise StorageError(
            f"the new index needs about {format_bytes(needed)}, {folder} has {format_bytes(free)} free",
            hint="make room, or choose a larger distance: --entries BYTES",
        )


def _keep_only(folder: Path, names: set[str]) -> None:
    """Remove what an earlier run made for another distance, or left half written."""
    for path in folder.iterdir():
        if path.name not in names and (_MADE.fullmatch(path.name) or is_temporary(path.name)):
            path.unlink()


def make_part(task: PartTask) -> None:
    """Write a part of the index with other entry points; all else in it stays as it is.

    Raises:
        PackError: the part or a sample is not what was packed: entry points must not be made of damage.
        StorageError: the disk is full or failed.
    """
    with closing(Pack(task.pack)) as pack:
        manifest = pack.manifest
        index = manifest.shards[task.place].index
        data = pack.locate_file(index).read_bytes()
        if (len(data), kernel.crc32c(data)) != (index.size_bytes, index.crc32c):
            raise PackError(
                f"{index.name}: its bytes are not those that were packed (checksum of the file)",
                hint=f"feedrate verify {shell_quote(task.pack)}",
            )
        part = parse_part(data, manifest.fields, name=index.name)
        variable = dict(part.variable)
        fields = _list_fields(manifest)
        with closing(kernel.Pool(count_threads())) as pool:
            for field in fields:
                found = _find_entry_points(pack, task, field, variable[f"{field.name}.entries"], pool)
                variable[f"{field.name}.entries"] = found
    metadata = {name: value for name, value in part.metadata.items() if name != "entries"}
    metadata |= dump_entries(task.bytes_per_entry)
    write_part(task.path, manifest.fields, Part(part.rows.copy(), variable, metadata))


def _find_entry_points(
    pack: Pack, task: PartTask, field: Field, before: Sequence[bytes], pool: Pool
) -> list[bytes]:
    first = int(pack.edges[task.place])
    positions = np.arange(first, first + task.samples, dtype=np.int64)
    rows, statuses = pack.rows(positions, ())
    _refuse_damaged(pack, positions, statuses)
    is_first = field is _list_fields(pack.manifest)[0]
    found: list[bytes] = []
    lengths = rows[f"{field.name}.length"]
    for span in kernel.split_by_size(lengths, _BLOCK_BYTES, len(lengths)):
        files, values, _ = pack.find_values(field.name, rows[span], positions[span])
        data, starts, statuses = kernel.read_ranges(files, values, pool)
        if statuses.any():
            pack.turn_to_source(field.name, rows[span], positions[span], statuses)  # raises for lost storage
            _refuse_damaged(pack, positions[span], statuses)
        found += _scan_all(data, starts, task.bytes_per_entry, pool)
        advance(len(rows[span]) if is_first else 0, len(data))
    # None for what the kernel does not take. If an earlier one took it, its entry points are as good as ever.
    return [new or old for new, old in zip(found, before, strict=True)]


def _scan_all(data: U8, starts: I64, bytes_per_entry: int, pool: Pool) -> list[bytes]:
    found = [b""] * (len(starts) - 1)

    def look(i: int) -> None:
        found[i] = kernel.find_entry_points(data[starts[i] : starts[i + 1]], bytes_per_entry)

    pool.map(look, range(len(found)))
    return found


def _refuse_damaged(pack: Pack, positions: I64, statuses: I32) -> None:
    for i in np.flatnonzero(statuses).tolist():
        (key,), _ = pack.keys(positions[i : i + 1])
        raise PackError(
            f"{pack.path}: sample '{key}' is not what was packed "
            f"({kernel.Status(int(statuses[i])).name.lower().replace('_', ' ')})",
            hint=f"feedrate verify {shell_quote(pack.path)}",
        )


def _place_part(folder: Path, task: PartTask) -> IndexPart:
    """Move a part to where it stays, under a name that no other bytes have; return its entry in pack.json."""
    data = task.path.read_bytes()
    name = f"index-{task.place:05d}.{hashlib.sha256(data).hexdigest()[:16]}.arrow"
    os.rename(task.path, folder / name)
    return describe_part(name, data, task.bytes_per_entry)


def _replace_part(shard: Shard, index: IndexPart) -> Shard:
    identity = shard.known_by[2] if shard.is_in_place else 0
    return dataclasses.replace(shard, index=index, identity=identity)


def _find_old(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names of index parts that earlier distances left in the folder of a pack."""
    named = {shard.index.name for shard in manifest.shards if not shard.index.folder}
    names = sorted(name for name in os.listdir(folder) if _PART.fullmatch(name) and name not in named)
    # A folder that was indexed in place holds its user's files, whatever they are called.
    known = {_find_plan(file_path(folder, shard.index)) for shard in manifest.shards} if names else set()
    return [name for name in names if (plan := _find_plan(folder / name)) and plan in known]


def _find_plan(part: Path) -> object:
    with contextlib.suppress(PackError):
        return read_metadata(part).get("plan")
    return None


def _remove_unused(folder: Path, names: Sequence[str]) -> list[str]:
    """Remove parts that no process of this machine has open; return their names."""
    removed = [name for name in names if not _may_be_open(folder / name)]
    with explained(folder):
        for name in removed:
            (folder / name).unlink()
    return removed


def _may_be_open(path: Path) -> bool:
    """Return whether somebody has a file open; where the file system cannot tell, somebody may."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        # Given only to the one process that has the file open.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(fd)
