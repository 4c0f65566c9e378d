# SPDX-License-Identifier: Apache-2.0
"""The plain files in a tar that a stranger made, with their positions; what is not plain is refused by name.

tarfile takes a damaged header for the end of the archive and follows links. A dataset must come whole or not
at all, so headers are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from feedrate.errors import SourceError
from feedrate.source.names import clean_name
from feedrate.units import printable

BLOCK_BYTES = 512
_LARGEST_EXTENSION = 1_000_000  # long names and pax records
_ODD_TYPES = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe",
    b"S": "a file with holes", b"M": "the rest of a file from another volume", b"V": "a volume's label",
}  # fmt: skip
_EMPTY = bytes(BLOCK_BYTES)
_OCTAL = re.compile(rb"[0-7]*")


class TarMember(NamedTuple):
    name: bytes
    offset: int
    size_bytes: int


def read_members(stream: BinaryIO, archive: str, size_bytes: int | None = None) -> Iterator[TarMember]:
    """Yield the plain files of a tar in stored order; `stream` stands at the data of each when it is yielded.

    Args:
        archive: what the user calls it.
        size_bytes: of the tar, where it can be positioned; None: it is only read forwards (compressed).

    Raises:
        SourceError: it is damaged or cut short, or holds something that is not a plain file or folder.
    """
    position = 0
    pax: dict[bytes, bytes] = {}
    lasting: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    while True:
        block = stream.read(BLOCK_BYTES)
        if block == _EMPTY:
            _check_end(stream, archive)
            return
        short_name, size, kind = _parse_header(block, archive, position)
        position += BLOCK_BYTES
        if kind not in b"xgLK":
            name = pax.get(b"path", lasting.get(b"path", short_name if long_name is None else long_name))
            size = _pax_size(pax, size, archive)
            member = _plain_file(kind, name, archive, {**lasting, **pax})
            pax, long_name = {}, None
        else:
            name, member = b"", None
        if size_bytes is not None and position + size > size_bytes:
            raise SourceError(
                f"{archive}: '{printable(name)}' should have {size:,} bytes, and the tar ends after "
                f"{max(0, size_bytes - position):,} of them: it is cut short, or lies about the size"
            )
        if member is not None:
            yield TarMember(member, position, size)
        elif kind in b"xgLK":
            if size > _LARGEST_EXTENSION:
                raise SourceError(
                    f"{archive}: a name or header of {size:,} bytes at byte {position}: refused"
                )
            data = _read_exactly(stream, size, archive, position)
            if kind == b"L":
                long_name = data.rstrip(b"\0")
            elif kind == b"x":
                pax = _parse_pax(data, archive)
            elif kind == b"g":
                lasting |= _parse_pax(data, archive)
        position += size + -size % BLOCK_BYTES
        _go_to(stream, position, archive, can_seek=size_bytes is not None)


def _parse_header(block: bytes, archive: str, position: int) -> tuple[bytes, int, bytes]:
    """Return a member's name, its size and its type."""
    where = f"{archive}: at byte {position:,}"
    if not block:
        raise SourceError(
            f"{archive} is empty" if not position else f"{archive} has no end: it is cut short",
            hint=None if not position else "make it again; a whole tar ends in two empty blocks",
        )
    if len(block) < BLOCK_BYTES:
        raise SourceError(
            f"{where} a header of {len(block)} bytes instead of 512: it is cut short, or not a tar"
        )
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    stored = _parse_number(block[148:156])
    if stored != total:
        raise SourceError(
            f"{where} stands no tar header: it is damaged" if position else f"{archive} is not a tar"
        )
    size = _parse_number(block[124:136])
    if size is None or size < 0:
        raise SourceError(f"{where} a member has an impossible size: refused")
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0]
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    return name, size, block[156:157]


def _parse_number(digits: bytes) -> int | None:
    if digits[0] in (0x80, 0xFF):
        return int.from_bytes(digits, "big", signed=digits[0] == 0xFF) - (digits[0] == 0x80) * (
            1 << (8 * len(digits) - 1)
        )
    text = digits.split(b"\0", 1)[0].strip()
    return int(text or b"0", 8) if _OCTAL.fullmatch(text) else None


def _parse_pax(data: bytes, archive: str) -> dict[bytes, bytes]:
    records = {}
    start = 0
    while start < len(data) and data[start]:
        space = data.find(b" ", start, start + 20)
        length = int(data[start:space]) if space > 0 and data[start:space].isdigit() else 0
        key, equals, value = data[space + 1 : start + length].partition(b"=")
        if not length or start + length > len(data) or not equals or not value.endswith(b"\n"):
            raise SourceError(f"{archive}: a damaged pax header")
        records[key] = value[:-1]
        start += length
    return records


def _pax_size(pax: dict[bytes, bytes], size_bytes: int, archive: str) -> int:
    text = pax.get(b"size")
    if text is None:
        return size_bytes
    if not text.isdigit() or len(text) > 18:
        raise SourceError(f"{archive}: a member has an impossible size '{printable(text[:40])}': refused")
    return int(text)


def _plain_file(kind: bytes, name: bytes, archive: str, pax: dict[bytes, bytes]) -> bytes | None:
    """Return the cleaned name of a plain file; None for a folder."""
    what = _ODD_TYPES.get(kind)
    if any(key.startswith(b"GNU.sparse") for key in pax):
        what = _ODD_TYPES[b"S"]
    if what is None and kind not in (b"0", b"\0", b"7", b"5"):
        what = f"a member of the unknown type '{printable(kind)}'"
    if what is not None:
        raise SourceError(
            f"{archive}: '{printable(name[:200])}' is {what}: refused",
            hint="make the archive of plain files: tar --dereference --hard-dereference ...",
        )
    cleaned = clean_name(name, archive)
    # Before 1988 a folder was a file whose name ended in '/'.
    if kind == b"5" or name.endswith(b"/"):
        return None
    if not cleaned:
        raise SourceError(f"{archive}: a member without a name: refused")
    return cleaned


def _read_exactly(stream: BinaryIO, size_bytes: int, archive: str, position: int) -> bytes:
    data = stream.read(size_bytes)
    if len(data) < size_bytes:
        raise SourceError(
            f"{archive} ends at byte {position + len(data):,}, inside a member: it is cut short"
        )
    return data


def _go_to(stream: BinaryIO, position: int, archive: str, *, can_seek: bool) -> None:
    if can_seek:
        stream.seek(position)
        return
    while (left := position - stream.tell()) > 0:
        _read_exactly(stream, min(left, 2**20), archive, stream.tell())


def _check_end(stream: BinaryIO, archive: str) -> None:
    # Writers fill up to 10 KB, some to 1 MB.
    while rest := stream.read(2**20):
        if rest.strip(b"\0"):
            raise SourceError(
                f"{archive} goes on behind its end, as when tars are joined by cat",
                hint="join them with tar --concatenate, or pack a folder of tars",
            )
