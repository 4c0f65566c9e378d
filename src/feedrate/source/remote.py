# SPDX-License-Identifier: Apache-2.0
"""Folders that fsspec reaches, walked as those of this machine are."""

from __future__ import annotations

from feedrate.source.place import Place, is_url
from feedrate.source.walk import Found, Inside, Walk


class RemoteWalk(Walk):
    """The same files in the same order as `Walk`, behind a URL."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        self._above = frozenset()
        self._place = Place(root)

    def _look(self, folder: bytes, above: frozenset[tuple[int, int]]) -> Inside:
        inside = Inside([], [])
        start = folder + b"/" if folder else b""
        for name, file in self._place.list(folder):
            if name.startswith(b"."):
                continue
            if file is None:
                inside.folders.append((start + name, above))
            else:
                inside.files.append((name, Found(start + name, file.size_bytes, file.mtime_ns)))
        inside.files.sort(key=lambda file: file[0])
        return inside


def walk(root: str) -> Walk:
    return RemoteWalk(root) if is_url(root) else Walk(root)
