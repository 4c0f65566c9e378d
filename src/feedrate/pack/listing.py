# SPDX-License-Identifier: Apache-2.0
"""What lies in a source folder: every file with its size and time, found by one walk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from feedrate.errors import NotFound, StorageError
from feedrate.probe.paths import suggest_path


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: bytes  # relative to the source
    size_bytes: int
    mtime_ns: int


@dataclass(slots=True)
class Listing:
    """Hidden files and folders are left out.

    Attributes:
        files: regular files, also behind symbolic links.
        odd: path -> why it cannot be read: dangling links, pipes, folders that may not be listed.
    """

    root: str
    files: list[SourceFile] = field(default_factory=list)
    odd: dict[bytes, str] = field(default_factory=dict)


def list_source(root: str, count: Callable[[int], None] = lambda _: None) -> Listing:
    """Walk a folder. Symbolic links are followed, except where they lead back to a folder above them."""
    try:
        top = os.stat(root)
    except OSError as error:
        raise NotFound(f"no dataset at {root} ({error.strerror})", hint=suggest_path(root)) from None
    if not stat.S_ISDIR(top.st_mode):
        raise NotFound(
            f"{root} is a file; a dataset is a folder",
            hint="is it a table? feedrate pack FOLDER PACK --labels TABLE",
        )
    listing = Listing(root)
    # Each folder that waits, with the identities of itself and of those above it.
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset({(top.st_dev, top.st_ino)}))]
    while waiting:
        folder, above = waiting.pop()
        for path, info in _entries(listing, folder):
            if stat.S_ISREG(info.st_mode):
                listing.files.append(SourceFile(path, info.st_size, info.st_mtime_ns))
                if len(listing.files) % 1000 == 0:
                    count(len(listing.files))
            elif not stat.S_ISDIR(info.st_mode):
                listing.odd[path] = "is not a regular file"
            elif (info.st_dev, info.st_ino) not in above:
                waiting.append((path, above | {(info.st_dev, info.st_ino)}))
    listing.files.sort(key=lambda file: _as_torchvision(file.path))
    return listing


def _entries(listing: Listing, folder: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    try:
        with os.scandir(os.path.join(os.fsencode(listing.root), folder)) as scan:
            entries = [entry for entry in scan if not entry.name.startswith(b".")]
    except OSError as error:
        if not folder:
            raise StorageError(f"cannot list {listing.root}: {error.strerror}") from error
        listing.odd[folder] = f"folder cannot be listed: {error.strerror}"
        return
    for entry in entries:
        path = os.path.join(folder, entry.name)
        try:
            yield path, entry.stat()
        except OSError as error:
            is_link = entry.is_symlink()
            listing.odd[path] = "is a link to nothing" if is_link else f"cannot be read: {error.strerror}"


def _as_torchvision(path: bytes) -> tuple[bytes, bytes, bytes]:
    # ImageFolder's order, so that sample numbers are its indices: by class, then by folder, then by name.
    folder, _, name = path.rpartition(b"/")
    return path.partition(b"/")[0] if folder else b"", folder, name
