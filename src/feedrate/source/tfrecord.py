# SPDX-License-Identifier: Apache-2.0
"""TFRecord files of tf.train.Example: what the first Examples' features hold decides what fields they are.

The message itself is described in format/containers/tfrecord.py; TensorFlow is not needed.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from feedrate.errors import SourceError
from feedrate.format.containers import tfrecord
from feedrate.format.containers.tfrecord import DELIMITED, FIXED32, VARINT, BadMessage, read_fields
from feedrate.format.fields import Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import PlacedFile
from feedrate.source.columns import Columns, PeekingReader, find_word_labels
from feedrate.source.detect import decompressing
from feedrate.source.names import image_suffix, is_mask_name, record_name
from feedrate.source.record import FileRange, Record, UnusableValue, Value, dump_array

# Feature -> the field that it makes, the field's kind, the type of its values.
Features = Mapping[str, tuple[str, Kind, str]]
_SUFFIXES = {Kind.TEXT: "txt", Kind.ARRAY: "npy", Kind.JSON: "json", Kind.BYTES: "bin"}
_HINT = "records of tf.train.Example, uncompressed or gzip, can be packed"
_MOST_FEATURES = 10_000
_MOST_STRINGS = 100_000  # in one list
_MOST_NUMBERS = 2**26


@dataclass(frozen=True, slots=True)
class BytesFeature:
    """Where in the record the values are: start and length of each."""

    spans: tuple[tuple[int, int], ...]


Feature = BytesFeature | npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Example:
    file: PlacedFile
    number: int
    start: int | None  # of the record in its file; None: the file is compressed
    data: bytes
    features: dict[str, Feature]


@dataclass(slots=True)
class _Seen:
    """What the first examples say about one feature."""

    examples: int = 0
    counts: set[int] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    are_images: bool = True
    are_arrays: bool = True
    are_texts: bool = True

    def add(self, feature: Feature, data: bytes) -> None:
        self.examples += 1
        self.types.add("bytes" if isinstance(feature, BytesFeature) else feature.dtype.name)
        if not isinstance(feature, BytesFeature):
            self.counts.add(feature.size)
            return
        self.counts.add(len(feature.spans))
        for start, size in feature.spans[:100]:
            value = data[start : start + size]
            self.are_images &= image_suffix(value) is not None
            self.are_arrays &= value.startswith(b"\x93NUMPY")
            self.are_texts &= _is_text(value)

    def kind(self, name: str, examples: int) -> Kind | None:
        """Return what field it makes; None: none."""
        if self.examples * 2 < examples or len(self.types) > 1:
            return None
        is_single = self.counts == {1}
        if self.types != {"bytes"}:
            return Kind.NUMBER if is_single and self.examples == examples else Kind.ARRAY
        if not is_single:
            return Kind.JSON if self.are_texts else None
        if self.are_images:
            return Kind.MASK if is_mask_name(name) else Kind.IMAGE
        if self.are_arrays:
            return Kind.ARRAY
        return Kind.TEXT if self.are_texts else Kind.BYTES


class ExampleReader(PeekingReader[_Example]):
    """A sample per Example.

    Raises, when iterated:
        SourceError: a file is damaged, or its records are no Examples.
    """

    def _samples(self) -> Generator[_Example]:
        for file in self.files:
            address = self._place.address(file.path)
            with self._place.open(file.path) as raw:
                is_packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_packed else raw
                with decompressing(address) if is_packed else contextlib.nullcontext():
                    for number, (start, data) in enumerate(read_records(stream, address)):
                        features = _parse(data, f"{address}: record {number:,} at byte {start:,}")
                        yield _Example(file, number, None if is_packed else start, data, features)

    def _choose(self, first: Sequence[_Example]) -> Features:
        if not first:
            raise SourceError(f"no records in {self._place.address(self.files[0].path)}")
        seen: dict[str, _Seen] = {}
        for example in first:
            for name, feature in example.features.items():
                seen.setdefault(name, _Seen()).add(feature, example.data)
        kinds = {name: kind for name, one in seen.items() if (kind := one.kind(name, len(first))) is not None}
        kinds |= dict.fromkeys(find_word_labels(kinds)[:1], Kind.NUMBER)
        names = Columns(kinds).names
        return {name: (names[name], kinds[name], next(iter(seen[name].types))) for name in names}

    def _use(self, chosen: Features) -> None:
        kinds = {feature: kind for feature, (_, kind, _) in chosen.items()}
        self._columns = Columns(kinds, {feature: name for feature, (name, _, _) in chosen.items()})
        self._dtypes = {feature: dtype for feature, (_, _, dtype) in chosen.items()}

    def _read_samples(
        self, samples: Iterable[_Example], others: Counter[str]
    ) -> Iterator[Record | Rejection]:
        for example in samples:
            others.update(f"feature {name}" for name in example.features if name not in self._columns.names)
            yield self._read_example(example)

    def _read_example(self, example: _Example) -> Record | Rejection:
        name = record_name(example.file.path, example.number)
        return self._columns.read(name, lambda feature, path: self._read_feature(feature, example, path))

    def _read_feature(self, name: str, example: _Example, path: bytes) -> Value:
        feature, kind = example.features.get(name), self._columns.kinds[name]
        if feature is None and kind in (Kind.ARRAY, Kind.JSON, Kind.TEXT):
            # A list without values is not written at all.
            if kind is Kind.ARRAY and self._dtypes[name] != "bytes":
                return dump_array(np.zeros(0, self._dtypes[name]))
            if kind is not Kind.ARRAY:
                return b"[]" if kind is Kind.JSON else b""
        if feature is None:
            raise UnusableValue(f"the example has no '{name}', and the first ones had", "incomplete")
        if not isinstance(feature, BytesFeature):
            if kind is Kind.NUMBER and feature.size == 1:
                return self._columns.numbers[name].add(feature[0].item())
            if kind is Kind.ARRAY and feature.dtype.name == self._dtypes[name]:
                return self._spool.keep(path + b".npy", dump_array(feature))
        elif kind is Kind.JSON:
            texts = [example.data[start : start + size].decode("utf-8") for start, size in feature.spans]
            return self._spool.keep(path + b".json", json.dumps(texts, ensure_ascii=False).encode())
        elif len(feature.spans) == 1 and (kind is not Kind.ARRAY or self._dtypes[name] == "bytes"):
            start, size = feature.spans[0]
            value = example.data[start : start + size]
            if kind is Kind.NUMBER:
                return self._columns.numbers[name].add(value.decode("utf-8"))
            suffix = image_suffix(value) or "bin" if kind in (Kind.IMAGE, Kind.MASK) else _SUFFIXES[kind]
            path += b"." + suffix.encode()
            if example.start is None:
                return self._spool.add(path, value, example.file.mtime_ns)
            return FileRange(path, size, example.file.path, example.start + start, example.file.mtime_ns)
        raise UnusableValue(f"the feature '{name}' holds something else than in the first examples")


def _parse(data: bytes, where: str) -> dict[str, Feature]:
    try:
        features = parse_example(data)
    except BadMessage as error:
        raise SourceError(f"{where} is not a tf.train.Example: {error}", hint=_HINT) from None
    if not features:
        raise SourceError(f"{where} is not a tf.train.Example with features", hint=_HINT)
    return features


def read_records(stream: BinaryIO, address: str) -> Iterator[tuple[int, bytes]]:
    """Yield each record and where it begins, every byte checked.

    Raises:
        SourceError: the file is damaged, cut short, or not TFRecord.
    """
    try:
        yield from tfrecord.read_records(stream)
    except tfrecord.BadRecord as error:
        if isinstance(error, tfrecord.NoRecord) and not error.at:
            raise SourceError(
                f"{address} is not a TFRecord file",
                hint="compressed by zlib? decompress it first (gzip is understood)",
            ) from error
        raise SourceError(f"{address}: {error}") from error


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example, sorted by name; one without values is left out.

    Raises:
        BadMessage: these are not the bytes of an Example, or more than is understood here.
    """
    features: dict[str, Feature] = {}
    for name, kind, start, stop in tfrecord.read_features(data):
        if len(features) >= _MOST_FEATURES:
            raise BadMessage(f"it has more than {_MOST_FEATURES:,} features")
        # The last one of a name counts, as in every protobuf map.
        features.pop(name, None)
        feature = _PARSERS[kind](data, start, stop) if kind else None
        if feature is not None:
            features[name] = feature
    return dict(sorted(features.items()))


def _parse_strings(data: bytes, start: int, end: int) -> BytesFeature | None:
    spans = []
    for number, wire, value, value_end in read_fields(data, start, end):
        if number == 1 and wire == DELIMITED:
            spans.append((value, value_end - value))
            if len(spans) > _MOST_STRINGS:
                raise BadMessage(f"a feature has more than {_MOST_STRINGS:,} strings")
    return BytesFeature(tuple(spans)) if spans else None


def _parse_floats(data: bytes, start: int, end: int) -> npt.NDArray[np.float32] | None:
    pieces = []
    for number, wire, value, value_end in read_fields(data, start, end):
        if number == 1 and wire in (DELIMITED, FIXED32):
            if (value_end - value) % 4:
                raise BadMessage("a list of floats does not end with a float")
            pieces.append(data[value:value_end])
    values = np.frombuffer(b"".join(pieces), "<f4")
    return values if values.size else None


def _parse_integers(data: bytes, start: int, end: int) -> npt.NDArray[np.int64] | None:
    pieces = []
    for number, wire, value, value_end in read_fields(data, start, end):
        if number == 1 and wire in (DELIMITED, VARINT):
            pieces.append(data[value:value_end])
    packed = b"".join(pieces)
    if len(packed) > _MOST_NUMBERS:
        raise BadMessage(f"a feature has more than {_MOST_NUMBERS:,} bytes of integers")
    return _decode_varints(packed) if packed else None


def _decode_varints(packed: bytes) -> npt.NDArray[np.int64]:
    if len(packed) == 1 and packed[0] < 0x80:  # a label, most of the time
        return np.array([packed[0]], np.int64)
    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not ends.size or ends[-1] != raw.size - 1:
        raise BadMessage("a list of integers ends inside of one")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise BadMessage("an integer of more than 64 bits")
    values = np.zeros(ends.size, np.uint64)
    for place in range(int(lengths.max())):
        has = lengths > place
        values[has] |= (raw[starts[has] + place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    return values.view(np.int64)


_PARSERS = {tfrecord.BYTES: _parse_strings, tfrecord.FLOATS: _parse_floats, tfrecord.INTS: _parse_integers}


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(ord(c) < 32 and c not in "\t\n\r" for c in text)
