# SPDX-License-Identifier: Apache-2.0
"""The quality of a whole pack: what its shards found, added up, and what only the whole index can tell.

Duplicates are found by what the index knows, and confirmed by a look at the bytes. Length and checksum of all
samples are sorted into buckets on disk, so that memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.documents import load
from feedrate.errors import FeedrateError, NotFound, PackError
from feedrate.files.atomic import explain_write_error, write_file
from feedrate.format.fields import Kind
from feedrate.format.index import ByteStrings, read_metadata
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.kernel import I64, Ranges
from feedrate.packing.check.quality import (
    BINS_PER_OCTAVE,
    EXAMPLES,
    KEPT,
    REJECTED,
    SIDES,
    QualityTally,
    merge,
)
from feedrate.packing.results import ClassSize, Duplicates, FormatSize, ImageSize, Oddity, OddSample, Quality
from feedrate.progress import Rejection
from feedrate.units import printable

_ENTRY = np.dtype([("crc32c", "<u4"), ("length", "<i8"), ("position", "<i8")])
_BUCKET_SAMPLES, _MOST_BUCKETS = 1 << 16, 200
# Equal in length, in checksum and in so many bytes from the middle: nothing but a forger makes them differ.
_LOOK_AT_BYTES, _TOGETHER = 4096, 1024

Entries = np.ndarray[Any, np.dtype[Any]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Group = tuple[I64, int, np.ndarray[Any, np.dtype[Any]]]  # positions, the length of each, labels


def find_duplicates(pack: Pack, field: str, folder: Path) -> tuple[Duplicates, tuple[OddSample, ...]]:
    """Return how many samples have another one's bytes in `field`, and the first of them by name.

    Raises:
        PackError: the index cannot be read.
        StorageError: there is no room for the buckets.
    """
    try:
        return _find(pack, field, folder)
    except OSError as error:
        if isinstance(error, FeedrateError):
            raise
        raise explain_write_error(error, folder / "duplicates") from error


def _find(pack: Pack, field: str, folder: Path) -> tuple[Duplicates, tuple[OddSample, ...]]:
    groups = copies = size_bytes = conflicting = 0
    examples: list[tuple[bool, OddSample]] = []  # whether it has another label
    for positions, length, labels in _find_groups(pack, field, folder):
        differs = labels != labels[0]
        groups += 1
        copies += len(positions) - 1
        size_bytes += length * (len(positions) - 1)
        conflicting += bool(differs.any())
        # Those with another label come first.
        others = sum(is_other for is_other, _ in examples)
        if len(examples) < EXAMPLES or (differs.any() and others < EXAMPLES):
            examples += _name(pack, field, positions, differs)
            examples.sort(key=lambda one: not one[0])
            del examples[EXAMPLES:]
    return Duplicates(groups, copies, size_bytes, conflicting), tuple(one for _, one in examples)


def _name(pack: Pack, field: str, positions: I64, differs: Flags) -> Iterator[tuple[bool, OddSample]]:
    # The first, those with another label, and others.
    few = np.concatenate((positions[:1], positions[differs], positions[1:][~differs[1:]]))[: EXAMPLES + 1]
    paths, keys = pack.texts(f"{field}.path", few), pack.texts("key", few)
    first, *names = (printable(path or key) for path, key in zip(paths, keys, strict=True))
    for number, name in enumerate(names):
        is_other = number < differs.sum()
        detail = f"has the bytes of {first}" + (", and another label" if is_other else "")
        yield bool(is_other), OddSample(name, detail, KEPT)


def _find_groups(pack: Pack, field: str, folder: Path) -> Iterator[Group]:
    """Yield samples that are equal, group by group."""
    for entries in _bucket(pack, field, folder):
        # Nearly all are alone with their checksum, and need not be put in order with the others.
        in_order = np.sort(entries["crc32c"])
        entries = entries[np.isin(entries["crc32c"], in_order[1:][in_order[1:] == in_order[:-1]])]
        entries = entries[np.lexsort((entries["position"], entries["length"], entries["crc32c"]))]
        same = (entries["crc32c"][1:] == entries["crc32c"][:-1]) & (
            entries["length"][1:] == entries["length"][:-1]
        )
        follows = np.concatenate(([False], same))[: len(entries)]
        is_followed = np.concatenate((same, [False]))[: len(entries)]
        chosen = np.flatnonzero((follows | is_followed) & (entries["length"] > 0))
        yield from _confirm(pack, field, entries[chosen], np.cumsum(~follows[chosen]))


def _bucket(pack: Pack, field: str, folder: Path) -> Iterator[Entries]:
    count = min(_MOST_BUCKETS, -(-len(pack) // _BUCKET_SAMPLES))
    if count <= 1:
        yield np.concatenate([np.zeros(0, _ENTRY), *_list_entries(pack, field)])
        return
    import tempfile  # for large packs only, and slow to load

    with ExitStack() as stack:
        # Files without a name: nothing is left of them, however this ends.
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(count)]
        for entries in _list_entries(pack, field):
            for number, file in enumerate(files):
                file.write(entries[entries["crc32c"] % count == number].tobytes())
        for file in files:
            file.seek(0)
            yield np.frombuffer(file.read(), _ENTRY)


def _list_entries(pack: Pack, field: str) -> Iterator[Entries]:
    position = 0
    crcs, lengths = pack.columns(f"{field}.crc32c"), pack.columns(f"{field}.length")
    for crc, length in zip(crcs, lengths, strict=True):
        entries = np.zeros(len(crc), _ENTRY)
        entries["crc32c"], entries["length"] = crc, length
        entries["position"] = np.arange(position, position + len(crc))
        position += len(crc)
        yield entries


def _confirm(pack: Pack, field: str, entries: Entries, numbers: I64) -> Iterator[Group]:
    """Look at samples that may be equal; those that may be have the same number, and stand together."""
    looked_at = zip(numbers.tolist(), _look_at(pack, field, entries["position"]), strict=True)
    for _, alike in itertools.groupby(enumerate(looked_at), key=lambda one: one[1][0]):
        found: dict[bytes, list[tuple[int, Any]]] = {}
        for place, (_, (piece, label)) in alike:
            if piece is not None:
                found.setdefault(piece, []).append((place, label))
        for members in found.values():
            if len(members) > 1:
                places, labels = map(list, zip(*members, strict=True))
                yield entries["position"][places], int(entries["length"][places[0]]), np.array(labels)


def _look_at(pack: Pack, field: str, positions: I64) -> Iterator[tuple[bytes | None, Any]]:
    """Yield bytes from the middle of each sample, None where they cannot be read, and its label."""
    has_label = pack.manifest.field("label") is not None and field != "label"
    for start in range(0, len(positions), _TOGETHER):
        here = np.ascontiguousarray(positions[start : start + _TOGETHER])
        rows = pack.rows(here)[0]
        where = pack.ranges(field, rows, here)
        length = np.minimum(where.length, _LOOK_AT_BYTES)
        middle = Ranges(where.file, where.offset + (where.length - length) // 2, length)
        data, starts, statuses = kernel.read_ranges(pack.files, middle)
        pieces = ByteStrings(data.tobytes(), starts)
        labels = rows["label"] if has_label else np.zeros(len(rows))
        for piece, label, status in zip(pieces, labels, statuses, strict=True):
            yield None if status else piece, label


FILE_NAME, REJECTED_NAME = "quality.json", "rejected.jsonl"
_FORMAT, _VERSION = "feedrate-quality", 1
# Most urgent first.
CODES = (
    "missing", "unreadable", "empty", "truncated", "corrupt", "outside", "named-twice", "incomplete",
    "too-large", "map-failed", "duplicate", "wrong-suffix", "rotated", "slow", "deep", "animated",
    "cmyk", "alpha", "progressive", "gray",
)  # fmt: skip
# Eight times the median; and long enough that somebody would notice.
_SLOW_OCTAVES, _SLOW_US = 3, 2000
_MOST_NUMBERS = 1000  # a label with more values than this is no class


def write_quality(folder: Path) -> Quality:
    """Write quality.json for a pack, and return what it says; also after shards were added to it.

    Raises:
        PackError: an index part cannot be read.
        StorageError: the file cannot be written.
    """
    with contextlib.closing(Pack(folder)) as pack:
        quality = examine(pack)
    document = {"format": _FORMAT, "version": _VERSION, **asdict(quality)}
    write_file(folder / FILE_NAME, (json.dumps(document, indent=1) + "\n").encode())
    return quality


def examine(pack: Pack) -> Quality:
    """Find out the quality of a pack from what its index parts say, and from rejected.jsonl."""
    said = [read_metadata(pack.locate_file(shard.index)) for shard in pack.manifest.shards]
    whole = merge(one.get("quality", {}) for one in said)
    by_shards = Counter(tuple(line[:3]) for one in said for line in one.get("rejected", ()))
    for one in _read_rejections(pack.path):
        # Those that no shard knows of were rejected before there were shards.
        if by_shards[one.path, one.field, one.reason]:
            by_shards[one.path, one.field, one.reason] -= 1
        else:
            whole.add(one.code, one.path, one.reason, REJECTED)
    return _sum_up(pack, whole)


def _read_rejections(folder: Path) -> Iterator[Rejection]:
    try:
        with open(folder / REJECTED_NAME, encoding="utf-8") as file:
            for line in file:
                yield load(Rejection, json.loads(line))  # those of earlier versions have no code
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        raise PackError(f"{folder / REJECTED_NAME} cannot be read: {error}") from error


def _sum_up(pack: Pack, whole: QualityTally) -> Quality:
    duplicates = Duplicates()
    copies: tuple[OddSample, ...] = ()
    field = next((f for f in pack.fields if f.kind in (Kind.IMAGE, Kind.ARRAY, Kind.BYTES)), None)
    if field is not None and len(pack) > 1:
        duplicates, copies = find_duplicates(pack, field.name, pack.path)
    odd = {
        code: Oddity(code, found["done"], tuple(OddSample(*e) for e in found["examples"]))
        for code, found in whole.odd.items()
    }
    if duplicates.copies:
        odd["duplicate"] = Oddity("duplicate", {KEPT: duplicates.copies}, copies)
    median_us, slow = _find_slow(whole)
    if slow is not None:
        odd["slow"] = slow
    extremes = whole.extremes
    return Quality(
        samples=len(pack),
        rejected=sum(one.done.get("rejected", 0) for one in odd.values()),
        left_out=whole.left_out,
        formats=tuple(
            FormatSize(name, *count)
            for name, count in sorted(whole.formats.items(), key=lambda f: (-f[1][0], f[0]))
        ),
        short_sides=_name_sides(whole.short_sides),
        long_sides=_name_sides(whole.long_sides),
        smallest=ImageSize(*extremes["smallest"]) if extremes else None,
        largest=ImageSize(*extremes["largest"]) if extremes else None,
        classes=_measure_classes(pack),
        duplicates=duplicates,
        median_cost_us=median_us,
        oddities=tuple(odd[code] for code in CODES if code in odd),
    )


def read_quality(pack: str | os.PathLike[str]) -> Quality:
    """Read what packing found out about a pack.

    Raises:
        NotFound: there is no pack, or it was made without it.
        PackError: the file is damaged.
    """
    manifest = read_manifest(pack)
    path = Path(pack) / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
        version = document.pop("version")
        if document.pop("format") != _FORMAT or version != _VERSION:
            raise PackError(f"{path} has version {version!r}; this feedrate reads version {_VERSION}")
        _refuse_negative(document)
        return load(Quality, document)
    except FileNotFoundError:
        if any(shard.is_in_place for shard in manifest.shards):
            raise NotFound(
                f"{pack} is an index, and only packing looks at the quality of a dataset",
                hint="to have a report, pack it: feedrate pack SOURCE PACK",
            ) from None
        raise NotFound(
            f"{pack} has no {FILE_NAME}: it was made without one", hint="pack the source again to have it"
        ) from None
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PackError):
            raise
        raise PackError(
            f"{path} is damaged: it is not what packing wrote",
            hint="pack the source again to have it; no other command reads it",
        ) from error


def _refuse_negative(value: object) -> None:
    """Refuse a count below 0 anywhere in a document: the file may be a stranger's."""
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_negative(one)
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{value} is not a count")


def _find_slow(whole: QualityTally) -> tuple[float | None, Oddity | None]:
    count = sum(whole.costs.values())
    if not count:
        return None, None
    below, median = 0, 0
    for number in sorted(whole.costs):
        below += whole.costs[number]
        if 2 * below >= count:
            median = number
            break
    median_us = 2 ** (median / BINS_PER_OCTAVE)
    least = max(median + BINS_PER_OCTAVE * _SLOW_OCTAVES, round(BINS_PER_OCTAVE * math.log2(_SLOW_US)))
    slow = sum(n for number, n in whole.costs.items() if number >= least)
    if not slow:
        return round(median_us, 1), None
    examples = tuple(
        OddSample(path, f"{words}: about {cost_us / median_us:.0f} times the median to decode", KEPT)
        for cost_us, path, words in whole.slowest[: min(slow, EXAMPLES)]
    )
    return round(median_us, 1), Oddity("slow", {KEPT: slow}, examples)


def _name_sides(counts: Counter[int]) -> dict[str, int]:
    """Return the range of sides of each bin, from the first that is not empty to the last."""
    if not counts:
        return {}
    names = [f"below {SIDES[0]}"]
    names += [f"{low} to {high - 1}" for low, high in itertools.pairwise(SIDES)]
    names.append(f"{SIDES[-1]} and more")
    return {names[i]: counts[i] for i in range(min(counts), max(counts) + 1)}


def _measure_classes(pack: Pack) -> tuple[ClassSize, ...]:
    label = pack.manifest.field("label")
    if label is None or label.dtype != "int64":
        return ()
    samples: Counter[int] = Counter()
    size_bytes: Counter[int] = Counter()
    lengths = [f"{f.name}.length" for f in pack.fields if f.kind is not Kind.NUMBER]
    for labels, *sizes in zip(pack.columns("label"), *map(pack.columns, lengths), strict=True):
        found, which = np.unique(labels, return_inverse=True)
        numbers = found.tolist()
        samples.update(dict(zip(numbers, np.bincount(which).tolist(), strict=True)))
        taken = np.bincount(which, np.sum(sizes, axis=0) if sizes else np.zeros(len(labels)))
        size_bytes.update(dict(zip(numbers, map(int, taken), strict=True)))
        if label.classes is None and len(samples) > _MOST_NUMBERS:
            return ()
    if label.classes is not None:
        return tuple(ClassSize(name, samples[n], size_bytes[n]) for n, name in enumerate(label.classes))
    return tuple(ClassSize(str(n), samples[n], size_bytes[n]) for n in sorted(samples))
