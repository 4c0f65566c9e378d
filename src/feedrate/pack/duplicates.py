# SPDX-License-Identifier: Apache-2.0
"""Samples of a pack that are the same: found by what the index knows, confirmed by a look at the bytes.

Length and checksum of all samples are sorted into buckets on disk, so that memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.pack import Pack
from feedrate.format.texts import Texts
from feedrate.kernel import I64, Ranges
from feedrate.pack.files import explain_write_error
from feedrate.pack.quality import EXAMPLES, KEPT
from feedrate.results.quality import Duplicates, OddSample
from feedrate.units import printable

_ENTRY = np.dtype([("crc32c", "<u4"), ("length", "<i8"), ("position", "<i8")])
_BUCKET_SAMPLES, _MOST_BUCKETS = 1 << 16, 200
# Equal in length, in checksum and in so many bytes from the middle: nothing but a forger makes them differ.
_LOOK_AT_BYTES, _TOGETHER = 4096, 1024

_OTHER_LABEL = ", and another label"

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
    examples: list[OddSample] = []
    for positions, length, labels in _find_groups(pack, field, folder):
        differs = labels != labels[0]
        groups += 1
        copies += len(positions) - 1
        size_bytes += length * (len(positions) - 1)
        conflicting += bool(differs.any())
        # Those with another label come first.
        others = sum(one.detail.endswith(_OTHER_LABEL) for one in examples)
        if len(examples) < EXAMPLES or (differs.any() and others < EXAMPLES):
            examples += _name(pack, field, positions, differs)
            examples.sort(key=lambda one: not one.detail.endswith(_OTHER_LABEL))
            del examples[EXAMPLES:]
    return Duplicates(groups, copies, size_bytes, conflicting), tuple(examples)


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
    has_label = pack.manifest.field("label") is not None and field != "label"
    seen: dict[tuple[int, bytes], list[tuple[int, Any]]] = {}
    for start in range(0, len(entries), _TOGETHER):
        positions = np.ascontiguousarray(entries["position"][start : start + _TOGETHER])
        rows = pack.rows(positions)[0]
        where = pack.ranges(field, rows, positions)
        length = np.minimum(where.length, _LOOK_AT_BYTES)
        middle = Ranges(where.file, where.offset + (where.length - length) // 2, length)
        data, starts, statuses = kernel.read_ranges(pack.files, middle)
        pieces, labels = Texts(data.tobytes(), starts), rows["label"] if has_label else np.zeros(len(rows))
        for i, number in enumerate(numbers[start : start + _TOGETHER].tolist()):
            if not statuses[i]:
                seen.setdefault((number, pieces[i]), []).append((start + i, labels[i]))
        # The last one may go on; the others are complete, and not held any longer.
        unfinished = int(numbers[start + len(positions) - 1])
        yield from _groups_of(entries, [of for (number, _), of in seen.items() if number != unfinished])
        seen = {key: of for key, of in seen.items() if key[0] == unfinished}
    yield from _groups_of(entries, seen.values())


def _groups_of(entries: Entries, found: Iterable[list[tuple[int, Any]]]) -> Iterator[Group]:
    for members in found:
        if len(members) > 1:
            places = [place for place, _ in members]
            labels = np.array([label for _, label in members])
            yield entries["position"][places], int(entries["length"][places[0]]), labels
