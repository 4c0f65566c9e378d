# SPDX-License-Identifier: Apache-2.0
"""pack.json: what a pack holds. It carries no time and no host, so that equal inputs give equal bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedrate.errors import NotFound, PackError
from feedrate.format.fields import Coding, Field, Kind
from feedrate.probe.paths import suggest_path

FORMAT = "feedrate-pack"
VERSION = 1
FILE_NAME = "pack.json"


@dataclass(frozen=True, slots=True)
class IndexPart:
    """The Arrow file beside a shard. `columns` says where in it the values of each column begin.

    A fixed-width column has one position, a variable-width column two: its offsets and its data. With
    them a reader fetches any value with one `pread`, and needs neither a mapping nor pyarrow.
    """

    name: str
    size_bytes: int
    crc32c: int
    columns: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    size_bytes: int
    crc32c: int
    samples: int
    index: IndexPart


@dataclass(frozen=True, slots=True)
class Manifest:
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.tar"


def index_name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


def dump_manifest(manifest: Manifest) -> bytes:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "samples": manifest.samples,
        "fields": {f.name: dump_field(f) for f in manifest.fields},
        "settings": manifest.settings,
        "shards": [_dump_shard(s) for s in manifest.shards],
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
        hint = suggest_path(folder) or f"make one: feedrate pack SOURCE {folder}"
        raise NotFound(f"no pack at {folder}", hint=hint)
    if not folder.is_dir():
        raise NotFound(f"{folder} is a file; a pack is a folder with {FILE_NAME} in it")
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(*_not_a_pack(folder)) from None
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
    try:
        manifest = Manifest(
            fields=tuple(load_field(name, f) for name, f in document["fields"].items()),
            shards=tuple(_load_shard(s) for s in document["shards"]),
            settings=dict(document["settings"]),
        )
        samples = document["samples"]
    except PackError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackError(f"is damaged: {type(error).__name__} {error}") from error
    names = [name for shard in manifest.shards for name in (shard.name, shard.index.name)]
    if len(set(names)) < len(names):
        raise PackError("is damaged: two of its files have the same name")
    if samples != manifest.samples:
        raise PackError(f"is damaged: it promises {samples} samples, its shards hold {manifest.samples}")
    return manifest


def _not_a_pack(folder: Path) -> tuple[str]:
    inside = sorted(p.parent.name for p in folder.glob(f"*/{FILE_NAME}"))
    if inside:
        return (f"{folder} is not a pack, but {folder / inside[0]} is",)
    if any(folder.glob("shard-*.tar")):
        return (f"{folder} is an unfinished pack: run the same 'feedrate pack' command again to finish it",)
    return (f"{folder} is not a pack: it has no {FILE_NAME}",)


def dump_field(f: Field) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": f.kind.value}
    if f.dtype is not None:
        document["dtype"] = f.dtype
    if f.shape is not None:
        document["shape"] = list(f.shape)
    if f.classes is not None:
        document["classes"] = list(f.classes)
    if f.coding is not Coding.FILE:
        document["coding"] = f.coding.value
    return document


def load_field(name: str, document: dict[str, Any]) -> Field:
    shape, classes = document.get("shape"), document.get("classes")
    coding = document.get("coding", Coding.FILE.value)
    if coding not in list(Coding):
        raise PackError(
            f"stores field '{name}' as {coding!r}; this feedrate reads {', '.join(Coding)}",
            hint="update feedrate: pip install --upgrade feedrate",
        )
    return Field(
        name,
        Kind(document["kind"]),
        dtype=document.get("dtype"),
        shape=None if shape is None else tuple(int(n) for n in shape),
        classes=None if classes is None else tuple(str(c) for c in classes),
        coding=Coding(coding),
    )


def _dump_shard(shard: Shard) -> dict[str, Any]:
    index = shard.index
    return {
        "name": shard.name, "bytes": shard.size_bytes, "crc32c": f"{shard.crc32c:08x}",
        "samples": shard.samples,
        "index": {
            "name": index.name, "bytes": index.size_bytes, "crc32c": f"{index.crc32c:08x}",
            "columns": {name: list(positions) for name, positions in index.columns.items()},
        },
    }  # fmt: skip


def _load_shard(document: dict[str, Any]) -> Shard:
    index = document["index"]
    return Shard(
        name=plain_name(document["name"]),
        size_bytes=_count(document["bytes"]),
        crc32c=_crc(document["crc32c"]),
        samples=_count(document["samples"]),
        index=IndexPart(
            name=plain_name(index["name"]),
            size_bytes=_count(index["bytes"]),
            crc32c=_crc(index["crc32c"]),
            columns={str(k): tuple(_count(p) for p in v) for k, v in index["columns"].items()},
        ),
    )


def plain_name(name: object) -> str:
    """Refuse a name that could reach outside the pack's folder: a manifest may come from a stranger."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", name):
        raise ValueError(f"{name!r} is not a plain file name")
    return name


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**48:
        raise ValueError(f"{value!r} is not a count")
    return value


def _crc(text: object) -> int:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{8}", text):
        raise ValueError(f"{text!r} is not a checksum")
    return int(text, 16)
