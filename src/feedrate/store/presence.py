# SPDX-License-Identifier: Apache-2.0
"""Is the source of a copy there, all of it, with the sizes that it had? `sameness` looks at bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from feedrate.errors import FeedrateError
from feedrate.store.contents import Contents
from feedrate.store.marker import CopiedFile, Marker
from feedrate.store.place import Place

# A question to a file server is mostly waiting.
_AT_ONCE = 16
_GROUP = 16
# For more files than this, their folder is listed first.
_FEW_FILES = 4
# Behind these, fsspec shows what was there once.
_CACHES = ("simplecache", "filecache", "blockcache", "cached")


class Doubt(Exception):
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


def see_source(marker: Marker) -> Sight:
    """Return the facts of each of the source's files as they are now.

    Raises:
        Doubt: one of them is gone, is no plain file, may not be read, or has another size.
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
            raise Doubt(
                f"{name_source(contents, file)} has {found[file.name].size_bytes:,} bytes"
                f" and had {file.size_bytes:,} when it was copied"
            )
    return found


def list_wanted(marker: Marker) -> list[CopiedFile]:
    """Return the files of a copy that its source must have."""
    return [file for file in marker.files if file.source_name]


def name_source(contents: Contents, file: CopiedFile) -> str:
    """Return what the user would call a file of the source."""
    place, name = contents.locate(file)
    return place.address(name)


def _see_local(place: Place, names: list[str]) -> list[Seen]:
    paths = [os.path.join(place.root, name) for name in names]
    # To hand a thread one question costs more than a local disk's answer: many at a time.
    groups = [paths[i : i + _GROUP] for i in range(0, len(paths), _GROUP)]
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups))) as threads:
        return [seen for group in threads.map(_see_files, groups) for seen in group]


def _see_files(paths: list[str]) -> list[Seen]:
    return [_see_file(path) for path in paths]


def _see_file(path: str) -> Seen:
    try:
        info = os.stat(path)
    except OSError as error:
        raise Doubt(f"{path} is not there ({error.strerror})") from None
    if not stat.S_ISREG(info.st_mode):
        raise Doubt(f"{path} is not a plain file")
    if not os.access(path, os.R_OK):
        raise Doubt(f"{path} may not be read")
    return Seen(info.st_size, info.st_mtime_ns, info.st_dev, info.st_ino, info.st_ctime_ns)


def _see_remote(place: Place, names: list[str]) -> list[Seen]:
    if place.root.split("::", 1)[0] in _CACHES:
        raise Doubt(f"{place.root} is seen through a cache, which may show what is gone")
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
        raise Doubt(f"{place.root} was not seen: {error}") from error


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
        raise Doubt(f"{place.address(os.fsencode(name))} is not a plain file")
    return Seen(file.size_bytes, file.mtime_ns)
