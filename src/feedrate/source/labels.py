# SPDX-License-Identifier: Apache-2.0
"""Numbers and names of classes: what kind of field they make is known when all were seen."""

from __future__ import annotations

import math

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind

_MOST_CLASSES = 100_000


class NumberColumn:
    """Takes values one by one and says in the end what field they make."""

    def __init__(self, name: str, classes: tuple[str, ...] | None = None) -> None:
        self.name = name
        self.classes = classes
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

    def field(self) -> Field:
        if self._texts and self._has_numbers:
            example = min(self._texts)
            raise SourceError(
                f"'{self.name}' is a number in some samples and a text in others, such as '{example}'",
                hint="make them all numbers, or all texts",
            )
        if self._texts:
            return Field(self.name, Kind.NUMBER, dtype="int64", classes=tuple(sorted(self._texts)))
        # A test set without labels has -1 throughout: names of classes would not fit.
        fits = (
            self.classes is not None
            and self._least >= 0
            and self._most < len(self.classes)
            and not self._is_float
        )
        dtype = "float64" if self._is_float else "int64"
        return Field(self.name, Kind.NUMBER, dtype=dtype, classes=self.classes if fits else None)
