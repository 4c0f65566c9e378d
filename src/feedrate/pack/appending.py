# SPDX-License-Identifier: Apache-2.0
"""`feedrate append`: new samples of a source become further shards of a pack.

    PACK --pack the source into PACK/appending--> --link its shards into PACK--> --pack.json--> longer PACK

Until pack.json is replaced the pack is what it was. `appending` is an unfinished pack like any other, so a
command that was interrupted goes on there; it is removed last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedrate.errors import FeedrateError, NotFound, SourceError, UsageError
from feedrate.format import containers
from feedrate.format.entries import find_entries
from feedrate.format.fields import Kind
from feedrate.format.manifest import Manifest, read_manifest
from feedrate.format.pack import Pack
from feedrate.pack.arrivals import Arrivals
from feedrate.pack.begun import NothingToPack
from feedrate.pack.changing import changing, write_manifest
from feedrate.pack.files import explain_write_error, explained, remove_folder, sync_folder
from feedrate.pack.mapping import Function, Map, find_map
from feedrate.pack.merging import refuse_equal_keys
from feedrate.pack.options import DEFAULT_SHARD_BYTES, Engine, PackOptions
from feedrate.pack.packing import pack_reader
from feedrate.pack.quality_report import REJECTED_NAME, write_quality
from feedrate.pack.recode import Recode
from feedrate.pack.tables import bring_tables, find_tables
from feedrate.pack.unfinished import PROGRESS_NAME, refuse_nesting, write_file
from feedrate.pack.uniting import Joined, check_default, find_splits, join, link_into
from feedrate.results.change import AppendResult
from feedrate.results.pack import PackResult
from feedrate.results.progress import Rejection, Tick
from feedrate.source.opening import open_reader
from feedrate.source.options import FieldSpec
from feedrate.source.spool import SPOOL_NAME
from feedrate.units import typed

FOLDER_NAME = "appending"


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """Settings of `append`; what else shapes the new shards is as the pack's settings say.

    Attributes:
        fields: further columns of the table; None: those that the pack was made with.
        map: the function that the pack was made with; nothing is imported because a pack names it.
        skip_existing: pass over files that the pack has already, by their paths.
        defaults: values of added columns for the new samples.
    """

    labels: Path | None = None
    path_column: str | None = None
    label_column: str | None = None
    fields: tuple[FieldSpec, ...] | None = None
    map: str | Function | None = None
    skip_existing: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    engine: Engine = field(default_factory=Engine)


def append(
    source: str | os.PathLike[str],
    pack: str | os.PathLike[str],
    options: AppendOptions | None = None,
    *,
    watch: Callable[[Tick], None] = lambda _: None,
) -> AppendResult:
    """Add the samples of a source to a pack, or go on with that where it was interrupted.

    Raises:
        NotFound: the source or the pack is not there.
        SourceError: the source's fields are not the pack's, a file is in the pack already, or nothing is new.
        AlreadyExists: another process is changing the pack, or another append was interrupted.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    options = options or AppendOptions()
    begin = time.monotonic()
    source = os.fspath(source)
    refuse_nesting(source, Path(pack))
    with changing(pack) as opened:
        was_done = _clean_up(opened)
        _check_defaults(opened, options.defaults)
        chosen = _pack_options(source, opened, options)
        with _own_folder(opened.path / FOLDER_NAME) as folder:
            reader = open_reader(source, chosen.source, scratch=os.fspath(folder))
            arrivals = Arrivals(reader, opened, skip=options.skip_existing or was_done)
            result = _append(arrivals, opened, chosen, options.defaults, watch)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin)


@contextlib.contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """Make the folder that new shards are packed into; nothing is left of it when nothing was begun."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise explain_write_error(error, folder) from error
    try:
        yield folder
    finally:
        if not (folder / PROGRESS_NAME).exists():
            with contextlib.suppress(OSError):
                (folder / SPOOL_NAME).unlink(missing_ok=True)
                folder.rmdir()


def _append(
    arrivals: Arrivals,
    pack: Pack,
    options: PackOptions,
    defaults: Mapping[str, str],
    watch: Callable[[Tick], None],
) -> AppendResult:
    folder = pack.path / FOLDER_NAME
    try:
        packed = pack_reader(arrivals, folder, options, watch)
    except NothingToPack as error:
        if arrivals.skipped:
            return _nothing_new(arrivals, pack, error.rejected)
        raise
    with explained(pack.path):
        with contextlib.closing(Pack(folder)) as new:
            refuse_equal_keys([pack, new], ["", ""])
            joined = [Joined(pack), Joined(new, "", link_into(pack.path, or_move=True), defaults)]
            manifest, unassigned = join(pack.path, joined, _settings(pack, new))
            if packed.rejected:
                _add_rejections(pack, folder)
        sync_folder(pack.path)
        write_manifest(pack.path, manifest)
        write_quality(pack.path)
        remove_folder(folder)
    return _summarise(arrivals, pack, manifest, packed, unassigned)


def _pack_options(source: str, pack: Pack, options: AppendOptions) -> PackOptions:
    manifest, settings = pack.manifest, pack.manifest.settings
    specs = options.fields
    if specs is None:
        specs = tuple(FieldSpec.parse(text) for text in settings.get("fields", ())) if options.labels else ()
    container = manifest.shards[0].container if manifest.shards else "tar"
    return PackOptions(
        labels=options.labels,
        path_column=options.path_column,
        label_column=options.label_column,
        fields=specs,
        seed=settings.get("seed", 0),
        shard_bytes=settings.get("shard_bytes", DEFAULT_SHARD_BYTES),
        workers=options.workers,
        engine=options.engine,
        recode=Recode.from_settings(settings),
        scan=settings.get("scan", True),
        entries=find_entries(settings),
        container=container if container in containers.NAMES else "tar",
        map=_find_map(source, pack, options.map),
    )


def _find_map(source: str, pack: Pack, wanted: str | Function | None) -> Map | None:
    made_with = pack.manifest.settings.get("map")
    if not isinstance(made_with, dict):
        if wanted is not None:
            raise UsageError("the pack was made without a map, and new samples cannot be made with one")
        return None
    name = str(made_with.get("function"))
    if wanted is None:
        raise UsageError(
            f"{pack.path} was made with a function, {name}, and code is not imported because a pack names it",
            hint="if that is your code: "
            f"feedrate append {typed(source)} {typed(pack.path)} --map {typed(name)}",
        )
    found = find_map(wanted)
    # A module may have another name by now; one function of it is not another.
    if found.name.partition(":")[2] != name.partition(":")[2]:
        raise UsageError(f"{pack.path} was made with {name}, not with {found.name}")
    changed = found.find_change(made_with)
    if changed is not None:
        raise UsageError(
            f"the code of {found.name} is no longer what the pack was made with: {changed} is another",
            hint="new samples must be made by the same code: undo the change, or pack all of them anew",
        )
    return found


def _check_defaults(pack: Pack, defaults: Mapping[str, str]) -> None:
    """Refuse before the work what would be refused after it."""
    added = {f.name: f for f in pack.manifest.added}
    # Numbers that a column stands before come from the source; its texts would, too, but lie in shards.
    stored = {f.name for f in pack.manifest.fields if f.kind is Kind.NUMBER}
    splits = find_splits(pack.manifest)
    for name in defaults:
        if name not in added:
            raise NotFound(
                f"{pack.path} has no added column '{name}'", hint=f"it has: {', '.join(added) or 'none'}"
            )
        check_default(added[name], defaults[name])
    for name, column in added.items():
        if name not in splits and name not in defaults and name not in stored:
            kind = "class" if column.classes is not None else column.kind
            raise SourceError(
                f"new samples would have no value of the column '{name}' ({kind}) of {pack.path}",
                hint=f"give them one: --default {name}=VALUE; 'feedrate add-column --replace' sets all",
            )


def _clean_up(pack: Pack) -> bool:
    """Remove what an append left that was killed after its last step but one; say whether there was one."""
    folder = pack.path / FOLDER_NAME
    try:
        left = read_manifest(folder)
    except FeedrateError:
        return False
    known = [one.get("plan") for one in pack.manifest.settings.get("appended", ())]
    if left.settings.get("plan") not in known:
        return False
    write_quality(pack.path)
    remove_folder(folder)
    return True


def _settings(pack: Pack, new: Pack) -> dict[str, Any]:
    settings, theirs = dict(pack.manifest.settings), new.manifest.settings
    tables = bring_tables(pack.path, new, find_tables(pack.manifest))
    if tables:
        settings["tables"] = [*settings.get("tables", ()), *tables]
    settings["rejected"] = settings.get("rejected", 0) + theirs.get("rejected", 0)
    one = {"samples": len(new), "shards": len(new.manifest.shards), "plan": theirs.get("plan")}
    settings["appended"] = [*settings.get("appended", ()), one]
    return settings


def _add_rejections(pack: Pack, folder: Path) -> None:
    # As many lines as pack.json tells of were there before: more may be from a run that was killed here.
    path = pack.path / REJECTED_NAME
    before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept = before[: int(pack.manifest.settings.get("rejected", 0))]
    write_file(path, b"".join(kept) + (folder / REJECTED_NAME).read_bytes())


def _nothing_new(arrivals: Arrivals, pack: Pack, rejected: tuple[Rejection, ...]) -> AppendResult:
    return AppendResult(
        source=arrivals.root, pack=str(pack.path), samples=len(pack), added=0, skipped=arrivals.skipped,
        shards=0, size_bytes=0, seconds=0.0, new_classes=(), rejected=rejected, unassigned=(),
    )  # fmt: skip


def _summarise(
    arrivals: Arrivals, pack: Pack, manifest: Manifest, packed: PackResult, unassigned: tuple[str, ...]
) -> AppendResult:
    before, after = pack.manifest.field("label"), manifest.field("label")
    old = set(before.classes or ()) if before is not None else set()
    return AppendResult(
        source=arrivals.root,
        pack=str(pack.path),
        samples=manifest.samples,
        added=packed.samples,
        skipped=arrivals.skipped,
        shards=packed.shards,
        size_bytes=packed.size_bytes,
        seconds=0.0,
        new_classes=tuple(c for c in (after.classes or () if after is not None else ()) if c not in old),
        rejected=packed.rejected,
        unassigned=unassigned,
    )
