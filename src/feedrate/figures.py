# SPDX-License-Identifier: Apache-2.0
"""A number that says how sure it is and where it comes from; and arithmetic that keeps both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

Result = TypeVar("Result")

MEASURED, GIVEN, STORED, ASSUMED = "measured", "given", "stored", "assumed"
_FAR_ABOVE, _FAR_BELOW = 5.0, 20.0  # as factors: beyond, nothing is known
_COUNTS = 1e-3  # of a result: a figure that changes it by less is not what it depends on
_WEAKER = (MEASURED, GIVEN, STORED, ASSUMED)  # what is computed is as sure as the weakest that went in


@dataclass(frozen=True, slots=True)
class Figure:
    """A value between bounds.

    Attributes:
        origin: `measured` just now, `given` by the user, `stored` (measured on this node earlier), `assumed`.
        note: what else to know: a date, a source, a sample's size.
    """

    value: float
    low: float
    high: float
    origin: str = MEASURED
    note: str = ""

    def check_loaded(self) -> None:
        """Raise ValueError where a document said what no figure can be."""
        if not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"{self} is no figure")

    @classmethod
    def exactly(cls, value: float, origin: str = MEASURED, note: str = "") -> Figure:
        return cls(value, value, value, origin, note)

    @classmethod
    def within(cls, value: float, factor: float, origin: str, note: str = "") -> Figure:
        """Return a value known to a factor: 1.2 is from 17 % below to 20 % above."""
        return cls(value, value / factor, value * factor, origin, note)

    @classmethod
    def of_mean(cls, values: Sequence[float], note: str = "", *, least: float = 0.03) -> Figure:
        """Return the mean of measurements, between two standard errors; at least a share `least` each way.

        What was seen to be above nothing is small at worst, and not nothing: others divide by it.
        """
        count = len(values)
        mean = math.fsum(values) / count
        variance = math.fsum((v - mean) ** 2 for v in values) / (count - 1) if count > 1 else mean**2
        half = max(2 * math.sqrt(variance / count), least * abs(mean))
        return cls(mean, max(mean - half, mean / 10) if mean >= 0 else mean - half, mean + half, note=note)

    @property
    def is_known(self) -> bool:
        """Whether it says something: what may be five times as much, or a twentieth, does not."""
        if not math.isfinite(self.value):
            return False
        if self.value <= 0 or not (math.isfinite(self.low) and math.isfinite(self.high)):
            return True
        return self.value / _FAR_BELOW <= self.low <= self.high <= _FAR_ABOVE * self.value

    def assumed(self, note: str) -> Figure:
        """Return the same value where it stands for something else."""
        return replace(self, origin=ASSUMED, note=note)

    def narrowed(self, share: float) -> Figure:
        """Return the same with bounds that are so much of their distance away."""
        low, high = (self.value + (bound - self.value) * share for bound in (self.low, self.high))
        return replace(self, low=low, high=high)

    def moved(self, change: float, least: float) -> Figure:
        """Return the same with so much added, and no less than `least`."""
        value, low, high = (max(end + change, least) for end in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def scaled(self, factor: float) -> Figure:
        low, high = sorted((self.low * factor, self.high * factor))
        return replace(self, value=self.value * factor, low=low, high=high)


def combine(function: Callable[..., float], figures: Mapping[str, Figure], **fixed: Any) -> Figure:
    """Return what `function` makes of figures, given by name, with the interval that theirs give it."""
    values = {name: figure.value for name, figure in figures.items()}

    def evaluate(name: str, value: float) -> Sequence[float]:
        return (function(**values | ({name: value} if name else {}), **fixed),)

    return _move_each(evaluate, figures)[0]


def vary(function: Callable[..., Sequence[Result]], *records: Any) -> list[Result]:
    """Return what `function` makes of records, with the intervals that their figures give it.

    It reads the values of figures alone, and returns exact figures, or records with such. It is called once
    for each bound of each figure.
    """
    figures = dict(list_figures(records))
    results = function(*records)
    parts = [(n, path) for n, result in enumerate(results) for path, _ in list_figures(result)]

    def evaluate(path: tuple[Any, ...], value: float) -> Sequence[float]:
        made = function(*_put(records, path, Figure.exactly(value))) if path else results
        return [_get(made[n], part).value for n, part in parts]

    moved: list[Any] = list(results)
    for (n, part), figure in zip(parts, _move_each(evaluate, figures), strict=True):
        moved[n] = _put(moved[n], part, figure)
    return moved


def list_figures(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Figure]]:
    """Yield every figure in a record, with where in it that stands."""
    if isinstance(value, Figure):
        yield path, value
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from list_figures(one, (*path, number))
    elif is_dataclass(value):
        for field in fields(value):
            yield from list_figures(getattr(value, field.name), (*path, field.name))


def _get(record: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        record = record[name] if isinstance(record, tuple) else getattr(record, name)
    return record


def _put(record: Any, path: tuple[Any, ...], figure: Figure) -> Any:
    """Return a record with another figure in the place of one of its own."""
    if not path:
        return figure
    first, *rest = path
    if isinstance(record, tuple):
        return (*record[:first], _put(record[first], tuple(rest), figure), *record[first + 1 :])
    return replace(record, **{first: _put(getattr(record, first), tuple(rest), figure)})


def _move_each(
    function: Callable[[Any, float], Sequence[float]], figures: Mapping[Any, Figure]
) -> list[Figure]:
    """Return results for the values of figures; their bounds, by moving each in turn while the others stay.

    The changes add up as independent errors do. A result is as sure as the least sure of the figures that it
    depends on, and has the notes of those. `function` gets no name where all stay.
    """
    middle = function((), 0.0)
    below, above, least = [0.0] * len(middle), [0.0] * len(middle), list(middle)
    behind: list[list[Figure]] = [[] for _ in middle]
    for name, figure in figures.items():
        is_exact = figure.low == figure.high
        # An exact figure is moved a little, to see what depends on it.
        bounds = (figure.value * 0.99, figure.value * 1.01) if is_exact else (figure.low, figure.high)
        ends = [function(name, bound) for bound in bounds]
        for i, value in enumerate(middle):
            changes = [end[i] - value for end in ends]
            if any(abs(change) > _COUNTS * abs(value) for change in changes):
                behind[i].append(figure)
            if not is_exact:
                least[i] = min(least[i], *(end[i] for end in ends))
                below[i] += min(*changes, 0.0) ** 2
                above[i] += max(*changes, 0.0) ** 2
    return [
        Figure(
            value,
            # What is never below nothing is not so because several errors were added.
            max(value - math.sqrt(below[i]), 0.0 if least[i] >= 0 else -math.inf),
            value + math.sqrt(above[i]),
            weakest(behind[i]),
            _join_notes(behind[i]),
        )
        for i, value in enumerate(middle)
    ]


def _join_notes(figures: Sequence[Figure]) -> str:
    origin = weakest(figures)
    if origin not in (STORED, ASSUMED):
        return ""
    return "; ".join(dict.fromkeys(one.note for one in figures if one.origin == origin and one.note))


def weakest(figures: Iterable[Figure]) -> str:
    """Return the origin of the least sure among figures; of none, `given`: constants are nobody's guess."""
    ranks = [_WEAKER.index(figure.origin) for figure in figures]
    return _WEAKER[max(ranks)] if ranks else GIVEN
