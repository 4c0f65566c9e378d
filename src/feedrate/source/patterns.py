# SPDX-License-Identifier: Apache-2.0
"""Several files by one name: `train-{0000..0009}.tar`, `{train,extra}-*.parquet`."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

from feedrate.errors import NotFound, UsageError
from feedrate.remote.addresses import Place, PlacedFile

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000
_AT_ONCE = 16
_SPECIAL = re.compile(r"[*?{\[]")


def is_pattern(source: str) -> bool:
    return _SPECIAL.search(source) is not None and not os.path.exists(source)


def find_files(source: str) -> tuple[Place, list[PlacedFile]]:
    """Return the files that a pattern names, sorted, and the place that they all lie in.

    Raises:
        NotFound: there are none, or one that the braces name is missing.
    """
    from concurrent.futures import ThreadPoolExecutor

    first = _SPECIAL.search(source)
    assert first is not None
    fixed = source[: first.start()].rpartition("/")[0]
    rest = source[len(fixed) :].lstrip("/") if fixed else source.lstrip("/")
    root = fixed or ("/" if source.startswith("/") else ".")
    place = Place(root + ("/" if root.endswith(":") else ""))
    found: dict[bytes, PlacedFile] = {}
    patterns = list(_expand(rest))
    single = [os.fsencode(pattern) for pattern in patterns if not re.search(r"[*?\[]", pattern)]
    with ThreadPoolExecutor(_at_once(place)) as threads:  # a question to a server is mostly waiting
        facts = dict(zip(single, threads.map(place.find, single), strict=True))
    for pattern in patterns:
        if re.search(r"[*?\[]", pattern):
            parts = pattern.split("/")
            matches = [file for file in place.walk() if _matches(os.fsdecode(file.path).split("/"), parts)]
            if not matches:
                raise NotFound(f"no file is called like {place.address(os.fsencode(pattern))}")
            found |= {file.path: file for file in matches}
        else:
            file = facts[os.fsencode(pattern)]
            if file is None:
                raise NotFound(
                    f"{place.address(os.fsencode(pattern))} is a folder; the pattern should name files"
                )
            found[file.path] = file
    return place, [found[path] for path in sorted(found)]


def _at_once(place: Place) -> int:
    # A connection by SSH mixes up the answers of threads that share it.
    return _AT_ONCE if place.is_remote and not place.root.startswith(("sftp:", "ssh:")) else 1


def _matches(path: list[str], pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))


def _expand(text: str) -> Iterator[str]:
    names = [text]
    while any(_BRACES.search(name) for name in names):
        names = [one for name in names for one in _expand_first(name)]
        if len(names) > _MOST_NAMES:
            raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    yield from names


def _expand_first(text: str) -> Iterator[str]:
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    before, after = text[: braces.start()], text[braces.end() :]
    numbers = _RANGE.fullmatch(braces[1])
    if numbers is None:
        yield from (before + choice + after for choice in braces[1].split(","))
        return
    first, last = int(numbers[1]), int(numbers[2])
    if last - first >= _MOST_NAMES:
        raise UsageError(f"'{text}' names more than {_MOST_NAMES:,} files")
    width = len(numbers[1])
    yield from (f"{before}{number:0{width}d}{after}" for number in range(first, last + 1))
