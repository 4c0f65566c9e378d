# SPDX-License-Identifier: Apache-2.0
"""Several packs as one: what their fields have in common, and a manifest that names the files of all.

Nothing is copied. Files come into the folder as hard links, which stay whatever becomes of the originals, or
are referred to by a relative path. Classes are united by name: where a pack's numbers would mean others in
the united list, a small column with the new numbers stands before the stored ones.
"""

from __future__ import annotations

import dataclasses
import filecmp
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, StorageError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.index import Values
from feedrate.format.manifest import ColumnPart, Manifest, Shard, file_path
from feedrate.format.pack import Pack
from feedrate.packing.change.update import write_column
from feedrate.units import shell_quote

_SHARD = re.compile(r"shard-(\d+)\..*")


@dataclass(frozen=True, slots=True)
class Joined:
    """One of the packs to join.

    Attributes:
        prefix: goes before its keys and original paths.
        place: takes a file of it and the name that it would have; returns folder and name as they are to
            stand in pack.json. None: the pack already lies there.
        defaults: values of added fields that it lacks.
    """

    pack: Pack
    prefix: str = ""
    place: Callable[[Path, str], tuple[str, str]] | None = None
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)


def unite_fields(packs: Sequence[Pack]) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the stored and the added fields of the whole.

    Raises:
        SourceError: the packs do not fit together; names the field and the difference.
    """
    first = packs[0]
    names = [f.name for f in first.manifest.fields]
    for pack in packs[1:]:
        others = [f.name for f in pack.manifest.fields]
        if others != names:
            different = sorted(set(names) ^ set(others))
            if different:
                has, lacks = (first, pack) if different[0] in names else (pack, first)
                raise SourceError(f"{has.path} stores a field '{different[0]}', {lacks.path} does not")
            raise SourceError(
                f"{first.path} stores its fields as {', '.join(names)}; {pack.path} as {', '.join(others)}"
            )
    stored = tuple(_unite([(p, p.manifest.fields[i]) for p in packs]) for i in range(len(names)))
    added: dict[str, list[tuple[Pack, Field]]] = {}
    for pack in packs:
        for field in pack.manifest.added:
            added.setdefault(field.name, []).append((pack, field))
    for name, having in added.items():
        # A replaced field stands in some packs as added, in others as stored.
        known = {pack.path for pack, _ in having}
        having += [(p, f) for p in packs if p.path not in known for f in p.manifest.fields if f.name == name]
    united = {name: _unite([(p, _widest(f, having)) for p, f in having]) for name, having in added.items()}
    return stored, tuple(united.values())


def _widest(field: Field, having: Sequence[tuple[Pack, Field]]) -> Field:
    """Return an added field as it can be with the others: whole numbers become others where some are not."""
    is_mixed = field.kind is Kind.NUMBER and any(other.dtype == "float64" for _, other in having)
    return dataclasses.replace(field, dtype="float64") if is_mixed and field.classes is None else field


def _unite(having: Sequence[tuple[Pack, Field]]) -> Field:
    (first, one), *more = having
    for pack, other in more:
        where = f"in {first.path}, and {{}} in {pack.path}"
        if one.kind != other.kind:
            raise SourceError(f"field '{one.name}' is {one.kind} {where.format(other.kind)}")
        if one.coding != other.coding:
            raise SourceError(f"field '{one.name}' is stored as '{one.coding}' {where.format(other.coding)}")
        if one.kind is Kind.NUMBER and one.dtype != other.dtype:
            raise SourceError(f"field '{one.name}' is {one.dtype} {where.format(other.dtype)}")
        is_bare = one.kind is Kind.ARRAY and one.coding is Coding.RAW
        if is_bare and (one.dtype, one.shape) != (other.dtype, other.shape):
            raise SourceError(
                f"field '{one.name}' is stored without headers, as {one.dtype} of shape {one.shape} "
                + where.format(f"{other.dtype} of shape {other.shape}")
            )
        if (one.classes is None) != (other.classes is None):
            named, numbered = (first, pack) if one.classes is not None else (pack, first)
            raise SourceError(
                f"field '{one.name}' is a class in {named.path}, a plain number in {numbered.path}"
            )
    classes = [name for _, field in having for name in field.classes or ()]
    return dataclasses.replace(
        one,
        dtype=one.dtype if all(f.dtype == one.dtype for _, f in having) else None,
        shape=one.shape if all(f.shape == one.shape for _, f in having) else None,
        classes=None if one.classes is None else tuple(dict.fromkeys(classes)),
    )


def join(
    folder: Path, packs: Sequence[Joined], settings: Mapping[str, Any]
) -> tuple[Manifest, tuple[str, ...]]:
    """Bring the files of packs into a folder; return the manifest of the whole, which is not written yet.

    Returns also the names of columns in which samples of some packs have no value.
    """
    fields, added = unite_fields([joined.pack for joined in packs])
    shards: list[Shard] = []
    parts: list[ColumnPart] = []
    unassigned: dict[str, None] = {}
    first = number = free = 0
    for joined in packs:
        pack = joined.pack
        for field in added:
            parts += _place_column(folder, joined, field, first, unassigned)
        for field in fields:
            if field.name not in {f.name for f in added}:
                parts += _renumber_stored(folder, joined, field, first)
        above = next_number(pack)
        # Last, since files may be moved: from now on the pack itself cannot be read.
        names = range(free, free + len(pack.manifest.shards))
        placed: dict[Path, tuple[str, str]] = {}
        shards += [
            _place_shard(folder, joined, shard, name, number, placed)
            for shard, name in zip(pack.manifest.shards, names, strict=True)
        ]
        free = next_shard(pack.manifest) if joined.place is None else names.stop
        first += len(pack)
        number += above
    manifest = Manifest(fields, tuple(shards), dict(settings), added, tuple(parts))
    return manifest, tuple(unassigned)


def next_number(pack: Pack) -> int:
    """Return a number above those of all samples."""
    return int(pack.column("number").max()) + 1 if len(pack) else 0


def _place_shard(
    folder: Path,
    joined: Joined,
    shard: Shard,
    name: int,
    first_number: int,
    placed: dict[Path, tuple[str, str]],
) -> Shard:
    prefix = "/".join(part for part in (joined.prefix, shard.prefix) if part)
    moved = dataclasses.replace(shard, prefix=prefix, first_number=shard.first_number + first_number)
    if joined.place is None:
        return moved
    stem = f"shard-{name:05d}"
    path, index_path = joined.pack.locate_file(shard), file_path(joined.pack.path, shard.index)
    if shard.is_elsewhere:
        placed[path] = shard.folder, shard.name
    elif path not in placed:  # several shards may lie in one file
        # Files that were indexed where they lie are their user's, and stay there.
        place = refer_from(folder) if shard.is_in_place else joined.place
        placed[path] = place(path, stem + path.suffix)
    index_folder, index_name = joined.place(index_path, stem + index_path.suffix)
    index = dataclasses.replace(shard.index, folder=index_folder, name=index_name)
    return dataclasses.replace(moved, folder=placed[path][0], name=placed[path][1], index=index)


def _place_column(
    folder: Path, joined: Joined, field: Field, first: int, unassigned: dict[str, None]
) -> list[ColumnPart]:
    """Return the parts that give a pack's samples their values of an added field."""
    pack = joined.pack
    there = pack.manifest.field(field.name)
    is_whole = any(f.name == field.name for f in pack.manifest.added)
    if there is None or (not is_whole and there.kind is not Kind.NUMBER):
        values = _default(joined, field, unassigned)
        return [write_column(folder, field, values, first=first, samples=len(pack))]
    own = [part for part in pack.manifest.parts if part.fields == (field.name,)]
    if is_whole and not _needs_numbers(there, field) and there.dtype == field.dtype:
        return [_place_part(joined, part, first) for part in own]
    return [write_column(folder, field, _read_values(pack, there, field), first=first, samples=len(pack))]


def _place_part(joined: Joined, part: ColumnPart, first: int) -> ColumnPart:
    if joined.place is None:
        return dataclasses.replace(part, first=part.first + first)
    folder, name = joined.place(file_path(joined.pack.path, part), part.name)
    return dataclasses.replace(part, first=part.first + first, folder=folder, name=name)


def _renumber_stored(folder: Path, joined: Joined, field: Field, first: int) -> list[ColumnPart]:
    """Return the part with new class numbers, where the stored ones would mean other classes."""
    pack = joined.pack
    there = pack.manifest.field(field.name)
    assert there is not None
    if _needs_numbers(there, field):
        values = _read_values(pack, there, field)
        return [write_column(folder, field, values, first=first, samples=len(pack))]
    return [_place_part(joined, part, first) for part in pack.manifest.parts if part.fields == (field.name,)]


def _needs_numbers(there: Field, field: Field) -> bool:
    classes = there.classes or ()
    return classes != (field.classes or ())[: len(classes)]


def _read_values(pack: Pack, there: Field, field: Field) -> Values:
    values = pack.checked_column(field.name)
    if there.classes is not None:
        places = {name: number for number, name in enumerate(field.classes or ())}
        numbers = np.array([places[name] for name in there.classes], np.int64)
        inside = (values >= 0) & (values < len(numbers))
        values = values.copy()
        values[inside] = numbers[values[inside]]
    return {field.name: values.astype(field.dtype or values.dtype)}


def find_splits(manifest: Manifest) -> set[str]:
    """Return the columns that 'feedrate split' made; a sample may be in none of their parts."""
    columns = manifest.settings.get("columns", {})
    return {f.name for f in manifest.added if "shares" in columns.get(f.name, {})}


def check_missing_values(pack: Pack, added: Sequence[Field], may_lack: Collection[str]) -> None:
    """Refuse a pack whose samples would have no value of an added field."""
    for field in added:
        there = pack.manifest.field(field.name)
        command = f"feedrate add-column {pack.path} TABLE --column {field.name}"
        if there is None and field.name not in may_lack:
            raise SourceError(
                f"samples of {pack.path} have no value of '{field.name}', which the others have",
                hint=f"add it first: {command}",
            )
        is_added = any(f.name == field.name for f in pack.manifest.added)
        if there is not None and not is_added and there.kind is not Kind.NUMBER:
            raise SourceError(
                f"'{field.name}' is stored in the shards of {pack.path} and an added column elsewhere",
                hint=f"add it there too: {command} --replace",
            )


def _default(joined: Joined, field: Field, unassigned: dict[str, None]) -> Values:
    count = len(joined.pack)
    if field.name in joined.defaults:
        return {field.name: _fill(field, joined.defaults[field.name], count)}
    # In no part of a split.
    unassigned[field.name] = None
    return {field.name: np.full(count, -1, np.int64)}


def check_default(field: Field, value: object) -> None:
    """Refuse a default that a field cannot have."""
    _fill(field, value, 1)


def _fill(field: Field, value: object, count: int) -> Any:
    try:
        if field.classes is not None:
            return np.full(count, field.classes.index(str(value)), np.int64)
        if field.kind is Kind.NUMBER:
            number = float(str(value)) if field.dtype == "float64" else int(str(value))
            return np.full(count, number, field.dtype)
    except ValueError:
        known = f"; it has {', '.join(field.classes[:5])}" if field.classes is not None else ""
        raise SourceError(f"{value!r} is no value of '{field.name}'{known}") from None
    return [str(value).encode()] * count


def link_into(folder: Path, *, or_move: bool = False) -> Callable[[Path, str], tuple[str, str]]:
    """Return a `place` that makes hard links in `folder`.

    Where links cannot be made it moves files if it may, and raises OSError if not; where another file has the
    name it raises AlreadyExists.
    """

    def place(path: Path, name: str) -> tuple[str, str]:
        target = folder / name
        try:
            os.link(path, target)
        except OSError as error:
            if target.exists():
                # Of a run that was killed: linked then, or moved then and made again.
                if not filecmp.cmp(path, target, shallow=False):
                    raise AlreadyExists(
                        f"{target} is there already, and no part of the pack",
                        hint="move it away, then try again",
                    ) from error
            elif or_move:
                os.rename(path, target)
            else:
                raise
        return "", name

    return place


def refer_from(folder: Path) -> Callable[[Path, str], tuple[str, str]]:
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
