# SPDX-License-Identifier: Apache-2.0
"""pack.json: what a pack holds. It carries no time and no host, so that equal inputs give equal bytes.

Version 2 is written only where something of it is used: files that are in other folders, keys and numbers
that are shifted, columns that were added (docs/format.md); version 3 where shards are behind an address.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from feedrate import documents
from feedrate.documents import Stored
from feedrate.errors import NotFound, PackError, suggest_path
from feedrate.format import containers
from feedrate.format.fields import AUTO, Coding, Field, Kind, find_entries
from feedrate.units import shell_quote


def is_pack(source: str | os.PathLike[str]) -> bool:
    """Return whether this is a pack.

    Raises:
        NotFound: it is one that was never finished.
    """
    folder = Path(source)
    if (folder / FILE_NAME).exists():
        return True
    if folder.is_dir() and is_unfinished(folder):
        read_manifest(folder)
    return False


FORMAT = "feedrate-pack"
VERSION = 3
FILE_NAME = "pack.json"
PROGRESS_NAME = "packing.json"  # beside what is unfinished
# The end of pack.json: the SHA-256 of the file without this entry. By its place and shape, so that damage to
# the entry's own name is seen, too; before there was one, a pack.json ended in a list.
_DIGEST = re.compile(rb',\n "([^"]{6})": "([^"]{64})"\n}\n\Z')
# No chains (zip://...::https://...), no control characters; `where` ends in no slash.
_ADDRESS = re.compile(
    r"[a-zA-Z][a-zA-Z0-9+.-]*://(?P<who>[^/@]*@)?(?!.*::)(?P<where>[^/\x00-\x20@][^\x00-\x1f]*(?<!/))"
)
# What a column that is added later can be: what fits into an index.
ADDABLE_KINDS = (Kind.NUMBER, Kind.TEXT, Kind.JSON)


def plain_name(name: object) -> str:
    """Refuse a name that could reach outside the pack's folder: a manifest may come from a stranger."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", name):
        raise ValueError(f"{name!r} is not a plain file name")
    return name


def _folder(text: object) -> str:
    """Return a relative folder as it stands in pack.json: '', 'a/b', '../a'."""
    if not isinstance(text, str) or "\0" in text or len(text) > 4096:
        raise ValueError(f"{text!r} is not a folder")
    parts = text.split("/")
    while parts[:1] == [".."]:
        parts = parts[1:]
    if text and parts and not all(part not in ("", ".", "..") for part in parts):
        raise ValueError(f"{text!r} is not a relative folder")
    return text


def find_address_problem(address: str) -> str | None:
    """Return why an address must not stand in pack.json, in words that repeat no secret; None: it may."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return "is not of the form SCHEME://PLACE/FOLDER"
    _, _, port = match["where"].partition("/")[0].partition(":")
    if ":" in (match["who"] or "") or not (port.isdecimal() or not port):
        return "has a password in it"
    if "?" in match["where"] or "#" in match["where"]:
        return "has a query behind '?', as signed addresses have"
    if any(part in (".", "..") for part in match["where"].split("/")):
        return "has '..' in it"
    return None


def _any_folder(text: object) -> str:
    """Files that were there before may be behind an address."""
    if isinstance(text, str) and "://" in text:
        problem = find_address_problem(text)
        if problem is not None:
            raise ValueError(f"an address that {problem}")
        return text
    return _folder(text)


def _prefix(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a prefix of keys")  # noqa: TRY004 - damage, like the others
    return "/".join(plain_name(part) for part in text.split("/")) if text else ""


def _any_name(name: object) -> str:
    """Files that were there before may be called anything; it is the folder that leads to them."""
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file")
    return name


def _count(value: object, limit: int = 2**48) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise ValueError(f"{value!r} is not a count")
    return value


def _crc(text: object) -> int:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{8}", text):
        raise ValueError(f"{text!r} is not a checksum")
    return int(text, 16)


def _container(name: object) -> str:
    known = (*containers.NAMES, *containers.IN_PLACE)
    if name not in known:
        raise PackError(
            f"has shards of format {name!r}; this feedrate reads {', '.join(known)}",
            hint="update feedrate: pip install --upgrade feedrate",
        )
    return str(name)


# How values stand in pack.json.
_Columns = Annotated[
    Mapping[str, tuple[int, ...]],
    Stored(
        lambda columns: {str(name): tuple(map(_count, places)) for name, places in columns.items()},
        dump=lambda columns: {name: list(places) for name, places in columns.items()},
    ),
]
_Count = Annotated[int, Stored(_count)]
_Bytes = Annotated[int, Stored(_count, "bytes")]
_Crc = Annotated[int, Stored(_crc, dump="{:08x}".format)]
_Time = Annotated[int, Stored(lambda value: _count(value, 2**63))]
_Entries = Annotated[int, Stored(lambda value: find_entries({"entries": value}))]


# The order of the fields below is their order in pack.json.
@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """A file of a pack.

    Attributes:
        folder: the folder of the file, relative to the pack's folder; "": the pack's own. Of a shard that was
            indexed behind an address: the address, without the file's name (`s3://bucket/train`).
    """

    folder: str = ""
    name: str
    size_bytes: _Bytes
    crc32c: _Crc

    def check_loaded(self) -> None:
        plain_name(self.name)
        _folder(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPart(PackFile):
    """The Arrow file beside a shard. `columns` says where in it the values of each column begin.

    A fixed-width column has one position, a variable-width column two: its offsets and its data. With
    them a reader fetches any value with one `pread`, and needs neither a mapping nor pyarrow.
    """

    # Bytes of JPEG data from one entry point to the next.
    entries: _Entries = AUTO
    columns: _Columns


_dump_file = functools.partial(documents.dump, omits_defaults=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(PackFile):
    """A file of samples and its part of the index.

    Attributes:
        prefix: a folder for keys and original paths: 'cat/1' in the shard has the key 'PREFIX/cat/1'.
        first_number: added to the numbers in the index.
        container: tar, tfrecord or hdf5; "ranges": a file that was there before, and was indexed; "files":
            a folder that was there before, and a value is the file under it that its path names.
        mtime_ns: of a file that was there before, when it was indexed.
        identity: of a file that was there before: the checksum of its first index part, where that was
            replaced by one with other entry points; 0: it was not.
    """

    samples: _Count
    prefix: Annotated[str, Stored(_prefix)] = ""
    first_number: _Count = 0
    container: Annotated[str, Stored(_container)] = "tar"
    mtime_ns: _Time = 0
    identity: _Crc = 0
    index: Annotated[IndexPart, Stored(dump=_dump_file)]

    def check_loaded(self) -> None:
        (_any_name if self.is_in_place else plain_name)(self.name)
        (_any_folder if self.container == containers.RANGES else _folder)(self.folder)

    @property
    def known_by(self) -> tuple[int, int, int]:
        """Return what tells its samples from others, whatever their entry points: count, bytes, checksum."""
        # Files that were indexed where they are have no checksum as a whole; their part of the index has.
        crc32c = (self.identity or self.index.crc32c) if self.is_in_place else self.crc32c
        return self.samples, self.size_bytes, crc32c

    @property
    def is_in_place(self) -> bool:
        return self.container in containers.IN_PLACE

    @property
    def is_remote(self) -> bool:
        """Whether the file is behind an address, wherever the pack is."""
        return "://" in self.folder

    @property
    def is_plain(self) -> bool:
        return (
            not (self.folder or self.index.folder or self.prefix or self.first_number)
            and self.container == "tar"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPart(PackFile):
    """Values of fields for samples `first` to `first + samples - 1`, in an Arrow file of their own.

    They stand before what the shards, and parts that come earlier, say of the same fields.
    """

    first: _Count
    samples: _Count
    fields: Annotated[tuple[str, ...], Stored(lambda names: tuple(map(str, names)), dump=list)]
    columns: _Columns

    @property
    def stop(self) -> int:
        return self.first + self.samples


def file_path(pack: str | os.PathLike[str], file: PackFile) -> Path:
    """Return where a file of a pack is on this machine.

    Raises:
        PackError: it is behind an address.
    """
    if isinstance(file, Shard) and file.is_remote:
        raise PackError(
            f"{pack} is an index of files that are not on this machine: {file.folder}/{file.name}",
            hint=f"copy them to this node first, and use the copy: feedrate stage {shell_quote(pack)}",
        )
    return Path(pack) / file.folder / file.name


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a pack holds.

    Attributes:
        fields: what every shard and its part of the index hold.
        added: fields whose values stand in `parts` alone; one may have the name of a stored field.
        had_digest: whether the pack.json that this was read from carried a digest of itself.
    """

    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[Field, ...] = ()
    parts: tuple[ColumnPart, ...] = ()
    had_digest: bool = field(default=True, compare=False)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def shard_bytes(self) -> int:
        """The size of the files that the shards are in: shards of HDF5, or of an index, may share one."""
        return sum({(shard.folder, shard.name): shard.size_bytes for shard in self.shards}.values())

    @property
    def index_bytes(self) -> int:
        return sum(shard.index.size_bytes for shard in self.shards)

    @property
    def version(self) -> int:
        if any(shard.is_remote for shard in self.shards):
            return 3
        is_plain = not self.added and not self.parts and all(shard.is_plain for shard in self.shards)
        has_bare = any(f.kind is Kind.ARRAY and f.coding is Coding.RAW for f in self.fields)
        return 1 if is_plain and not has_bare else 2

    @property
    def all_fields(self) -> tuple[Field, ...]:
        """What a sample has: stored fields, unless an added one has their name, then the other added ones."""
        added = {f.name: f for f in self.added}
        stored = [added.pop(f.name, f) for f in self.fields]
        return (*stored, *added.values())

    def field(self, name: str) -> Field | None:
        return next((f for f in self.all_fields if f.name == name), None)


def index_name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


def dump_manifest(manifest: Manifest) -> bytes:
    text = _dump_document(manifest)
    return text.removesuffix(b"\n}\n") + f',\n "digest": "{_digest(text)}"\n}}\n'.encode()


def digest_manifest(manifest: Manifest) -> str:
    """Return the digest that its pack.json carries."""
    return _digest(_dump_document(manifest))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _dump_document(manifest: Manifest) -> bytes:
    document = {
        "format": FORMAT,
        "version": manifest.version,
        "samples": manifest.samples,
        "fields": {f.name: dump_field(f) for f in manifest.fields},
        **({"added": {f.name: dump_field(f) for f in manifest.added}} if manifest.added else {}),
        "settings": manifest.settings,
        "shards": [*map(_dump_file, manifest.shards)],
        **({"parts": [*map(_dump_file, manifest.parts)]} if manifest.parts else {}),
    }
    return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode()


def read_manifest(pack: str | os.PathLike[str]) -> Manifest:
    """Read and check `pack`/pack.json.

    Raises:
        NotFound: there is no such folder, or it is not a finished pack.
        PackError: the manifest is damaged, or of a version that this feedrate does not know.
    """
    folder = Path(pack)
    if not folder.exists():
        if len(folder.parts) > 1 and folder.parts[0].endswith(":"):  # as s3://bucket/x is, made a path
            address = f"{folder.parts[0]}//{'/'.join(folder.parts[1:])}"
            raise NotFound(
                f"{address} is an address, and this works on packs of this machine",
                hint=f"copy it here first: feedrate stage {shell_quote(address)}",
            )
        hint = suggest_path(folder) or f"make one: feedrate pack SOURCE {shell_quote(folder)}"
        raise NotFound(f"no pack at {folder}", hint=hint)
    beside = None if (folder / FILE_NAME).exists() else find_index(folder)
    if beside is not None:
        raise NotFound(
            f"{folder} is not a pack: its index is {beside}", hint=f"name that: {shell_quote(beside)}"
        )
    if not folder.is_dir():
        is_ours = folder.name == FILE_NAME
        raise NotFound(
            f"{folder} is a file; a pack is a folder with {FILE_NAME} in it",
            hint=f"name the folder: {shell_quote(folder.parent)}" if is_ours else None,
        )
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise _not_a_pack(folder) from None
    except OSError as error:
        raise PackError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_manifest(text)
    except PackError as error:
        raise PackError(f"{path}: {error}", hint=error.hint) from None


def parse_manifest(text: bytes) -> Manifest:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackError(f"is not JSON ({error})", hint="the pack is damaged: pack the source again") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PackError("is not the manifest of a feedrate pack")
    version = document.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise PackError(
            f"has format version {version!r}; this feedrate reads versions 1 to {VERSION}",
            hint="update feedrate: pip install --upgrade feedrate",
        )
    had_digest = _check_digest(text, document)
    try:
        manifest = Manifest(
            had_digest=had_digest,
            fields=tuple(load_field(name, f) for name, f in document["fields"].items()),
            shards=tuple(documents.load(Shard, s) for s in document["shards"]),
            settings=dict(document["settings"]),
            added=tuple(load_field(name, f) for name, f in document.get("added", {}).items()),
            parts=tuple(documents.load(ColumnPart, p) for p in document.get("parts", ())),
        )
        samples = _count(document["samples"])
    except PackError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        # SyntaxError is what numpy's types raise.
        raise PackError(f"is damaged: {type(error).__name__} {error}") from error
    # Several parts of the index may describe one file, each other samples of it.
    shared = {(s.folder, s.name) for s in manifest.shards if s.container == "hdf5" or s.is_in_place}
    files = [(s.folder, s.name) for s in manifest.shards if s.container in ("tar", "tfrecord")]
    files += [*shared, *((s.index.folder, s.index.name) for s in manifest.shards)]
    if len(set(files)) < len(files):
        raise PackError("is damaged: two of its files have the same name")
    if samples != manifest.samples:
        raise PackError(f"is damaged: it promises {samples} samples, its shards hold {manifest.samples}")
    _check_parts(manifest)
    return manifest


def _check_digest(text: bytes, document: Mapping[str, Any]) -> bool:
    """Return whether a pack.json carries a digest of itself; raises PackError where that is not its own."""
    found = _DIGEST.search(text[-200:])
    if found is None and "digest" not in document:
        return False
    is_own = found is not None and found.groups() == (
        b"digest",
        _digest(text[: -len(found[0])] + b"\n}\n").encode(),
    )
    if not is_own:
        raise PackError(
            "does not fit the digest in it: bytes of it are damaged, or it was edited",
            hint="bring it again from another copy of the pack; if the edit was meant, delete its last "
            "entry, 'digest', with the comma before it",
        )
    return True


def _check_parts(manifest: Manifest) -> None:
    """Every sample must have every field: in a part where the field is an added one."""
    stored = {f.name for f in manifest.fields if f.kind is Kind.NUMBER}
    known = stored | {f.name for f in manifest.added}
    for part in manifest.parts:
        strange = next((name for name in part.fields if name not in known), None)
        if strange is not None or part.stop > manifest.samples:
            what = f"field {strange!r}" if strange is not None else "samples"
            raise PackError(f"is damaged: {part.name} holds {what} that the pack does not have")
    for added in manifest.added:
        if added.kind not in ADDABLE_KINDS:
            raise PackError(f"is damaged: it adds field '{added.name}' of kind {added.kind}")
        covered = 0
        for part in sorted((p for p in manifest.parts if added.name in p.fields), key=lambda p: p.first):
            if part.first <= covered:
                covered = max(covered, part.stop)
        if covered < manifest.samples:
            raise PackError(f"is damaged: sample {covered} has no value of field '{added.name}'")


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder without a manifest is a pack in the making."""
    return (folder / PROGRESS_NAME).exists() or any(folder.glob("shard-*.tar"))


def index_beside(source: str | os.PathLike[str]) -> Path:
    """Return where the index of a file, or of a folder of files, is: in NAME.index beside it."""
    path = os.fspath(source).rstrip("/")
    if os.path.basename(path) in ("", ".", ".."):
        path = os.path.realpath(path or "/")
    return Path(f"{path}.index")


def find_index(source: str | os.PathLike[str]) -> Path | None:
    """Return the finished index that is beside a file or a folder; None: there is none."""
    folder = index_beside(source)
    is_finished = (folder / FILE_NAME).exists() and not (folder / PROGRESS_NAME).exists()
    return folder if is_finished else None


def _not_a_pack(folder: Path) -> NotFound:
    inside = sorted(p.parent.name for p in folder.glob(f"*/{FILE_NAME}"))
    if inside:
        return NotFound(f"{folder} is not a pack, but {folder / inside[0]} is")
    if is_unfinished(folder):
        command = "index" if any(folder.glob("index-*.arrow")) else "pack"
        return NotFound(
            f"{folder} is an unfinished pack: run the same 'feedrate {command}' command again to finish it"
        )
    return NotFound(
        f"{folder} is not a pack: it has no {FILE_NAME}",
        hint=f"if it is a dataset, make one of it: feedrate pack {shell_quote(folder)} PACK",
    )


def dump_field(f: Field) -> dict[str, Any]:
    document = {"kind": f.kind.value, "dtype": f.dtype, "shape": f.shape, "classes": f.classes}
    if f.coding is not Coding.FILE:
        document["coding"] = f.coding.value
    return {name: value for name, value in document.items() if value is not None}


def load_field(name: str, document: dict[str, Any]) -> Field:
    shape, classes = document.get("shape"), document.get("classes")
    coding = document.get("coding", Coding.FILE.value)
    if coding not in list(Coding):
        raise PackError(
            f"stores field '{name}' as {coding!r}; this feedrate reads {', '.join(Coding)}",
            hint="update feedrate: pip install --upgrade feedrate",
        )
    dtype = document.get("dtype")
    if dtype is not None and np.dtype(dtype).hasobject:
        raise ValueError(f"{dtype!r} is not a type of numbers")
    return Field(
        name,
        Kind(document["kind"]),
        dtype=dtype,
        shape=None if shape is None else tuple(_count(n) for n in shape),
        classes=None if classes is None else tuple(str(c) for c in classes),
        coding=Coding(coding),
    )
