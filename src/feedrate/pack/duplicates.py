# SPDX-License-Identifier: Apache-2.0
"""Samples of a pack that are the same: found by what the index knows, confirmed by a look at the bytes.

Length and checksum of all samples are sorted into buckets on disk, so that memory does not grow with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from feedrate import kernel
from feedrate.format.keys import printable
from feedrate.format.pack import Pack
from feedrate.kernel import I64, Ranges
from feedrate.pack.quality import EXAMPLES, KEPT
from feedrate.results import Duplicates, OddSample

_ENTRY = np.dtype([("crc32c", "<u4"), ("length", "<i8"), ("position", "<i8")])
_BUCKET_SAMPLES, _MOST_BUCKETS = 1 << 18, 200
# Equal in length, in checksum and in so many bytes from the middle: nothing but a forger makes them differ.
_LOOK_AT_BYTES, _TOGETHER = 4096, 1024

Entries = np.ndarray[Any, np.dtype[Any]]


def find_duplicates(pack: Pack, field: str, folder: Path) -> tuple[Duplicates, tuple[OddSample, ...]]:
    """Return how many samples have another one's bytes in `field`, and the first of them by name.

    Raises:
        PackError: the index cannot be read.
    """
    groups = copies = size_bytes = conflicting = 0
    examples: list[OddSample] = []
    has_label = pack.manifest.field("label") is not None and field != "label"
    for group in _find_groups(pack, field, folder):
        positions = np.sort(group["position"])
        labels = pack.rows(positions)[0]["label"] if has_label else np.zeros(1)
        differs = bool((labels != labels[0]).any())
        groups += 1
        copies += len(group) - 1
        size_bytes += int(group["length"][1:].sum())
        conflicting += differs
        # Those with two labels come first.
        if len(examples) < EXAMPLES or differs:
            where = len([e for e in examples if e.detail.endswith("label")]) if differs else len(examples)
            examples[where:where] = _name(pack, field, positions, differs)
            del examples[EXAMPLES:]
    return Duplicates(groups, copies, size_bytes, conflicting), tuple(examples)


def _name(pack: Pack, field: str, positions: I64, differs: bool) -> list[OddSample]:
    few = positions[: EXAMPLES + 1]
    paths, keys = pack.texts(f"{field}.path", few), pack.texts("key", few)
    names = [printable(path or key) for path, key in zip(paths, keys, strict=True)]
    detail = f"has the bytes of {names[0]}" + (", and another label" if differs else "")
    return [OddSample(name, detail, KEPT) for name in names[1:]]


def _find_groups(pack: Pack, field: str, folder: Path) -> Iterator[Entries]:
    """Yield the entries of samples that are equal, group by group."""
    for entries in _bucket(pack, field, folder):
        entries = entries[np.lexsort((entries["position"], entries["length"], entries["crc32c"]))]
        same = (entries["crc32c"][1:] == entries["crc32c"][:-1]) & (
            entries["length"][1:] == entries["length"][:-1]
        )
        runs = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        for first, last in zip(runs[::2].tolist(), (runs[1::2] + 1).tolist(), strict=True):
            if entries["length"][first] > 0:
                yield from _confirm(pack, field, entries[first:last])


def _bucket(pack: Pack, field: str, folder: Path) -> Iterator[Entries]:
    count = min(_MOST_BUCKETS, -(-len(pack) // _BUCKET_SAMPLES))
    with ExitStack() as stack:
        # Files without a name: nothing is left of them, however this ends.
        files: list[IO[bytes]] = [
            stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(count if count > 1 else 0)
        ]
        position = 0
        crcs, lengths = pack.columns(f"{field}.crc32c"), pack.columns(f"{field}.length")
        for crc, length in zip(crcs, lengths, strict=True):
            entries = np.zeros(len(crc), _ENTRY)
            entries["crc32c"], entries["length"] = crc, length
            entries["position"] = np.arange(position, position + len(crc))
            position += len(crc)
            if not files:
                files = [stack.enter_context(tempfile.TemporaryFile(dir=folder))]
            for number, file in enumerate(files):
                file.write(entries[entries["crc32c"] % len(files) == number].tobytes())
        for file in files:
            file.seek(0)
            yield np.frombuffer(file.read(), _ENTRY)


def _confirm(pack: Pack, field: str, entries: Entries) -> Iterator[Entries]:
    seen: dict[bytes, list[int]] = {}
    for start in range(0, len(entries), _TOGETHER):
        positions = np.ascontiguousarray(entries["position"][start : start + _TOGETHER])
        where = pack.ranges(field, pack.rows(positions)[0], positions)
        length = np.minimum(where.length, _LOOK_AT_BYTES)
        middle = Ranges(where.file, where.offset + (where.length - length) // 2, length)
        data, starts, statuses = kernel.read_ranges(pack.files, middle)
        for i in range(len(positions)):
            if not statuses[i]:
                piece = data[starts[i] : starts[i + 1]].tobytes()
                seen.setdefault(piece, []).append(start + i)
    for places in seen.values():
        if len(places) > 1:
            yield entries[places]
