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
import sys
from collections.abc import Callable, Sequence
from typing import Any

from feedrate.cache.limits import parse_tiers
from feedrate.cache.store import SampleCache
from feedrate.errors import UsageError
from feedrate.load.fingerprint import name_dataset
from feedrate.load.kept_samples import ABSENT, KeptSamples
from feedrate.results.cache import CachedReport


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
            what is kept, and what lies on `disk` is there again for the next job. Three samples are made at
            once and compared with what is kept.

    Raises:
        UsageError: an argument makes no sense, or another dataset's samples are kept under this key; later,
            a sample that has no encoding: it is named.
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
        self._shelf = SampleCache(name, self._length, tiers)
        self._mine: KeptSamples | None = None
        self._called_at = _find_caller()
        if key is not None:
            try:
                self._open().compare(dataset, key, name)
            except BaseException:
                self.close()
                raise

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples; a DataLoader fetches its batches through this."""
        mine = self._open()
        numbers = [self._number(index) for index in indices]
        samples = mine.find(numbers)
        missing = [place for place, sample in enumerate(samples) if sample is ABSENT]
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

    def _open(self) -> KeptSamples:
        if self._mine is None or self._mine.process != os.getpid():
            self._mine = KeptSamples(self._shelf, self._called_at)
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


def _find_caller() -> tuple[str, int]:
    """Return file and line of who called feedrate: what a warning is about."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "feedrate":
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


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
