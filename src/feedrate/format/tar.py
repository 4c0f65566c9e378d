# SPDX-License-Identifier: Apache-2.0
"""Tar members, written so that equal contents give equal bytes, and read back with their positions."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from feedrate.errors import PackError

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a tar: where its bytes begin, and how many they are."""

    name: str
    offset: int
    size_bytes: int


def member_header(name: str, size_bytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size_bytes, 0o644, 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % BLOCK_BYTES)


def member_bytes(size_bytes: int) -> int:
    """Return the room that a file of this size takes in a tar, when its name is not long."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def read_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    """Yield the members of a tar in stored order.

    Raises:
        PackError: the file is not a tar, is cut short, or holds something that is not a plain file.
    """
    name = os.path.basename(path)
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                if not info.isreg():
                    raise PackError(f"{name}: '{info.name}' at byte {info.offset} is not a plain file")
                yield Member(info.name, info.offset_data, info.size)
                # tarfile remembers every member it has seen; a shard may have many.
                archive.members = []  # type: ignore[attr-defined]
    except (tarfile.TarError, EOFError, ValueError, OverflowError, UnicodeError) as error:
        if isinstance(error, PackError):
            raise
        raise PackError(f"{name} is not a whole tar: {error}") from error
