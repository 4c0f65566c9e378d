# SPDX-License-Identifier: Apache-2.0
"""A sample of the source -> what is stored of it: read, mapped, looked at, and made anew where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.format.fields import AUTO, Coding, Field, Kind
from feedrate.format.raw import dump_table
from feedrate.kernel import pillow
from feedrate.packing.build.listing import Listing, Sample
from feedrate.packing.build.mapper import LeftOut, Made, Mapper, Plain, find_fields
from feedrate.packing.check.quality import FILLED, KEPT, MAPPED, NORMALISED, QualityTally
from feedrate.packing.options import PackOptions
from feedrate.packing.recode import NewImage, Recode, recode_image, resize_mask, scale_boxes
from feedrate.packing.values import (
    ImageFacts,
    dump_number,
    inspect_array,
    inspect_headers,
    inspect_image,
    inspect_text,
)
from feedrate.progress import Rejection
from feedrate.source.bytes import Bytes
from feedrate.source.record import ContainerValue, FileRange, UnusableValue, Value, reject

Size = tuple[int, int]  # width, height


@dataclass(slots=True)
class Loaded:
    """One field of one sample, ready to be written."""

    data: bytes
    path: bytes = b""
    source_bytes: int = 0
    columns: tuple[Any, ...] = ()  # what the row has beside offset, length and crc32c
    entries: bytes = b""
    uniform: dict[str, Any] | None = None
    sizes: tuple[Size, Size] | None = None  # of pixels: width and height in the source, and as stored
    image: NewImage | None = None  # made anew
    is_filled: bool = False  # it ended too early
    facts: tuple[ImageFacts, ImageFacts] | None = None  # of an image: in the source, and as stored


class Rejected(Exception):
    """A sample that cannot be packed."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.reason)
        self.rejection = rejection


class SampleLoader:
    """Loads samples for a shard, and counts what it sees of them.

    Args:
        fields: those of the source.
        stored: those of the pack; others only where there is a `mapper`.
        scan: note where images can be entered, and see that they are whole.
        bytes_per_entry: how far apart that is.
    """

    def __init__(
        self,
        source: Bytes,
        fields: Sequence[Field],
        stored: Sequence[Field],
        recode: Recode,
        mapper: Mapper | None = None,
        *,
        scan: bool = True,
        bytes_per_entry: int = AUTO,
    ) -> None:
        self.fields, self.stored = tuple(fields), tuple(stored)
        self.mapper, self.quality = mapper, QualityTally()
        self._source, self._recode, self._scan = source, recode, scan
        self._bytes_per_entry = bytes_per_entry
        if mapper is not None:
            mapper.is_recoded = recode.raw or recode.quality is not None or recode.normalise
        # Masks and boxes follow an image's pixels as they are in its file.
        self._may_turn = not any(field.kind in (Kind.MASK, Kind.BOXES) for field in stored)

    def load(self, sample: Sample) -> list[Loaded] | None:
        """Return a part per stored field; None: the user's map does not want the sample.

        Raises:
            Rejected: it cannot be packed.
            StorageError: the whole source is out of reach.
        """
        values = self.read(sample)
        first = sample.values[0] if sample.values else None
        if self.mapper is None:
            made = [Made(value, is_new=False) for value in values]
        else:
            try:
                made = self.mapper.make(sample.key, values, self.stored)
            except LeftOut:
                self.quality.left_out += 1
                return None
            except UnusableValue as error:
                raise _reject(sample, None, first, error) from error
        before = {f.name: (v, plain) for f, v, plain in zip(self.fields, sample.values, values, strict=True)}
        loaded: list[Loaded] = []
        for field, one in zip(self.stored, made, strict=True):
            value, plain = before.get(field.name, (None, b""))
            try:
                loaded.append(self._load_made(field, one, value, plain, loaded))
            except UnusableValue as error:
                raise _reject(sample, field, first if value is None else value, error) from error
        for field, part in zip(self.stored, loaded, strict=True):
            if field.kind is Kind.IMAGE:
                self._look_at(part)
        return loaded

    def read(self, sample: Sample) -> list[Plain]:
        """Return a sample's values as the source has them.

        Raises:
            Rejected: one of them cannot be read.
        """
        plain: list[Plain] = []
        for field, value in zip(self.fields, sample.values, strict=True):
            try:
                plain.append(self._read(field, value))
            except UnusableValue as error:
                raise _reject(sample, field, value, error) from error
        return plain

    def _load_made(
        self, field: Field, made: Made, value: Value | None, plain: Plain, loaded: list[Loaded]
    ) -> Loaded:
        path = value.path if isinstance(value, (FileRange, ContainerValue)) else b""
        if not made.is_new:
            return self._load(field, path, made.plain, loaded)
        # What was made of a file comes back beside its name; other values have no file.
        part = self._load(field, path if field.has_pixels else b"", made.plain, loaded)
        part.source_bytes = len(plain) if isinstance(plain, bytes) and path else 0
        if field.kind is Kind.IMAGE and part.facts is not None and isinstance(plain, bytes) and plain:
            part.facts = inspect_headers(plain), part.facts[1]
            part.image = part.image or NewImage(part.data, *part.columns)
        return part

    def _read(self, field: Field, value: Value | None) -> Plain:
        if value is None:
            raise UnusableValue(f"has no '{field.name}'", "incomplete")
        if isinstance(value, (FileRange, ContainerValue)):
            return self._source.read(value)
        return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value

    def _load(self, field: Field, path: bytes, plain: Plain, loaded: list[Loaded]) -> Loaded:
        if not isinstance(plain, bytes):
            return Loaded(dump_number(plain), columns=(plain,))
        if field.has_pixels:
            return self._load_pixels(field, path, plain)
        part = Loaded(plain, path, len(plain) if path else 0)
        if field.kind is Kind.ARRAY:
            shape, dtype = inspect_array(plain)
            part.uniform = {"shape": list(shape), "dtype": dtype}
        if field.kind in (Kind.TEXT, Kind.JSON):
            inspect_text(field.kind, plain)
        if field.kind is Kind.BOXES:
            sizes = next((other.sizes for other in loaded if other.sizes is not None), None)
            part.data = plain if sizes is None else scale_boxes(plain, *sizes)
        return part

    def _load_pixels(self, field: Field, path: bytes, data: bytes) -> Loaded:
        try:
            facts = self._inspect(data)
        except UnusableValue as error:
            # A mask is not filled up: pixels that nobody labelled would become labels.
            may_fill = self._recode.keep_truncated and field.kind is Kind.IMAGE
            if not may_fill or error.code != "truncated":
                raise
            return self._load_truncated(field, path, data, error)
        loaded = Loaded(data, path, len(data) if path else 0)
        before = width, height = facts.width, facts.height
        if field.kind is Kind.MASK:
            loaded.data = resize_mask(self._recode, data, before) or data
            width, height = before if loaded.data is data else self._recode.new_size(*before)
        else:
            loaded.image = recode_image(self._recode, data, facts, may_turn=self._may_turn)
        if loaded.image is not None:
            loaded.data, width, height = loaded.image.data, loaded.image.width, loaded.image.height
        now = facts
        if field.coding is Coding.RAW:
            loaded.entries = dump_table(loaded.data)
            now = ImageFacts(width, height, b"", None, None, None, format="raw")
        else:
            now = facts if loaded.data is data else self._inspect(loaded.data)
            loaded.entries = now.entries
        loaded.columns, loaded.uniform = (width, height), {"shape": [height, width]}
        loaded.sizes, loaded.facts = (before, (width, height)), (facts, now)
        return loaded

    def _inspect(self, data: bytes) -> ImageFacts:
        return inspect_image(data, scan=self._scan, bytes_per_entry=self._bytes_per_entry)

    def _load_truncated(self, field: Field, path: bytes, data: bytes, error: UnusableValue) -> Loaded:
        try:
            filled = pillow.fill_up(data)
        except pillow.Undecodable:
            raise error from None
        loaded = self._load_pixels(field, path, filled)
        loaded.source_bytes, loaded.is_filled = len(data) if path else 0, True
        loaded.image = loaded.image or NewImage(filled, *loaded.columns)
        assert loaded.facts is not None
        truncated = loaded.facts[0]._replace(
            pillow_reason=str(error), damage=error.code, format=pillow.describe(data)[0]
        )
        loaded.facts = truncated, loaded.facts[1]
        return loaded

    def _look_at(self, part: Loaded) -> None:
        if part.facts is None:
            return
        facts, now = part.facts
        is_mapped = part.image is not None and self.mapper is not None
        # A smaller image of 16 bits is still one: loading will ask what becomes of them.
        is_kept = part.image is None or now.is_deep
        done = MAPPED if is_mapped else KEPT if is_kept else NORMALISED
        done = FILLED if part.is_filled else done
        turned = self._recode.normalise and self._may_turn and part.image is not None and not is_mapped
        self.quality.add_image(part.path, part.source_bytes, facts, done=done, turned=turned)
        self.quality.add_cost(part.path, now, len(part.data))


def _reject(sample: Sample, field: Field | None, value: Value | None, error: UnusableValue) -> Rejected:
    path = value.path if isinstance(value, (FileRange, ContainerValue)) else sample.key.encode()
    return Rejected(reject(path, "" if field is None else field.name, error))


_LOOK_AT, _MEASURE = 64, 8


def try_map(path: Path, root: str, options: PackOptions) -> tuple[tuple[Field, ...], float]:
    """Return the fields that a map makes of a source's samples, and how many times larger they become.

    Raises:
        SourceError: it fails on all of the first samples.
    """
    assert options.map is not None
    listing = Listing(path)
    try:
        samples = list(listing.samples(np.arange(min(_LOOK_AT, len(listing)), dtype=np.int64)))
        mapper = Mapper(options.map, listing.fields)
        reading = SampleLoader(Bytes(root), listing.fields, listing.fields, options.recode)
        made = find_fields(mapper, _read(reading, samples))
        # A file that a map may have made anew is no longer bit for bit that of its name.
        made = tuple(replace(f, coding=_coding(f)) for f in options.recode.mark(made))
        loader = SampleLoader(Bytes(root), listing.fields, made, options.recode, mapper)
        return made, _measure_scale(loader, samples)
    finally:
        listing.close()


def _read(loader: SampleLoader, samples: list[Sample]) -> Iterator[tuple[str, list[Plain]]]:
    for sample in samples:
        try:
            yield sample.key, loader.read(sample)
        except Rejected:
            continue


def _coding(field: Field) -> Coding:
    return Coding.RECODED if field.has_pixels and field.coding is Coding.FILE else field.coding


def _measure_scale(loader: SampleLoader, samples: list[Sample]) -> float:
    before = after = 1
    for sample in samples[:_MEASURE]:
        try:
            loaded = loader.load(sample)
        except Rejected:
            continue
        if loaded is not None:
            before += sample.source_bytes
            after += sum(len(part.data) for part in loaded)
    # Shards are planned by this: a digit is enough, and the last ones may differ between machines.
    return float(f"{after / before:.1g}")
