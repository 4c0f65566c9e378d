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
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.manifest import FILE_NAME, parse_manifest
from feedrate.remote.addresses import Place
from feedrate.scratch.contents import Contents
from feedrate.scratch.copy import part_name
from feedrate.scratch.marker import CopiedFile, Marker

# A question to a file server is mostly waiting.
_AT_ONCE = 16
_GROUP = 16
# For more files than this, their folder is listed first.
_FEW_FILES = 4
# Behind these, fsspec shows what was there once.
_CACHES = ("simplecache", "filecache", "blockcache", "cached")


class NotAsCopied(Exception):
    """Why a source may not be what was copied; a clause that ends a sentence."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file of the source at one moment. `device`, `inode`, `ctime_ns`: 0 behind an address."""

    size_bytes: int
    mtime_ns: int
    device: int = 0
    inode: int = 0
    ctime_ns: int = 0  # no program can set it: who writes to the file changes it


Sight = dict[str, Seen]  # by the file's name in the copy


def stat_source(marker: Marker) -> Sight:
    """Return the facts of each of the source's files as they are now.

    Raises:
        NotAsCopied: one of them is gone, is no plain file, may not be read, or has another size.
    """
    contents, wanted = Contents(marker, {}), list_wanted(marker)
    by_place: dict[Place, list[CopiedFile]] = {}
    for file in wanted:
        by_place.setdefault(contents.locate(file)[0], []).append(file)
    found: Sight = {}
    for place, files in by_place.items():
        names = [os.fsdecode(contents.locate(file)[1]) for file in files]
        see = _see_remote if place.is_remote else _see_local
        found |= zip((file.name for file in files), see(place, names), strict=True)
    for file in wanted:
        if found[file.name].size_bytes != file.size_bytes:
            raise NotAsCopied(
                f"{contents.address(file)} has {found[file.name].size_bytes:,} bytes"
                f" and had {file.size_bytes:,} when it was copied"
            )
    return found


def list_wanted(marker: Marker) -> list[CopiedFile]:
    """Return the files of a copy that its source must have."""
    return [file for file in marker.files if file.source_name]


def _see_local(place: Place, names: list[str]) -> list[Seen]:
    paths = [os.path.join(place.root, name) for name in names]
    # To hand a thread one question costs more than a local disk's answer: many at a time.
    groups = [paths[i : i + _GROUP] for i in range(0, len(paths), _GROUP)]
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups))) as threads:
        return [seen for group in threads.map(lambda g: [*map(_see_file, g)], groups) for seen in group]


def _see_file(path: str) -> Seen:
    try:
        info = os.stat(path)
    except OSError as error:
        raise NotAsCopied(f"{path} is not there ({error.strerror})") from None
    if not stat.S_ISREG(info.st_mode):
        raise NotAsCopied(f"{path} is not a plain file")
    if not os.access(path, os.R_OK):
        raise NotAsCopied(f"{path} may not be read")
    return Seen(info.st_size, info.st_mtime_ns, info.st_dev, info.st_ino, info.st_ctime_ns)


def _see_remote(place: Place, names: list[str]) -> list[Seen]:
    if place.root.split("::", 1)[0] in _CACHES:
        raise NotAsCopied(f"{place.root} is seen through a cache, which may show what is gone")
    try:
        place.forget_listings()
        listed: Mapping[str, Seen] = {}
        if len(names) > _FEW_FILES:
            listed = _list_folders(place, {os.path.dirname(name) for name in names})
        # A connection by SSH mixes up the answers of threads that share it.
        at_once = 1 if place.root.startswith(("sftp:", "ssh:")) else min(_AT_ONCE, len(names))
        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(lambda name: listed.get(name) or _find(place, name), names))
    except FeedrateError as error:
        raise NotAsCopied(f"{place.root} was not seen: {error}") from error


def _list_folders(place: Place, folders: Iterable[str]) -> dict[str, Seen]:
    listed = {}
    for folder in sorted(folders):
        try:
            for name, file in place.list(os.fsencode(folder)):
                if file is not None:
                    listed[os.path.join(folder, os.fsdecode(name))] = Seen(file.size_bytes, file.mtime_ns)
        except FeedrateError:
            continue  # web servers often list nothing: each file is asked for then
    return listed


def _find(place: Place, name: str) -> Seen:
    file = place.find(os.fsencode(name), suggest=False)
    if file is None:
        raise NotAsCopied(f"{place.address(os.fsencode(name))} is not a plain file")
    return Seen(file.size_bytes, file.mtime_ns)


# Long enough for a file server's best rate; shorter files are handed to a thread several at a time.
_CHUNK_BYTES, _GROUP_FILES = 4 << 20, 16
_COMPARED_AT_ONCE = 8


def compare_bytes(
    marker: Marker, seen: Sight, data: Path, ours: Collection[tuple[int, int]], read: Sight | None = None
) -> None:
    """Compare what was seen with what was copied, the bytes too where they can be had.

    Args:
        data: the copy's files.
        ours: device and inode of each: a source that is made of them is no other copy.
        read: what was seen when bytes were compared a moment ago: what is still so is not read again.

    Raises:
        NotAsCopied: a file of the source is the copy's own, or its bytes are others.
    """
    contents = Contents(marker, {})
    has_pack_json = False
    for file in list_wanted(marker):
        now = seen[file.name]
        if now.inode and (now.device, now.inode) in ours:
            raise NotAsCopied(f"{contents.address(file)} is the copy itself")
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
        place = contents.locate(file)[0]
        # Reached by a path, not by an address.
        is_near = not place.is_remote or place.root.startswith(("file:", "local:"))
        has_bytes = (data / file.name).exists() or (data / part_name(file.name)).exists()
        if is_same and not (is_near and has_bytes):  # the copy has nothing of it that could be lost
            continue
        has_checksum = file.crc32c is not None or (data / file.name).exists()
        if not is_same and not has_times and not has_checksum:
            raise NotAsCopied(f"{contents.address(file)} tells no time of change, and has no known checksum")
        if not now.inode or read is None or read.get(file.name) != now:
            (near if is_near else far).append((file, is_same))
    _compare_bytes(contents, far, data)  # in this thread: not every connection can be shared
    with ThreadPoolExecutor(_COMPARED_AT_ONCE) as threads:
        for _ in threads.map(lambda group: _compare_bytes(contents, group, data), _group(near)):
            pass


def _group(files: Iterable[tuple[CopiedFile, bool]]) -> Iterator[list[tuple[CopiedFile, bool]]]:
    group: list[tuple[CopiedFile, bool]] = []
    size_bytes = 0
    for one in files:
        group.append(one)
        size_bytes += one[0].size_bytes
        if size_bytes >= _CHUNK_BYTES or len(group) == _GROUP_FILES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _compare_bytes(contents: Contents, group: Iterable[tuple[CopiedFile, bool]], data: Path) -> None:
    for file, has_same_time in group:
        expected = file.crc32c
        # Of a copy whose maker was killed only the bytes themselves tell.
        if expected is None and (data / file.name).exists():
            expected = checksum_file(data / file.name)
        is_unknown = expected is None and has_same_time  # a beginning, of which nobody knows the whole
        if is_unknown or (expected is not None and _checksum(contents, file) == expected):
            continue
        if has_same_time and file.crc32c is None:
            raise NotAsCopied(
                f"{contents.address(file)} and its copy differ, though size and time of change are the same,"
                " and no checksum is known: one of the two is damaged"
            )
        if has_same_time:
            raise NotAsCopied(
                f"{contents.address(file)} has other bytes than those that were copied, though its size"
                " and time of change are the same: it is damaged, and the copy may be the last good one"
            )
        raise NotAsCopied(f"{contents.address(file)} was changed after it was copied")


def checksum_file(path: Path) -> int:
    with open(path, "rb") as file:
        return _checksum_stream(file, os.fstat(file.fileno()).st_size)


def _list_in_place(data: Path) -> set[str]:
    """Return the files of a copied pack of which its pack.json knows no checksum."""
    try:
        manifest = parse_manifest((data / FILE_NAME).read_bytes())
    except (OSError, FeedrateError) as error:
        raise NotAsCopied(f"the copy's own {FILE_NAME} cannot be read: {error}") from error
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
        raise NotAsCopied(f"{contents.address(file)} cannot be read: {error}") from error
    raise NotAsCopied(f"{contents.address(file)} is not what was copied")


def _checksum(contents: Contents, file: CopiedFile) -> int:
    place, name = contents.locate(file)
    try:
        with place.open(name) as stream:
            return _checksum_stream(stream, file.size_bytes)
    except (FeedrateError, OSError) as error:
        raise NotAsCopied(f"{contents.address(file)} cannot be read: {error}") from error


def _checksum_stream(stream: BinaryIO, size_bytes: int) -> int:
    crc32c, at_once = 0, max(1, min(size_bytes, _CHUNK_BYTES))
    while chunk := stream.read(at_once):
        crc32c = kernel.crc32c(chunk, crc32c)
    return crc32c
