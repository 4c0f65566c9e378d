# SPDX-License-Identifier: Apache-2.0
"""tf.train.Example, read from its bytes: a few rules of protobuf's wire format, and no TensorFlow.

Example.features=1 -> Features.feature=1 (a map: key=1, value=2) -> Feature: bytes=1 | float=2 | int64=3 lists

TFRecord files that somebody arrives with: records, or a sentence about the file.

Samples out of TFRecord files of tf.train.Example: what its features hold decides what fields they are.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from feedrate.errors import FeedrateError, SourceError
from feedrate.format.containers import tfrecord
from feedrate.format.containers.tfrecord import DELIMITED, FIXED32, VARINT, BadMessage, read_fields
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile, explained
from feedrate.source.labels import NumberColumn
from feedrate.source.names import image_suffix, is_label_name, is_mask_name, name_fields, record_name
from feedrate.source.record import FileRange, Record, Value
from feedrate.source.spool import Spool, SpooledReader
from feedrate.source.values import UnusableValue, dump_array
from feedrate.units import printable

_MOST_FEATURES = 10_000
_MOST_STRINGS = 100_000  # in one list
_MOST_NUMBERS = 2**26


class BadExample(BadMessage):
    """A message, but not one that is understood here."""


@dataclass(frozen=True, slots=True)
class BytesFeature:
    """Where in the record the values lie: start and length of each."""

    spans: tuple[tuple[int, int], ...]


Feature = BytesFeature | npt.NDArray[np.float32] | npt.NDArray[np.int64]


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example, sorted by name; one without values is left out.

    Raises:
        BadMessage: these are not the bytes of an Example.
    """
    features: dict[str, Feature] = {}
    for number, wire, start, end in read_fields(data, 0, len(data)):
        if number == 2 and wire == DELIMITED:
            raise BadExample("it has lists of features, as a SequenceExample has")
        if number != 1 or wire != DELIMITED:
            continue
        for inner, inner_wire, entry_start, entry_end in read_fields(data, start, end):
            if inner != 1 or inner_wire != DELIMITED:
                continue
            if len(features) >= _MOST_FEATURES:
                raise BadExample(f"it has more than {_MOST_FEATURES:,} features")
            name, feature = _parse_entry(data, entry_start, entry_end)
            # The last one of a name counts, as in every protobuf map.
            features.pop(name, None)
            if feature is not None:
                features[name] = feature
    return dict(sorted(features.items()))


def _parse_entry(data: bytes, start: int, end: int) -> tuple[str, Feature | None]:
    name, feature = "", None
    for number, wire, inner, inner_end in read_fields(data, start, end):
        if number == 1 and wire == DELIMITED:
            try:
                name = data[inner:inner_end].decode("utf-8")
            except UnicodeDecodeError:
                raise BadExample("a feature's name is not UTF-8") from None
        elif number == 2 and wire == DELIMITED:
            feature = _parse_feature(data, inner, inner_end)
    return name, feature


def _parse_feature(data: bytes, start: int, end: int) -> Feature | None:
    feature: Feature | None = None
    for number, wire, inner, inner_end in read_fields(data, start, end):
        if wire != DELIMITED:
            continue
        if number == 1:
            spans = []
            for one, one_wire, value, value_end in read_fields(data, inner, inner_end):
                if one == 1 and one_wire == DELIMITED:
                    spans.append((value, value_end - value))
                    if len(spans) > _MOST_STRINGS:
                        raise BadExample(f"a feature has more than {_MOST_STRINGS:,} strings")
            feature = BytesFeature(tuple(spans)) if spans else None
        elif number == 2:
            feature = _parse_floats(data, inner, inner_end)
        elif number == 3:
            feature = _parse_integers(data, inner, inner_end)
    return feature


def _parse_floats(data: bytes, start: int, end: int) -> npt.NDArray[np.float32] | None:
    pieces = []
    for number, wire, value, value_end in read_fields(data, start, end):
        if number == 1 and wire in (DELIMITED, FIXED32):
            if (value_end - value) % 4:
                raise BadExample("a list of floats does not end with a float")
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
        raise BadExample(f"a feature has more than {_MOST_NUMBERS:,} bytes of integers")
    return _decode_varints(packed) if packed else None


def _decode_varints(packed: bytes) -> npt.NDArray[np.int64]:
    if len(packed) == 1 and packed[0] < 0x80:  # a label, most of the time
        return np.array([packed[0]], np.int64)
    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not ends.size or ends[-1] != raw.size - 1:
        raise BadExample("a list of integers ends inside of one")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise BadExample("an integer of more than 64 bits")
    values = np.zeros(ends.size, np.uint64)
    for place in range(int(lengths.max())):
        has = lengths > place
        values[has] |= (raw[starts[has] + place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    return values.view(np.int64)


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


_PEEK_SAMPLES = 100
# Feature -> the field that it makes, the field's kind, the type of its values.
Features = Mapping[str, tuple[str, Kind, str]]
_SUFFIXES = {Kind.TEXT: "txt", Kind.ARRAY: "npy", Kind.JSON: "json", Kind.BYTES: "bin"}


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


class ExampleReader(SpooledReader):
    """A sample per Example. Which features are fields, the first ones say: what at least half of them have.

    Args:
        chosen: what `choose` returned for all files, where these are only some of them.

    Raises, when iterated:
        SourceError: a file is damaged, or its records are no Examples.
    """

    def __init__(
        self, place: Place, files: list[PlacedFile], spool: Spool, chosen: Features | None = None
    ) -> None:
        self.root = place.root
        self._chosen = chosen
        self.ignored: dict[str, int] = {}
        self.files = files
        self._place, self._spool = place, spool
        self._names: dict[str, str] = {}  # feature -> field
        self._kinds: dict[str, Kind] = {}
        self._dtypes: dict[str, str] = {}
        self._numbers: dict[str, NumberColumn] = {}

    def _read(self) -> Iterator[Record | Rejection]:
        others: Counter[str] = Counter()
        examples = self._examples()
        first = list(itertools.islice(examples, _PEEK_SAMPLES)) if self._chosen is None else []
        self._set_fields(self._choose_fields(first) if self._chosen is None else self._chosen)
        for example in itertools.chain(first, examples):
            others.update(f"feature {name}" for name in example.features if name not in self._names)
            yield self._read_example(example)
        self.ignored = dict(sorted(others.items()))

    def fields(self) -> tuple[Field, ...]:
        return tuple(
            self._numbers[feature].field() if feature in self._numbers else Field(name, self._kinds[feature])
            for feature, name in self._names.items()
        )

    def _examples(self) -> Generator[_Example]:
        for file in self.files:
            address = self._place.address(file.path)
            with self._place.open(file.path) as raw:
                is_compressed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_compressed else raw
                try:
                    for number, (start, data) in enumerate(read_records(stream, address)):
                        features = _parse(data, address, start, number)
                        yield _Example(file, number, None if is_compressed else start, data, features)
                except (OSError, EOFError, zlib.error) as error:
                    if not is_compressed or isinstance(error, FeedrateError):
                        raise
                    raise SourceError(f"{address} cannot be decompressed: {error}") from error

    def choose(self) -> Features:
        """Return which features are fields; reads the first examples only."""
        with explained(self.root), self._spool, contextlib.closing(self._examples()) as examples:
            return self._choose_fields(list(itertools.islice(examples, _PEEK_SAMPLES)))

    def _choose_fields(self, first: list[_Example]) -> Features:
        if not first:
            raise SourceError(f"no records in {self._place.address(self.files[0].path)}")
        seen: dict[str, _Seen] = {}
        for example in first:
            for name, feature in example.features.items():
                seen.setdefault(name, _Seen()).add(feature, example.data)
        kinds = {name: kind for name, one in seen.items() if (kind := one.kind(name, len(first))) is not None}
        if not any(kind is Kind.NUMBER and is_label_name(name) for name, kind in kinds.items()):
            # No number is the label, so a word of that name is.
            word = next((n for n, kind in kinds.items() if kind is Kind.TEXT and is_label_name(n)), None)
            kinds |= {word: Kind.NUMBER} if word is not None else {}
        names = name_fields(kinds)
        order = sorted(names, key=lambda name: (names[name] != "image", names[name] != "label"))
        dtypes = {name: next(iter(seen[name].types)) for name in order}
        return {name: (names[name], kinds[name], dtypes[name]) for name in order}

    def _set_fields(self, features: Features) -> None:
        self._names = {feature: name for feature, (name, _, _) in features.items()}
        self._kinds = {feature: kind for feature, (_, kind, _) in features.items()}
        self._dtypes = {feature: dtype for feature, (_, _, dtype) in features.items()}
        self._numbers = {
            f: NumberColumn(name) for f, name in self._names.items() if self._kinds[f] is Kind.NUMBER
        }

    def _read_example(self, example: _Example) -> Record | Rejection:
        name = record_name(example.file.path, example.number)
        values: dict[str, Value] = {}
        wanted = ""
        try:
            for feature, wanted in self._names.items():
                values[wanted] = self._read_feature(feature, example, name)
        except (UnusableValue, ValueError) as error:
            return Rejection(printable(name), wanted, str(error))
        return Record(name, values)

    def _read_feature(self, name: str, example: _Example, path: bytes) -> Value:
        feature, kind = example.features.get(name), self._kinds[name]
        field_name = self._names[name]
        where = path + (b"" if field_name == "image" else b"." + field_name.encode())
        if feature is None and kind in (Kind.ARRAY, Kind.JSON, Kind.TEXT):
            # A list without values is not written at all.
            if kind is Kind.ARRAY and self._dtypes[name] != "bytes":
                return dump_array(np.zeros(0, self._dtypes[name]))
            if kind is not Kind.ARRAY:
                return b"[]" if kind is Kind.JSON else b""
        if feature is None:
            raise UnusableValue(f"the example has no '{name}', and the first ones had")
        if not isinstance(feature, BytesFeature):
            if kind is Kind.NUMBER and feature.size == 1:
                return self._numbers[name].add(feature[0].item())
            if kind is Kind.ARRAY and feature.dtype.name == self._dtypes[name]:
                return self._spool.keep(where + b".npy", dump_array(feature))
        elif kind is Kind.JSON:
            texts = [example.data[start : start + size].decode("utf-8") for start, size in feature.spans]
            return self._spool.keep(where + b".json", json.dumps(texts, ensure_ascii=False).encode())
        elif len(feature.spans) == 1 and (kind is not Kind.ARRAY or self._dtypes[name] == "bytes"):
            start, size = feature.spans[0]
            value = example.data[start : start + size]
            if kind is Kind.NUMBER:
                return self._numbers[name].add(value.decode("utf-8"))
            suffix = image_suffix(value) or "bin" if kind in (Kind.IMAGE, Kind.MASK) else _SUFFIXES[kind]
            where += b"." + suffix.encode()
            if example.start is None:
                return self._spool.add(where, value, example.file.mtime_ns)
            return FileRange(where, size, example.file.path, example.start + start, example.file.mtime_ns)
        raise UnusableValue(f"the feature '{name}' holds something else than in the first examples")


def _parse(data: bytes, address: str, start: int, number: int) -> dict[str, Feature]:
    try:
        features = parse_example(data)
    except BadMessage as error:
        raise SourceError(
            f"{address}: record {number:,} at byte {start:,} is not a tf.train.Example: {error}",
            hint="records of tf.train.Example, uncompressed or gzip, can be packed",
        ) from None
    if not features:
        raise SourceError(
            f"{address}: record {number:,} at byte {start:,} is not a tf.train.Example with features",
            hint="records of tf.train.Example, uncompressed or gzip, can be packed",
        )
    return features


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(ord(c) < 32 and c not in "\t\n\r" for c in text)
