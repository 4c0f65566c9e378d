# SPDX-License-Identifier: Apache-2.0
"""The quality of a whole pack: what its shards found, added up, and what only the whole index can tell."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from feedrate.errors import NotFound, PackError
from feedrate.format.fields import Kind
from feedrate.format.index import read_metadata
from feedrate.format.manifest import read_manifest
from feedrate.format.pack import Pack
from feedrate.pack.duplicates import find_duplicates
from feedrate.pack.files import atomic_write
from feedrate.pack.quality import BINS_PER_OCTAVE, EXAMPLES, KEPT, SIDES, QualityTally, merge
from feedrate.results.quality import ClassSize, Duplicates, FormatSize, ImageSize, Oddity, OddSample, Quality

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Made = TypeVar("_Made", bound="DataclassInstance")

FILE_NAME, REJECTED_NAME = "quality.json", "rejected.jsonl"
_FORMAT, _VERSION = "feedrate-quality", 1
# Most urgent first.
CODES = (
    "missing", "unreadable", "empty", "truncated", "corrupt", "incomplete", "map-failed", "duplicate",
    "wrong-suffix", "rotated", "slow", "deep", "animated", "cmyk", "alpha", "progressive", "gray",
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
    data = _dump(quality)
    with atomic_write(folder / FILE_NAME, expected_bytes=len(data)) as file:
        file.write(data)
    return quality


def examine(pack: Pack) -> Quality:
    """Find out the quality of a pack from what its index parts say, and from rejected.jsonl."""
    said = [read_metadata(pack.locate_file(shard.index)) for shard in pack.manifest.shards]
    whole = merge(one.get("quality", {}) for one in said)
    by_shards = Counter(tuple(line) for one in said for line in one.get("rejected", ()))
    for path, field, reason in _read_rejections(pack.path):
        # Those that no shard knows of were rejected before there were shards.
        if by_shards[path, field, reason]:
            by_shards[path, field, reason] -= 1
        else:
            whole.add_rejected(path, reason)
    return _sum_up(pack, whole)


def _read_rejections(folder: Path) -> Iterator[tuple[str, str, str]]:
    try:
        with open(folder / REJECTED_NAME, encoding="utf-8") as file:
            for line in file:
                one = json.loads(line)
                yield one["path"], one["field"], one["reason"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
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


def _dump(quality: Quality) -> bytes:
    document = {"format": _FORMAT, "version": _VERSION, **asdict(quality)}
    return (json.dumps(document, indent=1) + "\n").encode()


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
        return _load(document)
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


def _load(document: dict[str, Any]) -> Quality:
    found = dict(document)
    for name, kind in (("formats", FormatSize), ("classes", ClassSize)):
        found[name] = tuple(_make(kind, one) for one in document[name])
    for name in ("smallest", "largest"):
        found[name] = None if document[name] is None else _make(ImageSize, document[name])
    found["duplicates"] = _make(Duplicates, document["duplicates"])
    found["oddities"] = tuple(
        _make(Oddity, {**one, "examples": tuple(_make(OddSample, e) for e in one["examples"])})
        for one in document["oddities"]
    )
    return _make(Quality, found)


def _make(kind: Callable[..., _Made], document: dict[str, Any]) -> _Made:
    """Return a dataclass whose texts are texts and whose counts are counts: the file may be a stranger's."""
    made = kind(**document)
    for field in fields(made):
        value = getattr(made, field.name)
        counts = value.values() if field.type == "Mapping[str, int]" else [value] * (field.type == "int")
        if any(type(one) is not int or one < 0 for one in counts):
            raise ValueError(f"{value!r} is not a count")
        if field.type == "str" and not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
        if field.type == "float | None" and not isinstance(value, (int, float, NoneType)):
            raise TypeError(f"{value!r} is not a number")
    return made


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
        order = np.argsort(labels, kind="stable")
        in_order = labels[order]
        firsts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1]))[: len(labels)])
        counts = np.diff(np.append(firsts, len(labels)))
        all_sizes = np.sum(sizes, axis=0)[order] if sizes else np.zeros(len(labels), np.int64)
        sums = np.add.reduceat(all_sizes, firsts) if len(firsts) else firsts
        numbers = in_order[firsts].tolist()
        samples.update(dict(zip(numbers, counts.tolist(), strict=True)))
        size_bytes.update(dict(zip(numbers, map(int, sums.tolist()), strict=True)))
        if label.classes is None and len(samples) > _MOST_NUMBERS:
            return ()
    if label.classes is not None:
        return tuple(ClassSize(name, samples[n], size_bytes[n]) for n, name in enumerate(label.classes))
    return tuple(ClassSize(str(n), samples[n], size_bytes[n]) for n in sorted(samples))
