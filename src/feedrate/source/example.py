# SPDX-License-Identifier: Apache-2.0
"""tf.train.Example, read from its bytes: a few rules of protobuf's wire format, and no TensorFlow.

Example.features=1 -> Features.feature=1 (a map: key=1, value=2) -> Feature: bytes=1 | float=2 | int64=3 lists
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedrate.format.containers.wire import DELIMITED, FIXED32, VARINT, BadMessage, read_fields

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
