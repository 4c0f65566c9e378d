# SPDX-License-Identifier: Apache-2.0
"""`cached`: a map-style dataset whose samples are made once and then kept, for any DataLoader.

Samples are kept as bytes in a cache that all processes of the job share. A sample that is there is a hit: its
arrays and tensors are views of the cache's memory, private to the caller. The dataset makes the others, which
are kept while there is room. Nothing is ever thrown out: with a fresh shuffle in every epoch, the share of
hits is then the share of samples that are kept.

With a key, a cache has a name: from the user's key, the number of samples, the class' own code, and the parts
of the datasets that it is made of.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import inspect
import operator
import os
import re
import secrets
import sys
import warnings
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from feedrate.arrays import U8
from feedrate.cache.codec import MAGIC, Damaged, Refused, decode, encode
from feedrate.cache.limits import parse_tiers
from feedrate.cache.store import SampleCache
from feedrate.cache.views import Views
from feedrate.errors import UsageError
from feedrate.loader.results import CachedReport
from feedrate.machine.process import read_file

# The version of the names: caches of another version are not found any more, and go when they are old.
_VERSION = "2"


def name_dataset(dataset: Any, key: str) -> str:
    """Return a name that changes with the key, the length, the code of the class and its bases, and the
    structure of torch's `Subset` and `ConcatDataset`, with their indices.

    Functions that these call, files, and other attributes are not looked at: the key is the user's word.
    """
    python = f"{sys.version_info[:2]}"
    parts: list[str] = [_VERSION, MAGIC.decode(), key, python, *_describe_dataset(dataset, [])]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", key)[:40].strip("-.") or "key"
    return f"cached-{readable}-{digest[:16]}"


def _describe_dataset(dataset: Any, above: list[Any]) -> list[str]:
    """Describe a dataset and its parts; `above`: the datasets that it is a part of."""
    parts = ["("]
    with contextlib.suppress(TypeError, RuntimeError):  # an inner one need not know its length
        parts.append(str(len(dataset)))
    for base in type(dataset).__mro__:
        if base is not object:
            parts.append(base.__qualname__)
        if not base.__module__.startswith("torch."):
            parts += [
                line for name, value in sorted(vars(base).items()) for line in _describe_member(name, value)
            ]
    if _is_torch(dataset, "Subset"):
        parts.append(_describe_indices(dataset.indices))
    for inner in list_inner(dataset):
        if not any(inner is one for one in above):
            parts += _describe_dataset(inner, [*above, dataset])
    return [*parts, ")"]


def list_inner(dataset: Any) -> list[Any]:
    """Return the datasets of torch's kind that a dataset holds, in a fixed order."""
    if _is_torch(dataset, "ConcatDataset"):
        return list(dataset.datasets)
    held = sorted(getattr(dataset, "__dict__", {}).items())
    return [value for _, value in held if value is not dataset and _is_torch(value, "Dataset")]


def _is_torch(value: Any, name: str) -> bool:
    """Return whether a value is of a class of torch.utils.data; torch is not imported for that."""
    return any(
        base.__name__ == name and base.__module__.startswith("torch.utils.data")
        for base in type(value).__mro__
    )


def _describe_indices(indices: Any) -> str:
    try:
        numbers = np.asarray(indices, np.int64)
    except (TypeError, ValueError, OverflowError):
        return repr(indices)
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def _describe_member(name: str, value: Any) -> list[str]:
    value = inspect.unwrap(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value)
    if isinstance(value, property):
        value = value.fget
    code = getattr(value, "__code__", None)
    return [name, *_describe_code(code)] if isinstance(code, CodeType) else []


def _describe_code(code: CodeType) -> list[str]:
    lines = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines += _describe_code(constant)
        elif isinstance(constant, frozenset):  # its order differs from run to run
            lines += sorted(map(repr, constant))
        else:
            lines.append(repr(constant))
    return lines


# Smaller samples are copied: that takes less time than to map them (benchmarks/cached.py).
MAPPED_BYTES = 512 << 10
_LOOKED_AT = 1_000_000
ABSENT = object()
_TAKEN = "tensors, arrays, numbers, text, bytes, Pillow's images, and dicts, lists and tuples of them"


class KeptSamples:
    """One process's use of a cached dataset's cache. `called_at`: the user's line, for warnings."""

    def __init__(self, store: SampleCache, called_at: tuple[str, int]) -> None:
        self.process = os.getpid()
        self._called_at = called_at
        self._store = store
        # Bytes from a disk must be checked as a whole: they are copied.
        kinds = zip(store.opened.paths, store.tiers, strict=True)
        self._views = [Views(path) if tier.kind == "ram" else None for path, tier in kinds]
        self._is_frozen = False
        self._has_made = False

    def close(self) -> None:
        for views in self._views:
            if views is not None and self.process == os.getpid():
                views.close()

    def find_samples(self, numbers: list[int]) -> list[Any]:
        """Return the samples with these numbers; ABSENT for those that are not kept."""
        located = self._store.opened.locate(np.array(numbers, np.int64))
        return [
            self._read_sample(number, row) if is_there else ABSENT
            for number, is_there, row in zip(numbers, located.found.tolist(), located.rows, strict=True)
        ]

    def _read_sample(self, number: int, row: Any) -> Any:
        memory = self._open_view(number, row)
        if memory is None:
            copy = self._store.opened.read(row)
            if copy is None:
                return ABSENT
            memory = np.frombuffer(copy, np.uint8)
        try:
            return decode(memory)
        except Damaged:
            self._store.opened.discard(row)
            return ABSENT

    def _open_view(self, number: int, row: Any) -> U8 | None:
        views, offset, length = self._views[row["tier"]], int(row["offset"]), int(row["length"])
        if views is None or length < MAPPED_BYTES:
            return None

        def is_still_there() -> bool:
            again = self._store.opened.locate(np.array([number], np.int64))
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
            if not self._store.put(number, data, source_bytes=read_bytes):
                self._freeze()
                if self._is_frozen:
                    break
        return samples

    def _look_twice(self, dataset: Any, number: int, data: U8, read_bytes: int) -> int:
        """Make the first sample once more, to see whether it is the same and how many bytes it reads."""
        held = [
            (tier.samples, tier.size_bytes, tier.source_bytes) for tier in self._store.opened.tier_stats()
        ]
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
        """Make three samples anew, and compare them with those that are kept under this key.

        Of a cache that holds none yet, three are put there first: another dataset that comes to the same
        cache a moment later, in this process or another, then finds them.

        Raises:
            UsageError: the dataset repeats itself, and the kept samples differ.
        """
        held = self._list_held()
        numbers = held or list(range(self._store.samples))
        clone = _clone(dataset)
        for number in sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]} if numbers else ()):
            try:
                sample = (_fetch(clone, [number]) if held else self.make(clone, [number]))[0]
                made, kept = _encode(clone, number, sample), self._store.get(number)
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
                return  # of an empty cache: the error comes when the sample is asked for
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
        numbers = np.arange(0, self._store.samples, self._store.samples // _LOOKED_AT + 1, dtype=np.int64)
        held: list[int] = numbers[self._store.opened.locate(numbers).found].tolist()
        return held

    def _freeze(self) -> None:
        """No room for a sample: go on if it was an unusually large one, else try no more."""
        tiers = self._store.opened.tier_stats()
        samples = sum(tier.samples for tier in tiers)
        usual_bytes = sum(tier.size_bytes for tier in tiers) // max(samples, 1)
        self._is_frozen = bool(samples) and not self._store.opened.has_room(usual_bytes)


def _clone(dataset: Any) -> Any:
    """Return a dataset with attributes of its own: many datasets open files at their first sample, and these
    must not be open in this process when workers are forked."""
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


def cached(
    dataset: Any,
    *,
    ram: int | str = "auto",
    disk: str | os.PathLike[str] | None = None,
    key: str | None = None,
) -> Cached:
    """Return a dataset that keeps the samples of `dataset[i]` and gives them again.

    Put it before random augmentation: `cached(dataset).map(augment)`.

    Args:
        dataset: any object with `len()` and `[i]`.
        ram: memory to use: "auto" (the rest of the job's limit, less a margin), "8GB", bytes; 0: none.
        disk: "FOLDER:SIZE", used when memory is full, on a disk of this node.
        key: a name for the samples; change it when they change. With it, the ranks of a job share the kept
            samples, and those on `disk` are there again for the next job. Three samples are made at once and
            compared with the kept ones.

    Raises:
        UsageError: an argument makes no sense, or another dataset's samples are kept under this key; later,
            a sample that has no encoding: it is named.
    """
    return Cached(dataset, ram=ram, disk=disk, key=key)


class _Mappable:
    """A dataset around another one."""

    def map(self: Any, function: Callable[[Any], Any]) -> Mapped:
        """Return a dataset of `function(sample)`, called anew at each access: for random augmentation."""
        return Mapped(self, function)

    def __getattr__(self, name: str) -> Any:
        # The dataset's own attributes: `classes`, `targets` ...
        inner = self.__dict__.get("source", self.__dict__.get("dataset"))
        if name.startswith("_") or inner is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(inner, name)


class Cached(_Mappable):
    """See `cached`. Safe to use from any thread and process; workers by fork and spawn share the samples."""

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
        self._store = SampleCache(name, self._length, tiers)
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
        samples = mine.find_samples(numbers)
        missing = [place for place, sample in enumerate(samples) if sample is ABSENT]
        self._store.opened.count(hits=len(numbers) - len(missing), misses=len(missing))
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

    def report(self) -> CachedReport:
        """Return how many samples are kept, and how often they were asked for, by all processes together."""
        store = self._store.opened
        hits, misses = store.counted
        return CachedReport(
            self._length, hits, misses, store.tier_stats(), store.damaged, store.returned_bytes
        )

    def close(self) -> None:
        """Let go of the kept samples; those that you have stay valid. May be called twice."""
        if self._mine is not None:
            self._mine.close()
        self._store.close()

    def _open(self) -> KeptSamples:
        if self._mine is None or self._mine.process != os.getpid():
            self._mine = KeptSamples(self._store, self._called_at)
        return self._mine

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __repr__(self) -> str:
        return f"cached({self.dataset!r})"


def _find_caller() -> tuple[str, int]:
    """Return file and line of the call of feedrate, for warnings."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "feedrate":
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Mapped(_Mappable):
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

    def report(self) -> CachedReport:
        return self.source.report()

    def close(self) -> None:
        self.source.close()

    def __repr__(self) -> str:
        return f"{self.source!r}.map({self.function!r})"
