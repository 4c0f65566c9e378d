# SPDX-License-Identifier: Apache-2.0
"""What goes into a user's map and comes out of it: fields as Python knows them, and their bytes again."""

from __future__ import annotations

import io
import json
import os
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from feedrate.errors import FeedrateError, SourceError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.raw import read_npy
from feedrate.kernel import pillow
from feedrate.packing.mapping import Map
from feedrate.packing.values import unusable
from feedrate.source.record import UnusableValue, dump_array

# A sample as it stands in the source: a number, or the bytes of the field.
Plain = int | float | bytes

# What is looked at to learn which fields a map makes; the first may fail, not all of them.
_LOOK_AT, _TRY_AT_MOST = 8, 64


def _failure(words: str) -> UnusableValue:
    return UnusableValue(words, "map-failed")


class LeftOut(Exception):
    """The map returned None: the user does not want this sample."""


class Made(NamedTuple):
    """One field of a mapped sample. `is_new`: the map returned it; else it is what the source has."""

    plain: Plain
    is_new: bool


class Mapper:
    """Runs a map over samples, and measures what it costs. `fields` are those of the source."""

    def __init__(self, wanted: Map, fields: Sequence[Field]) -> None:
        self.name, self.fields = wanted.name, tuple(fields)
        self.is_recoded = False  # images that it makes are encoded in another way after it
        self._function = wanted.load()
        self.samples, self.seconds = 0, 0.0

    def run(self, key: str, values: Sequence[Plain]) -> tuple[dict[str, Any], dict[str, Plain]]:
        """Return what the map returned for a sample, and the values that it did not touch.

        Raises:
            LeftOut: it returned None.
            UnusableValue: it failed, in its own words.
            MemoryError: there was too little for it.
        """
        begin = time.perf_counter()
        given = {f.name: _give(f, value) for f, value in zip(self.fields, values, strict=True)}
        try:
            returned = self._function({"key": key, **given})
        except MemoryError as error:  # no fault of the sample
            raise MemoryError(f"out of memory in {self.name}, for the sample '{key}'") from error
        except (Exception, SystemExit) as error:  # a function that calls sys.exit does not end packing
            raise _failure(f"{self.name} failed: {_words(error)}") from error
        finally:
            # Reading pixels is the map's own doing, and part of what training no longer does.
            self.seconds += time.perf_counter() - begin
            self.samples += 1
        if returned is None:
            raise LeftOut
        if not isinstance(returned, Mapping):
            raise _failure(f"{self.name} returned {type(returned).__name__}, not a dict or None")
        # An image that came back as it went in, not decoded yet, was not touched. Others are cheap to write
        # again, and may be changed.
        changed = {
            name: value for name, value in returned.items()
            if name != "key" and not (value is given.get(name) and getattr(value, "tile", None))
        }  # fmt: skip
        kept = {f.name: v for f, v in zip(self.fields, values, strict=True) if f.name not in changed}
        return changed, kept

    def make(self, key: str, values: Sequence[Plain], fields: Sequence[Field]) -> list[Made]:
        """Return a sample's values for `fields`, which `find_fields` has found.

        Raises:
            LeftOut, UnusableValue: as `run`; also when what came out does not fit the fields.
        """
        changed, kept = self.run(key, values)
        names = {field.name for field in fields}
        odd = next((n for n, v in changed.items() if v is not None and n not in names), None)
        if odd is not None:
            raise _failure(f"{self.name} returned '{odd}', which it did not for the first samples")
        before = {field.name: field for field in self.fields}
        made = []
        for field in fields:
            if changed.get(field.name) is not None:
                value = _normalise(changed[field.name])
                self._check(field, _describe(field.name, value, before.get(field.name)))
                made.append(Made(_take(field, value, is_brief=self.is_recoded), True))
            elif field.name in kept:
                made.append(Made(kept[field.name], False))
            else:
                raise _failure(f"{self.name} returned no '{field.name}', as it did for the first samples")
        return made

    def _check(self, field: Field, found: Field) -> None:
        is_wider = field.kind is Kind.NUMBER and found.dtype == "int64" and field.dtype == "float64"
        if found.kind is not field.kind or (found.dtype != field.dtype and not is_wider):
            here, there = (f"{f.kind} of {f.dtype}" if f.dtype else f"{f.kind}" for f in (found, field))
            raise _failure(f"{self.name} returned '{field.name}' as {here}; the first samples had {there}")


def find_fields(mapper: Mapper, samples: Iterable[tuple[str, Sequence[Plain]]]) -> tuple[Field, ...]:
    """Return the fields that a map makes of the first samples.

    Raises:
        SourceError: it fails for all of them, or keeps none.
        UsageError: it returns what cannot be a field.
    """
    before = {field.name: field for field in mapper.fields}
    found: dict[str, Field] | None = None
    seen = tried = 0
    failure: Exception | None = None
    for key, values in samples:
        if seen == _LOOK_AT or tried == _TRY_AT_MOST:
            break
        tried += 1
        try:
            changed, kept = mapper.run(key, values)
            here = {f.name: f for f in mapper.fields if f.name in kept}
            for name, value in changed.items():
                if value is not None:
                    here[name] = _describe(name, _normalise(value), before.get(name))
        except UnusableValue as error:
            failure = failure or error
            continue
        except LeftOut:
            continue
        seen += 1
        # In the order of the source, then in that of the first sample.
        order = [*(name for name in before if name in here), *(name for name in here if name not in before)]
        found = {name: here[name] for name in order} if found is None else _widen(found, here)
    if found is None:
        raise SourceError(
            f"{failure}; so it went for each of the first {tried:,} samples" if failure
            else f"{mapper.name} returned None for each of the first {tried:,} samples",
            hint="try it on one sample in Python first",
        )  # fmt: skip
    if not found:
        raise SourceError(f"{mapper.name} leaves no field of a sample")
    return tuple(found.values())


def _widen(found: dict[str, Field], here: Mapping[str, Field]) -> dict[str, Field]:
    """Whole numbers and others are one field of others."""
    numbers = {
        name for name, field in found.items()
        if field.kind is Kind.NUMBER and name in here and here[name].dtype == "float64"
    }  # fmt: skip
    return {n: replace(f, dtype="float64", classes=None) if n in numbers else f for n, f in found.items()}


def _give(field: Field, value: Plain) -> Any:
    if not isinstance(value, bytes):
        return value
    if field.has_pixels:
        try:
            return pillow.open_image(value)
        except pillow.Undecodable as error:
            raise unusable(str(error)) from error
    if field.kind is Kind.TEXT:
        return value.decode("utf-8", "surrogateescape")
    if field.kind is Kind.BYTES:
        return value
    try:
        if field.kind is Kind.JSON:
            return json.loads(value)
        return read_npy(value)
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise UnusableValue(f"cannot be read as {field.kind}: {error}") from error


def _normalise(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    is_tensor = (
        hasattr(value, "__array__") and not isinstance(value, np.ndarray) and not hasattr(value, "tobitmap")
    )
    value = np.asarray(value) if is_tensor else value
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _describe(name: str, value: Any, before: Field | None) -> Field:
    """Return the field that a value makes."""
    try:
        return _describe_value(name, value, before)
    except UsageError as error:
        raise _failure(str(error)) from error


def _describe_value(name: str, value: Any, before: Field | None) -> Field:
    kind = None if before is None else before.kind
    pixels = kind if kind in (Kind.IMAGE, Kind.MASK) else None
    if isinstance(value, (bool, int, float)):
        dtype = "float64" if isinstance(value, float) else "int64"
        classes = before.classes if before is not None and dtype == "int64" else None
        return Field(name, Kind.NUMBER, dtype=dtype, classes=classes)
    if isinstance(value, np.ndarray):
        if pixels is not None and _could_be_pixels(value):
            return Field(name, pixels)
        if kind is Kind.BOXES and value.ndim == 2 and value.shape[1] >= 4:
            return Field(name, Kind.BOXES)
        if value.dtype.kind not in "biufc":
            raise _failure(f"the map returned '{name}' as an array of {value.dtype}, not of numbers")
        return Field(name, Kind.ARRAY, dtype=value.dtype.name)
    if hasattr(value, "tobitmap"):  # a Pillow image
        return Field(name, pixels or Kind.IMAGE)
    if isinstance(value, str):
        return Field(name, Kind.JSON if kind is Kind.JSON else Kind.TEXT)
    if isinstance(value, bytes):
        return Field(name, Kind.BYTES)
    if isinstance(value, (list, tuple, dict)):
        return Field(name, Kind.JSON)
    raise _failure(f"the map returned '{name}' as {type(value).__name__}, which no field can hold")


def _could_be_pixels(value: np.ndarray[Any, np.dtype[Any]]) -> bool:
    is_flat = value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)
    return value.dtype == np.uint8 and is_flat and value.size > 0


def _take(field: Field, value: Any, *, is_brief: bool) -> Plain:
    if field.kind is Kind.NUMBER:
        return _take_number(field, value)
    if field.has_pixels:
        return _encode(field, value, is_brief=is_brief)
    if field.kind is Kind.TEXT:
        return str(value).encode("utf-8", "surrogateescape")
    if field.kind is Kind.BYTES:
        return bytes(value)
    if field.kind is Kind.BOXES:
        return dump_array(np.asarray(value, np.float32))
    if field.kind is Kind.ARRAY:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(value), version=(1, 0), allow_pickle=False)
        return buffer.getvalue()
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise _failure(f"the map returned '{field.name}', which is no JSON: {error}") from error


def _encode(field: Field, image: Any, *, is_brief: bool) -> bytes:
    is_mask = field.kind is Kind.MASK
    try:
        return pillow.encode_png(image, is_mask=is_mask, is_brief=is_brief and not is_mask)
    except pillow.Undecodable as error:
        raise _failure(f"the map returned '{field.name}' as {error}") from error


def _take_number(field: Field, value: Any) -> Plain:
    number = float(value) if field.dtype == "float64" else int(value)
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise _failure(f"the map returned {number} as '{field.name}', beyond 64 bits")
    if field.classes is not None and not 0 <= number < len(field.classes):
        raise _failure(f"the map returned {number} as '{field.name}', of {len(field.classes)} classes")
    return number


def _words(error: BaseException) -> str:
    """Return what an exception of the user's code says, and where it was raised."""
    if isinstance(error, FeedrateError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    theirs = next((f for f in frames if f.filename != __file__), None)
    return text if theirs is None else f"{text} ({os.path.basename(theirs.filename)}, line {theirs.lineno})"
