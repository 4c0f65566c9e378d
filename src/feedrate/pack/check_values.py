# SPDX-License-Identifier: Apache-2.0
"""Whether single values are what the index says: images, their entry points, files indexed in place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.format.containers import FILES
from feedrate.format.entries import find_entries
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.index import Part
from feedrate.format.manifest import Shard
from feedrate.format.raw import parse_stored, table_fits
from feedrate.pack.values import inspect_image
from feedrate.pack.workers import advance
from feedrate.results.verify import Problem
from feedrate.source.values import UnusableValue


def check_in_place(shard: Shard, path: Path, fields: Sequence[Field], part: Part | None) -> Iterator[Problem]:
    """Yield what is wrong with values that lie in files which were there before."""
    is_loose = shard.container == FILES
    try:
        found = os.stat(path)
    except OSError as error:
        yield Problem(shard.name, f"cannot be read: {error.strerror}")
        return
    if not is_loose and found.st_size != shard.size_bytes:
        yield Problem(
            shard.name,
            f"has changed since it was indexed: {shard.size_bytes} bytes then, {found.st_size} now; "
            "index it again",
        )
    if part is None:
        return
    fields = [field for field in fields if field.kind is not Kind.NUMBER]
    for number in range(len(part.rows)):
        sample_bytes = 0
        for field in fields:
            value = part.variable[f"{field.name}.path"][number]
            file = path / os.fsdecode(value) if is_loose else path
            sample_bytes += int(part.rows[number][f"{field.name}.length"])
            for text in _check_value(field, part, number, file, is_loose):
                key = part.variable["key"][number].decode("ascii")
                offset = int(part.rows[number][f"{field.name}.offset"])
                yield Problem(shard.name, f"field '{field.name}' {text}", key=key, offset=offset)
        advance(1, sample_bytes)


def _check_value(field: Field, part: Part, number: int, file: Path, is_loose: bool) -> Iterator[str]:
    row = part.rows[number]
    offset, length = int(row[f"{field.name}.offset"]), int(row[f"{field.name}.length"])
    try:
        with open(file, "rb", buffering=0) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            is_inside = offset >= 0 and length >= 0 and offset + length <= size_bytes
            if not is_inside or (is_loose and size_bytes != length):
                yield f"lies in {file}, which has {size_bytes} bytes and had others when it was indexed"
                return
            data = kernel.read_at(stream.fileno(), length, offset)
    except OSError as error:
        yield f"cannot be read: {error.strerror}"
        return
    if kernel.crc32c(data) != row[f"{field.name}.crc32c"]:
        yield "its bytes are not those that were indexed (checksum): index it again"
    elif field.has_pixels:
        yield from check_image(field, part, number, data)


def check_image(field: Field, part: Part, number: int, data: bytes) -> Iterator[str]:
    """Yield what is wrong with an image or mask: its bytes are as they were, but do they fit the index?"""
    row = part.rows[number]
    size = (int(row[f"{field.name}.width"]), int(row[f"{field.name}.height"]))
    if field.coding is Coding.RAW:
        yield from _check_raw(data, size, part.variable[f"{field.name}.entries"][number])
        return
    try:
        facts = inspect_image(data, bytes_per_entry=find_entries(part.metadata))
    except UnusableValue as error:
        yield f"cannot be decoded: {error}"
        return
    if size != (facts.width, facts.height):
        yield f"is {facts.width} x {facts.height} pixels, the index says {size[0]} x {size[1]}"
    if field.kind is Kind.IMAGE:
        entries = part.variable[f"{field.name}.entries"][number]
        if entries != facts.entries and not _lead_to_the_same_pixels(data, entries):
            yield "has entry points in the index that do not fit it"


def _check_raw(data: bytes, size: tuple[int, int], table: bytes) -> Iterator[str]:
    try:
        pixels = parse_stored(data, table)
    except ValueError as error:
        yield str(error)
        return
    if size != pixels.shape[1::-1]:
        yield f"is {pixels.shape[1]} x {pixels.shape[0]} pixels, the index says {size[0]} x {size[1]}"
    if not table_fits(data, table):
        yield "has checksums of rows in the index that do not fit it"


def _lead_to_the_same_pixels(data: bytes, entries: bytes) -> bool:
    """Another version of the kernel may place entry points elsewhere: what counts is where they lead."""
    try:
        return np.array_equal(kernel.decode_one(data, entries=entries), kernel.decode_one(data))
    except ValueError:
        return False
