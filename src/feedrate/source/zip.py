# SPDX-License-Identifier: Apache-2.0
"""The members of a zip that a stranger made, one by one from its directory; a false entry is refused.

zipfile holds an object per member and believes sizes. Here nothing grows with the number of members, and a
member gives exactly the bytes it declared, or an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from feedrate.errors import SourceError
from feedrate.source.names import clean_name
from feedrate.source.record import UnusableValue
from feedrate.units import format_bytes, printable

STORED, DEFLATED = 0, 8
# Of a single member, and of the whole: photographs hardly shrink, texts and masks rarely more than this.
BOMB_RATIO = 100
BOMB_MEMBER_BYTES, BOMB_TOTAL_BYTES = 256_000_000, 10_000_000_000
_DEFLATE_RATIO = 1032  # more is impossible
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_LARGEST_ENTRY = _ENTRY.size + 3 * 65_535
_METHODS = {
    1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstandard", 95: "xz", 99: "AES"
}  # fmt: skip


class ZipMember(NamedTuple):
    """`header` is where the member's own header is; its data come behind that."""

    name: bytes
    header: int
    method: int
    packed_bytes: int
    size_bytes: int
    crc32: int
    flags: int

    def place(self) -> tuple[int, ...]:
        return self.header, self.method, self.packed_bytes, self.crc32


class _Directory(NamedTuple):
    offset: int
    size_bytes: int
    entries: int
    shift: int  # bytes in front of the zip, as in a self-extracting one


def read_members(stream: BinaryIO, archive: str, size_bytes: int) -> Iterator[ZipMember]:
    """Yield the files of a zip, in the order of its directory.

    Raises:
        SourceError: it is damaged, cut short, encrypted, in parts, a bomb, or holds a name that is refused.
    """
    directory = _find_directory(stream, archive, size_bytes)
    end, position = directory.offset + directory.size_bytes, directory.offset
    stream.seek(position)
    packed = unpacked = 0
    buffer, at = b"", 0
    for number in range(directory.entries):
        if len(buffer) - at < _LARGEST_ENTRY and position + len(buffer) - at < end:
            buffer = buffer[at:] + stream.read(min(2**20, end - position - len(buffer) + at))
            at = 0
        member, length = _parse_entry(buffer, at, archive, number, directory.shift)
        at, position = at + length, position + length
        name = clean_name(member.name, archive)
        packed += member.packed_bytes
        unpacked += member.size_bytes
        _check_entry(member, archive, directory.offset)
        if packed > size_bytes:
            raise SourceError(f"{archive}: its members overlap, as in a zip bomb: refused")
        check_bomb(archive, unpacked, size_bytes)
        if not member.name.endswith(b"/"):
            yield member if name == member.name else member._replace(name=name)
    if position != end:
        raise SourceError(
            f"{archive}: its directory holds more than the {directory.entries:,} members it counts"
        )


def locate_data(stream: BinaryIO, archive: str, member: ZipMember) -> int:
    """Return where a member's data begin, and see that its own header tells what the directory told.

    Raises:
        SourceError: they differ: one of them is.
    """
    stream.seek(member.header)
    try:
        head = stream.read(header_bytes(len(member.name)))
        head += stream.read(max(0, data_start(head) - len(head)))
        return member.header + _check_local(head, member.place(), member.size_bytes, member.name)
    except UnusableValue as error:
        raise SourceError(f"{archive}: '{printable(member.name)}' {error}: refused") from None


def read_member(data: bytes, place: tuple[int, ...], size_bytes: int) -> bytes:
    """Return a member's bytes; `data` begins at its own header, and reaches at least to its end.

    Raises:
        UnusableValue: it does not give what the directory declared.
    """
    _, method, packed_bytes, crc32 = place
    start = _check_local(data, place, size_bytes)
    packed = data[start : start + packed_bytes]
    if len(packed) < packed_bytes:
        raise UnusableValue(f"ends after {len(packed):,} of {packed_bytes:,} bytes")
    if method == STORED:
        unpacked = packed
    else:
        inflate = zlib.decompressobj(-15)
        try:
            unpacked = inflate.decompress(packed, size_bytes + 1)
        except zlib.error as error:
            raise UnusableValue(f"cannot be inflated: {error}") from error
    if len(unpacked) != size_bytes:
        more = "more" if len(unpacked) > size_bytes else f"{len(unpacked):,}"
        raise UnusableValue(f"declares {size_bytes:,} bytes and gives {more}")
    if zlib.crc32(unpacked) != crc32:
        raise UnusableValue("has a wrong checksum: it is damaged")
    return unpacked


def header_bytes(name_bytes: int) -> int:
    """Return how much in front of a member's data is worth reading at once; more is possible, and rare."""
    return _LOCAL.size + name_bytes + 256


def data_start(data: bytes) -> int:
    """Return how many bytes a member's own header says to be in front of its data."""
    if len(data) < _LOCAL.size:
        return 0
    name_bytes, extra_bytes = _LOCAL.unpack_from(data)[9:11]
    return int(_LOCAL.size + name_bytes + extra_bytes)


def _check_local(data: bytes, place: tuple[int, ...], size_bytes: int, name: bytes | None = None) -> int:
    _, method, packed_bytes, crc32 = place
    if len(data) < _LOCAL.size or data[:4] != b"PK\3\4":
        raise UnusableValue("has no header of its own where the directory says")
    _, _, flags, own_method, _, _, own_crc, own_packed, own_size, name_bytes, extra_bytes = (
        _LOCAL.unpack_from(data)
    )
    start = int(_LOCAL.size + name_bytes + extra_bytes)
    own_name = data[_LOCAL.size : _LOCAL.size + name_bytes]
    if own_method != method or flags & 1:
        raise UnusableValue("has a header that tells of another compression than the directory")
    if name is not None and b"/".join(p for p in own_name.split(b"/") if p not in (b"", b".")) != name:
        raise UnusableValue(f"is called '{printable(own_name[:200])}' in its own header")
    if flags & 8 and not own_packed:  # sizes come behind the data
        return start
    sizes: tuple[int, ...] = (own_size, own_packed)
    if 0xFFFFFFFF in sizes:
        sizes = _long_sizes(data[_LOCAL.size + name_bytes : start], sizes)
    if sizes != (size_bytes, packed_bytes) or (own_crc != crc32 and not flags & 8):
        raise UnusableValue(f"has {sizes[0]:,} bytes by its own header and {size_bytes:,} by the directory")
    return start


def _find_directory(stream: BinaryIO, archive: str, size_bytes: int) -> _Directory:
    tail_bytes = min(size_bytes, _END.size + 65_535)
    stream.seek(size_bytes - tail_bytes)
    tail = stream.read(tail_bytes)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise SourceError(f"{archive} has no directory at its end: it is cut short, or not a zip")
    _, disk, first_disk, here, entries, length, offset, _ = _END.unpack_from(tail, at)
    position = size_bytes - tail_bytes + at
    if at >= _LOCATOR.size and tail[at - _LOCATOR.size :][:4] == b"PK\6\7":
        _, _, where, disks = _LOCATOR.unpack_from(tail, at - _LOCATOR.size)
        stream.seek(min(where, size_bytes))
        record = stream.read(_END_64.size)
        if len(record) < _END_64.size or record[:4] != b"PK\6\6":
            raise SourceError(f"{archive}: its directory is not where its end says: it is damaged")
        _, _, _, _, disk, first_disk, here, entries, length, offset = _END_64.unpack(record)
        disk, position = max(disk, disks - 1), where
    if disk or first_disk or here != entries:
        raise SourceError(
            f"{archive} is one part of a zip in several parts",
            hint="join them first: zip -s 0 archive.zip --out whole.zip",
        )
    shift = position - length - offset
    if shift < 0 or offset + shift + length > size_bytes or entries * _ENTRY.size > length:
        raise SourceError(
            f"{archive}: its end tells of a directory of {entries:,} members in {length:,} bytes "
            f"at byte {offset:,}, which do not fit there: it is damaged"
        )
    return _Directory(offset + shift, length, entries, shift)


def _parse_entry(buffer: bytes, at: int, archive: str, number: int, shift: int) -> tuple[ZipMember, int]:
    if len(buffer) < at + _ENTRY.size or buffer[at : at + 4] != b"PK\1\2":
        raise SourceError(f"{archive}: its directory is damaged at member {number + 1:,}")
    _, made_by, _, flags, method, _, _, crc32, packed, size, *lengths, _, _, attributes, header = (
        _ENTRY.unpack_from(buffer, at)
    )
    name_bytes, extra_bytes, comment_bytes = lengths
    length = _ENTRY.size + name_bytes + extra_bytes + comment_bytes
    data = buffer[at : at + length]
    name = data[_ENTRY.size : _ENTRY.size + name_bytes]
    if len(data) < length:
        raise SourceError(f"{archive}: its directory is damaged at member {number + 1:,}")
    if 0xFFFFFFFF in (packed, size, header):
        extra = data[_ENTRY.size + name_bytes : length - comment_bytes]
        try:
            size, packed, header = _long_sizes(extra, (size, packed, header))
        except UnusableValue as error:
            raise SourceError(f"{archive}: '{printable(name)}' {error}: refused") from None
    # The upper half of the attributes is a Unix mode where the member was made on Unix.
    kind = attributes >> 28 if made_by >> 8 in (3, 19) else 0
    if kind not in (0, 4, 8):
        what = "a symbolic link" if kind == 10 else "no plain file"
        raise SourceError(
            f"{archive}: '{printable(name)}' is {what}: refused", hint="make the zip of plain files"
        )
    return ZipMember(name, header + shift, method, packed, size, crc32, flags), length


def _check_entry(member: ZipMember, archive: str, directory_offset: int) -> None:
    packed_bytes, size_bytes = member.packed_bytes, member.size_bytes
    problem, hint = describe_bomb(size_bytes, packed_bytes), None
    largest = packed_bytes * (_DEFLATE_RATIO if member.method == DEFLATED else 1) + 64
    if member.flags & (1 | 64 | 8192) or member.method == 99:
        problem, hint = "is encrypted", "unpack it with its password, and pack the folder"
    elif member.method not in (STORED, DEFLATED):
        how = _METHODS.get(member.method, f"method {member.method}")
        problem = f"is compressed by {how}; stored and deflated members can be read"
        hint = "unpack it, and pack the folder"
    elif member.header + _LOCAL.size + packed_bytes > directory_offset:
        problem = "should lie where the zip's directory is: it is damaged, or lies about the size"
    elif size_bytes > largest or (member.method == STORED and size_bytes != packed_bytes):
        problem = f"declares {size_bytes:,} bytes in {packed_bytes:,}, which cannot be: refused"
    if problem is not None:
        raise SourceError(f"{archive}: '{printable(member.name)}' {problem}", hint=hint)


def describe_bomb(size_bytes: int, packed_bytes: int) -> str | None:
    """Return why a member of an archive is refused, in words behind its name; None: it is no bomb."""
    if size_bytes <= BOMB_MEMBER_BYTES or size_bytes <= BOMB_RATIO * packed_bytes:
        return None
    times = f"{size_bytes // max(1, packed_bytes):,} times its size"
    return f"would unpack to {format_bytes(size_bytes)}, {times}: refused as a zip bomb"


def check_bomb(archive: str, unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse an archive that unpacks to this, and maybe more."""
    if unpacked_bytes > BOMB_TOTAL_BYTES and unpacked_bytes > BOMB_RATIO * packed_bytes:
        raise SourceError(
            f"{archive} would unpack to more than {format_bytes(unpacked_bytes)}, "
            f"{unpacked_bytes // packed_bytes:,} times its size: refused as a zip bomb"
        )


def _long_sizes(extra: bytes, short: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes where those of 32 bits are only placeholders."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        values = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind == 1:
            wanted = short.count(0xFFFFFFFF)
            if len(values) < 8 * wanted:
                break
            longs = iter(struct.unpack_from(f"<{wanted}Q", values))
            return tuple(next(longs) if value == 0xFFFFFFFF else value for value in short)
    raise UnusableValue("has sizes of 64 bits that are not there")
