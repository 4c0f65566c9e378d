# SPDX-License-Identifier: Apache-2.0
"""Folders that fsspec reaches, walked as those of this machine are."""

from __future__ import annotations

from feedrate.remote.addresses import Place, is_url
from feedrate.source.walk import Found, Inside, Walk, make_inside


class RemoteWalk(Walk):
    """The same files in the same order as `Walk`, behind a URL."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.unlisted: dict[bytes, str] = {}
        self._above = frozenset()
        self._place = Place(root)

    def _look(self, folder: bytes, above: frozenset[tuple[int, int]]) -> Inside:
        start = folder + b"/" if folder else b""
        files, folders = [], []
        for name, file in self._place.list(folder):
            if name.startswith(b"."):
                continue
            if file is None:
                folders.append((start + name, above))
            else:
                files.append(Found(start + name, file.size_bytes, file.mtime_ns))
        return make_inside(files, folders, start)


def walk(root: str) -> Walk:
    return RemoteWalk(root) if is_url(root) else Walk(root)
