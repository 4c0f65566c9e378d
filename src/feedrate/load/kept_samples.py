# SPDX-License-Identifier: Apache-2.0
"""Samples of a dataset on a shelf: found there as values, or made and put there while there is room."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import numpy as np

from feedrate.cache.codec import Damaged, Refused, decode, encode
from feedrate.cache.store import SampleCache
from feedrate.cache.views import Views
from feedrate.errors import UsageError
from feedrate.kernel import U8
from feedrate.load.fingerprint import list_inner
from feedrate.machine.process import read_file

# Smaller samples are copied: that takes less time than to map them (benchmarks/cached.py).
MAPPED_BYTES = 512 << 10
_LOOKED_AT = 1_000_000
ABSENT = object()
_TAKEN = "tensors, arrays, numbers, text, bytes, Pillow's images, and dicts, lists and tuples of them"


class KeptSamples:
    """What one process does with the shelf of a cached dataset. `called_at`: the user's line for warnings."""

    def __init__(self, shelf: SampleCache, called_at: tuple[str, int]) -> None:
        self.process = os.getpid()
        self._called_at = called_at
        self._shelf = shelf
        # Of a disk, what is read must be checked as a whole: it is copied.
        kinds = zip(shelf.paths, shelf.tiers, strict=True)
        self._views = [Views(path) if tier.kind == "ram" else None for path, tier in kinds]
        self._is_frozen = False
        self._has_made = False

    def close(self) -> None:
        for views in self._views:
            if views is not None and self.process == os.getpid():
                views.close()

    def find(self, numbers: list[int]) -> list[Any]:
        located = self._shelf.locate(np.array(numbers, np.int64))
        return [
            self._read(number, row) if is_there else ABSENT
            for number, is_there, row in zip(numbers, located.found.tolist(), located.rows, strict=True)
        ]

    def _read(self, number: int, row: Any) -> Any:
        memory = self._open_view(number, row)
        if memory is None:
            copy = self._shelf.read(row)
            if copy is None:
                return ABSENT
            memory = np.frombuffer(copy, np.uint8)
        try:
            return decode(memory)
        except Damaged:
            self._shelf.discard(row)
            return ABSENT

    def _open_view(self, number: int, row: Any) -> U8 | None:
        views, offset, length = self._views[row["tier"]], int(row["offset"]), int(row["length"])
        if views is None or length < MAPPED_BYTES:
            return None

        def is_still_there() -> bool:
            again = self._shelf.locate(np.array([number], np.int64))
            return bool(again.found[0]) and bool(again.rows[0].tobytes() == row.tobytes())

        view: U8 | None = views.open(offset, length, is_still_there)
        return view

    def make(self, dataset: Any, numbers: list[int]) -> list[Any]:
        """Let the dataset make samples, and keep those that there is room for."""
        if self._is_frozen:
            return _fetch(dataset, numbers)
        before = _count_read_bytes(with_this=True)
        samples = _fetch(dataset, numbers)
        read_bytes = (_count_read_bytes() - before) // len(numbers)
        for number, sample in zip(numbers, samples, strict=True):
            data = _encode(dataset, number, sample)
            if not self._has_made:
                self._has_made = True
                read_bytes = self._look_twice(dataset, number, data, read_bytes)
            if not self._shelf.put(number, data, source_bytes=read_bytes):
                self._freeze()
                if self._is_frozen:
                    break
        return samples

    def _look_twice(self, dataset: Any, number: int, data: U8, read_bytes: int) -> int:
        """Make the first sample once more: is it the same? And what is read, when all is imported?"""
        held = [(tier.samples, tier.size_bytes, tier.source_bytes) for tier in self._shelf.tier_stats()]
        samples, size_bytes, source_bytes = (sum(column) for column in zip(*held, strict=True))
        if samples:
            return len(data) * source_bytes // size_bytes if size_bytes else 0
        before = _count_read_bytes(with_this=True)
        again = _encode(dataset, number, _fetch(dataset, [number])[0])
        read_bytes = min(read_bytes, _count_read_bytes() - before)
        if len(again) != len(data) or not np.array_equal(again, data):
            self._warn_of_chance(dataset, number)
        return read_bytes

    def _warn_of_chance(self, dataset: Any, number: int) -> None:
        self._warn(
            f"sample {number} of {type(dataset).__name__} came out differently when it was made again, "
            "and cached() keeps one of them for all epochs: put what is random behind it, "
            "cached(...).map(augment)"
        )

    def _warn(self, message: str) -> None:
        # Where it is noticed is often a worker of a DataLoader, in which no line is the user's.
        warnings.warn_explicit(message, UserWarning, *self._called_at)

    def compare(self, dataset: Any, key: str, name: str) -> None:
        """Make three samples anew, and compare them with what is kept under this key.

        Of a cache that holds none yet, three are put there first: whoever comes to the same cache a moment
        later with another dataset, in this process or another, then finds them.

        Raises:
            UsageError: the dataset repeats itself, and what is kept is something else.
        """
        held = self._list_held()
        numbers = held or list(range(self._shelf.samples))
        clone = _clone(dataset)
        for number in sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]} if numbers else ()):
            try:
                sample = (_fetch(clone, [number]) if held else self.make(clone, [number]))[0]
                made, kept = _encode(clone, number, sample), self._shelf.get(number)
                if kept is None or np.array_equal(np.frombuffer(kept, np.uint8), made):
                    continue
                again = _encode(clone, number, _fetch(clone, [number])[0])
            except Warning:
                raise
            except Exception as error:
                if held:
                    self._warn(
                        f"sample {number} of {type(dataset).__name__} could not be made, to compare it with"
                        f" what is kept under the key {key!r}: {type(error).__name__}: {error}"
                    )
                return  # of an empty cache: whoever asks for the sample sees the error
            if np.array_equal(made, again):
                raise UsageError(
                    f"sample {number} of {dataset!r} is not what the cache {name} holds under the key {key!r}"
                    ": that is of another dataset, or of this one as it was before",
                    hint="give each dataset a key of its own, and another one when its samples change;"
                    f" a cache on a disk that is of no use any more goes by: feedrate scratch rm {name}",
                )
            self._warn_of_chance(dataset, number)
            return

    def _list_held(self) -> list[int]:
        """Return numbers of samples that are kept; of very many, only some."""
        numbers = np.arange(0, self._shelf.samples, self._shelf.samples // _LOOKED_AT + 1, dtype=np.int64)
        held: list[int] = numbers[self._shelf.locate(numbers).found].tolist()
        return held

    def _freeze(self) -> None:
        """No room for a sample: go on if it was an unusually large one, else try no more."""
        tiers = self._shelf.tier_stats()
        samples = sum(tier.samples for tier in tiers)
        usual_bytes = sum(tier.size_bytes for tier in tiers) // max(samples, 1)
        self._is_frozen = bool(samples) and not self._shelf.has_room(usual_bytes)


def _clone(dataset: Any) -> Any:
    """Return a dataset whose attributes are its own: files that it opens must not be there when workers are
    forked, which many datasets open only when they are first asked for a sample."""
    try:
        clone = copy.copy(dataset)
        inner = {id(one): _clone(one) for one in list_inner(dataset)}
        for name, value in list(vars(clone).items()):
            if isinstance(value, list) and any(id(one) in inner for one in value):
                setattr(clone, name, [inner.get(id(one), one) for one in value])
            elif id(value) in inner:
                setattr(clone, name, inner[id(value)])
    except Exception:  # it cannot be copied
        return dataset
    return clone


def _fetch(dataset: Any, numbers: list[int]) -> list[Any]:
    if callable(getattr(dataset, "__getitems__", None)):
        samples = list(dataset.__getitems__(numbers))
        if len(samples) != len(numbers):
            raise UsageError(
                f"{type(dataset).__name__}.__getitems__ returned {len(samples)} samples for {len(numbers)}"
            )
        return samples
    return [dataset[number] for number in numbers]


def _encode(dataset: Any, number: int, sample: Any) -> U8:
    try:
        return encode(sample)
    except Refused as refused:
        where = f"holds {refused.what} at {refused.path}" if refused.path else f"is {refused.what}"
        raise UsageError(
            f"sample {number} of {type(dataset).__name__} {where}; cached() keeps {_TAKEN}",
            hint="return one of these, and make the rest of it in .map(function)",
        ) from None


def _count_read_bytes(*, with_this: bool = False) -> int:
    """Return the bytes that this thread has read from files so far, from memory or from a disk.

    Args:
        with_this: and those that it took to find out.
    """
    text = read_file("/proc/thread-self/io") or b""
    first = text.partition(b"\n")[0]
    count = int(first.split()[1]) if first.startswith(b"rchar: ") else 0
    return count + len(text) if with_this else count
