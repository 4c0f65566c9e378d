# SPDX-License-Identifier: Apache-2.0
"""Which sample goes into which shard: a pure function of the source's listing and the settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

from feedrate import kernel
from feedrate.format.containers.tar import END_OF_ARCHIVE, member_bytes
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.manifest import dump_field
from feedrate.pack.listing import SourceFile
from feedrate.pack.options import PackOptions
from feedrate.pack.recode import Recode
from feedrate.pack.source import Sample, Source, value_bytes


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything needed to write one shard; picklable, and harmless to run twice."""

    source: str
    target: str
    number: int
    plan: str
    fields: tuple[Field, ...]
    recode: Recode
    samples: tuple[Sample, ...]
    container: str = "tar"

    @property
    def tar_bytes(self) -> int:
        sizes = (estimate_tar_bytes(sample, self.fields, self.recode) for sample in self.samples)
        return sum(sizes) + len(END_OF_ARCHIVE)


def estimate_tar_bytes(sample: Sample, fields: Sequence[Field], recode: Recode) -> int:
    """Return what a sample will take in a tar: exactly, unless its pixels are to be changed."""
    total = 0
    for field, value in zip(fields, sample.values, strict=True):
        size_bytes = value_bytes(value)
        is_changed = field.kind is Kind.IMAGE and field.coding is not Coding.FILE
        total += member_bytes(recode.estimate_bytes(size_bytes) if is_changed else size_bytes)
    return total


def order_samples(count: int, seed: int) -> list[int]:
    """Return a permutation that depends on its arguments alone: no library's generator can change it."""
    key = seed.to_bytes(8, "little")

    def rank(number: int) -> tuple[bytes, int]:
        return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8, key=key).digest(), number

    return sorted(range(count), key=rank)


def split_into_shards(source: Source, options: PackOptions) -> list[tuple[Sample, ...]]:
    """Fill shards one after the other, in permuted order; a sample above the shard size has one to itself."""
    samples, recode = source.samples, options.recode
    shards: list[tuple[Sample, ...]] = []
    shard: list[Sample] = []
    room = 0
    for position in order_samples(len(samples), options.seed):
        sample = samples[position]
        size_bytes = estimate_tar_bytes(sample, source.fields, recode)
        if shard and size_bytes > room:
            shards.append(tuple(shard))
            shard = []
        if not shard:
            room = options.shard_bytes - len(END_OF_ARCHIVE)
        shard.append(sample)
        room -= size_bytes
    return [*shards, tuple(shard)] if shard else shards


def describe_settings(source: Source, options: PackOptions) -> dict[str, object]:
    """Return the settings that shape a pack, as they stand in pack.json."""
    settings: dict[str, object] = {"seed": options.seed, "shard_bytes": options.shard_bytes}
    settings |= options.recode.settings()
    if options.container != "tar":
        settings["format"] = options.container
    if source.table is not None:
        settings["labels"] = {
            "name": f"labels-source{source.table.path.suffix.lower()}",
            "path": quote_from_bytes(_table_path(source)),
            "bytes": len(source.table.data),
            "crc32c": f"{kernel.crc32c(source.table.data):08x}",
        }
        settings["path_column"] = options.path_column
        settings["label_column"] = options.label_column
        settings["fields"] = [str(spec) for spec in options.fields]
    return settings


def digest_plan(source: Source, settings: Mapping[str, object]) -> str:
    """Return a digest of all that decides a pack's bytes, contents of files aside; times do not."""
    digest = hashlib.sha256()
    fields = {field.name: dump_field(field) for field in source.fields}
    digest.update(json.dumps([settings, fields], sort_keys=True).encode())
    for sample in source.samples:
        digest.update(b"\n%d %b" % (sample.number, sample.key.encode()))
        for value in sample.values:
            if isinstance(value, SourceFile):
                digest.update(b"\0f%d %b" % (value.size_bytes, value.path))
            else:
                digest.update(b"\0v" + (value if isinstance(value, bytes) else repr(value).encode()))
    return digest.hexdigest()


def _table_path(source: Source) -> bytes:

    assert source.table is not None
    root, table = os.path.realpath(source.root), os.path.realpath(source.table.path)
    # A table from elsewhere comes back at the top of the tree.
    inside = os.path.commonpath([root, table]) == root
    return os.fsencode(os.path.relpath(table, root) if inside else os.path.basename(table))
