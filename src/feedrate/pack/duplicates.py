# SPDX-License-Identifier: Apache-2.0
"""Samples of a pack that are the same: found by what the index knows, confirmed by a look at the bytes.

Length and checksum of all samples are sorted into buckets on disk, so that memory does not grow with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.keys import printable
from feedrate.format.pack import Pack
from feedrate.kernel import I64, Ranges
from feedrate.pack.files import explain_write_error
from feedrate.pack.quality import EXAMPLES, KEPT
from feedrate.results.quality import Duplicates, OddSample

_ENTRY = np.dtype([("crc32c", "<u4"), ("length", "<i8"), ("position", "<i8")])
_BUCKET_SAMPLES, _MOST_BUCKETS = 1 << 16, 200
# Equal in length, in checksum and in so many bytes from the middle: nothing but a forger makes them differ.
_LOOK_AT_BYTES, _TOGETHER = 4096, 1024

_OTHER_LABEL = ", and another label"

Entries = np.ndarray[Any, np.dtype[Any]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


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
    examples: list[OddSample] = []
    has_label = pack.manifest.field("label") is not None and field != "label"
    for group in _find_groups(pack, field, folder):
        positions = np.sort(group["position"])
        labels = _read_labels(pack, positions) if has_label else np.zeros(len(positions))
        differs = labels != labels[0]
        groups += 1
        copies += len(group) - 1
        size_bytes += int(group["length"][1:].sum())
        conflicting += bool(differs.any())
        if len(examples) < EXAMPLES or differs.any():
            examples += _name(pack, field, positions, differs)
            # Those with another label come first.
            examples.sort(key=lambda one: not one.detail.endswith(_OTHER_LABEL))
            del examples[EXAMPLES:]
    return Duplicates(groups, copies, size_bytes, conflicting), tuple(examples)


def _read_labels(pack: Pack, positions: I64) -> np.ndarray[Any, np.dtype[Any]]:
    pieces = (positions[start : start + _TOGETHER] for start in range(0, len(positions), _TOGETHER))
    return np.concatenate([pack.rows(piece)[0]["label"] for piece in pieces])


def _name(pack: Pack, field: str, positions: I64, differs: Flags) -> list[OddSample]:
    # The first, those with another label, and others.
    few = np.concatenate((positions[:1], positions[differs], positions[1:][~differs[1:]]))[: EXAMPLES + 1]
    others = 1 + int(differs.sum())
    paths, keys = pack.texts(f"{field}.path", few), pack.texts("key", few)
    names = [printable(path or key) for path, key in zip(paths, keys, strict=True)]
    detail = f"has the bytes of {names[0]}"
    return [
        OddSample(name, detail + (_OTHER_LABEL if number < others else ""), KEPT)
        for number, name in enumerate(names[1:], 1)
    ]


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
    if count <= 1:
        yield np.concatenate([np.zeros(0, _ENTRY), *_list_entries(pack, field)])
        return
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
