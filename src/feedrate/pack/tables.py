# SPDX-License-Identifier: Apache-2.0
"""The tables of labels that a pack keeps copies of: one of the source, and more when packs grow or are merged."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from feedrate.format.manifest import Manifest

Table = dict[str, Any]  # name in the pack, original path, bytes, crc32c


def find_tables(manifest: Manifest) -> list[Table]:
    """Return the entries of all tables in a pack's settings."""
    more = manifest.settings.get("tables")
    tables = [manifest.settings.get("labels"), *(more if isinstance(more, list) else [])]
    return [table for table in tables if isinstance(table, dict)]


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a further table: `labels-source-2.csv`."""
    stem, suffix = posixpath.splitext(name)
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{stem}-{number}{suffix}"
    return free


def free_path(path: str, taken: Collection[str]) -> str:
    """Return where a further table comes back when the pack is unpacked; escaped, as in pack.json."""
    folder, base = posixpath.split(unquote_to_bytes(path))
    stem, suffix = posixpath.splitext(base)
    number, free = 1, path
    while free in taken:
        number += 1
        free = quote_from_bytes(posixpath.join(folder, b"%b-%d%b" % (stem, number, suffix)))
    return free
