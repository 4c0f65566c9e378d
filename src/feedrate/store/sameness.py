# SPDX-License-Identifier: Apache-2.0
"""Is the source of a copy what was copied? Eviction asks right before it deletes.

A file of this machine, or of a file server, counts as the same when its bytes were read and have the checksum
that was taken when they were copied: a disk that rots changes neither size nor time. Behind an address, where
reading costs as much as copying did, size and time of change decide; where the time is another, or nobody
tells it, the bytes are read there too. A pack.json holds the checksums of all shards and is always compared
byte for byte: the shards of a store that tells no times (most web servers) then need only have the right
size. It does not vouch for files that were indexed where they were: those are read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.manifest import FILE_NAME, parse_manifest
from feedrate.store.contents import Contents
from feedrate.store.copies import part_name
from feedrate.store.marker import CopiedFile, Marker
from feedrate.store.presence import Doubt, Sight, list_wanted, name_source

# Long enough for a file server's best rate; shorter files are handed to a thread several at a time.
_CHUNK_BYTES, _GROUP = 4 << 20, 16
_AT_ONCE = 8


def compare_source(
    marker: Marker,
    seen: Sight,
    data: Path,
    ours: Collection[tuple[int, int]],
    read: Sight | None = None,
) -> None:
    """Compare what was seen with what was copied, the bytes too where they can be had.

    Args:
        data: the copy's files.
        ours: device and inode of each: a source that is made of them is no other copy.
        read: what was seen when bytes were compared a moment ago: what is still so is not read again.

    Raises:
        Doubt: a file of the source is the copy's own, or its bytes are others.
    """
    contents = Contents(marker, {})
    has_pack_json = False
    for file in list_wanted(marker):
        now = seen[file.name]
        if now.inode and (now.device, now.inode) in ours:
            raise Doubt(f"{name_source(contents, file)} is the copy itself")
        if marker.kind == "pack" and file.source_name == FILE_NAME:
            has_pack_json = _is_same(contents, file, data / file.name)
    unvouched = _list_in_place(data) if has_pack_json else set()
    near: list[tuple[CopiedFile, bool]] = []
    far: list[tuple[CopiedFile, bool]] = []
    for file in list_wanted(marker):
        now = seen[file.name]
        has_times = now.mtime_ns and file.mtime_ns
        is_vouched_for = has_pack_json and file.name not in unvouched
        is_same = now.mtime_ns == file.mtime_ns if has_times else is_vouched_for
        is_near = _is_near(contents, file)
        if is_same and not (is_near and _is_held(data, file)):
            continue
        has_checksum = file.crc32c is not None or (data / file.name).exists()
        if not is_same and not has_times and not has_checksum:
            raise Doubt(f"{name_source(contents, file)} tells no time of change, and has no known checksum")
        if not now.inode or read is None or read.get(file.name) != now:
            (near if is_near else far).append((file, is_same))
    _compare_bytes(contents, far, data)  # in this thread: not every connection can be shared
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in threads.map(lambda group: _compare_bytes(contents, group, data), _group(near)):
            pass


def _is_near(contents: Contents, file: CopiedFile) -> bool:
    """Return whether a file is reached by a path, not by an address."""
    place = contents.locate(file)[0]
    return not place.is_remote or place.root.startswith(("file:", "local:"))


def _is_held(data: Path, file: CopiedFile) -> bool:
    """Return whether the copy has bytes of a file that could be lost."""
    return (data / file.name).exists() or (data / part_name(file.name)).exists()


def _group(files: Iterable[tuple[CopiedFile, bool]]) -> Iterator[list[tuple[CopiedFile, bool]]]:
    group: list[tuple[CopiedFile, bool]] = []
    size_bytes = 0
    for one in files:
        group.append(one)
        size_bytes += one[0].size_bytes
        if size_bytes >= _CHUNK_BYTES or len(group) == _GROUP:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _compare_bytes(contents: Contents, group: Iterable[tuple[CopiedFile, bool]], data: Path) -> None:
    for file, has_same_time in group:
        expected = file.crc32c
        # Noted when all has landed: of an unfinished copy's files only the bytes themselves tell.
        if expected is None and (data / file.name).exists():
            expected = checksum_file(data / file.name)
        is_unknown = expected is None and has_same_time  # a beginning, of which nobody knows the whole
        if is_unknown or (expected is not None and _checksum(contents, file) == expected):
            continue
        if has_same_time:
            raise Doubt(
                f"{name_source(contents, file)} has other bytes than those that were copied, though its size"
                " and time of change are the same: it is damaged, and the copy may be the last good one"
            )
        raise Doubt(f"{name_source(contents, file)} was changed after it was copied")


def checksum_file(path: Path) -> int:
    with open(path, "rb") as file:
        return _checksum_stream(file, os.fstat(file.fileno()).st_size)


def _list_in_place(data: Path) -> set[str]:
    """Return the files of a copied pack of which its pack.json knows no checksum."""
    try:
        manifest = parse_manifest((data / FILE_NAME).read_bytes())
    except (OSError, FeedrateError) as error:
        raise Doubt(f"the copy's own {FILE_NAME} cannot be read: {error}") from error
    return {os.path.join(shard.folder, shard.name) for shard in manifest.shards if shard.is_in_place}


def _is_same(contents: Contents, file: CopiedFile, landed: Path) -> bool:
    """Compare a small file byte for byte; False: the copy does not have it yet."""
    place, name = contents.locate(file)
    try:
        ours = landed.read_bytes()
    except FileNotFoundError:
        return False
    try:
        if place.read(name, 0, file.size_bytes) == ours:
            return True
    except (FeedrateError, OSError) as error:
        raise Doubt(f"{name_source(contents, file)} cannot be read: {error}") from error
    raise Doubt(f"{name_source(contents, file)} is not what was copied")


def _checksum(contents: Contents, file: CopiedFile) -> int:
    place, name = contents.locate(file)
    try:
        with place.open(name) as stream:
            return _checksum_stream(stream, file.size_bytes)
    except (FeedrateError, OSError) as error:
        raise Doubt(f"{name_source(contents, file)} cannot be read: {error}") from error


def _checksum_stream(stream: BinaryIO, size_bytes: int) -> int:
    crc32c, at_once = 0, max(1, min(size_bytes, _CHUNK_BYTES))
    while chunk := stream.read(at_once):
        crc32c = kernel.crc32c(chunk, crc32c)
    return crc32c
