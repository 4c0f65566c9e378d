# SPDX-License-Identifier: Apache-2.0
"""The tables of labels that a pack keeps copies of: its source's, and more when it grows."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from feedrate.files.atomic import atomic_write
from feedrate.format.manifest import Manifest, plain_name
from feedrate.format.pack import Pack

Table = dict[str, Any]  # name in the pack, original path, bytes, crc32c


def find_tables(manifest: Manifest) -> list[Table]:
    """Return the entries of all tables in a pack's settings."""
    more = manifest.settings.get("tables")
    tables = [manifest.settings.get("labels"), *(more if isinstance(more, list) else [])]
    return [table for table in tables if isinstance(table, dict)]


def bring_tables(folder: Path, pack: Pack, there: Sequence[Table], *, prefix: str = "") -> list[Table]:
    """Copy a pack's tables into a folder that has some already; return the entries of those that are new."""
    brought: list[Table] = []
    for table in find_tables(pack.manifest):
        others = [*there, *brought]
        wish = f"{prefix}/{table['path']}" if prefix else str(table["path"])
        if any((other["path"], other["crc32c"]) == (wish, table["crc32c"]) for other in others):
            continue
        name = _free(str(table["name"]), [other["name"] for other in others])
        source = pack.path / plain_name(table["name"])
        with (
            open(source, "rb") as data,
            atomic_write(folder / name, expected_bytes=int(table["bytes"])) as out,
        ):
            shutil.copyfileobj(data, out)
        brought.append({**table, "name": name, "path": _free(wish, [other["path"] for other in others])})
    return brought


def _free(name: str, taken: Collection[str]) -> str:
    """Return `labels-2.csv` where `labels.csv` is taken."""
    stem, suffix = posixpath.splitext(name)
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{stem}-{number}{suffix}"
    return free
