# SPDX-License-Identifier: Apache-2.0
"""What readers of sources give: one record per sample, with values that are found again by any process.

Samples are packed in another order than they stand in a compressed stream or a row group, and to read each
of them there would cost the whole of it: such values wait in a spool, a file beside the pack. Values of a
source's tables become bytes, and what nobody could load is refused in words.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedrate.errors import StorageError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.index import ByteStrings
from feedrate.kernel import I64
from feedrate.progress import Rejection, RejectionCode
from feedrate.remote.addresses import Place, PlacedFile, explained
from feedrate.units import printable

if TYPE_CHECKING:
    from feedrate.source.table import Table

SPOOL_NAME = "packing.spool"
_SMALL_BYTES = 256


class FileRange(NamedTuple):
    """Bytes that are as they are in a file of the source.

    Attributes:
        path: what the value is called as a file of its own; it decides key and suffix, and comes back when
            the pack is unpacked.
        file: the file that holds it, relative to the source; a plain file holds itself.
        mtime_ns: of that file, to see that a source changed between two runs; 0 where it is not known.
    """

    path: bytes
    size_bytes: int
    file: bytes
    offset: int = 0
    mtime_ns: int = 0


class ContainerValue(NamedTuple):
    """A value that its container has to give out: a deflated member, a cell, a row of a chunked dataset.

    Attributes:
        container: who can: "zip", "parquet", "hdf5", ...
        place: where in `file`, in the container's own words.
        size_bytes: at most so many bytes come out; more is an error, not memory.
    """

    path: bytes
    size_bytes: int
    file: bytes
    container: str
    place: tuple[int | str, ...]
    mtime_ns: int = 0


# Text is a class name where the field is a label, and text elsewhere.
Value = FileRange | ContainerValue | bytes | str | int | float


class Record(NamedTuple):
    """One sample: what it is called (its key is made from that), and a value per name of a field."""

    name: bytes
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Many samples at once, for folders of a million files: each is one image file, called by its path.

    Attributes:
        sizes, times_ns: of the files.
        label: of all of them; None: they have none.
    """

    paths: ByteStrings
    sizes: I64
    times_ns: I64
    label: int | None

    def __len__(self) -> int:
        return len(self.paths)

    def records(self) -> Iterator[Record]:
        label = {} if self.label is None else {"label": self.label}
        facts = zip(self.paths, self.sizes.tolist(), self.times_ns.tolist(), strict=True)
        for path, size_bytes, time_ns in facts:
            yield Record(path, {"image": FileRange(path, size_bytes, path, 0, time_ns), **label})


class Reader(Protocol):
    """A source. Iterating streams through it, in the same order every time; nothing grows with its size.

    A sample's number is its place in that stream, so a `Rejection` that stands where a sample would have been
    counts too. Readers derive from this class and get what they do not need as it stands here.

    Attributes:
        root: a folder or an fsspec URL that `FileRange.file` and `ContainerValue.file` are relative to.
        ignored: suffix -> files that were passed over; whole after the iteration.
        unlisted: images that no row of a table names; whole after the iteration.
        table: the table of labels, which becomes part of the pack.
        label_columns: its columns that became the labels.
    """

    root: str
    ignored: Mapping[str, int]
    unlisted: int = 0
    table: Table | None = None
    label_columns: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Record | Rejection]: ...

    def blocks(self) -> Iterator[Record | Rejection | ImageFiles]:
        """Iterate, many samples at a time where the reader can."""
        yield from self

    def fields(self) -> tuple[Field, ...]:
        """Return the fields; whole after the iteration, when all classes have been seen."""
        ...


def image_fields(classes: Iterable[str] = ()) -> tuple[Field, ...]:
    """Return the fields of images, and of their labels where there are classes."""
    names, image = tuple(classes), Field("image", Kind.IMAGE)
    return (image, Field("label", Kind.NUMBER, dtype="int64", classes=names)) if names else (image,)


def describe_others(others: Counter[str]) -> str:
    """Return a hint where a source has no images: suffixes, and how many files have them."""
    if not others:
        return "it holds no files at all"
    counts = ", ".join(f"{count:,} with {suffix or 'no suffix'}" for suffix, count in others.most_common(4))
    if set(others) <= {".npy", ".npz", ".pt"}:
        counts += "; arrays that a Dataset of your own reads are kept in memory by feedrate.cached(dataset)"
    return f"it holds other files: {counts}"


class Spool:
    """Appends values, inside of `with`; the file is made for the first. `folder`: None where none may be."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None
        self._end = 0

    def __enter__(self) -> Spool:
        """Begin anew: what an earlier iteration left is forgotten."""
        self._end = 0
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with self._explaining():
                file.close()

    def add(self, path: bytes, data: bytes, mtime_ns: int = 0) -> ContainerValue:
        """Keep a value and return where it is; `mtime_ns` is that of the file it comes from."""
        self.write(data)
        return ContainerValue(path, len(data), b"", "spool", (self._end - len(data),), mtime_ns)

    def keep(self, path: bytes, data: bytes, mtime_ns: int = 0) -> ContainerValue | bytes:
        """Return a small value itself, to stand in the listing, and the place of a larger one."""
        return data if len(data) <= _SMALL_BYTES else self.add(path, data, mtime_ns)

    def write(self, data: bytes) -> int:
        """Append a piece of a value; return where it begins."""
        with self._explaining():
            if self._file is None:
                self._file = self._open()
            self._file.write(data)
        self._end += len(data)
        return self._end - len(data)

    def flush(self) -> None:
        if self._file is not None:
            with self._explaining():
                self._file.flush()

    def _open(self) -> BinaryIO:
        if self.folder is None:
            raise UsageError(
                "this source is compressed in one piece, so its samples cannot be read one by one",
                hint="pack it: feedrate pack SOURCE PACK",
            )
        return open(os.path.join(self.folder, SPOOL_NAME), "wb", buffering=2**20)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"cannot write {SPOOL_NAME} in {self.folder}: {error.strerror}",
                hint="samples of this source are kept there while it is packed: it needs room for them twice",
            ) from error


class SpooledReader(Reader):
    """A reader of files in one place, with a spool; what the place raises becomes a sentence."""

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool) -> None:
        self.root = place.root
        self.ignored: dict[str, int] = {}
        self.files = files
        self._place, self._spool = place, spool

    def __iter__(self) -> Iterator[Record | Rejection]:
        with explained(self.root), self._spool:
            yield from self._read()

    @abstractmethod
    def _read(self) -> Iterator[Record | Rejection]: ...


class UnusableValue(Exception):
    """The reason why an input cannot be packed: in words, and its code."""

    def __init__(self, words: str, code: RejectionCode = "corrupt") -> None:
        super().__init__(words)
        self.code: RejectionCode = code


def reject(name: bytes, field: str, error: Exception) -> Rejection:
    """Return the rejection of a sample for an error in one of its values."""
    code = error.code if isinstance(error, UnusableValue) else "corrupt"
    return Rejection(printable(name), field, str(error), code)


def dump_value(kind: Kind, value: object) -> bytes:
    """Return the bytes that stand for a value of a table.

    Raises:
        UnusableValue: the value is not of this kind.
    """
    if kind is Kind.TEXT:
        if isinstance(value, (list, dict)):
            raise UnusableValue("is not a text")
        return str(value).encode("utf-8", "surrogateescape")
    if kind is Kind.JSON:
        return json.dumps(_parse_json(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert kind is Kind.BOXES, kind
    return dump_array(_parse_boxes(_parse_json(value)))


def dump_array(array: npt.NDArray[Any]) -> bytes:
    """Return a .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _parse_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnusableValue(f"is not JSON: {error}") from error


def _parse_boxes(rows: object) -> npt.NDArray[np.float32]:
    try:
        boxes = np.asarray(rows if rows else np.zeros((0, 4)), np.float32)
    except (ValueError, TypeError) as error:
        raise UnusableValue("boxes must be rows of equally many numbers") from error
    if boxes.ndim != 2 or boxes.shape[1] < 4 or not np.isfinite(boxes).all():
        raise UnusableValue(f"boxes must be rows of at least 4 finite numbers, got shape {boxes.shape}")
    return boxes
