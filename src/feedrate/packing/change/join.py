# SPDX-License-Identifier: Apache-2.0
"""The files of another pack behind those of a pack: the one way in which a pack gets more shards.

Files are linked into the folder, moved there, or named by a relative path. Classes have the same numbers in
both packs; an added column that the other lacks gets a file of its own.
"""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, StorageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.manifest import ColumnPart, Manifest, Shard, file_path
from feedrate.format.pack import Pack
from feedrate.packing.change.update import hash_names, write_column
from feedrate.units import printable, shell_quote

_SHARD = re.compile(r"shard-(\d+)\..*")

# Takes a file of the other pack and the name that it would have; returns folder and name for pack.json.
Place = Callable[[Path, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Joined:
    """The pack that comes behind.

    Attributes:
        place: what becomes of its files.
        prefix: goes before its keys and original paths.
        defaults: values of added columns that it lacks.
    """

    pack: Pack
    place: Place
    prefix: str = ""
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def keys(self) -> Iterator[bytes]:
        before = f"{self.prefix}/".encode() if self.prefix else b""
        return (before + key for key in self.pack.all_texts("key"))


def unite_fields(pack: Pack, other: Pack) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the stored and the added fields of both together.

    Raises:
        SourceError: the packs do not fit together; names the field and the difference.
    """
    names, others = ([f.name for f in p.manifest.fields] for p in (pack, other))
    if names != others:
        different = sorted(set(names) ^ set(others))
        if different:
            has, lacks = (pack, other) if different[0] in names else (other, pack)
            raise SourceError(f"{has.path} stores a field '{different[0]}', {lacks.path} does not")
        raise SourceError(
            f"{pack.path} stores its fields as {', '.join(names)}; {other.path} as {', '.join(others)}"
        )
    stored = zip(pack.manifest.fields, other.manifest.fields, strict=True)
    known = {f.name for f in pack.manifest.added}
    for field in other.manifest.added:
        if field.name not in known:
            raise SourceError(
                f"{other.path} has a column '{field.name}' that was added to it, and {pack.path} has not",
                hint=f"add it there first: feedrate add-column {shell_quote(pack.path)} TABLE "
                f"--column {shell_quote(field.name)}, or feedrate split",
            )
    added = []
    for field in pack.manifest.added:
        there = other.manifest.field(field.name)
        is_comparable = there is not None and there.kind is field.kind
        added.append(_unite(pack, field, other, there) if there is not None and is_comparable else field)
    return tuple(_unite(pack, one, other, two) for one, two in stored), tuple(added)


def _unite(pack: Pack, one: Field, other: Pack, two: Field) -> Field:
    where = f"in {pack.path}, and {{}} in {other.path}"
    if one.kind != two.kind:
        raise SourceError(f"field '{one.name}' is {one.kind} {where.format(two.kind)}")
    if one.coding != two.coding:
        raise SourceError(f"field '{one.name}' is stored as '{one.coding}' {where.format(two.coding)}")
    if one.kind is Kind.NUMBER and one.dtype != two.dtype:
        raise SourceError(f"field '{one.name}' is {one.dtype} {where.format(two.dtype)}")
    is_bare = one.kind is Kind.ARRAY and one.coding is Coding.RAW
    if is_bare and (one.dtype, one.shape) != (two.dtype, two.shape):
        raise SourceError(
            f"field '{one.name}' is stored without headers, as {one.dtype} of shape {one.shape} "
            + where.format(f"{two.dtype} of shape {two.shape}")
        )
    if (one.classes is None) != (two.classes is None):
        named, numbered = (pack, other) if one.classes is not None else (other, pack)
        raise SourceError(f"field '{one.name}' is a class in {named.path}, a plain number in {numbered.path}")
    return dataclasses.replace(
        one,
        dtype=one.dtype if one.dtype == two.dtype else None,
        shape=one.shape if one.shape == two.shape else None,
        classes=None if one.classes is None else tuple(dict.fromkeys((*one.classes, *(two.classes or ())))),
    )


def join(pack: Pack, joined: Joined, settings: Mapping[str, Any]) -> tuple[Manifest, tuple[str, ...]]:
    """Bring the files of another pack into a pack; return the manifest of both, which is not written yet.

    Returns also the names of columns in which the other's samples have no value.
    """
    other, folder = joined.pack, pack.path
    fields, added = unite_fields(pack, other)
    columns = (*added, *(f for f in fields if f.name not in {a.name for a in added}))
    parts = [part for field in columns for part in pack.manifest.parts if part.fields == (field.name,)]
    is_added, unassigned = {f.name for f in other.manifest.added}, []
    for field in columns:
        if field not in added or field.name in is_added:
            own = (part for part in other.manifest.parts if part.fields == (field.name,))
            parts += [_place_part(joined, part, len(pack)) for part in own]
            continue
        values, is_known = _values_of_column(joined, field)
        unassigned += [] if is_known else [field.name]
        parts.append(write_column(folder, field, {field.name: values}, first=len(pack), samples=len(other)))
    number = int(pack.column("number").max()) + 1 if len(pack) else 0
    # Last, since files may be moved: from now on the other pack itself cannot be read.
    placed: dict[Path, tuple[str, str]] = {}
    shards = [
        _place_shard(folder, joined, shard, name, number, placed)
        for name, shard in enumerate(other.manifest.shards, next_shard(pack.manifest))
    ]
    manifest = Manifest(fields, (*pack.manifest.shards, *shards), dict(settings), added, tuple(parts))
    return manifest, tuple(unassigned)


def _place_shard(
    folder: Path, joined: Joined, shard: Shard, name: int, number: int, placed: dict[Path, tuple[str, str]]
) -> Shard:
    stem = f"shard-{name:05d}"
    path, index_path = joined.pack.locate_file(shard), file_path(joined.pack.path, shard.index)
    if shard.is_remote:
        placed[path] = shard.folder, shard.name
    elif path not in placed:  # several shards may be in one file
        # Files that were indexed in place belong to their user, and stay there.
        place = refer_from(folder) if shard.is_in_place else joined.place
        placed[path] = place(path, stem + path.suffix)
    index_folder, index_name = joined.place(index_path, stem + index_path.suffix)
    return dataclasses.replace(
        shard,
        folder=placed[path][0],
        name=placed[path][1],
        index=dataclasses.replace(shard.index, folder=index_folder, name=index_name),
        prefix="/".join(part for part in (joined.prefix, shard.prefix) if part),
        first_number=shard.first_number + number,
    )


def _place_part(joined: Joined, part: ColumnPart, first: int) -> ColumnPart:
    folder, name = joined.place(file_path(joined.pack.path, part), part.name)
    return dataclasses.replace(part, first=part.first + first, folder=folder, name=name)


def _values_of_column(joined: Joined, field: Field) -> tuple[Any, bool]:
    """Return the other pack's values of a column that was added to the first, and whether it has any."""
    there = joined.pack.manifest.field(field.name)
    if there is not None and there.kind is Kind.NUMBER and there.dtype == field.dtype:
        values = joined.pack.checked_column(field.name)
        if there.classes is not None:
            places = {name: number for number, name in enumerate(field.classes or ())}
            numbers = np.array([places[name] for name in there.classes], np.int64)
            inside = (values >= 0) & (values < len(numbers))
            values = values.copy()
            values[inside] = numbers[values[inside]]
        return values, True
    if field.name in joined.defaults:
        return fill(field, joined.defaults[field.name], len(joined.pack)), True
    return np.full(len(joined.pack), -1, np.int64), False  # in no part of a split


def find_splits(manifest: Manifest) -> set[str]:
    """Return the columns that 'feedrate split' made; a sample may be in none of their parts."""
    columns = manifest.settings.get("columns", {})
    return {f.name for f in manifest.added if "shares" in columns.get(f.name, {})}


def fill(field: Field, value: str, count: int) -> Any:
    """Return a default as often as it is needed; refuse one that the field cannot have."""
    try:
        if field.classes is not None:
            return np.full(count, field.classes.index(value), np.int64)
        if field.kind is Kind.NUMBER:
            return np.full(count, float(value) if field.dtype == "float64" else int(value), field.dtype)
    except ValueError:
        known = f"; it has {', '.join(field.classes[:5])}" if field.classes is not None else ""
        raise SourceError(f"{value!r} is no value of '{field.name}'{known}") from None
    return [value.encode()] * count


def link_into(folder: Path) -> Place:
    """Return a `place` that makes hard links in `folder`, or moves files where links cannot be made.

    Where another file has the name it raises AlreadyExists.
    """

    def place(path: Path, name: str) -> tuple[str, str]:
        target = folder / name
        try:
            os.link(path, target)
        except OSError as error:
            if not target.exists():
                os.rename(path, target)
            # Of a run that was killed: linked then, or moved then and made again.
            elif not filecmp.cmp(path, target, shallow=False):
                raise AlreadyExists(
                    f"{target} is there already, and no part of the pack",
                    hint="move it away, then try again",
                ) from error
        return "", name

    return place


def refer_from(folder: Path) -> Place:
    """Return a `place` that leaves files where they are and names them by a relative path."""
    base = os.path.realpath(folder)

    def place(path: Path, name: str) -> tuple[str, str]:
        del name
        if not path.exists():
            raise StorageError(f"{path} is not there", hint=f"feedrate verify {shell_quote(path.parent)}")
        there = os.path.relpath(os.path.realpath(path.parent), base)
        return "" if there == "." else there, path.name

    return place


def next_shard(manifest: Manifest) -> int:
    """Return a number above those of all shards, by their names."""
    files = [file for shard in manifest.shards for file in (shard, shard.index) if not file.folder]
    matches = [_SHARD.fullmatch(file.name) for file in files]
    return max([len(manifest.shards), *(int(m[1]) + 1 for m in matches if m)])


def refuse_equal_keys(pack: Pack, joined: Joined) -> None:
    """Keys must stay unique. 8 bytes per sample are held."""
    ours, theirs = hash_names(pack.all_texts("key")), hash_names(joined.keys())
    suspects = set(itertools.compress(joined.keys(), np.isin(theirs, ours)))
    if not suspects:
        return
    both = [k for k in itertools.compress(pack.all_texts("key"), np.isin(ours, theirs)) if k in suspects]
    if both:
        raise SourceError(
            f"{len(both):,} keys stand in two packs: '{printable(both[0])}' in {pack.path} "
            f"and {joined.pack.path}",
            hint="put a word before the new ones: --prefix NAME",
        )
