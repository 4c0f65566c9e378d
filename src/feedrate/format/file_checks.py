# SPDX-License-Identifier: Apache-2.0
"""Whether the files of an open pack are what they were: changed, gone, short, or out of reach.

Samples may be skipped, storage may not: who skips samples would go on after a lost disk with an epoch that is
almost empty, and nobody would notice. What is inside of a file as it was packed, and cannot be read, is the
storage's fault. What the index places outside of it is the sample's. Where every value is a file of its own,
one that is gone or short is the sample's too, as long as its folder is there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feedrate.errors import PackError, StorageError
from feedrate.format.containers import FILES, RANGES
from feedrate.format.manifest import FILE_NAME, PackFile, Shard, read_manifest
from feedrate.kernel import I32, I64, Status
from feedrate.units import shell_quote

if TYPE_CHECKING:
    from feedrate.format.pack import Pack, Rows

_UNREAD = (Status.UNREADABLE, Status.CUT_SHORT)


def check_in_place(pack: Pack) -> None:
    """Files that are indexed where they were may change: their sizes are looked at once."""
    here = [s for s in pack.manifest.shards if s.is_in_place and not s.is_remote]
    for path, shard in {pack.locate_file(s): s for s in here}.items():
        try:
            size_bytes = 0 if shard.container == FILES else os.stat(path).st_size
        except OSError as error:
            raise PackError(
                f"{pack.name} is an index of {path}, which cannot be read: {error.strerror}"
            ) from error
        if shard.container == RANGES:
            check_change(shard, str(path), size_bytes)


def check_change(shard: Shard, address: str, size_bytes: int) -> None:
    """Raise PackError where a file is not as long as it was when it was indexed."""
    if size_bytes != shard.size_bytes:
        raise PackError(
            f"{address} has changed since it was indexed: {shard.size_bytes:,} bytes then, "
            f"{size_bytes:,} now",
            hint="index it again: feedrate index",
        )


def check_referred(pack: Pack) -> None:
    """Packs whose files this one names may have been made anew: they are asked once."""
    packs = {s.index.folder for s in pack.manifest.shards if s.index.folder}
    for folder in sorted(packs):
        if not (pack.path / folder / FILE_NAME).exists():
            continue  # the files may be there all the same
        shards = read_manifest(pack.path / folder).shards
        there = {s.index.name: s.index.crc32c for s in shards}
        # The same samples may have got other entry points there, in a new part beside the old one.
        known = {s.known_by for s in shards}
        for shard in pack.manifest.shards:
            if shard.index.folder != folder or there.get(shard.index.name) == shard.index.crc32c:
                continue
            if shard.known_by not in known or not pack.locate_file(shard.index).exists():
                raise PackError(
                    f"{pack.name} refers to {folder}/{shard.name}, and that is another pack now",
                    hint="restore that pack from a copy, or pack all of it again",
                )


def check_index(pack: Pack, positions: I64) -> None:
    """Raise StorageError where the files that hold these rows of the index are seen to be gone or short."""
    for position in positions.tolist():
        shard = pack.manifest.shards[int(pack.locate(np.array([position]))[0][0])]
        files: list[PackFile] = [shard.index]
        files += [part for part in pack.manifest.parts if part.first <= position < part.stop]
        for file in files:
            fault = _find_fault(_Span(os.fspath(pack.locate_file(file)), 0, 0, file.size_bytes))
            if fault is not None:
                raise _make_error(pack, fault)


def check_rows(pack: Pack, positions: I64, statuses: I32) -> None:
    """Raise StorageError where rows of the index could not be read because its files cannot."""
    check_index(pack, positions[np.isin(statuses, _UNREAD)])
    if (statuses == Status.UNREADABLE).any():
        raise _make_error(pack, f"files of the index of {pack.name} could not be read")  # a moment ago


def check_values(pack: Pack, field: str, rows: Rows, positions: I64, statuses: I32) -> None:
    """Raise StorageError where values of a field could not be read because their files cannot."""
    if not statuses.any():  # most often; `isin` takes as long as to find the sample
        return
    at = np.flatnonzero(np.isin(statuses, _UNREAD))
    if not at.size:
        return
    rows, positions = rows[at], positions[at]
    has_entries = f"{field}.entries" in (rows.dtype.names or ())
    files, values, entries = pack.find_values(field, rows, positions, with_entries=has_entries)
    packed = [*(file for s in pack.manifest.shards for file in (s, s.index)), *pack.manifest.parts]
    sizes = {path: file.size_bytes for path, file in zip(pack.files.paths, packed, strict=True)}
    for i, shard in enumerate(pack.locate(positions)[0].tolist()):
        spans = []
        for ranges in (values,) if entries is None else (entries, values):
            path, offset, length = files.paths[ranges.file[i]], int(ranges.offset[i]), int(ranges.length[i])
            if path in sizes:
                spans.append(_Span(path, offset, length, sizes[path]))
            else:
                spans.append(_Span(path, offset, length, offset + length, folder=pack.files.paths[2 * shard]))
        if not all(span.is_inside for span in spans):
            continue
        fault = next((fault for span in spans if (fault := _find_fault(span)) is not None), None)
        if fault is None and spans[-1].folder:
            fault = _find_emptied(pack, field, int(positions[i]), os.path.dirname(spans[-1].path))
        if fault is None and not spans[-1].folder:
            fault = f"{spans[-1].path} could not be read"  # a moment ago
        if fault is not None:
            raise _make_error(pack, fault)


def _find_emptied(pack: Pack, field: str, position: int, folder: str) -> str | None:
    """Say, in words, that the folder of a file has lost all its files; None: only that one may be gone."""
    try:
        with os.scandir(folder) as inside:
            if any(inside):
                return None
    except OSError:
        return None
    near = np.array([at for at in (position - 1, position + 1) if 0 <= at < len(pack)], np.int64)
    rows, statuses = pack.rows(near, [field])
    files, values, _ = pack.find_values(field, rows[statuses == 0], near[statuses == 0])
    # A folder of one sample may be empty because that one was deleted.
    has_others = any(os.path.dirname(files.paths[number]) == folder for number in values.file)
    return f"the folder {folder} is empty: is something mounted there?" if has_others else None


def _make_error(pack: Pack, fault: str) -> StorageError:
    return StorageError(
        fault,
        hint="this is the storage and not one sample, so on_bad_sample does not skip it: is its disk there, "
        f"and whole? feedrate verify {shell_quote(pack.name)}",
    )


class _Span(NamedTuple):
    """Bytes of a file; `size_bytes`: its length as packed. `folder`: the value is a file of its own there."""

    path: str
    offset: int
    length: int
    size_bytes: int
    folder: str = ""

    @property
    def is_inside(self) -> bool:
        return min(self.offset, self.length) >= 0 and self.offset + self.length <= self.size_bytes


def _find_fault(span: _Span) -> str | None:
    """Look at a file; return what is wrong with its storage, in words."""
    try:
        fd = os.open(span.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
        with open(fd, "rb", buffering=0):
            found = os.fstat(fd).st_size
            if found < span.size_bytes and not span.folder:
                return f"{span.path} is cut short: {found:,} of {span.size_bytes:,} bytes are there"
            os.pread(fd, min(span.length, found), span.offset)
    except (FileNotFoundError, IsADirectoryError) as error:
        if not span.folder:
            return f"{span.path} cannot be read: {error.strerror}"
        # A mount that is gone leaves an empty folder, or none.
        for folder in (span.folder, os.path.dirname(span.path)):
            if not os.path.isdir(folder):
                return f"the folder {folder} is gone"
        with os.scandir(span.folder) as inside:
            return None if any(inside) else f"the folder {span.folder} is empty: is something mounted there?"
    except OSError as error:
        return f"{span.path} cannot be read: {error.strerror or error}"
    return None
