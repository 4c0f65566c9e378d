# SPDX-License-Identifier: Apache-2.0
"""`feedrate merge`: several packs become one that names the files of all of them; nothing is copied."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import AlreadyExists, SourceError, UsageError
from feedrate.files.atomic import explained, remove_temporaries, sync_folder
from feedrate.format.manifest import (
    FILE_NAME,
    Manifest,
    digest_manifest,
    dump_manifest,
    file_path,
    read_manifest,
)
from feedrate.format.pack import Pack
from feedrate.kernel import I64
from feedrate.packing.build.unfinished import PROGRESS_NAME, check_foreign, own_folder, write_file
from feedrate.packing.change.manifest_union import (
    Joined,
    check_missing_values,
    find_splits,
    join,
    link_into,
    refer_from,
    unite_fields,
)
from feedrate.packing.change.update import write_manifest
from feedrate.packing.check.quality_report import REJECTED_NAME, write_quality
from feedrate.packing.recode import RECODE_SETTINGS
from feedrate.packing.results import MergedPack, MergeResult
from feedrate.packing.tables import Table, bring_tables
from feedrate.remote.sources import check_addresses
from feedrate.units import format_count, printable


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Settings of `merge`.

    Attributes:
        prefix: keys and original paths of each pack begin with its name: that of its folder, without '.pack'.
        refer: name the files by their paths even where they could be linked.
        allow_addresses: where files may lie that a pack names which somebody else may have made.
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
    settings = _settings(folder, packs, prefixes)
    manifest, unassigned = join(folder, joined, settings)
    _join_rejections(folder, packs)
    sync_folder(folder)
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


def _join_rejections(folder: Path, packs: Sequence[Pack]) -> None:
    files = [pack.path / REJECTED_NAME for pack in packs]
    data = b"".join(file.read_bytes() for file in files if file.exists())
    if data:
        write_file(folder / REJECTED_NAME, data)


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
    hashes = [_hash_keys(pack) for pack in packs]
    whole = np.sort(np.concatenate(hashes))
    repeated = np.unique(whole[1:][whole[1:] == whole[:-1]])
    if not repeated.size:
        return
    seen: dict[bytes, Pack] = {}
    both: list[tuple[bytes, Pack, Pack]] = []
    for pack, found in zip(packs, hashes, strict=True):
        for key in _keys_at(pack, np.flatnonzero(np.isin(found, repeated))):
            if key in seen:
                both.append((key, seen[key], pack))
            seen[key] = pack
    if both:
        key, one, other = both[0]
        raise SourceError(
            f"{len(both):,} keys stand in two packs: '{printable(key)}' in {one.path} and {other.path}",
            hint="put the packs' names before their keys: --prefix",
        )


def _hash_keys(pack: Pack) -> np.ndarray[Any, np.dtype[np.uint64]]:
    found = np.empty(len(pack), np.uint64)
    for place, key in enumerate(pack.all_texts("key")):
        found[place] = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return found


def _keys_at(pack: Pack, positions: I64) -> Iterator[bytes]:
    for start in range(0, len(positions), 65536):
        yield from pack.texts("key", positions[start : start + 65536])


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
            "settings": _pixel_settings(pack.manifest),
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


def _pixel_settings(manifest: Manifest) -> dict[str, Any]:
    names = ("map", *RECODE_SETTINGS)
    return {name: manifest.settings[name] for name in names if name in manifest.settings}
