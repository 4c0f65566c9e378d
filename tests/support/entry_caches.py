# SPDX-License-Identifier: Apache-2.0
"""Folders of entry points: values that follow from a number, put in and looked for by several processes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from feedrate.cache.entry_folder import ENTRIES, is_journal
from feedrate.run.inside.entries import Entries, open_cache
from feedrate.run.merging import find_folder

LENGTH = 100_000


def make_place(above: Path) -> Path:
    place = find_folder(above)
    assert place is not None
    return place


def value_of(number: int) -> bytes:
    made = random.Random(number)
    return made.randbytes(made.randrange(1500))


def add_all(entries: Entries, numbers: Iterable[int]) -> Entries:
    for number in numbers:
        entries.add(LENGTH, number, value_of(number))
    entries.flush()
    return entries


def count_good(entries: Entries, numbers: Iterable[int]) -> int:
    """Return how many are found; every one that is must be right."""
    found = [(number, entries.find(LENGTH, number)) for number in numbers]
    assert [number for number, value in found if value not in (None, value_of(number))] == []
    return sum(value is not None for _, value in found)


def in_child(act: Callable[[], object]) -> int:
    """Do something in a fork of this process; return its exit status, 0 where all went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fill(place: Path, numbers: Iterable[int]) -> None:
    """Add values in a process that then ends."""
    assert in_child(lambda: add_all(open_cache(str(place)), numbers)) == 0


def journals(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if is_journal(path.name))


def entries_file(place: Path) -> Path:
    return place / ENTRIES
