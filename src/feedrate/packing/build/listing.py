# SPDX-License-Identifier: Apache-2.0
"""The samples of a source, listed on disk: any of them is one `pread` away, for any process, and memory does
not grow with their number.

    chunk, chunk, ...     of a few thousand samples: a row of fixed size each, then what the rows point at
    end                   JSON: where chunks begin, how many samples they have, the fields
    16 bytes              where the end begins; MAGIC

A row points at JSON, or, where a sample is one image file and perhaps a number, at the file's path.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedrate import kernel
from feedrate.draws import Purpose, make_key, permute
from feedrate.errors import StorageError
from feedrate.format.containers.tar import BLOCK_BYTES, member_bytes
from feedrate.format.fields import Field, key_of_stem, make_stem
from feedrate.format.index import ByteStrings
from feedrate.format.manifest import dump_field, load_field
from feedrate.kernel import I64, Ranges
from feedrate.progress import Rejection, Tick
from feedrate.source.record import ContainerValue, FileRange, ImageFiles, Record, Value

NAME = "packing.listing"
_CHUNK = 4096
_TELL_EVERY = 1000
# Fewer files than this are not worth a chunk of their own.
_BLOCK_FILES = 64
_MAGIC = b"feedrls1"
_END = struct.Struct("<q8s")
_ROW = np.dtype(
    [("offset", "<i8"), ("length", "<i4"), ("again", "<u4"), ("number", "<i8"), ("tar_bytes", "<i8"),
     ("source_bytes", "<i8"), ("label", "<i8"), ("kind", "<i8")]
)  # fmt: skip
# A listing up to this size is read at once (200,000 files or so); of larger ones what is asked for.
_HELD_BYTES = 1 << 24
RECORD, FILE, LABELLED = 0, 1, 2  # kinds of rows
NUMBER_BYTES = 8  # what a number counts as
_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode

Rows = np.ndarray[Any, np.dtype[Any]]


class Sample(NamedTuple):
    """One sample to pack; `values` has one per field, None where it has none."""

    number: int
    key: str
    values: tuple[Value | None, ...]

    @property
    def source_bytes(self) -> int:
        return sum(value_bytes(value) for value in self.values)


def order_samples(first: int, last: int, count: int, seed: int) -> I64:
    """Return which samples stand at places `first` to `last` of the pack: computed, never stored."""
    return permute(np.arange(first, last, dtype=np.int64), count, make_key(seed, Purpose.PACK))


def value_bytes(value: Value | None) -> int:
    """Return what a value takes in the source; in a tar too, unless its pixels are changed."""
    if isinstance(value, (FileRange, ContainerValue)):
        return value.size_bytes
    return len(value) if isinstance(value, bytes) else NUMBER_BYTES


class ListingWriter:
    """Writes samples as they come. Holds a chunk of them, and 8 bytes of each for telling keys apart.

    Attributes:
        count: samples so far; `files` and `source_bytes` of them.
        numbers: that `add_all` gave to them, and to what was rejected.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.count = self.files = self.source_bytes = self.numbers = 0
        self._out, self._offset = out, 0
        self._chunks: list[tuple[int, int]] = []  # where each begins, and its samples
        self._names: list[bytes] = []
        self._texts: list[bytes] = []
        self._facts: list[tuple[int, int, int, int, int]] = []  # as in a row, from its number on
        self._times: list[int] = []
        self._hashes = array("Q")
        self._contents, self._changes = hashlib.sha256(), hashlib.sha256()

    def add(self, number: int, record: Record) -> None:
        tar_bytes = source_bytes = 0
        for value in record.values.values():
            size_bytes = value_bytes(value)
            source_bytes += size_bytes
            tar_bytes += member_bytes(size_bytes)
            if isinstance(value, (FileRange, ContainerValue)):
                self._times.append(value.mtime_ns)
                self.files += 1
        kind, label = _kind_of(record)
        if kind == RECORD:
            values = {name: _dump_value(value) for name, value in record.values.items()}
            self._texts.append(_encode([record.name.decode("latin-1"), values]).encode("ascii"))
        else:
            self._texts.append(record.name)
        self._names.append(record.name)
        self._facts.append((number, tar_bytes, source_bytes, label, kind))
        self.count += 1
        if len(self._texts) == _CHUNK:
            self._flush()

    def add_all(
        self, blocks: Iterable[Record | Rejection | ImageFiles], watch: Callable[[Tick], None]
    ) -> tuple[Rejection, ...]:
        """Add what a reader gives, each sample under its place in that stream; return what was rejected."""
        rejected, told = [], 0
        for block in blocks:
            if isinstance(block, ImageFiles):
                self.add_files(self.numbers, block)
            elif isinstance(block, Rejection):
                rejected.append(block)
            else:
                self.add(self.numbers, block)
            self.numbers += len(block) if isinstance(block, ImageFiles) else 1
            if self.count >= told + _TELL_EVERY:
                told = self.count
                watch(Tick("listing", told, 0))
        return tuple(rejected)

    def add_files(self, first_number: int, files: ImageFiles) -> None:
        """Add many samples, numbered from `first_number` on."""
        if len(files) < _BLOCK_FILES:
            for number, record in enumerate(files.records(), first_number):
                self.add(number, record)
            return
        self._flush()
        rows = np.zeros(len(files), _ROW)
        has_label = files.label is not None
        rows["number"] = np.arange(first_number, first_number + len(files))
        rows["kind"], rows["label"] = (LABELLED, files.label) if has_label else (FILE, 0)
        rows["source_bytes"] = files.sizes + (NUMBER_BYTES if has_label else 0)
        rows["tar_bytes"] = BLOCK_BYTES + files.sizes + -files.sizes % BLOCK_BYTES
        rows["tar_bytes"] += member_bytes(NUMBER_BYTES) if has_label else 0
        self.count += len(files)
        self.files += len(files)
        self._changes.update(np.ascontiguousarray(files.times_ns).tobytes())
        for start in range(0, len(files), _CHUNK):
            paths = files.paths[start : start + _CHUNK]
            self._write(rows[start : start + _CHUNK], paths, paths)

    def finish(self, fields: Sequence[Field]) -> None:
        """Write the end, and number the samples whose keys would be the same."""
        self._flush()
        end = {
            "chunks": self._chunks, "samples": self.count,
            "fields": {field.name: dump_field(field) for field in fields},
        }  # fmt: skip
        data = json.dumps(end).encode()
        self._out.write(data + _END.pack(self._offset, _MAGIC))
        self._out.flush()
        self._tell_apart()

    def digest(self) -> str:
        """Return a digest of all samples: names, paths, sizes, values; times of files are no part of it."""
        return self._contents.hexdigest()

    def fingerprint(self) -> dict[str, object]:
        """Return what an unfinished pack remembers of its source: enough to see that it has changed."""
        changes = self._changes.copy()
        changes.update(self._contents.digest())
        return {"files": self.files, "bytes": self.source_bytes, "digest": changes.hexdigest()}

    def _flush(self) -> None:
        if not self._texts:
            return
        rows = np.zeros(len(self._texts), _ROW)
        columns = zip(*self._facts, strict=True)
        for name in ("number", "tar_bytes", "source_bytes", "label", "kind"):
            rows[name] = next(columns)
        self._changes.update(array("q", self._times).tobytes())
        self._write(rows, ByteStrings.of(self._texts), ByteStrings.of(self._names))
        self._names, self._texts, self._facts, self._times = [], [], [], []

    def _write(self, rows: Rows, texts: ByteStrings, names: ByteStrings) -> None:
        blob, starts = texts.pack()
        rows["length"] = texts.lengths
        start = self._offset + rows.nbytes
        rows["offset"] = start + starts[:-1]
        for column in ("number", "source_bytes", "label", "kind"):
            self._contents.update(np.ascontiguousarray(rows[column]).tobytes())
        self._contents.update(blob)
        self._hashes.frombytes(kernel.hash_stems(*names.pack()).tobytes())
        self._out.write(rows.tobytes())
        self._out.write(blob)
        self._chunks.append((self._offset, len(rows)))
        self._offset = start + len(blob)
        self.source_bytes += int(rows["source_bytes"].sum())

    def _tell_apart(self) -> None:
        hashes = np.frombuffer(self._hashes, np.uint64)
        in_order = np.sort(hashes)
        repeated = in_order[1:][in_order[1:] == in_order[:-1]]
        if not repeated.size:
            return
        fd = self._out.fileno()
        firsts = np.cumsum([0, *(count for _, count in self._chunks)])
        given: dict[bytes, int] = {}
        for index in np.flatnonzero(np.isin(hashes, repeated)).tolist():
            chunk = int(np.searchsorted(firsts, index, side="right")) - 1
            at = self._chunks[chunk][0] + (index - int(firsts[chunk])) * _ROW.itemsize
            row = np.frombuffer(os.pread(fd, _ROW.itemsize, at), _ROW)[0]
            stem = make_stem(_name(row, os.pread(fd, int(row["length"]), int(row["offset"]))))
            again = given.get(stem, 0)
            if again or stem in given:
                again = max(again, 1) + 1
                while _contains(in_order, stem + b"~%d" % again):
                    again += 1
                at += _ROW.fields["again"][1]  # type: ignore[index]
                os.pwrite(fd, struct.pack("<I", again), at)
            given[stem] = again


class Listing:
    """A finished listing, open for reading. Indices count samples in the source's order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            with open(path, "rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - _END.size))
                start, magic = _END.unpack(file.read(_END.size))
                file.seek(start if magic == _MAGIC else size_bytes)
                end = json.loads(file.read(size_bytes - _END.size - start))
                file.seek(0)
                self._held = file.read(start) if start <= _HELD_BYTES else None
        except (OSError, ValueError, struct.error) as error:
            raise StorageError(
                f"cannot read {path}: {error}", hint="run the same 'feedrate pack' command again"
            ) from error
        chunks = np.array(end["chunks"], np.int64).reshape(-1, 2)
        self._chunks, self._firsts = chunks[:, 0], np.cumsum(chunks[:, 1]) - chunks[:, 1]
        self.fields = tuple(load_field(name, field) for name, field in end["fields"].items())
        self._classes = {
            field.name: {name: number for number, name in enumerate(field.classes)}
            for field in self.fields
            if field.classes is not None
        }
        self._count: int = end["samples"]
        self._in_order: tuple[int, Rows] | None = None
        self._path = path
        self._files = kernel.Files([path])

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        self._files.close()

    def rows(self, indices: I64) -> Rows:
        chunks = np.searchsorted(self._firsts, indices, side="right") - 1
        starts = self._chunks[chunks] + (indices - self._firsts[chunks]) * _ROW.itemsize
        return np.frombuffer(self._read(starts, np.full(len(indices), _ROW.itemsize, np.int64)), _ROW)

    def rows_in_order(self, first: int, last: int, seed: int) -> Rows:
        """Return the rows at places `first` to `last` of the pack. Of a listing that is held, all are made at
        once and kept: they are asked for twice, to plan shards and to write them."""
        if self._held is None:
            return self.rows(order_samples(first, last, len(self), seed))
        if self._in_order is None or self._in_order[0] != seed:
            self._in_order = seed, self.rows(order_samples(0, len(self), len(self), seed))
        return self._in_order[1][first:last]

    def texts(self, rows: Rows) -> ByteStrings:
        """Return what rows point at: the path of a file, or JSON."""
        lengths = rows["length"].astype(np.int64)
        return ByteStrings.by_lengths(self._read(rows["offset"], lengths), lengths)

    def samples(self, indices: I64) -> Iterator[Sample]:
        """Yield samples in the order that is asked for."""
        return self.samples_of(self.rows(indices))

    def samples_of(self, rows: Rows) -> Iterator[Sample]:
        for row, text in zip(rows, self.texts(rows), strict=True):
            yield self.sample(row, text)

    def sample(self, row: Any, text: bytes) -> Sample:
        """Return the sample of a row and what it points at."""
        if row["kind"] == RECORD:
            decoded, values = json.loads(text)
            name = decoded.encode("latin-1")
            loaded = {key: _load_value(value) for key, value in values.items()}
        else:
            name, has_label = text, row["kind"] == LABELLED
            size_bytes = int(row["source_bytes"]) - (NUMBER_BYTES if has_label else 0)
            loaded = {"image": FileRange(name, size_bytes, name)}
            loaded |= {"label": int(row["label"])} if has_label else {}
        again = int(row["again"])
        key = key_of_stem(make_stem(name)) + (f"~{again}" if again else "")
        return Sample(int(row["number"]), key, tuple(self._value(field, loaded) for field in self.fields))

    def _value(self, field: Field, values: dict[str, Value | None]) -> Value | None:
        value = values.get(field.name)
        classes = self._classes.get(field.name)
        return classes[value] if classes is not None and isinstance(value, str) else value

    def _read(self, offsets: I64, lengths: I64) -> bytes:
        """Return what is there, one behind the other."""
        try:
            if self._held is not None:
                return kernel.join_pieces(self._held, offsets, lengths)
            ranges = Ranges(np.zeros(len(offsets), np.int32), np.ascontiguousarray(offsets), lengths)
            data, _, bad = kernel.read_ranges(self._files, ranges)
            if not bad.any():
                return data.tobytes()
        except ValueError:
            pass  # a length that is none, or a place outside
        raise StorageError(
            f"cannot read {self._path}: it was changed while it was used",
            hint="run the same 'feedrate pack' command again",
        )


def _dump_value(value: Value) -> object:
    if isinstance(value, FileRange):
        path = value.path.decode("latin-1")
        if value.file == value.path and not value.offset:
            return [value.size_bytes, path]
        return [value.size_bytes, path, value.file.decode("latin-1"), value.offset]
    if isinstance(value, ContainerValue):
        path, file = value.path.decode("latin-1"), value.file.decode("latin-1")
        return [value.size_bytes, path, file, value.container, list(value.place)]
    return {"bytes": value.decode("latin-1")} if isinstance(value, bytes) else value


def _load_value(value: Any) -> Value | None:
    if isinstance(value, dict):
        return bytes(value["bytes"], "latin-1")
    if not isinstance(value, list):
        return value  # type: ignore[no-any-return]
    size_bytes, path, *more = value
    path = path.encode("latin-1")
    if not more:
        return FileRange(path, size_bytes, path)
    if len(more) == 2:
        return FileRange(path, size_bytes, more[0].encode("latin-1"), more[1])
    return ContainerValue(path, size_bytes, more[0].encode("latin-1"), more[1], tuple(more[2]))


def _kind_of(record: Record) -> tuple[int, int]:
    """Return the kind of row that will do for a record, and its label."""
    values = record.values
    image, label = values.get("image"), values.get("label")
    is_file = isinstance(image, FileRange) and image.file == image.path == record.name and not image.offset
    if is_file and len(values) == 1:
        return FILE, 0
    if is_file and len(values) == 2 and type(label) is int and -(2**63) <= label < 2**63:
        return LABELLED, label
    return RECORD, 0


def _name(row: Any, text: bytes) -> bytes:
    if row["kind"] != RECORD:
        return text
    name: str = json.loads(text)[0]
    return name.encode("latin-1")


def _contains(in_order: np.ndarray[Any, np.dtype[np.uint64]], stem: bytes) -> bool:
    wanted = kernel.hash_stems(*ByteStrings.of([stem]).pack())[0]
    at = int(np.searchsorted(in_order, wanted))
    return at < len(in_order) and bool(in_order[at] == wanted)
