# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a pack, and to lie about it with right checksums."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from feedrate import kernel
from feedrate.format.fields import Field
from feedrate.format.index import Part, dump_part, fill_derived, locate_columns, parse_part
from feedrate.format.manifest import read_manifest


def read_part(path: Path, fields: Sequence[Field]) -> Part:
    return parse_part(path.read_bytes(), fields, name=path.name)


def rewrite_index(folder: Path, change: Callable[[Part], object], *, refill: bool = True) -> None:
    """Change the first index part and make its checksums right again, as only a liar would."""
    manifest = read_manifest(folder)
    part = read_part(folder / manifest.shards[0].index.name, manifest.fields)
    change(part)
    if refill:
        fill_derived(part.rows, part.variable)
    replace_index(folder, part)


def replace_index(folder: Path, part: Part) -> None:
    manifest = read_manifest(folder)
    data = dump_part(manifest.fields, part)
    (folder / manifest.shards[0].index.name).write_bytes(data)

    def tell(document: dict[str, Any]) -> None:
        document["shards"][0]["index"].update(
            bytes=len(data), crc32c=f"{kernel.crc32c(data):08x}", columns=locate_columns(data)
        )

    edit_manifest(folder, tell)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change pack.json, and take the digest away that would tell."""
    document = json.loads((folder / "pack.json").read_text())
    document.pop("digest", None)
    change(document)
    (folder / "pack.json").write_text(json.dumps(document))


def without_digest(text: bytes) -> bytes:
    """Return a pack.json as earlier versions wrote it."""
    return text[: text.rindex(b',\n "digest"')] + b"\n}\n"


def flip_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
