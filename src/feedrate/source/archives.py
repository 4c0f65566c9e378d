# SPDX-License-Identifier: Apache-2.0
"""Zip and tar archives of files: class folders or images without labels, packed without being unpacked."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

from feedrate.errors import SourceError
from feedrate.format.fields import Field, file_suffix, has_image_suffix
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile
from feedrate.source import tar
from feedrate.source import zip as zips
from feedrate.source.detect import SourceKind, decompress, decompressing
from feedrate.source.names import SPLIT_NAMES, Repeats, is_hidden
from feedrate.source.record import (
    ContainerValue,
    FileRange,
    Record,
    Spool,
    SpooledReader,
    Value,
    describe_others,
    image_fields,
)
from feedrate.units import format_bytes, format_count, printable

_SUFFIXES = (b".tar.gz", b".tgz", b".tar.bz2", b".tbz2", b".tar.xz", b".txz", b".tar", b".zip")
# What a decompressor may have read ahead.
_AHEAD_BYTES = 256 << 10


class Member(NamedTuple):
    """A plain file of an archive: its name there, and where its bytes are."""

    name: bytes
    value: FileRange | ContainerValue


class Archive:
    """The plain files of one archive. `top` is put in front of their paths, to tell archives apart."""

    def __init__(
        self, place: Place, file: PlacedFile, spool: Spool, kind: SourceKind, top: bytes = b""
    ) -> None:
        self.place, self.file, self.spool, self.kind, self.top = place, file, spool, kind, top
        self.address = place.address(file.path)

    def names(self) -> Iterator[bytes]:
        """Yield the members' names only."""
        return (member.name for member in self._read(with_values=False))

    def members(self) -> Iterator[Member]:
        """Yield the members in stored order, hidden ones too.

        Raises:
            SourceError: the archive is damaged or hostile; the sentence names the member.
        """
        repeats = Repeats()
        for member in self._read(with_values=True):
            repeats.add(member.name)
            yield member
        twice = repeats.find(self.names())
        if twice is not None:
            raise SourceError(
                f"{self.address}: two members are called '{printable(twice)}': refused",
                hint="unpack the archive, look at it, and pack the folder",
            )

    def _read(self, *, with_values: bool) -> Iterator[Member]:
        if self.kind is SourceKind.COMPRESSED_TAR:
            return self._read_compressed(with_values=with_values)
        if self.kind is SourceKind.TAR:
            return self._read_tar()
        return self._read_zip(with_values=with_values)

    def _read_tar(self) -> Iterator[Member]:
        file = self.file
        with self.place.open(file.path) as stream:
            for one in tar.read_members(stream, self.address, file.size_bytes):
                path = self.top + one.name
                yield Member(one.name, FileRange(path, one.size_bytes, file.path, one.offset, file.mtime_ns))

    def _read_compressed(self, *, with_values: bool) -> Iterator[Member]:
        with self.place.open(self.file.path) as packed, decompressing(self.address):
            stream = _Unpacking(packed, self.address)
            for one in tar.read_members(cast(BinaryIO, stream), self.address):
                zips.check_bomb(self.address, one.offset + one.size_bytes, self.file.size_bytes)
                stream.begin(one, self.file.size_bytes)
                value = FileRange(self.top + one.name, one.size_bytes, self.file.path)
                is_copied = with_values and not is_hidden(one.name)
                yield Member(one.name, self._copy(cast(BinaryIO, stream), value) if is_copied else value)

    def _copy(self, stream: BinaryIO, value: FileRange) -> ContainerValue:
        left, start = value.size_bytes, self.spool.write(b"")
        while left:
            data = stream.read(min(left, 2**20))
            if not data:
                raise SourceError(f"{self.address} ends inside '{printable(value.path)}': it is cut short")
            self.spool.write(data)
            left -= len(data)
        return ContainerValue(value.path, value.size_bytes, b"", "spool", (start,), self.file.mtime_ns)

    def _read_zip(self, *, with_values: bool) -> Iterator[Member]:
        file = self.file
        with self.place.open(file.path) as stream, self.place.open(file.path) as local:
            for one in zips.read_members(stream, self.address, file.size_bytes):
                path = self.top + one.name
                # Elsewhere a look at a member's own header is a request: it waits until the member is read.
                value: FileRange | ContainerValue = ContainerValue(
                    path, one.size_bytes, file.path, "zip", one.place(), file.mtime_ns
                )
                if with_values and not self.place.is_remote:
                    offset = zips.locate_data(local, self.address, one)
                    if one.method == zips.STORED:
                        value = FileRange(path, one.size_bytes, file.path, offset, file.mtime_ns)
                yield Member(one.name, value)


class ArchiveReader(SpooledReader):
    """One or several archives whose images are in class folders, or have no labels.

    Raises, when iterated:
        SourceError: there are no images, or not in a way that can be packed, or an archive is refused.
    """

    def __init__(self, place: Place, archives: list[Archive], spool: Spool) -> None:
        super().__init__(place, [archive.file for archive in archives], spool)
        self._archives = archives
        self._classes: set[str] = set()

    def _read(self) -> Iterator[Record | Rejection]:
        self._classes, others = set(), Counter[str]()
        depth = self._label_depth()
        for archive in self._archives:
            for member in archive.members():
                if not _is_image(member.name, others):
                    continue
                values: dict[str, Value] = {"image": member.value}
                if depth is not None:
                    values["label"] = label = printable(member.name.split(b"/")[depth])
                    self._classes.add(label)
                yield Record(archive.top + member.name, values)
        self.ignored = dict(sorted(others.items()))

    def fields(self) -> tuple[Field, ...]:
        return image_fields(sorted(self._classes))

    def _label_depth(self) -> int | None:
        """Return which part of a name is the class: the first that differs; None: there are no classes."""
        tops: set[bytes] = set()
        seconds: set[bytes] = set()
        others: Counter[str] = Counter()
        shallow = {0: 0, 1: 0}  # images with so few folders above them
        loose, images = b"", 0
        for archive in self._archives:
            for name in archive.names():
                if not _is_image(name, others):
                    continue
                images += 1
                *folders, _ = name.split(b"/", 2)
                if len(folders) < 2:
                    shallow[len(folders)] += 1
                    loose = loose or name
                tops.update(folders[:1])
                seconds.update(folders[1:2])
        where = self._archives[0].address if len(self._archives) == 1 else self.root
        if not images:
            raise SourceError(f"no images in {where}", hint=describe_others(others))
        # An archive of one folder: what it is called says nothing about its images.
        depth = int(len(tops) == 1 and not shallow[0] and bool(seconds))
        if depth and shallow[1] == images:
            return None
        count = shallow[0] + (shallow[1] if depth else 0)
        if count == images or (len(tops) == 1 and not seconds):
            return None
        if count:
            raise SourceError(
                f"{where} has class folders, but {format_count(count, 'image')} beside them, "
                f"without a label: '{printable(loose)}'",
                hint="unpack it, and give all labels in a table: feedrate pack FOLDER PACK --labels FILE",
            )
        names = sorted(printable(name) for name in (seconds if depth else tops))
        splits = [name for name in names if name.lower() in SPLIT_NAMES]
        # One class among others may be called 'train'; two such names are parts, whatever is beside them.
        if len(splits) > 1 or splits == names:
            raise SourceError(
                f"{where} holds the parts of a dataset ({', '.join(splits)}), not classes",
                hint="unpack it, and pack the folder: it becomes one pack with its split",
            )
        return depth


class _Unpacking:
    """A compressed tar as it comes out: ends in an error when a member grows as those of bombs do."""

    def __init__(self, packed: BinaryIO, address: str) -> None:
        self._packed, self._address = packed, address
        self._stream = decompress(packed) or cast(BinaryIO, gzip.GzipFile(fileobj=packed))
        self._member: tar.TarMember | None = None
        self._began_bytes = self._began_packed_bytes = 0

    def begin(self, member: tar.TarMember, archive_bytes: int) -> None:
        """A member comes next: of more than the whole archive could hold, nothing is unpacked."""
        words = zips.describe_bomb(member.size_bytes, archive_bytes)
        if words is not None:
            raise SourceError(f"{self._address}: '{printable(member.name)}' {words}")
        self._member = member if member.size_bytes > zips.BOMB_MEMBER_BYTES else None
        self._began_bytes, self._began_packed_bytes = self._stream.tell(), self._packed.tell()

    def read(self, size_bytes: int) -> bytes:
        data = self._stream.read(size_bytes)
        if self._member is not None:
            came_bytes = self._stream.tell() - self._began_bytes
            packed_bytes = self._packed.tell() - self._began_packed_bytes + _AHEAD_BYTES
            if zips.describe_bomb(came_bytes, packed_bytes) is not None:
                raise SourceError(
                    f"{self._address}: '{printable(self._member.name)}' would unpack to "
                    f"{format_bytes(self._member.size_bytes)}, over {zips.BOMB_RATIO} times its size: "
                    "refused as a zip bomb"
                )
        return data

    def tell(self) -> int:
        return self._stream.tell()


def _is_image(name: bytes, others: Counter[str]) -> bool:
    """Return whether a member is an image; what is neither that nor hidden is counted."""
    if not has_image_suffix(name) and not is_hidden(name):
        others[file_suffix(name)] += 1
    return has_image_suffix(name) and not is_hidden(name)


def strip_suffix(name: bytes) -> bytes:
    """Return `train/000` for `train/000.tar.gz`."""
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return os.path.splitext(name)[0]
