# SPDX-License-Identifier: Apache-2.0
"""What kind of file this is: by how it begins, and by its name where that says nothing."""

from __future__ import annotations

import bz2
import contextlib
import enum
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from feedrate.errors import FeedrateError, SourceError
from feedrate.remote.addresses import Place, PlacedFile

# How a compressed file begins, and what reads it.
_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], object]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZ": bz2.BZ2File,
    b"\xfd7": lzma.LZMAFile,
}


def _is_tfrecord(data: bytes) -> bool:
    from feedrate.format.containers.tfrecord import HEAD, masked_crc32c

    return len(data) >= HEAD.size and masked_crc32c(data[:8]) == HEAD.unpack_from(data)[1]


class SourceKind(enum.Enum):
    """The kinds of files: one line each says all that opening one needs.

    Attributes:
        words: what the user is told that it is.
        names: how its file's name ends.
        begins: whether a file is one, by its first bytes.
        reader: MODULE:CLASS in this package, where one reader takes such files one by one or many at once.
    """

    ZIP = "a zip", rb"\.zip$", lambda data: data.startswith((b"PK\3\4", b"PK\5\6"))
    HDF5 = "an HDF5 file", rb"\.(h5|hdf5|hdf|he5)$", b"\x89HDF\r\n\x1a\n", "hdf5:Hdf5Reader"
    PARQUET = "a Parquet file", rb"\.(parquet|pq)$", b"PAR1", "parquet:ParquetReader"
    RECORDIO = "a RecordIO file", rb"\.rec$", b"\x0a\x23\xd7\xce"  # known, to be refused in words
    TAR = "a tar", rb"\.tar$", lambda data: data[257:262] == b"ustar"
    COMPRESSED_TAR = "a compressed tar", rb"\.(tar\.(gz|bz2|xz)|tgz|tbz2|txz)$"
    TFRECORD = (
        "a TFRecord file",
        rb"(\.(tfrecords?|tfrec)(\.gz)?|\.tfrecords?-\d+-of-\d+(\.gz)?|-\d{5}-of-\d{5})$",
        _is_tfrecord,
        "tfrecord:ExampleReader",
    )
    TABLE = "a table", rb"\.(csv|tsv|jsonl|ndjson)$"
    LIST = "a list of paths", rb"\.(txt|lst|list)$"
    UNKNOWN = "nothing that is known", rb"(?!)"

    def __init__(
        self,
        words: str,
        names: bytes,
        begins: bytes | Callable[[bytes], bool] | None = None,
        reader: str = "",
    ) -> None:
        self.words, self.names, self.reader = words, re.compile(names), reader
        self.begins = (lambda data: data.startswith(begins)) if isinstance(begins, bytes) else begins

    def __str__(self) -> str:
        return self.words

    @property
    def is_archive(self) -> bool:
        return self in (SourceKind.ZIP, SourceKind.TAR, SourceKind.COMPRESSED_TAR)

    @property
    def is_container(self) -> bool:
        return bool(self.reader) or self.is_archive or self is SourceKind.RECORDIO


def kind_by_name(name: bytes) -> SourceKind:
    return next((kind for kind in SourceKind if kind.names.search(name.lower())), SourceKind.UNKNOWN)


def look_at(place: Place, file: PlacedFile) -> SourceKind:
    """Return a file's kind; a name that says what the beginning does not deny is believed."""
    with place.open(file.path) as stream:
        kind = _by_beginning(stream.read(512))
        if kind is SourceKind.UNKNOWN:
            stream.seek(0)
            inner = _by_beginning(_begin_inside(stream))
            if inner is SourceKind.TAR:
                kind = SourceKind.COMPRESSED_TAR
            elif inner is SourceKind.TFRECORD:
                kind = inner
    return kind_by_name(file.path) if kind is SourceKind.UNKNOWN else kind


def _by_beginning(data: bytes) -> SourceKind:
    found = (kind for kind in SourceKind if kind.begins is not None and kind.begins(data))
    return next(found, SourceKind.UNKNOWN)


def _begin_inside(stream: BinaryIO) -> bytes:
    """Return how that begins which a file holds compressed; nothing where it is not."""
    try:
        inner = decompress(stream)
        return b"" if inner is None else inner.read(512)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return b""


def is_compressed(beginning: bytes) -> bool:
    return beginning[:2] in _DECOMPRESSORS


def decompress(stream: BinaryIO) -> BinaryIO | None:
    """Return what a compressed file holds; None: it begins as none does. `stream` stands at its beginning."""
    opener = _DECOMPRESSORS.get(stream.read(2))
    stream.seek(0)
    return None if opener is None else cast(BinaryIO, opener(stream))


@contextlib.contextmanager
def decompressing(address: str) -> Iterator[None]:
    """Say in a sentence what is wrong with a file that does not come out as it should."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, FeedrateError):
            raise
        raise SourceError(f"{address} cannot be decompressed: {error}") from error
