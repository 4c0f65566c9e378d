# SPDX-License-Identifier: Apache-2.0
"""Old words stay out of identifiers, and out of what src says: docs/glossary.md has the ones that hold.

tests/data/files_with_old_words.txt lists the files that still have some. It only shrinks, and so does the
table of words that packages of src still have in names, docstrings, comments and messages.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from support.paths import DATA, ROOT

OLD = {
    "shelf", "shelves", "parcel", "parcels", "landing", "landings", "homes", "doubt", "doubts", "withheld",
    "stillborn", "audience", "elsewhere", "stretch", "stretches", "doomed",
}  # fmt: skip
# Of src alone, in whatever is written: plain words, which tests may use.
OLD_IN_SOURCE = {
    "shelf", "shelves", "landing", "landings", "dress", "dressed", "mend", "mended", "patience", "trouble",
    "troubles", "meeting", "meetings", "stretch", "stretches",
}  # fmt: skip
STILL_IN_SOURCE = {
    "cache": {"stretch"},
    "doctor": {"mend", "patience", "stretch", "trouble", "troubles"},
    "kernel": {"trouble"},
    "lab": {"mend", "patience"},
    "loader": {"dress", "patience", "stretch"},
    "packing": {"stretches"},
    "plan": {"patience"},
}
STILL = set((DATA / "files_with_old_words.txt").read_text().split())


def words_of(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def old_words_in(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME} | {path.stem}
    return {word for name in names for word in words_of(name) & OLD}


def test_words_of_an_identifier_are_told_apart() -> None:
    assert words_of("_open_HTTPShelf2_for") == {"open", "http", "shelf", "for"}


def test_old_words_are_in_no_identifier_but_of_files_that_wait_for_their_move() -> None:
    folders = ("src", "tests", "benchmarks", "examples")
    found = {
        str(path.relative_to(ROOT)): words
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if (words := old_words_in(path))
    }
    new = {path: words for path, words in found.items() if path not in STILL}
    assert new == {}, "docs/glossary.md has the words to use"
    assert STILL - set(found) == set(), "take these off the list: it only shrinks"


def test_old_words_are_in_nothing_that_src_says_but_of_packages_that_wait_for_new_ones() -> None:
    source, new = ROOT / "src" / "feedrate", []
    for path in sorted(source.rglob("*.py")):
        package = path.relative_to(source).parts[0]
        found = words_of(path.read_text()) & OLD_IN_SOURCE - STILL_IN_SOURCE.get(package, set())
        new += [f"{path.relative_to(source)}: {word}" for word in sorted(found)]
    assert new == [], "docs/glossary.md has the words to use"
