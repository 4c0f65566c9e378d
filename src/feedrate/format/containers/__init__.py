# SPDX-License-Identifier: Apache-2.0
"""The files that hold samples: one module per container, one contract for all. Loading knows none of them.

A container stores a sample's members, and says at which byte each begins.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from feedrate import kernel
from feedrate.format.fields import Field

_CLASSES = {"tar": "Tar", "tfrecord": "TFRecord", "hdf5": "Hdf5"}
NAMES = tuple(_CLASSES)
# What `feedrate index` describes, and nobody wrote here: ranges of one file, or whole files under a folder.
RANGES, FILES = "ranges", "files"
IN_PLACE = (RANGES, FILES)
# For writes of megabytes Linux takes large pieces of memory that nobody has touched for long, if ever:
# filling those took three times as long, at 4 MB a time.
_WRITTEN_TOGETHER = 256 * 1024


def find_container(name: str) -> Container:
    """Return the container of that name, one of `NAMES`; only its own module is loaded."""
    kind = _CLASSES[name]
    container: Container = getattr(importlib.import_module(f"{__name__}.{name}"), kind)()
    return container


class Member(NamedTuple):
    """Bytes inside a shard: what the container calls them, where they begin, and how many they are."""

    name: str
    offset: int
    size_bytes: int


class Content(NamedTuple):
    """One field of one sample, to be stored.

    Attributes:
        path: of the original file; empty for a value that was none.
        number: the value of a number; its `data` is then what a tar holds.
    """

    field: Field
    data: bytes
    path: bytes = b""
    number: int | float | None = None


class TooLarge(ValueError):
    """In words, why a container cannot take a sample."""


class Output:
    """Bytes on their way to a shard, counted and with their checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size_bytes = self.crc32c = 0

    def put(self, data: bytes | memoryview) -> None:
        whole = memoryview(data)
        for start in range(0, len(whole), _WRITTEN_TOGETHER):
            piece = whole[start : start + _WRITTEN_TOGETHER]
            self.file.write(piece)
            self.crc32c = kernel.crc32c(piece, self.crc32c)
        self.size_bytes += len(whole)


class ShardWriter(Protocol):
    """Writes one shard, sample by sample."""

    def add(self, key: str, contents: Sequence[Content]) -> list[int]:
        """Store a sample; return at which byte of the file each content begins.

        Raises:
            TooLarge: the container cannot hold it; nothing was written.
        """
        ...

    def end(self) -> Mapping[str, object]:
        """Write what closes the shard; return what its part of the index should remember of it."""
        ...


class Container(Protocol):
    """A kind of file that holds samples."""

    name: str

    def shard_name(self, number: int) -> str: ...

    def write(self, output: Output) -> ShardWriter: ...

    def member_name(self, key: str, content: Content) -> str:
        """Return what `read_members` calls a field of a sample; of the data only the beginning is needed."""
        ...

    def dump_number(self, field: Field, value: int | float) -> bytes:
        """Return how a number's bytes read in the container."""
        ...

    def read_members(
        self, path: str | os.PathLike[str], fields: Sequence[Field], samples: range
    ) -> Iterator[Member]:
        """Yield the members of some samples, in stored order; of a tar and a TFRecord all that it has.

        Raises:
            PackError: the file is not what it should be, or is cut short.
        """
        ...
