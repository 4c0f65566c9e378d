# SPDX-License-Identifier: Apache-2.0
"""What is on scratch: copies and caches, how much of each is there, who uses them; what was staged where.

The registry of what a user has staged on which node is one small file per copy in the home folder, which all
nodes see. A memory aid and nothing more: no copy is deleted because of it, and a home folder that is full or
read-only stops nobody. Each file is written whole: nodes that write at the same time need no lock, which home
folders on NFS often do not have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
from pathlib import Path
from urllib.parse import quote

from feedrate import documents
from feedrate.cache import entry_folder
from feedrate.cache.persistent import NAMES, last_used, list_places, measure
from feedrate.cache.table import ROW
from feedrate.errors import StorageError
from feedrate.files.atomic import atomic_write
from feedrate.files.lock import Gone, is_locked
from feedrate.files.permissions import ROOT, open_trusted, user_name
from feedrate.files.tree import measure_files
from feedrate.machine.describe import find_node, find_state_folder
from feedrate.machine.process import find_openers
from feedrate.scratch.copy import DATA, LEASES, USED, WRITER, Copy, part_name, read_marker
from feedrate.scratch.folder import list_folders, list_user_folders
from feedrate.scratch.marker import live_leases
from feedrate.scratch.results import CacheInfo, CopyInfo, StagedCopy


def list_copies(scratch: Path) -> list[CopyInfo]:
    """Return what is on scratch, of all users; of what cannot be read, its owner and why."""
    found = []
    for home in list_user_folders(scratch):
        for folder in list_folders(home):
            if folder.name.startswith("."):
                continue  # being made, or being deleted
            with contextlib.suppress(Gone, FileNotFoundError):
                found.append(_describe(folder))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """The bytes that are there of a copy's files: of those that have landed, and of those on their way."""

    landed: dict[str, int]
    partial: dict[str, int]

    @property
    def landed_bytes(self) -> int:
        return sum(self.landed.values())


def survey(copy: Copy) -> Survey:
    """Measure all files of a copy in one walk: there may be a million of them."""
    sizes = measure_files(copy.data)
    found = Survey({}, {})
    for file in copy.marker.files:
        if sizes.get(file.name) == file.size_bytes:
            found.landed[file.name] = file.size_bytes
        elif (size_bytes := sizes.get(part_name(file.name))) is not None:
            found.partial[file.name] = min(size_bytes, file.size_bytes)
    return found


def describe_copy(copy: Copy) -> CopyInfo:
    """Look at all of it."""
    marker, there = copy.marker, survey(copy)
    owner = copy.folder.lstat().st_uid
    return CopyInfo(
        path=str(copy.path),
        folder=str(copy.folder),
        source=marker.address,
        kind=marker.kind,
        owner=user_name(owner),
        uid=owner,
        files=len(marker.files),
        size_bytes=marker.size_bytes,
        landed_files=len(there.landed),
        landed_bytes=there.landed_bytes,
        partial_bytes=sum(there.partial.values()),
        created=marker.created,
        used=_time(copy.at / USED) or marker.created,
        keep_s=marker.keep_s,
        leases=live_leases(copy.at / LEASES),
        is_being_written=is_locked(copy.at / WRITER),
        is_trusted=owner in (os.getuid(), ROOT),
    )


def _describe(folder: Path) -> CopyInfo:
    info = folder.lstat()
    is_trusted = True
    try:
        for one in (folder.parent, folder):
            os.close(open_trusted(one))
    except StorageError:
        is_trusted = False
    try:
        copy = Copy(folder, read_marker(folder))
        return dataclasses.replace(describe_copy(copy), is_trusted=is_trusted)
    except StorageError as error:
        sizes = measure_files(folder / DATA)
        return CopyInfo(
            path=str(folder / DATA), folder=str(folder), source="", kind="", owner=user_name(info.st_uid),
            uid=info.st_uid, files=0, size_bytes=0, landed_files=len(sizes), landed_bytes=sum(sizes.values()),
            partial_bytes=0, created=0.0, used=_time(folder / USED), keep_s=None,
            leases=live_leases(folder / LEASES), is_trusted=is_trusted,
            is_being_written=info.st_uid == os.getuid() and is_locked(folder / WRITER), problem=str(error),
        )  # fmt: skip


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


_LARGEST_BYTES = 64 * 1024
_TRIES = 10


def find_registry() -> Path:
    """Return the registry's folder, which need not be there."""
    return find_state_folder() / "scratch"


def remember(copy: StagedCopy) -> bool:
    """Note a copy, or a change of one. False: the home folder refused the file."""
    path = _entry(copy.node, copy.folder)
    text = json.dumps(dataclasses.asdict(copy), indent=1) + "\n"
    for _ in range(_TRIES):  # another process may strike the node's last copy off, and remove its folder
        with contextlib.suppress(OSError, StorageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, is_durable=False) as file:
                file.write(text.encode("ascii"))
            return True
    return False


def forget(node: str, folder: str) -> None:
    """Strike a copy off; nothing happens where it is not known."""
    entry = _entry(node, folder)
    with contextlib.suppress(OSError):
        entry.unlink()
        entry.parent.rmdir()  # its node's last one; fails while there are others


def recall() -> list[StagedCopy]:
    """Return all known copies, by node and folder; entries that cannot be read are left out."""
    top = find_registry()
    # Not Path.glob, which raises where a folder goes away while it looks.
    found = [_read_entry(top / name) for name in glob.glob("*/*.json", root_dir=top)]
    return sorted((one for one in found if one is not None), key=lambda one: (one.node, one.folder))


def _entry(node: str, folder: str) -> Path:
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    # '.' and '..' are names of nodes only in a bad joke; quote() leaves them as they are.
    return find_registry() / f"node-{quote(node, safe='')}" / f"{digest}.json"


def _read_entry(path: Path) -> StagedCopy | None:
    try:
        with open(path, "rb") as file:
            return documents.load(StagedCopy, json.loads(file.read(_LARGEST_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember_copy(copy: Copy, scratch: Path) -> None:
    """Note a copy that was just made or taken into use."""
    marker = copy.marker
    remember(
        StagedCopy(
            node=find_node(),
            scratch=str(scratch),
            folder=str(copy.folder),
            path=str(copy.path),
            source=marker.address,
            size_bytes=marker.size_bytes,
            created=marker.created,
            keep_s=marker.keep_s,
        )
    )


_ROWS, _, _LOCK = NAMES


def list_caches(scratch: Path) -> list[CacheInfo]:
    """Return this user's caches on a scratch folder: others' cannot be looked at."""
    entries = entry_folder.find_home(scratch)
    return [
        *(_describe_cache(place) for place in list_places(str(scratch))),
        *([] if entries is None else [_describe_entries(entries)]),
    ]


def _describe_cache(place: Path) -> CacheInfo:
    try:
        samples = os.stat(place / _ROWS).st_size // ROW.itemsize
    except OSError:
        samples = 0
    return CacheInfo(
        path=str(place),
        size_bytes=measure(place),
        samples=samples,
        used=last_used(place),
        users=tuple(find_openers(os.path.realpath(place))),
        is_being_filled=is_locked(place / _LOCK),
    )


def _describe_entries(place: Path) -> CacheInfo:
    return CacheInfo(
        path=str(place),
        size_bytes=entry_folder.measure_bytes(place),
        samples=entry_folder.count_images(place),
        used=_time(place / entry_folder.LOCK),
        users=tuple(find_openers(os.path.realpath(place))),
        is_being_filled=entry_folder.is_being_filled(place),
    )
