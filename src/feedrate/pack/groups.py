# SPDX-License-Identifier: Apache-2.0
"""What a split goes by: groups that stay together, classes that are shared out, lists that people wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from feedrate import kernel
from feedrate.errors import NotFound, SourceError, UsageError
from feedrate.format.fields import Field, Kind
from feedrate.format.pack import Pack
from feedrate.kernel import I64
from feedrate.pack.members import as_path, read_names, refuse_missing, some
from feedrate.units import format_count, printable, typed


def group_by_field(pack: Pack, name: str) -> list[bytes]:
    """Return each sample's group: the value of a field."""
    column = _find_field(pack, name)
    if column.kind is Kind.NUMBER:
        return [repr(value).encode() for value in pack.checked_column(column.name).tolist()]
    return _read_texts(pack, column)


def group_by_folder(pack: Pack) -> list[bytes]:
    """Return each sample's group: the folder that it was in."""
    return [path.rpartition(b"/")[0] for path in read_names(pack, by_key=False)]


def group_by_path(pack: Pack, pattern: str) -> list[bytes]:
    """Return each sample's group: what a regular expression finds in its original path."""
    try:
        compiled = re.compile(os.fsencode(pattern))
    except re.error as error:
        raise UsageError(f"'{pattern}' is not a regular expression: {error}") from None
    names, unmatched = [], []
    for path in read_names(pack, by_key=False):
        match = compiled.search(path)
        if match is None:
            unmatched.append(path)
        else:
            names.append((match[1] if compiled.groups else match[0]) or b"")
    refuse_missing(
        unmatched,
        len(pack),
        f"group: '{pattern}' finds nothing in their paths",
        hint=r"the first (...) in it is the group: --by-path '(patient\d+)'",
    )
    return names


def _read_texts(pack: Pack, column: Field) -> list[bytes]:
    texts: list[bytes] = []
    for start in range(0, len(pack), 65536):
        positions = np.arange(start, min(start + 65536, len(pack)), dtype=np.int64)
        rows, statuses = pack.rows(positions, [column.name])
        buffer, starts, bad = kernel.read_ranges(pack.files, pack.ranges(column.name, rows, positions))
        for place in np.flatnonzero(statuses | bad):
            raise pack.describe_bad(int(positions[place]), column.name, None, "it cannot be read")
        whole = buffer.tobytes()
        texts += [whole[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    return texts


def find_strata(pack: Pack, name: str | None) -> I64:
    """Return the stratum of each sample, from 0: its class; None: all are in one."""
    if name is None:
        return np.zeros(len(pack), np.int64)
    column = _find_field(pack, name)
    if column.kind is not Kind.NUMBER or column.dtype != "int64":
        raise UsageError(
            f"--stratify needs a field of classes or whole numbers; '{name}' is {column.dtype or column.kind}"
        )
    _, strata = np.unique(pack.checked_column(name), return_inverse=True)
    return strata.astype(np.int64)


def _find_field(pack: Pack, name: str) -> Field:
    column = pack.manifest.field(name)
    if column is None or column.kind not in (Kind.NUMBER, Kind.TEXT, Kind.JSON):
        known = [f.name for f in pack.fields if f.kind in (Kind.NUMBER, Kind.TEXT, Kind.JSON)]
        raise UsageError(
            f"{pack.path} has no column '{name}' of numbers, classes or text",
            hint=f"it has: {', '.join(known) or 'none'}; 'feedrate add-column' adds one from a table",
        )
    return column


def read_lists(pack: Pack, files: Mapping[str, Path], *, has_rest: bool) -> I64:
    """Return the part of each sample, counted as in `files`; the rest is in one more, if there may be one."""
    parts = list(files)
    part_of: dict[bytes, int] = {}
    for number, file in enumerate(files.values()):
        for line in _read_list(file):
            if part_of.setdefault(line, number) != number:
                other = parts[part_of[line]]
                raise SourceError(
                    f"'{printable(line)}' stands in the lists of '{other}' and of '{parts[number]}'"
                )
    values = np.full(len(pack), len(parts), np.int64)
    missing: list[bytes] = []
    used: set[bytes] = set()
    paths = read_names(pack, by_key=False) if _has_paths(pack) else read_names(pack, by_key=True)
    for place, (path, key) in enumerate(zip(paths, pack.all_texts("key"), strict=True)):
        name = path if path in part_of else key
        if name in part_of:
            values[place] = part_of[name]
            used.add(name)
        elif not has_rest:
            missing.append(path)
    strangers = [name for name in part_of if name not in used]
    if strangers:
        raise SourceError(
            f"the lists name {format_count(len(strangers), 'sample')} that {pack.path} does not have:"
            f" {some(strangers)}",
            hint=f"a line is an original path or a key; see some: feedrate ls {typed(pack.path)} --samples 5",
        )
    refuse_missing(missing, len(pack), "part: no list names them", hint="give them one: NAME=rest")
    return values


def _has_paths(pack: Pack) -> bool:
    try:
        return bool(len(pack)) and bool(next(read_names(pack, by_key=False)))
    except UsageError:
        return False


def _read_list(path: Path) -> list[bytes]:
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NotFound(f"cannot read the list {path}: {error.strerror}") from None
    lines = [line.strip("\r") for line in text.split("\n")]
    names = [as_path(line) for line in lines if line.strip()]
    if not names:
        raise SourceError(f"the list {path} is empty")
    return names
