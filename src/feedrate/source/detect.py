# SPDX-License-Identifier: Apache-2.0
"""What kind of file this is: by how it begins, and by its name where that says nothing."""

from __future__ import annotations

import bz2
import enum
import gzip
import lzma
import re
import struct
import zlib
from typing import Any, BinaryIO

from feedrate.remote.addresses import Place, PlacedFile


class SourceKind(str, enum.Enum):
    ZIP = "a zip"
    TAR = "a tar"
    COMPRESSED_TAR = "a compressed tar"
    TFRECORD = "a TFRecord file"
    RECORDIO = "a RecordIO file"
    HDF5 = "an HDF5 file"
    PARQUET = "a Parquet file"
    TABLE = "a table"
    LIST = "a list of paths"
    UNKNOWN = "nothing that is known"

    def __str__(self) -> str:
        return self.value


RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)
CONTAINERS = frozenset(
    (
        SourceKind.ZIP,
        SourceKind.TAR,
        SourceKind.COMPRESSED_TAR,
        SourceKind.TFRECORD,
        SourceKind.RECORDIO,
        SourceKind.HDF5,
        SourceKind.PARQUET,
    )
)
_NAMES = (
    (re.compile(rb"\.zip$"), SourceKind.ZIP),
    (re.compile(rb"\.tar$"), SourceKind.TAR),
    (re.compile(rb"\.(tar\.(gz|bz2|xz)|tgz|tbz2|txz)$"), SourceKind.COMPRESSED_TAR),
    (
        re.compile(rb"(\.(tfrecords?|tfrec)(\.gz)?|\.tfrecords?-\d+-of-\d+(\.gz)?|-\d{5}-of-\d{5})$"),
        SourceKind.TFRECORD,
    ),
    (re.compile(rb"\.rec$"), SourceKind.RECORDIO),
    (re.compile(rb"\.(h5|hdf5|hdf|he5)$"), SourceKind.HDF5),
    (re.compile(rb"\.(parquet|pq)$"), SourceKind.PARQUET),
    (re.compile(rb"\.(csv|tsv|jsonl|ndjson)$"), SourceKind.TABLE),
    (re.compile(rb"\.(txt|lst|list)$"), SourceKind.LIST),
)


def form_by_name(name: bytes) -> SourceKind:
    return next((form for pattern, form in _NAMES if pattern.search(name.lower())), SourceKind.UNKNOWN)


def look_at(place: Place, file: PlacedFile) -> SourceKind:
    """Return a file's kind; a name that says what the beginning does not deny is believed."""
    with place.open(file.path) as stream:
        beginning = stream.read(512)
        form = _by_beginning(beginning)
        if form is SourceKind.UNKNOWN and (opened := _decompress(beginning, stream)):
            inner = _by_beginning(opened)
            form = {SourceKind.TAR: SourceKind.COMPRESSED_TAR, SourceKind.TFRECORD: SourceKind.TFRECORD}.get(
                inner, form
            )
    return form_by_name(file.path) if form is SourceKind.UNKNOWN else form


def _by_beginning(data: bytes) -> SourceKind:
    if data.startswith((b"PK\3\4", b"PK\5\6")):
        return SourceKind.ZIP
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        return SourceKind.HDF5
    if data.startswith(b"PAR1"):
        return SourceKind.PARQUET
    if data.startswith(RECORDIO_MAGIC):
        return SourceKind.RECORDIO
    if data[257:262] == b"ustar":
        return SourceKind.TAR
    # Here, since class folders, which need none of it, are opened sooner without.
    from feedrate.format.containers.tfrecord import HEAD, masked_crc32c

    if len(data) >= HEAD.size and masked_crc32c(data[:8]) == struct.unpack_from("<I", data, 8)[0]:
        return SourceKind.TFRECORD
    return SourceKind.UNKNOWN


def _decompress(beginning: bytes, stream: BinaryIO) -> bytes:
    opener: Any = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}.get(beginning[:2])
    if opener is None:
        return b""
    stream.seek(0)
    try:
        with opener(stream, "rb") as inner:
            return bytes(inner.read(512))
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""
