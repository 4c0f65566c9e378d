# SPDX-License-Identifier: Apache-2.0
"""Lines and rows of tables as text: aligned by what a terminal shows, wrapped between words at its edge.

The one layout of text in `report`; a path or a command in it is never cut, so that it can be copied. Also
the lines that several reports share: tables of names and values, counts, rejected samples.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TextIO

from feedrate.progress import Rejection

# A sentence, or a row of a table: rows that follow each other are aligned, but for the last cell of each.
Line = str | tuple[str, ...]
_INDENT = "  "
_GAP = "  "
_NARROWEST = 40  # columns: a table in fewer is not read
_FEW = 5  # of names or reasons in one list
_LEAST_ROOM = 24  # cells for the last column of a table; with fewer it moves to lines of its own
_LEAST_NAME = 12  # cells for the names beside numbers; with fewer they stand on lines of their own


class Command(str):
    """A line to be copied and typed: never wrapped by us, so that it is copied as one line."""

    __slots__ = ()


class Number(str):
    """A cell, or the head of its column, that ends at the column's right edge."""

    __slots__ = ()


class Chosen(str):
    """The first cell of a row that has a sign in front of it."""

    __slots__ = ()


def count_columns(stream: TextIO) -> int | None:
    """Return how wide a terminal is; None for a file or a pipe, where a row is a line for `grep`."""
    if not stream.isatty():
        return None
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):  # COLUMNS is no number; a terminal that is none to the system
        columns = 0
    return max(columns or 80, _NARROWEST)


def count_cells(text: str) -> int:
    """Return how many cells of a terminal's line a text takes."""
    if text.isascii():
        return len(text)
    # Composed first: the parts of a Hangul syllable (as macOS writes file names) are no marks to Unicode.
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in unicodedata.normalize("NFC", text)
    )


def pad(text: str, cells: int) -> str:
    return text + " " * (cells - count_cells(text))


def lay_out(lines: Iterable[Line], width: int | None = None, *, cuts: bool = False) -> str:
    """Return a report as text of at most `width` cells a line; None: a line each, however long.

    With `cuts` a word that is longer than a line is cut: nothing but a `Command` is to be copied.
    """
    laid: list[str] = []
    for is_table, group in groupby(lines, lambda line: isinstance(line, tuple)):
        if is_table:
            laid += _lay_table([row for row in group if isinstance(row, tuple)], width, cuts)
            continue
        for line in group:
            if width is None or not isinstance(line, str) or isinstance(line, Command):
                laid.append(str(line))
            else:
                indent = line[: len(line) - len(line.lstrip(" "))]
                laid += wrap(line.lstrip(" "), width, indent, indent + _INDENT, cuts=cuts)
    return "\n".join([*laid, ""])


def cut(text: str, cells: int) -> list[str]:
    """Return a text in pieces of at most so many cells, one at least; marks stay with their letters."""
    pieces, taken = [""], 0
    for c in text:
        added = count_cells(c)
        if pieces[-1] and taken + added > cells:
            pieces.append("")
            taken = 0
        pieces[-1] += c
        taken += added
    return pieces


def shorten(text: str, cells: int | None) -> str:
    """Return a text that ends in dots where it has more than so many cells."""
    return (
        text
        if cells is None or count_cells(text) <= cells
        else cut(text, max(cells - 3, 1))[0].rstrip() + "..."
    )


def wrap(text: str, width: int, first: str = "", rest: str = "", *, cuts: bool = False) -> list[str]:
    """Return lines that break between words, with so much in front of the first and of the others.

    A word that would fit a line of its own is moved to the left until it does. A longer one is left to the
    terminal, which breaks it at its edge and still copies it as one; with `cuts` it is cut.
    """
    lines: list[str] = []
    line, is_bare = first, True
    for chunk in re.findall(" *[^ ]+", text):
        word = chunk.lstrip(" ")
        added, cells = word if is_bare else chunk, count_cells(word)
        if cuts and cells > width:
            head = cut(added, max(width - count_cells(line), 1))[0]
            *whole, tail = cut(added[len(head) :], width - count_cells(rest))
            lines += [line + head, *(rest + piece for piece in whole)]
            line = rest + tail
        elif count_cells(line + added) > width and not (is_bare and cells > width):
            lines += [line] if line.strip() else []
            line = (rest if cells > width else rest[: max(width - cells, 0)]) + word
        else:
            line += added
        is_bare = False
    return [one.rstrip() for one in (*lines, line)]


def measure_names(rows: Sequence[tuple[str, ...]], width: int) -> int:
    """Return how many cells the columns of numbers leave to the names in front of them."""
    columns = [*zip_longest(*rows, fillvalue="")][1:]
    return width - len(_INDENT) - sum(len(_GAP) + max(map(count_cells, column)) for column in columns)


def _lay_table(rows: Sequence[tuple[str, ...]], width: int | None, cuts: bool) -> list[str]:
    columns = range(max(map(len, rows)))
    # The last cell of a row has nothing beside it: it is as wide as it likes, and wrapped.
    padded = [sorted([0, *(count_cells(row[i]) for row in rows if _is_padded(row, i))]) for i in columns]
    ends = [max((count_cells(row[i]) for row in rows if len(row) == i + 1), default=0) for i in columns]
    cells, starts = [sizes[-1] for sizes in padded], set[int]()
    if width is not None:
        least = [min(end, _LEAST_ROOM) for end in ends]
        starts = _break_columns(cells, least, width)
        is_of_numbers = all(isinstance(cell, Number) for row in rows for cell in row[1:-1])
        room = measure_names(rows, width)
        if starts and len(cells) > 2 and is_of_numbers and room >= len(_INDENT):
            cells[0] = room if room >= _LEAST_NAME else len(_INDENT)
            return [line for row in rows for line in _lay_named_numbers(row, cells, width, cuts)]
        usual, left_out = list(cells), [0] * len(cells)
        while starts:
            # A few cells far wider than the others stand on lines of their own, the rest side by side.
            widest = usual.index(max(usual))
            left_out[widest] += 1
            if left_out[widest] > len(rows) // 3:
                break
            usual[widest] = padded[widest][max(-1 - left_out[widest], -len(padded[widest]))]
            if not _break_columns(usual, least, width):
                cells, starts = usual, set()
        cells = [min(size, width - 2 * len(_INDENT)) for size in cells]
    return [line for row in rows for line in _lay_row(row, cells, starts, width, cuts)]


def _is_padded(row: tuple[str, ...], i: int) -> bool:
    return i < len(row) - 1 or (i == len(row) - 1 and isinstance(row[i], Number))


def _front(row: tuple[str, ...]) -> str:
    return "> " if isinstance(row[0], Chosen) else _INDENT


def _lay_named_numbers(row: tuple[str, ...], cells: Sequence[int], width: int, cuts: bool) -> list[str]:
    """Return a name, wrapped between words, with the numbers beside its first line, or below its last."""
    name, *numbers = row
    if cells[0] == len(_INDENT):
        above = wrap(name, width, _front(row), 2 * _INDENT, cuts=cuts)
        return [*above, *_lay_row(("", *numbers), cells, set(), width, cuts)]
    first, *more = wrap(name, cells[0], "", _INDENT, cuts=cuts)
    lines = _lay_row((type(name)(first), *numbers), cells, set(), width, cuts)
    return [*lines, *(_INDENT + line for line in more)]


def _break_columns(cells: Sequence[int], least: Sequence[int], width: int) -> set[int]:
    """Return the columns that begin a further line, in every row: where side by side is too wide."""
    starts: set[int] = set()
    taken = len(_INDENT)
    for i, (padded, last) in enumerate(zip(cells, least, strict=True)):
        if i and taken + max(padded, last) > width:
            starts.add(i)
            taken = 2 * len(_INDENT)
        taken += padded + len(_GAP)
    return starts


def _lay_row(
    row: tuple[str, ...], cells: Sequence[int], starts: set[int], width: int | None, cuts: bool
) -> list[str]:
    lines: list[str] = []
    front = _front(row)
    for i, cell in enumerate(row):
        if i in starts:
            lines += [front.rstrip()] if front.strip() else []
            front = 2 * _INDENT
        rest = " " * count_cells(front)
        if _is_padded(row, i) and count_cells(cell) <= cells[i]:
            front += (
                " " * (cells[i] - count_cells(cell)) + cell
                if isinstance(cell, Number)
                else pad(cell, cells[i])
            )
            front += _GAP
        else:
            lines += [(front + cell).rstrip()] if width is None else wrap(cell, width, front, rest, cuts=cuts)
            front = rest + " " * cells[i] + _GAP
    return [*lines, front.rstrip()] if front.strip() else lines


def table_lines(rows: Iterable[tuple[str, ...]]) -> list[Line]:
    """Return the rows that say something, their names at least as wide as in the other reports."""
    return [(f"{name:<7}", *cells) for name, *cells in rows if cells[-1]]


def rejection_lines(title: str, rejections: Sequence[Rejection], footer: str = "") -> list[Line]:
    if not rejections:
        return []
    lines: list[Line] = ["", f"{title}: {len(rejections):,}"]
    reasons = Counter(r.reason for r in rejections)
    for reason, count in reasons.most_common(_FEW):
        paths = [r.path for r in rejections if r.reason == reason]
        lines.append((f"{count:>7,}", f"{reason}: {name_some(paths)}"))
    if len(reasons) > _FEW:
        lines.append(f"  {len(reasons) - _FEW:,} more reasons")
    return [*lines, f"  {footer}"] if footer else lines


def name_some(names: Sequence[str], few: int = 3) -> str:
    return ", ".join(names[:few]) + (", ..." if len(names) > few else "")


def name_largest(counts: Mapping[str, int]) -> str:
    """Return `cat 7, dog 5`, the largest first."""
    return name_some([f"{name} {count:,}" for name, count in Counter(counts).most_common()], _FEW)


def count_words(counts: Mapping[str, int], noun: str = "", few: int = _FEW) -> str:
    """Return `7 CMYK, 5 rotated, 2 others`, or of a noun `7 .txt, 5 .md, 2 other files`."""
    most = Counter(counts).most_common(few)
    words = [f"{count:,} {name or 'without suffix'}" for name, count in most]
    rest = sum(counts.values()) - sum(count for _, count in most)
    if rest:
        words.append(f"{rest:,} {'other' if noun or rest == 1 else 'others'}")
    plural = "" if (rest or sum(counts.values())) == 1 else "s"
    return ", ".join(words) + (f" {noun}{plural}" if noun else "")
