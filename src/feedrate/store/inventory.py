# SPDX-License-Identifier: Apache-2.0
"""What lies on scratch: which copies, whose, how much of each is there, and who uses it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from feedrate.errors import StorageError
from feedrate.results.scratch import CopyInfo
from feedrate.store.copies import Copy, part_name
from feedrate.store.homes import OLD_STORE, ROOT, list_folders, list_user_folders, open_trusted
from feedrate.store.layout import DATA, LEASES, USED, WRITER, read_marker
from feedrate.store.leases import CopyGone, is_locked, live_leases
from feedrate.store.marker import user_name


def list_copies(scratch: Path) -> list[CopyInfo]:
    """Return what lies on scratch, of all users; of what cannot be read, its owner and why."""
    found = []
    for home in list_user_folders(scratch):
        for folder in list_folders(home):
            if folder.name.startswith("."):
                continue  # being made, or being deleted
            with contextlib.suppress(CopyGone, FileNotFoundError):
                found.append(_describe(folder))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """What is there of a copy's files: those that have landed, and bytes of those on their way."""

    landed: set[str]
    partial: dict[str, int]


def survey(copy: Copy) -> Survey:
    """See what is there of all files: one walk, where there may be a million of them."""
    sizes: dict[str, int] = {}
    _measure_below(str(copy.data), "", sizes)
    landed = {file.name for file in copy.marker.files if sizes.get(file.name) == file.size_bytes}
    partial = {
        file.name: min(size_bytes, file.size_bytes)
        for file in copy.marker.files
        if file.name not in landed and (size_bytes := sizes.get(part_name(file.name))) is not None
    }
    return Survey(landed, partial)


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
        landed_bytes=sum(file.size_bytes for file in marker.files if file.name in there.landed),
        partial_bytes=sum(there.partial.values()),
        created=marker.created,
        used=_time(copy.at / USED) or marker.created,
        keep_s=marker.keep_s,
        leases=live_leases(copy.at / LEASES),
        is_being_written=is_locked(copy.at / WRITER),
        is_trusted=owner in (os.getuid(), ROOT),
        is_in_old_place=copy.folder.parent.parent.name == OLD_STORE,
    )


def _describe(folder: Path) -> CopyInfo:
    info = folder.lstat()
    is_trusted = folder.parent.parent.name != OLD_STORE
    try:
        for one in (folder.parent, folder):
            os.close(open_trusted(one))
    except StorageError:
        is_trusted = False
    try:
        copy = Copy(folder, read_marker(folder))
        return dataclasses.replace(describe_copy(copy), is_trusted=is_trusted)
    except StorageError as error:
        sizes: dict[str, int] = {}
        _measure_below(str(folder / DATA), "", sizes)
        return CopyInfo(
            path=str(folder / DATA), folder=str(folder), source="", kind="", owner=user_name(info.st_uid),
            uid=info.st_uid, files=0, size_bytes=0, landed_files=len(sizes), landed_bytes=sum(sizes.values()),
            partial_bytes=0, created=0.0, used=_time(folder / USED), keep_s=None,
            leases=live_leases(folder / LEASES), is_trusted=is_trusted,
            is_being_written=info.st_uid == os.getuid() and is_locked(folder / WRITER), problem=str(error),
        )  # fmt: skip


def _measure_below(folder: str, prefix: str, sizes: dict[str, int]) -> None:
    """Note the sizes of all files below a folder, by their path in it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _measure_below(entry.path, f"{prefix}{entry.name}/", sizes)
            else:
                with contextlib.suppress(OSError):
                    sizes[prefix + entry.name] = entry.stat().st_size


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
