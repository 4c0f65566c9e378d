# SPDX-License-Identifier: Apache-2.0
"""Columns of labels: looked through once to learn what they hold, then read cell by cell.

Numbers stay numbers, words become classes, and several classes at once (a list, a separated text, or columns
of 0 and 1) become an array with a 1 for each class that a sample has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from feedrate.errors import SourceError
from feedrate.format.fields import Field, Kind
from feedrate.source.record import Value
from feedrate.source.table import is_missing, is_no_number, read_number
from feedrate.source.values import UnusableValue, dump_array

_MOST_CLASSES = 100_000


class LabelColumn:
    """One column. `separator`: what stands between the classes of a sample that may have several.

    `are_classes`: the user has said that words in it are classes, whatever stands beside them.
    """

    def __init__(
        self, field: str, column: str, separator: str | None = None, *, are_classes: bool = False
    ) -> None:
        self.name, self.column, self.separator = field, column, separator
        self._are_classes = are_classes
        self._cells = 0
        self._fraction, self._word = "", ""  # an example of each
        self.are_flags = True  # only 0 and 1, or -1 and 1
        self._are_whole = True
        self._has_numbers = self._has_gaps = False
        self._are_lists = separator is not None
        self._texts: set[str] = set()
        self._numbers: dict[str, int] = {}

    def look(self, cell: object) -> None:
        """Learn from a cell; all of them are shown before the first is read."""
        if is_missing(cell):
            return
        self._are_lists |= isinstance(cell, (list, tuple))
        self._cells += 1
        for one in self._split(cell):
            number = read_number(one)
            self.are_flags &= number in (-1, 0, 1) or is_no_number(one)
            if number is not None:
                self._has_numbers = True
                is_whole = isinstance(number, int) and -(2**63) <= number < 2**63
                self._are_whole &= is_whole
                self._fraction = self._fraction or ("" if is_whole else str(one))
            elif is_no_number(one):
                self._has_gaps = True
            else:
                self._word = self._word or str(one)
            if len(self._texts) <= _MOST_CLASSES:
                self._texts.add(str(one))

    def settle(self) -> Field:
        """Return the field that the column makes."""
        if self._are_lists:
            classes = self._class_names()
            self._numbers = {name: number for number, name in enumerate(classes)}
            self.name = "labels" if self.name == "label" else self.name
            return Field(self.name, Kind.ARRAY, dtype="uint8", shape=(len(classes),), classes=tuple(classes))
        if self._are_numbers:
            return Field(self.name, Kind.NUMBER, dtype="int64" if self._are_whole else "float64")
        if self._fraction and not self._are_classes:
            raise SourceError(
                f"column '{self.column}' holds numbers such as {self._fraction}, and '{self._word}':"
                " neither numbers nor classes",
                hint="correct the table, or leave the cell empty; if they are names of classes:"
                f" --field {self.name}:label={self.column}",
            )
        classes = self._class_names()
        self._numbers = {name: number for number, name in enumerate(classes)}
        return Field(self.name, Kind.NUMBER, dtype="int64", classes=tuple(classes))

    @property
    def is_prose(self) -> bool:
        """Return whether it rather holds sentences than classes: words, most of which occur once."""
        has_spaces = any(" " in text.strip() for text in self._texts)
        return bool(self._word) and not self._are_lists and has_spaces and 2 * len(self._texts) > self._cells

    @property
    def _are_numbers(self) -> bool:
        # 'nan' among numbers is no number; among words it is one of them.
        return not self._word and (self._has_numbers or not self._has_gaps)

    def read(self, cell: object) -> Value:
        """Return a cell's value.

        Raises:
            UnusableValue: the cell is empty.
        """
        if self._are_lists:
            hot = np.zeros(len(self._numbers), np.uint8)
            if cell is None:
                raise UnusableValue(f"the table has no {_what(self.name)}")
            hot[[self._numbers[str(one)] for one in self._split(cell)]] = 1
            return dump_array(hot)
        is_empty = is_no_number(cell) if self._are_numbers else is_missing(cell)
        if is_empty:
            raise UnusableValue(f"the table has no {_what(self.name)}")
        if not self._are_numbers:
            return self._numbers[str(cell)]
        number = read_number(cell)
        assert number is not None
        if isinstance(number, float) and math.isinf(number):
            raise UnusableValue(f"{number} is not a number to train with")
        return number if self._are_whole else float(number)

    def _split(self, cell: object) -> list[object]:
        if isinstance(cell, (list, tuple)):
            return list(cell)
        if self.separator is None or not isinstance(cell, str):
            return [cell]
        return [one.strip() for one in cell.split(self.separator) if one.strip()]

    def _class_names(self) -> list[str]:
        if len(self._texts) > _MOST_CLASSES:
            raise SourceError(
                f"column '{self.column}' has more than {_MOST_CLASSES:,} different texts: no classes",
                hint=f"pack it as a text: --field NAME:text={self.column}",
            )
        if self._are_numbers and self._are_whole and not self._has_gaps:
            return sorted(self._texts, key=int)
        return sorted(self._texts)


class FlagColumns:
    """Several columns of 0 and 1: one array of them, whose classes are the columns' names."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def settle(self) -> Field:
        return Field("labels", Kind.ARRAY, dtype="uint8", shape=(len(self.columns),), classes=self.columns)

    def read(self, cells: Sequence[object]) -> Value:
        numbers = []
        for column, cell in zip(self.columns, cells, strict=True):
            number = read_number(cell)
            if number is None:
                raise UnusableValue(f"the table has no value for '{column}'")
            numbers.append(number > 0)
        return dump_array(np.array(numbers, np.uint8))


def _what(name: str) -> str:
    return "label" if name in ("label", "labels") else f"value for '{name}'"
