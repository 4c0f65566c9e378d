# SPDX-License-Identifier: Apache-2.0
"""`feedrate merge`: several packs become one that names the files of all of them.

Nothing is copied. Files come into the folder as hard links, which stay whatever becomes of the originals, or
are referred to by a relative path. Classes are united by name: where a pack's numbers would mean others in
the united list, a small column with the new numbers stands before the stored ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, StorageError, UsageError
from feedrate.files.atomic import explained, remove_temporaries, sync_folder, write_file
from feedrate.format.fields import Coding, Field, Kind
from feedrate.format.index import Values
from feedrate.format.manifest import (
    FILE_NAME,
    ColumnPart,
    Manifest,
    Shard,
    digest_manifest,
    dump_manifest,
    file_path,
    read_manifest,
)
from feedrate.format.pack import Pack
from feedrate.packing.build.unfinished import PROGRESS_NAME, check_foreign, own_folder
from feedrate.packing.change.update import hash_names, write_column, write_manifest
from feedrate.packing.check.quality_report import REJECTED_NAME, write_quality
from feedrate.packing.recode import RECODE_SETTINGS
from feedrate.packing.results import MergedPack, MergeResult
from feedrate.packing.tables import Table, bring_tables
from feedrate.remote.trust import check_addresses, note_addresses
from feedrate.units import format_count, printable, shell_quote

_SHARD = re.compile(r"shard-(\d+)\..*")


@dataclass(frozen=True, slots=True)
class Joined:
    """One of the packs to join.

    Attributes:
        prefix: goes before its keys and original paths.
        place: takes a file of it and the name that it would have; returns folder and name as they are to
            stand in pack.json. None: the pack already is there.
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
        # Whole numbers become others where some are not.
        if any(field.dtype == "float64" for _, field in having):
            added[name] = [
                (
                    p,
                    f
                    if f.kind is not Kind.NUMBER or f.classes is not None
                    else dataclasses.replace(f, dtype="float64"),
                )
                for p, f in having
            ]
    return stored, tuple(map(_unite, added.values()))


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
        above = int(pack.column("number").max()) + 1 if len(pack) else 0
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
    if shard.is_remote:
        placed[path] = shard.folder, shard.name
    elif path not in placed:  # several shards may be in one file
        # Files that were indexed in place belong to their user, and stay there.
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
        if field.name in joined.defaults:
            filled = _fill(field, joined.defaults[field.name], len(pack))
        else:  # in no part of a split
            unassigned[field.name] = None
            filled = np.full(len(pack), -1, np.int64)
        return [write_column(folder, field, {field.name: filled}, first=first, samples=len(pack))]
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


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Settings of `merge`.

    Attributes:
        prefix: keys and original paths of each pack begin with its name: that of its folder, without '.pack'.
        refer: name the files by their paths even where they could be linked.
        allow_addresses: where files may be that a pack names and that this user did not index.
    """

    prefix: bool = False
    refer: bool = False
    allow_addresses: tuple[str, ...] = ()


def merge(
    packs: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: MergeOptions | None = None,
) -> MergeResult:
    """Make a pack of all samples of several packs, one behind the other, without copying them.

    Raises:
        NotFound: one of them is no pack.
        PackError: one names files of a host that is not allowed: the merged pack would be trusted with them.
        SourceError: their fields do not agree, or samples of two of them have the same key.
        AlreadyExists: the target holds something else, or another process writes there.
    """
    options = options or MergeOptions()
    if len(packs) < 2:
        raise UsageError(f"merging needs at least two packs, got {len(packs)}")
    folder = Path(target)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(contextlib.closing(Pack(path))) for path in packs]
        for pack in opened:
            check_addresses(pack.name, pack.manifest, options.allow_addresses)
        prefixes = _name_packs(opened) if options.prefix else [""] * len(opened)
        _, added = unite_fields(opened)
        splits = {name for pack in opened for name in find_splits(pack.manifest)}
        for pack in opened:
            check_missing_values(pack, added, may_lack=splits)
        check_equal_keys(opened, prefixes)
        for pack in opened:
            if os.path.realpath(pack.path) == os.path.realpath(folder):
                raise UsageError(f"{folder} is one of the packs", hint="name a new folder: --to FOLDER")
        check_foreign(folder)
        stack.enter_context(own_folder(folder))
        stack.enter_context(explained(folder))
        _begin(folder, opened, options)
        result = _merge(folder, opened, prefixes, options)
        (folder / PROGRESS_NAME).unlink()
        sync_folder(folder)
    return result


def _merge(folder: Path, packs: list[Pack], prefixes: list[str], options: MergeOptions) -> MergeResult:
    linked = [not options.refer and _can_link(pack, folder) for pack in packs]
    joined = [
        Joined(pack, prefix, link_into(folder) if is_linked else refer_from(folder))
        for pack, prefix, is_linked in zip(packs, prefixes, linked, strict=True)
    ]
    manifest, unassigned = join(folder, joined, _settings(folder, packs, prefixes))
    rejections = [file for pack in packs if (file := pack.path / REJECTED_NAME).exists()]
    if data := b"".join(file.read_bytes() for file in rejections):
        write_file(folder / REJECTED_NAME, data)
    sync_folder(folder)
    note_addresses(manifest)  # all were allowed; where it fails, the loader shows the line to type
    write_manifest(folder, manifest)
    write_quality(folder)
    label = manifest.field("label")
    written = [part for part in manifest.parts if not part.folder]
    return MergeResult(
        target=str(folder),
        packs=tuple(
            MergedPack(str(pack.path), len(pack), len(pack.manifest.shards), prefix, is_linked)
            for pack, prefix, is_linked in zip(packs, prefixes, linked, strict=True)
        ),
        samples=manifest.samples,
        classes=None if label is None or label.classes is None else len(label.classes),
        shards=len(manifest.shards),
        size_bytes=manifest.shard_bytes + manifest.index_bytes,
        new_bytes=sum(part.size_bytes for part in written) + len(dump_manifest(manifest)),
        unassigned=unassigned,
    )


def _name_packs(packs: Sequence[Pack]) -> list[str]:
    names = [os.path.basename(os.path.realpath(pack.path)).removesuffix(".pack") for pack in packs]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
            raise UsageError(
                f"'{name}' cannot stand before keys", hint="rename the folder: letters and digits"
            )
        if names.count(name) > 1:
            raise UsageError(f"two of the packs are called '{name}'", hint="rename the folder of one of them")
    return names


def check_equal_keys(packs: Sequence[Pack], prefixes: Sequence[str]) -> None:
    """Keys must stay unique. 8 bytes per sample are held."""
    if len(set(prefixes)) == len(prefixes):
        return
    hashes = [hash_names(pack.all_texts("key")) for pack in packs]
    whole = np.sort(np.concatenate(hashes))
    repeated = np.unique(whole[1:][whole[1:] == whole[:-1]])
    if not repeated.size:
        return
    seen: dict[bytes, Pack] = {}
    both: list[tuple[bytes, Pack, Pack]] = []
    for pack, found in zip(packs, hashes, strict=True):
        for key in itertools.compress(pack.all_texts("key"), np.isin(found, repeated)):
            if key in seen:
                both.append((key, seen[key], pack))
            seen[key] = pack
    if both:
        key, one, other = both[0]
        raise SourceError(
            f"{len(both):,} keys stand in two packs: '{printable(key)}' in {one.path} and {other.path}",
            hint="put the packs' names before their keys: --prefix",
        )


def _can_link(pack: Pack, folder: Path) -> bool:
    """Try it: rights, quotas and file systems differ too much to be asked."""
    if not pack.manifest.shards:
        return True
    probe = folder / f".link.{os.getpid()}-{0:08x}.tmp"
    try:
        os.link(file_path(pack.path, pack.manifest.shards[0].index), probe)
    except OSError:
        return False
    probe.unlink()
    return True


def _begin(folder: Path, packs: Sequence[Pack], options: MergeOptions) -> None:
    if (folder / FILE_NAME).exists() and not (folder / PROGRESS_NAME).exists():
        there = read_manifest(folder)
        raise AlreadyExists(
            f"{folder} already holds a finished pack of {format_count(there.samples, 'sample')}",
            hint=f"name another folder, or delete it first: rm -r {folder}",
        )
    contents = [digest_manifest(pack.manifest) for pack in packs]
    now = {
        "settings": {"merge": contents, "prefix": options.prefix},
        "source": {"files": len(packs), "digest": hashlib.sha256("".join(contents).encode()).hexdigest()},
    }
    path = folder / PROGRESS_NAME
    if not path.exists():
        write_file(path, (json.dumps(now, indent=1, sort_keys=True) + "\n").encode())
        return
    remove_temporaries(folder)
    try:
        before = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AlreadyExists(
            f"{path} cannot be read ({error})", hint=f"delete {folder}, then merge"
        ) from error
    if before != now:
        raise AlreadyExists(
            f"{folder} holds an unfinished pack of something else",
            hint=f"repeat that command, name another folder, or delete this one first: rm -r {folder}",
        )


def _settings(folder: Path, packs: Sequence[Pack], prefixes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the whole, and bring the tables of labels along."""
    every = [pack.manifest.settings for pack in packs]
    settings: dict[str, Any] = {
        name: every[0][name]
        for name in ("seed", "shard_bytes", "format", "entries", "map", *RECODE_SETTINGS)
        if name in every[0] and all(other.get(name) == every[0][name] for other in every)
    }
    settings["rejected"] = sum(s.get("rejected", 0) for s in every)
    settings["merged"] = [
        {
            "samples": len(pack),
            **({"prefix": prefix} if prefix else {}),
            "settings": {
                name: pack.manifest.settings[name]
                for name in ("map", *RECODE_SETTINGS)
                if name in pack.manifest.settings
            },
        }
        for pack, prefix in zip(packs, prefixes, strict=True)
    ]
    columns: dict[str, Any] = {}
    for pack in packs:
        columns = {**pack.manifest.settings.get("columns", {}), **columns}
    if columns:
        settings["columns"] = columns
    tables: list[Table] = []
    for pack, prefix in zip(packs, prefixes, strict=True):
        tables += bring_tables(folder, pack, tables, prefix=prefix)
    return {**settings, **({"tables": tables} if tables else {})}
