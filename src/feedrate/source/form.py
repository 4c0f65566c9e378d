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

from feedrate.format.containers.records import HEAD, masked_crc32c
from feedrate.remote.addresses import Place, PlacedFile


class Form(str, enum.Enum):
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
    (Form.ZIP, Form.TAR, Form.COMPRESSED_TAR, Form.TFRECORD, Form.RECORDIO, Form.HDF5, Form.PARQUET)
)
_NAMES = (
    (re.compile(rb"\.zip$"), Form.ZIP),
    (re.compile(rb"\.tar$"), Form.TAR),
    (re.compile(rb"\.(tar\.(gz|bz2|xz)|tgz|tbz2|txz)$"), Form.COMPRESSED_TAR),
    (
        re.compile(rb"(\.(tfrecords?|tfrec)(\.gz)?|\.tfrecords?-\d+-of-\d+(\.gz)?|-\d{5}-of-\d{5})$"),
        Form.TFRECORD,
    ),
    (re.compile(rb"\.rec$"), Form.RECORDIO),
    (re.compile(rb"\.(h5|hdf5|hdf|he5)$"), Form.HDF5),
    (re.compile(rb"\.(parquet|pq)$"), Form.PARQUET),
    (re.compile(rb"\.(csv|tsv|jsonl|ndjson)$"), Form.TABLE),
    (re.compile(rb"\.(txt|lst|list)$"), Form.LIST),
)


def form_by_name(name: bytes) -> Form:
    return next((form for pattern, form in _NAMES if pattern.search(name.lower())), Form.UNKNOWN)


def look_at(place: Place, file: PlacedFile) -> Form:
    """Return a file's kind; a name that says what the beginning does not deny is believed."""
    with place.open(file.path) as stream:
        beginning = stream.read(512)
        form = _by_beginning(beginning)
        if form is Form.UNKNOWN and (opened := _decompress(beginning, stream)):
            inner = _by_beginning(opened)
            form = {Form.TAR: Form.COMPRESSED_TAR, Form.TFRECORD: Form.TFRECORD}.get(inner, form)
    return form_by_name(file.path) if form is Form.UNKNOWN else form


def _by_beginning(data: bytes) -> Form:
    if data.startswith((b"PK\3\4", b"PK\5\6")):
        return Form.ZIP
    if data.startswith(b"\x89HDF\r\n\x1a\n"):
        return Form.HDF5
    if data.startswith(b"PAR1"):
        return Form.PARQUET
    if data.startswith(RECORDIO_MAGIC):
        return Form.RECORDIO
    if data[257:262] == b"ustar":
        return Form.TAR
    if len(data) >= HEAD.size and masked_crc32c(data[:8]) == struct.unpack_from("<I", data, 8)[0]:
        return Form.TFRECORD
    return Form.UNKNOWN


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
