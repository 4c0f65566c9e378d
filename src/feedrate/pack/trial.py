# SPDX-License-Identifier: Apache-2.0
"""A map, tried on the first samples of a source: which fields it makes, and how large they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from feedrate.format.fields import Coding, Field
from feedrate.pack.listing import Listing, Sample
from feedrate.pack.loading import Rejected, SampleLoader
from feedrate.pack.mapped import Mapper, Plain, find_fields
from feedrate.pack.options import PackOptions
from feedrate.source.bytes import Bytes

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
