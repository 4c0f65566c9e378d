# SPDX-License-Identifier: Apache-2.0
"""`feedrate append`: new samples of a source, or those of another pack, come behind the samples of a pack.

    PACK --pack the source into PACK/appending--> --link its shards into PACK--> --pack.json--> longer PACK

Until pack.json is replaced the pack is what it was. `appending` is an unfinished pack like any other, so a
command that was interrupted goes on there; it is removed last. Somebody may delete it instead: a list of the
shards that are linked stands beside them meanwhile, and the next append removes those. Known files are
refused or passed over, keys stay unique, and classes get the pack's numbers. The files of another pack are
named where they lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedrate.errors import FeedrateError, NotFound, SourceError, UsageError
from feedrate.files.atomic import explain_write_error, explained, remove_folder, sync_folder, write_file
from feedrate.format import containers
from feedrate.format.fields import Field, Kind, find_entries, key_of_stem, make_stem
from feedrate.format.manifest import FILE_NAME, Manifest, Shard, read_manifest
from feedrate.format.pack import Pack
from feedrate.packing.build.pack import NothingToPack, pack_reader
from feedrate.packing.build.unfinished import PROGRESS_NAME, check_nesting
from feedrate.packing.change import join, update
from feedrate.packing.check.quality_report import REJECTED_NAME, write_quality
from feedrate.packing.check.verify import measure_file
from feedrate.packing.mapping import Function, Map, find_map
from feedrate.packing.options import DEFAULT_SHARD_BYTES, Engine, PackOptions
from feedrate.packing.recode import Recode, describe_pixels
from feedrate.packing.results import AppendResult, PackResult
from feedrate.packing.tables import bring_tables, find_tables
from feedrate.progress import Rejection, Tick
from feedrate.remote.trust import check_addresses, note_addresses
from feedrate.source.names import hash_name
from feedrate.source.opening import open_reader
from feedrate.source.options import FieldSpec
from feedrate.source.record import SPOOL_NAME, ContainerValue, FileRange, Reader, Record, Value
from feedrate.units import printable, shell_quote


class Arrivals(Reader):
    """A reader of what is new. Holds 16 bytes per sample of the pack.

    Attributes:
        skipped: files that were passed over since the pack has them.
    """

    def __init__(self, reader: Reader, pack: Pack, *, skip: bool) -> None:
        self.root, self.table = reader.root, reader.table
        self.skipped = 0
        self._reader, self._pack, self._skip = reader, pack, skip
        column = update.path_column(pack)
        self._path_field = column.removesuffix(".path") if column else None
        self._paths = _Known(pack.all_texts(column) if column else ())
        self._keys = _Known(pack.all_texts("key"))
        self._classes: dict[str, tuple[str, ...]] = {}

    @property
    def ignored(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._reader.ignored

    @property
    def unlisted(self) -> int:  # type: ignore[override]
        return self._reader.unlisted

    def __iter__(self) -> Iterator[Record | Rejection]:
        self.skipped = 0
        for record in self._reader:
            if isinstance(record, Rejection):
                yield record
                continue
            path = self._path(record)
            if path and path in self._paths:
                if not self._skip:
                    raise SourceError(
                        f"'{printable(path)}' is in {self._pack.path} already",
                        hint="pass over files that the pack has: --skip-existing",
                    )
                self.skipped += 1
                continue
            values = {name: self._translate(name, value) for name, value in record.values.items()}
            yield Record(self._free_name(record.name), values)

    def fields(self) -> tuple[Field, ...]:
        """Return the pack's fields, with the classes that the source brings at the end of each list.

        Raises:
            SourceError: the source's fields are others; names the field and the difference.
        """
        given = {field.name: field for field in self._reader.fields()}
        stored = self._pack.manifest.fields
        if "map" in self._pack.manifest.settings:
            # What the map makes of the source's fields is known when it has run.
            known = {field.name: field for field in stored if field.classes is not None}
            return tuple(self._fit(known.get(name, field), field) for name, field in given.items())
        missing = next((field for field in stored if field.name not in given), None)
        if missing is not None:
            raise SourceError(
                f"{self._pack.path} has a field '{missing.name}' ({missing.kind}), and {self.root} has not",
                hint="samples of a pack have the same fields; --labels and --field name columns of a table",
            )
        extra = next((name for name in given if name not in {field.name for field in stored}), None)
        if extra is not None:
            raise SourceError(
                f"{self.root} has a field '{extra}' ({given[extra].kind}), and {self._pack.path} has not"
            )
        return tuple(self._fit(field, given[field.name]) for field in stored)

    def _fit(self, field: Field, given: Field) -> Field:
        there, here = f"in {self._pack.path}", f"in {self.root}"
        if field.kind != given.kind:
            raise SourceError(f"field '{field.name}' is {field.kind} {there}, and {given.kind} {here}")
        if field.kind is not Kind.NUMBER:
            if field.classes != given.classes:
                theirs, ours = (", ".join(one.classes or ()) for one in (field, given))
                raise SourceError(
                    f"the classes of field '{field.name}' are {theirs} {there}, and {ours} {here}",
                    hint="an array has a place for each class: append takes the same classes; "
                    "with others, pack all of it anew",
                )
            return given
        if (field.classes is None) != (given.classes is None):
            words = ("a class", "a plain number")
            first, second = words if field.classes is not None else words[::-1]
            raise SourceError(f"field '{field.name}' is {first} {there}, and {second} {here}")
        if field.dtype == "int64" and given.dtype == "float64":
            raise SourceError(f"field '{field.name}' is made of whole numbers {there}, and not {here}")
        if field.classes is None:
            return dataclasses.replace(given, dtype=field.dtype)
        known = set(field.classes)
        new = [name for name in given.classes or () if name not in known]
        return dataclasses.replace(given, classes=(*field.classes, *new))

    def _path(self, record: Record) -> bytes:
        value = record.values.get(self._path_field) if self._path_field else None
        return value.path if isinstance(value, (FileRange, ContainerValue)) else b""

    def _translate(self, name: str, value: Value) -> Value:
        """Give a class by its name, since its number is the source's; what was listed last knows numbers."""
        field = self._pack.manifest.field(name)
        if field is None or isinstance(value, (str, bytes, FileRange, ContainerValue)):
            return value
        if field.classes is None:
            return float(value) if field.dtype == "float64" else value
        number = int(value)
        if number >= len(self._classes.get(name, ())):
            self._classes |= {f.name: f.classes for f in self._reader.fields() if f.classes is not None}
        names = self._classes.get(name, ())
        return names[number] if number < len(names) else value

    def _free_name(self, name: bytes) -> bytes:
        stem, suffix = os.path.splitext(name)
        free, number = name, 1
        while key_of_stem(make_stem(free)).encode() in self._keys:
            number += 1
            free = b"%b~%d%b" % (stem, number, suffix)
        return free


class _Known:
    """Many names, of which only hashes are held: 8 bytes each."""

    def __init__(self, names: Iterator[bytes] | tuple[()]) -> None:
        self._hashes = np.sort(np.fromiter((hash_name(name) for name in names), np.uint64))

    def __contains__(self, name: bytes) -> bool:
        wanted = np.uint64(hash_name(name))
        at = int(np.searchsorted(self._hashes, wanted))
        return at < len(self._hashes) and bool(self._hashes[at] == wanted)


FOLDER_NAME = "appending"
_LINKED_NAME = ".appending.links"
_LINKED = re.compile(r"^(shard-[0-9]+\.[a-z0-9]+) ([0-9]+) ([0-9a-f]{8})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """Settings of `append`; what else shapes the new shards is as the pack's settings say.

    Attributes:
        fields: further columns of the table; None: those that the pack was made with.
        map: the function that the pack was made with; nothing is imported because a pack names it.
        skip_existing: pass over files that the pack has already, by their paths.
        defaults: values of added columns for the new samples.
        prefix: of another pack: goes before its keys and original paths.
        allow_addresses: where files may be that another pack names and that this user did not index.
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
    prefix: str = ""
    allow_addresses: tuple[str, ...] = ()


def append(
    source: str | os.PathLike[str],
    pack: str | os.PathLike[str],
    options: AppendOptions | None = None,
    *,
    watch: Callable[[Tick], None] = lambda _: None,
) -> AppendResult:
    """Add the samples of a source to a pack, or go on with that where it was interrupted.

    Args:
        source: what `pack` takes; or another pack, whose files stay where they are.

    Raises:
        NotFound: the source or the pack is not there.
        SourceError: the source's fields are not the pack's, a file is in the pack already, or nothing is new.
        PackError: another pack names files of a host that is not allowed.
        AlreadyExists: another process is changing the pack, or another append was interrupted.
        StorageError: the disk is full or failed; run the same again to go on.
    """
    options = options or AppendOptions()
    begin = time.monotonic()
    source = os.fspath(source)
    is_pack = _refuse_swapped(source, os.fspath(pack))
    if is_pack:
        _refuse_options_of_sources(source, options)
    elif options.prefix:
        raise UsageError(f"--prefix goes before the keys of a pack, and {source} is none")
    check_nesting(source, Path(pack))
    with update.changing(pack) as opened:
        with explained(opened.path):
            was_done = _clean_up(opened)
        if is_pack:
            with contextlib.closing(Pack(source)) as other:
                result = _append_pack(opened, other, options)
        else:
            _check_defaults(opened, None, options.defaults)
            chosen = _pack_options(source, opened, options)
            with _own_folder(opened.path / FOLDER_NAME) as folder:
                reader = open_reader(source, chosen, scratch=os.fspath(folder))
                arrivals = Arrivals(reader, opened, skip=options.skip_existing or was_done)
                result = _append(arrivals, opened, chosen, options.defaults, watch)
    return dataclasses.replace(result, source=source, seconds=time.monotonic() - begin)


def _refuse_swapped(source: str, pack: str) -> bool:
    """Return whether the source is a pack, too."""
    is_pack, is_source_pack = (os.path.exists(os.path.join(path, FILE_NAME)) for path in (pack, source))
    if is_source_pack and not is_pack and os.path.exists(pack):
        raise UsageError(
            f"{pack} is not a pack, and {source} is: the source comes first, then the pack",
            hint=f"feedrate append {shell_quote(pack)} {shell_quote(source)}",
        )
    if not is_source_pack:
        return False
    # An index in the folder that it describes only says what is beside it: that is a source like any other.
    shards = read_manifest(source).shards
    is_beside = [s.is_in_place and not s.is_remote and not s.folder.startswith("..") for s in shards]
    return not shards or not all(is_beside)


def _refuse_options_of_sources(source: str, options: AppendOptions) -> None:
    meant = AppendOptions(
        defaults=options.defaults, prefix=options.prefix, allow_addresses=options.allow_addresses
    )
    if options != meant:
        raise UsageError(
            f"{source} is a pack, whose samples have their labels and stay where they are",
            hint="to append a pack there are --prefix, --default and --allow-address",
        )
    if options.prefix and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", options.prefix):
        raise UsageError(
            f"'{options.prefix}' cannot stand before keys", hint="a prefix is made of letters and digits"
        )


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
        if not arrivals.skipped:
            raise
        nothing = _summarise(arrivals.root, pack, pack.manifest, (), skipped=arrivals.skipped)
        return dataclasses.replace(nothing, rejected=error.rejected, refers=False)
    with contextlib.closing(Pack(folder)) as new:
        joined = join.Joined(new, join.link_into(pack.path), defaults=defaults)
        join.refuse_equal_keys(pack, joined)
        with explained(pack.path):
            _note_links(pack, new.manifest)
            manifest, unassigned = _join(pack, joined)
            (pack.path / _LINKED_NAME).unlink()
            write_quality(pack.path)
            remove_folder(folder)
    return _summarise(arrivals.root, pack, manifest, unassigned, packed, skipped=arrivals.skipped)


def _append_pack(pack: Pack, other: Pack, options: AppendOptions) -> AppendResult:
    check_addresses(other.name, other.manifest, options.allow_addresses)
    if _is_last(pack, other, options.prefix):
        write_quality(pack.path)  # whoever appended it may have been killed before this
        return _summarise(str(other.path), pack, pack.manifest, (), skipped=len(other))
    _refuse_unlike(pack, other)
    _check_defaults(pack, other, options.defaults)
    joined = join.Joined(other, join.refer_from(pack.path), options.prefix, options.defaults)
    join.refuse_equal_keys(pack, joined)
    with explained(pack.path):
        manifest, unassigned = _join(pack, joined)
        note_addresses(manifest)  # all were allowed; where it fails, the loader shows the line to type
        write_quality(pack.path)
    return _summarise(str(other.path), pack, manifest, unassigned)


def _is_last(pack: Pack, other: Pack, prefix: str) -> bool:
    def name(owner: Pack, shard: Shard, before: str) -> tuple[str, str]:
        return os.path.realpath(owner.locate_file(shard.index)), "/".join(
            filter(None, (before, shard.prefix))
        )

    theirs = [name(other, shard, prefix) for shard in other.manifest.shards]
    last = pack.manifest.shards[-len(theirs) :] if theirs else ()
    return bool(theirs) and [name(pack, shard, "") for shard in last] == theirs


def _refuse_unlike(pack: Pack, other: Pack) -> None:
    """Refuse a pack whose numbers of classes, pixels or entry points are not those of this one."""
    pixels, others = (describe_pixels(p.manifest.settings) or "unchanged" for p in (pack, other))
    if pixels != others:
        raise SourceError(
            f"samples of {pack.path} are {pixels}, and those of {other.path} are {others}",
            hint="append the files that it was packed from, which are then stored alike: "
            f"feedrate append SOURCE {shell_quote(pack.path)}",
        )
    fields = {f.name: f for f in pack.fields}
    join.unite_fields(pack, other)
    for one in other.fields:
        if one.classes != fields[one.name].classes:
            ours, theirs = (f.classes or () for f in (fields[one.name], one))
            number, *_ = (n for n, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b)
            first, second = (repr(c[number]) if number < len(c) else "no class" for c in (ours, theirs))
            raise SourceError(
                f"the classes of '{one.name}' are {_name_few(ours)} in {pack.path}, "
                f"and {_name_few(theirs)} in {other.path}: "
                f"number {number} is {first} in the one, and {second} in the other",
                hint="append the files that it was packed from, of which new classes come to the end of the "
                f"list: feedrate append SOURCE {shell_quote(pack.path)}",
            )
    scanned = {p.path: p.manifest.settings.get("scan", True) for p in (pack, other)}
    if len(set(scanned.values())) > 1:
        (without,) = (path for path, is_scanned in scanned.items() if not is_scanned)
        raise SourceError(
            f"images of {without} have no entry points, and those of the other pack have",
            hint=f"find them first: feedrate index {shell_quote(without)} --entries auto",
        )


def _name_few(classes: Sequence[str]) -> str:
    return ", ".join(classes[:8]) + (f", ... ({len(classes):,})" if len(classes) > 8 else "")


def _join(pack: Pack, joined: join.Joined) -> tuple[Manifest, tuple[str, ...]]:
    """Bring the other's files, rejections and tables into the pack, then replace pack.json."""
    manifest, unassigned = join.join(pack, joined, _settings(pack, joined))
    more = joined.pack.path / REJECTED_NAME
    if more.exists():
        # As many lines as pack.json tells of were there before: more may be of a run that was killed.
        path, known = pack.path / REJECTED_NAME, int(pack.manifest.settings.get("rejected", 0))
        before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        write_file(path, b"".join(before[:known]) + more.read_bytes())
    sync_folder(pack.path)
    update.write_manifest(pack.path, manifest)
    return manifest, unassigned


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
        label_separator=settings.get("label_separator") if options.labels else None,
        empty_label=settings.get("empty_label") if options.labels else None,
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
            f"feedrate append {shell_quote(source)} {shell_quote(pack.path)} --map {shell_quote(name)}",
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


def _check_defaults(pack: Pack, other: Pack | None, defaults: Mapping[str, str]) -> None:
    """Refuse before the work what would be refused after it. `other`: the pack that comes; None: a source."""
    added = {f.name: f for f in pack.manifest.added}
    # Numbers that a column stands before come from the source; its texts would, too, but are in shards.
    stored = {f.name: f for f in pack.manifest.fields if f.kind is Kind.NUMBER}
    have = {f.name for f in other.manifest.added} if other is not None else set()
    have |= {name for name, column in added.items() if name in stored and stored[name].dtype == column.dtype}
    may_lack = join.find_splits(pack.manifest)
    for name in defaults:
        if name not in added:
            raise NotFound(
                f"{pack.path} has no added column '{name}'", hint=f"it has: {', '.join(added) or 'none'}"
            )
        join.fill(added[name], defaults[name], 1)
    for name, column in added.items():
        if name not in may_lack and name not in defaults and name not in have:
            kind = "class" if column.classes is not None else column.kind
            raise SourceError(
                f"new samples would have no value of the column '{name}' ({kind}) of {pack.path}",
                hint=f"give them one: --default {name}=VALUE; 'feedrate add-column --replace' sets all",
            )


def _note_links(pack: Pack, new: Manifest) -> None:
    """Write down the files that come into the pack, so that they can be told from a user's own."""
    lines = []
    for number, shard in enumerate(new.shards, join.next_shard(pack.manifest)):
        for file in (shard, shard.index):
            name = f"shard-{number:05d}{Path(file.name).suffix}"
            lines.append(f"{name} {file.size_bytes} {file.crc32c:08x}\n")
    write_file(pack.path / _LINKED_NAME, "".join(lines).encode())


def _remove_links(pack: Pack) -> None:
    """Remove shards of an append that was killed before pack.json named them; it may have been given up."""
    path = pack.path / _LINKED_NAME
    if not path.exists():
        return
    named = {file.name for shard in pack.manifest.shards for file in (shard, shard.index) if not file.folder}
    for name, size_bytes, crc32c in _LINKED.findall(path.read_text(errors="replace")):
        linked = pack.path / name
        if name in named or linked.is_symlink() or not linked.is_file():
            continue
        if measure_file(linked) == (int(size_bytes), int(crc32c, 16)):
            linked.unlink()
    path.unlink()


def _clean_up(pack: Pack) -> bool:
    """Remove what appends left that were killed; say whether one had come as far as its last step but one."""
    _remove_links(pack)
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


def _settings(pack: Pack, joined: join.Joined) -> dict[str, Any]:
    settings, new = dict(pack.manifest.settings), joined.pack
    tables = bring_tables(pack.path, new, find_tables(pack.manifest), prefix=joined.prefix)
    if tables:
        settings["tables"] = [*settings.get("tables", ()), *tables]
    theirs = new.manifest.settings
    settings["rejected"] = settings.get("rejected", 0) + theirs.get("rejected", 0)
    one = {"samples": len(new), "shards": len(new.manifest.shards), "plan": theirs.get("plan")}
    settings["appended"] = [*settings.get("appended", ()), one]
    return settings


def _summarise(
    source: str,
    pack: Pack,
    manifest: Manifest,
    unassigned: tuple[str, ...],
    packed: PackResult | None = None,
    *,
    skipped: int = 0,
) -> AppendResult:
    before, after = pack.manifest.field("label"), manifest.field("label")
    old = set(before.classes or ()) if before is not None else set()
    new = manifest.shards[len(pack.manifest.shards) :]
    return AppendResult(
        source=source,
        pack=str(pack.path),
        samples=manifest.samples,
        added=manifest.samples - len(pack),
        skipped=skipped,
        shards=len(new),
        size_bytes=sum(shard.size_bytes + shard.index.size_bytes for shard in new),
        seconds=0.0,
        new_classes=tuple(c for c in (after.classes or () if after is not None else ()) if c not in old),
        rejected=() if packed is None else packed.rejected,
        unassigned=unassigned,
        refers=packed is None,
    )
