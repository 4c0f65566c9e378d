# SPDX-License-Identifier: Apache-2.0
"""Columns of a source (features, datasets, cells, members of a kind), and the fields that they become."""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.progress import Rejection
from feedrate.remote.addresses import Place, PlacedFile, explained
from feedrate.source.names import is_label_name, name_fields
from feedrate.source.record import Record, Spool, SpooledReader, UnusableValue, Value, reject

Sample = TypeVar("Sample")
_PEEK_SAMPLES = 100
_MOST_CLASSES = 100_000


class Columns:
    """The columns that become fields, `image` first and `label` behind it.

    Attributes:
        names: column -> field; made of the columns' names where they are not given.
        classes: column -> names of its classes, where the source has them.
    """

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        names: Mapping[str, str] | None = None,
        classes: Mapping[str, tuple[str, ...] | None] | None = None,
    ) -> None:
        named = (name_fields(kinds) if names is None else names).items()
        self.names = dict(sorted(named, key=lambda pair: (pair[1] != "image", pair[1] != "label")))
        self.kinds, self.classes = kinds, dict(classes or {})
        self.numbers = {c: NumberColumn(f) for c, f in self.names.items() if kinds[c] is Kind.NUMBER}

    def fields(self) -> tuple[Field, ...]:
        """Return the fields; whole when all samples were read."""
        return tuple(
            self.numbers[column].field(self.classes.get(column))
            if column in self.numbers
            else Field(name, self.kinds[column], classes=self.classes.get(column))
            for column, name in self.names.items()
        )

    def read(self, name: bytes, read: Callable[[str, bytes], Value]) -> Record | Rejection:
        """Return a sample; `read` returns a column's value, given its name as a file without a suffix."""
        values: dict[str, Value] = {}
        field = ""
        try:
            for column, field in self.names.items():
                path = name + (b"" if field == "image" else b"." + field.encode())
                values[field] = read(column, path)
        except (UnusableValue, ValueError) as error:
            return reject(name, field, error)
        return Record(name, values)


def find_word_labels(kinds: Mapping[str, Kind], name_of: Callable[[str], str] = str) -> list[str]:
    """Return the texts that have a label's name; none where a number has one: then that is the label."""
    if any(kind is Kind.NUMBER and is_label_name(name_of(c)) for c, kind in kinds.items()):
        return []
    return [c for c, kind in kinds.items() if kind is Kind.TEXT and is_label_name(name_of(c))]


class NumberColumn:
    """Takes numbers or names of classes one by one, and says in the end what field they make."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._texts: set[str] = set()
        self._is_float = self._has_numbers = False
        self._least, self._most = 0.0, 0.0

    def add(self, value: int | float | str) -> int | float | str:
        """Take a value and return it as it should be yielded.

        Raises:
            ValueError: it is no number that can be stored.
        """
        if isinstance(value, str):
            if value not in self._texts:
                self._texts.add(value)
                if len(self._texts) > _MOST_CLASSES:
                    raise SourceError(
                        f"'{self.name}' has more than {_MOST_CLASSES:,} different texts: no classes"
                    )
            return value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a number to train with")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit into 64 bits")
        self._has_numbers = True
        self._least, self._most = min(self._least, value), max(self._most, value)
        self._is_float |= isinstance(value, float)
        return value

    def field(self, classes: tuple[str, ...] | None = None) -> Field:
        """Return the field; `classes` are those of the source, which need not fit."""
        if self._texts and self._has_numbers:
            example = min(self._texts)
            raise SourceError(
                f"'{self.name}' is a number in some samples and a text in others, such as '{example}'",
                hint="make them all numbers, or all texts",
            )
        if self._texts:
            return Field(self.name, Kind.NUMBER, dtype="int64", classes=tuple(sorted(self._texts)))
        if self._is_float:
            return Field(self.name, Kind.NUMBER, dtype="float64")
        # A test set without labels has -1 throughout: names of classes would not fit.
        fits = classes is not None and self._least >= 0 and self._most < len(classes)
        return Field(self.name, Kind.NUMBER, dtype="int64", classes=classes if fits else None)


class ColumnReader(SpooledReader):
    """A reader of samples that are made of columns."""

    def __init__(self, place: Place, files: list[PlacedFile], spool: Spool) -> None:
        super().__init__(place, files, spool)
        self._columns = Columns({})

    def fields(self) -> tuple[Field, ...]:
        return self._columns.fields()


class PeekingReader(ColumnReader, Generic[Sample]):
    """A reader whose first samples say which fields there are: what at least half of them have.

    Args:
        chosen: what `choose` returned for all files, where these are only some of them.
    """

    def __init__(
        self, place: Place, files: list[PlacedFile], spool: Spool, chosen: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(place, files, spool)
        self._chosen = chosen

    def choose(self) -> Mapping[str, Any]:
        """Return which fields there are; reads the first samples only."""
        with explained(self.root), self._spool, contextlib.closing(self._samples()) as samples:
            return self._choose(list(itertools.islice(samples, _PEEK_SAMPLES)))

    def _read(self) -> Iterator[Record | Rejection]:
        others: Counter[str] = Counter()
        samples = self._samples()
        first = list(itertools.islice(samples, _PEEK_SAMPLES)) if self._chosen is None else []
        self._use(self._choose(first) if self._chosen is None else self._chosen)
        yield from self._read_samples(itertools.chain(first, samples), others)
        self.ignored = dict(sorted(others.items()))

    @abstractmethod
    def _samples(self) -> Generator[Sample]: ...

    @abstractmethod
    def _choose(self, first: Sequence[Sample]) -> Mapping[str, Any]: ...

    @abstractmethod
    def _use(self, chosen: Mapping[str, Any]) -> None:
        """Set the columns to what was chosen."""

    @abstractmethod
    def _read_samples(
        self, samples: Iterable[Sample], others: Counter[str]
    ) -> Iterator[Record | Rejection]: ...
