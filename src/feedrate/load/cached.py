# SPDX-License-Identifier: Apache-2.0
"""`cached`: what a map-style dataset returns, made once and then kept, for any DataLoader.

Samples are kept as bytes on a shelf that all processes of the job share. A sample that is there is a hit: its
arrays and tensors are views of the shelf's memory, private to whoever asked. What is not there is made by the
dataset, and kept while there is room. Nothing is ever thrown out: with a fresh shuffle in every epoch, the
share of hits is then the share of samples that are kept.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import secrets
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedrate.errors import UsageError
from feedrate.kernel import U8
from feedrate.load.fingerprint import name_dataset
from feedrate.probe.process import read_file
from feedrate.results import CachedReport
from feedrate.store.codec import Damaged, Refused, decode, encode
from feedrate.store.shelf import Shelf
from feedrate.store.tiers import parse_tiers
from feedrate.store.views import Views

# Smaller samples are copied: that takes less time than to map them (benchmarks/cached.py).
_MAPPED_BYTES = 128 << 10
_ABSENT = object()
_TAKEN = "tensors, arrays, numbers, text, bytes, Pillow's images, and dicts, lists and tuples of them"


def cached(
    dataset: Any,
    *,
    ram: int | str = "auto",
    disk: str | os.PathLike[str] | None = None,
    key: str | None = None,
) -> Cached:
    """Return a dataset that keeps what `dataset[i]` returned and gives it again.

    Put it before random augmentation: `cached(dataset).map(augment)`.

    Args:
        dataset: any object with `len()` and `[i]`.
        ram: memory to use: "auto" (what the job's limit leaves, less a margin), "8GB", bytes; 0: none.
        disk: "FOLDER:SIZE", used when memory is full, on a disk of this node.
        key: a name for what the samples are; change it when they change. With it, the ranks of a job share
            what is kept, and what lies on `disk` is there again for the next job.

    Raises:
        UsageError: an argument makes no sense; later, a sample that has no encoding: it is named.
    """
    return Cached(dataset, ram=ram, disk=disk, key=key)


class Cached:
    """See `cached`. Safe to use from any thread and process; workers by fork and spawn share what is kept."""

    def __init__(
        self, dataset: Any, *, ram: int | str, disk: str | os.PathLike[str] | None, key: str | None
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(
                f"cached() takes datasets with len() and [i]; a {type(dataset).__name__} has not both",
                hint="an iterable dataset has no sample numbers to keep its samples under",
            )
        if key is not None and (not isinstance(key, str) or not key):
            raise UsageError(f"key must be a text that names what the samples are, got {key!r}")
        self.dataset = dataset
        self._length = len(dataset)
        name = f"cached-{secrets.token_hex(8)}" if key is None else name_dataset(dataset, key)
        tiers = parse_tiers(ram, disk)
        if key is not None:
            tiers = tuple(dataclasses.replace(t, keep=name) if t.kind == "disk" else t for t in tiers)
        self._shelf = Shelf(name, self._length, tiers)
        self._mine: _Mine | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; a DataLoader fetches its batches through this."""
        mine = self._open()
        numbers = [self._number(index) for index in indices]
        samples = mine.find(numbers)
        missing = [place for place, sample in enumerate(samples) if sample is _ABSENT]
        self._shelf.count(hits=len(numbers) - len(missing), misses=len(missing))
        if missing:
            made = mine.make(self.dataset, [numbers[place] for place in missing])
            for place, sample in zip(missing, made, strict=True):
                samples[place] = sample
        return samples

    def _number(self, index: int) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise UsageError(f"samples are asked for by whole numbers, got {index!r}") from None
        if not -self._length <= number < self._length:
            raise IndexError(f"sample {number} of a dataset that has {self._length}")
        return number % self._length

    def map(self, function: Callable[[Any], Any]) -> Mapped:
        """Return a dataset of `function(sample)`, called anew at each access: for random augmentation."""
        return Mapped(self, function)

    def report(self) -> CachedReport:
        """Return what is kept and how often it was asked for, by all processes together."""
        hits, misses = self._shelf.counted
        return CachedReport(
            samples=self._length,
            hits=hits,
            misses=misses,
            tiers=self._shelf.tier_stats(),
            damaged=self._shelf.damaged,
            returned_bytes=self._shelf.returned_bytes,
        )

    def close(self) -> None:
        """Let go of what is kept; samples that you have stay valid. May be called twice."""
        if self._mine is not None:
            self._mine.close()
        self._shelf.close()

    def _open(self) -> _Mine:
        if self._mine is None or self._mine.process != os.getpid():
            self._mine = _Mine(self._shelf)
        return self._mine

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        # What the dataset says of itself: `classes`, `targets` ...
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.dataset, name)

    def __repr__(self) -> str:
        return f"cached({self.dataset!r})"


class Mapped:
    """A cached dataset and a function that each of its samples goes through."""

    def __init__(self, source: Cached | Mapped, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise UsageError(f"map() takes a function, got {function!r}")
        self.source, self.function = source, function

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.source[index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self.function(sample) for sample in self.source.__getitems__(indices)]

    def map(self, function: Callable[[Any], Any]) -> Mapped:
        return Mapped(self, function)

    def report(self) -> CachedReport:
        return self.source.report()

    def close(self) -> None:
        self.source.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "source" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.source, name)

    def __repr__(self) -> str:
        return f"{self.source!r}.map({self.function!r})"


class _Mine:
    """The part of a cached dataset that belongs to one process."""

    def __init__(self, shelf: Shelf) -> None:
        self.process = os.getpid()
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
            self._read(number, row) if is_there else _ABSENT
            for number, is_there, row in zip(numbers, located.found.tolist(), located.rows, strict=True)
        ]

    def _read(self, number: int, row: Any) -> Any:
        memory = self._open_view(number, row)
        if memory is None:
            copy = self._shelf.read(row)
            if copy is None:
                return _ABSENT
            memory = np.frombuffer(copy, np.uint8)
        try:
            return decode(memory)
        except Damaged:
            self._shelf.discard(row)
            return _ABSENT

    def _open_view(self, number: int, row: Any) -> U8 | None:
        views, offset, length = self._views[row["tier"]], int(row["offset"]), int(row["length"])
        if views is None or length < _MAPPED_BYTES:
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
            warnings.warn(
                f"sample {number} of {type(dataset).__name__} came out differently when it was made again, "
                "and cached() keeps one of them for all epochs: put what is random behind it, "
                "cached(...).map(augment)",
                stacklevel=2,
            )
        return read_bytes

    def _freeze(self) -> None:
        """No room for a sample: go on if it was an unusually large one, else try no more."""
        tiers = self._shelf.tier_stats()
        samples = sum(tier.samples for tier in tiers)
        usual_bytes = sum(tier.size_bytes for tier in tiers) // max(samples, 1)
        self._is_frozen = bool(samples) and not self._shelf.has_room(usual_bytes)


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
