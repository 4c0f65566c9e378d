# SPDX-License-Identifier: Apache-2.0
"""What a source holds that is to be copied: the files of a pack, of a folder, or a single file.

A pack whose files are in several folders becomes one that is in one: its pack.json is written anew, and the
source's is kept beside it as source-pack.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from feedrate import kernel
from feedrate.errors import FeedrateError, NotFound, PackError, SourceError, StorageError, suggest_path
from feedrate.files.permissions import Readers
from feedrate.files.tree import ask_ahead, walk_paths
from feedrate.format.containers import FILES
from feedrate.format.manifest import (
    FILE_NAME,
    Manifest,
    PackFile,
    Shard,
    dump_manifest,
    is_pack,
)
from feedrate.remote.addresses import Place, PlacedFile, is_address, is_url, split_source
from feedrate.remote.fetch import fetch_manifest
from feedrate.remote.retry import Retry
from feedrate.remote.transfer import Told
from feedrate.remote.trust import check_addresses
from feedrate.scratch.marker import CopiedFile, Marker, check_name
from feedrate.units import printable, shell_quote

ORIGINAL_NAME = "source-pack.json"
_EXTRAS = ("quality.json", "rejected.jsonl")

File = TypeVar("File", bound=PackFile)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a source holds.

    Attributes:
        marker: what the copy's copy.json will say, but for who made it and when.
        known: files whose bytes are known already.
        versions: of plain files, where the source tells them instead of times.
        small: what is needed before the first sample: pack.json and the index; () for plain files.
        left_out: hidden files, which are not copied.
    """

    marker: Marker
    known: Mapping[str, bytes]
    small: tuple[str, ...] = ()
    left_out: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)  # each connects once

    def locate(self, file: CopiedFile) -> tuple[Place, bytes]:
        """Return where a file is read from."""
        root, name = self.marker.source, file.source_name
        if is_address(name):  # an index names files that are elsewhere
            root, base = split_source(name)
            return self._places.setdefault(root, Place(root)), base
        if is_url(root):  # storages know no '..'
            while name.startswith("../"):
                root, name = posixpath.dirname(root.rstrip("/")), name.removeprefix("../")
        place = self._places.get(root) or self._places.setdefault(root, Place(root, asks_once=True))
        return place, os.fsencode(name)

    def address(self, file: CopiedFile) -> str:
        """Return what the user would call a file of the source."""
        place, name = self.locate(file)
        return place.address(name)


def read_contents(
    source: str | os.PathLike[str], attempts: Retry | None = None, allow_addresses: Sequence[str] = ()
) -> Contents:
    """Look at a source: what is to be copied, and who may read it.

    Args:
        attempts: how often a source behind an address is asked; None: as often as for its files.
        allow_addresses: where files may be that a pack names and that this user did not index.

    Raises:
        NotFound: there is nothing of that name, or a pack lacks one of its files.
        PackError: it is a pack that is damaged, or names files of a host that is not allowed.
        SourceError: it cannot be copied as it is.
    """
    address = os.fspath(source)
    for scheme in ("file://", "local://"):
        address = address.removeprefix(scheme)
    if is_url(address):
        address = address.rstrip("/") if "::" not in address else address
        attempts = attempts or Retry(Told(lambda _: None), address)
        return attempts.run(lambda: _read_remote(address, allow_addresses))
    if not os.path.exists(address):
        raise NotFound(f"no pack, folder or file at {address}", hint=suggest_path(address))
    real = os.path.realpath(address)
    if not os.path.isdir(real):
        return _read_single(Place(os.path.dirname(real)), os.fsencode(os.path.basename(real)))
    return _read_pack(Place(real), allow_addresses) if is_pack(real) else _read_folder(Place(real))


def _read_remote(address: str, allow_addresses: Sequence[str]) -> Contents:
    place = Place(address)
    place.forget_listings()  # fsspec remembers what lay there when this process looked last
    try:
        has_manifest = place.find(FILE_NAME.encode(), suggest=False) is not None
    except NotFound:
        has_manifest = False
    if has_manifest:
        return _read_pack(place, allow_addresses)
    if place.find(suggest=False) is None:
        return _read_folder(place)
    folder, name = split_source(address)
    return _read_single(Place(folder), name)


def _read_single(place: Place, name: bytes) -> Contents:
    found = place.find(name)
    assert found is not None
    file, versions = _copied(place, found), _list_versions([found])
    readers = Readers()
    if place.is_remote:
        readers.close()
    else:
        readers.add(os.path.join(os.fsencode(place.root), name))
    digest = _digest_files(place.root, [file], versions)
    marker = Marker("files", place.root, digest, (file,), file.name, readers.is_public)
    return Contents(marker, {}, versions=versions)


def _read_folder(place: Place) -> Contents:
    readers = Readers()
    left_out = 0
    if place.is_remote:
        readers.close()
        found = list(place.walk())
    else:
        found, entries = [], list(walk_paths(os.fsencode(place.root), enters_links=True))
        ask_ahead([entry for _, entry in entries])
        for path, entry in entries:
            if entry.name.startswith(b"."):
                left_out += 1
                continue
            try:
                if entry.is_file():
                    info = entry.stat()
                    readers.add(entry.path, info, is_link=entry.is_symlink())
                    found.append(PlacedFile(path, info.st_size, info.st_mtime_ns))
                elif entry.is_symlink():
                    raise StorageError(f"{printable(entry.path)} is a link that leads nowhere")
            except OSError as error:
                if isinstance(error, StorageError):
                    raise
                folder = printable(os.path.dirname(entry.path))
                raise StorageError(f"cannot list {folder}: {error.strerror}") from error
    files = tuple(_copied(place, file) for file in found)
    if not files:
        raise SourceError(f"{place.root} holds no files", hint="hidden files are not copied")
    versions = _list_versions(found)
    digest = _digest_files(place.root, files, versions)
    marker = Marker("files", place.root, digest, files, is_public=readers.is_public)
    return Contents(marker, {}, left_out=left_out, versions=versions)


def _copied(place: Place, file: PlacedFile) -> CopiedFile:
    try:
        name = check_name(os.fsdecode(file.path))
    except ValueError:
        raise SourceError(f"{place.address(file.path)}: a file of that name cannot be copied") from None
    return CopiedFile(name, file.size_bytes, None, file.mtime_ns)


def _list_versions(files: Iterable[PlacedFile]) -> dict[str, str]:
    return {os.fsdecode(file.path): file.version for file in files if file.version}


def _digest_files(address: str, files: Iterable[CopiedFile], versions: Mapping[str, str]) -> str:
    digest = hashlib.sha256(os.fsencode(address) + b"\0files\0")
    for file in files:
        digest.update(b"%s\0%d %d\n" % (os.fsencode(file.name), file.size_bytes, file.mtime_ns))
        digest.update(os.fsencode(versions.get(file.name, "")))
    return digest.hexdigest()


def _read_pack(place: Place, allow_addresses: Sequence[str]) -> Contents:
    text, manifest = fetch_manifest(place)
    check_addresses(place.root, manifest, allow_addresses)
    loose = next((shard for shard in manifest.shards if shard.container == FILES), None)
    if loose is not None:
        raise SourceError(
            f"{place.root} is an index of single files, which would be copied one by one",
            hint="make a pack of them, then stage that: feedrate pack SOURCE PACK",
        )
    gathered, origins = _gather(manifest, place)
    known = {FILE_NAME: text}
    small = [CopiedFile(FILE_NAME, len(text), kernel.crc32c(text))]
    if gathered != manifest:
        written = dump_manifest(gathered)
        known = {FILE_NAME: written, ORIGINAL_NAME: text}
        small = [
            CopiedFile(FILE_NAME, len(written), kernel.crc32c(written), origin=""),
            CopiedFile(ORIGINAL_NAME, len(text), kernel.crc32c(text), origin=FILE_NAME),
        ]
    small += [_pack_file(shard.index, origins) for shard in gathered.shards]
    small += [_pack_file(part, origins) for part in gathered.parts]
    shards = [_pack_file(shard, origins) for shard in gathered.shards]
    look = _Look(place)
    # By name: several shards may be in one file.
    files = {file.name: look.check(file) for file in [*small, *shards]}
    for name in _list_extras(manifest):
        files |= {file.name: file for file in look.find_extra(name) if file.name not in files}
    digest = hashlib.sha256(os.fsencode(place.root) + b"\0pack\0" + text).hexdigest()
    marker = Marker("pack", place.root, digest, tuple(files.values()), is_public=look.readers.is_public)
    return Contents(marker, known, tuple(dict.fromkeys(file.name for file in small)))


def _gather(manifest: Manifest, place: Place) -> tuple[Manifest, dict[tuple[str, str], str]]:
    """Return the manifest of the same pack in one folder, and its files' origins, by folder and name."""
    folders: dict[str, str] = {}
    origins: dict[tuple[str, str], str] = {}

    def move(file: File) -> File:
        folder = folders.get(file.folder)
        if folder is None:
            is_inside = not is_address(file.folder) and not any(
                part.startswith(".") for part in file.folder.split("/")
            )
            folder = folders[file.folder] = file.folder if is_inside else f"from-{len(folders)}"
        try:
            check_name(f"{folder}/{file.name}" if folder else file.name)
        except ValueError:
            raise SourceError(
                f"{place.root} has a file {file.folder}/{file.name}, and copies have no hidden files",
                hint="give it another name, and index it again: feedrate index",
            ) from None
        if "::" in place.root and file.folder.startswith(".."):
            raise SourceError(f"{place.root} names files outside of itself: {file.folder}/{file.name}")
        origin = posixpath.join(file.folder, file.name)
        if origins.setdefault((folder, file.name), origin) != origin:
            raise SourceError(f"{place.root} has two files that would both become {folder}/{file.name}")
        return dataclasses.replace(file, folder=folder)

    shards = tuple(dataclasses.replace(move(shard), index=move(shard.index)) for shard in manifest.shards)
    gathered = dataclasses.replace(manifest, shards=shards, parts=tuple(map(move, manifest.parts)))
    return gathered, origins


def _pack_file(file: PackFile, origins: Mapping[tuple[str, str], str]) -> CopiedFile:
    name, origin = posixpath.join(file.folder, file.name), origins[file.folder, file.name]
    # A file that was indexed where it is has no checksum as a whole.
    crc32c = None if isinstance(file, Shard) and file.is_in_place else file.crc32c
    return CopiedFile(name, file.size_bytes, crc32c, 0, None if origin == name else origin)


def _list_extras(manifest: Manifest) -> list[str]:
    """Return the names of what may be beside the shards, and is not needed to read them."""
    more = manifest.settings.get("tables")
    tables = [manifest.settings.get("labels"), *(more if isinstance(more, list) else [])]
    names = [str(table.get("name")) for table in tables if isinstance(table, dict)]
    return [*_EXTRAS, *(name for name in names if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name))]


class _Look:
    """Looks at the files of a pack, one by one: there, of the right size, and for whom?"""

    def __init__(self, place: Place) -> None:
        self.readers = Readers()
        self._place = place
        self._listed = {place.root: self._list(place)} if place.is_remote else {}

    def _list(self, place: Place) -> dict[str, PlacedFile]:
        self.readers.close()
        with contextlib.suppress(FeedrateError):  # web servers often list nothing
            place.forget_listings()
            return {os.fsdecode(n): file for n, file in place.list(b"") if file is not None}
        return {}

    def check(self, file: CopiedFile) -> CopiedFile:
        """Return the file with its time of change, where the source tells it."""
        if not file.source_name:
            return file
        size_bytes, mtime_ns = self._find(file.source_name)
        name = file.source_name
        address = name if is_address(name) else self._place.address(os.fsencode(name))
        if size_bytes is None:
            raise NotFound(f"the pack lacks one of its files: {address}", hint="pack its source again")
        if file.name not in (FILE_NAME, ORIGINAL_NAME) and size_bytes not in (-1, file.size_bytes):
            raise PackError(
                f"{address} has {size_bytes:,} bytes, and pack.json says {file.size_bytes:,}",
                hint=f"feedrate verify {shell_quote(self._place.root)}",
            )
        return dataclasses.replace(file, mtime_ns=mtime_ns)

    def find_extra(self, name: str) -> list[CopiedFile]:
        size_bytes, mtime_ns = self._find(name)
        return [] if size_bytes in (None, -1) else [CopiedFile(name, int(size_bytes or 0), None, mtime_ns)]

    def _find(self, name: str) -> tuple[int | None, int]:
        """Return size and time of change; -1: the server does not tell; None: there is no such file."""
        root = self._place.root
        if is_address(name):
            root, base = split_source(name)
            name = os.fsdecode(base)
        if is_url(root):
            if root not in self._listed:
                self._listed[root] = self._list(Place(root))
            listed = self._listed[root]
            if name in listed:
                return listed[name].size_bytes, listed[name].mtime_ns
            return (None if listed and "/" not in name else -1), 0
        path = os.path.join(self._place.root, name)
        try:
            info = os.stat(path)
        except OSError:
            return None, 0
        self.readers.add(path, info)
        return info.st_size, info.st_mtime_ns
