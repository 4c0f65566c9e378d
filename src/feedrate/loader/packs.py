# SPDX-License-Identifier: Apache-2.0
"""Open a pack wherever it is: a folder of this machine, a copy on scratch, an address."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedrate.format.manifest import PackFile, file_path, read_manifest
from feedrate.format.pack import Pack
from feedrate.remote.addresses import is_address, is_url
from feedrate.remote.pack import RemotePack
from feedrate.remote.retry import RetryPolicy
from feedrate.remote.trust import read_addresses

if TYPE_CHECKING:
    from feedrate.scratch.copy import Held


def open_pack(
    source: str | os.PathLike[str],
    scratch: str | None = None,
    policy: RetryPolicy | None = None,
    allow_addresses: str | Sequence[str] = (),
) -> Pack:
    """Open a pack.

    Args:
        scratch: "auto" or a folder: copy it there while it is read.
        allow_addresses: where files may be that a pack names and that this user did not index.

    Raises:
        NotFound, StorageError: there is none, or nobody answers.
        PackError: it is damaged, or names files of a host that is not allowed.
    """
    text, allowed = os.fspath(source), read_addresses(allow_addresses)
    if not is_url(text) and scratch is None:
        if any("feedrate" in way for way in (os.path.abspath(text), os.path.realpath(text))):
            from feedrate.scratch.copy import hold

            held = hold(text)
            if held is not None:
                return HeldPack(text, held)
        manifest = read_manifest(text)
        if not any(is_address(shard.folder) for shard in manifest.shards):
            return Pack(text, manifest)
    open_copy = None
    if scratch is not None:
        from feedrate.scratch.live import LiveCopy

        open_copy = functools.partial(LiveCopy.begin, text, scratch, allow_addresses=allowed)
    return RemotePack(text, open_copy, policy, allow_addresses=allowed)


class HeldPack(Pack):
    """A pack in a copy on scratch: it stays there while it is read, and nobody can replace it."""

    def __init__(self, path: str, held: Held) -> None:
        self._held_path = held.path
        super().__init__(path, read_manifest(held.path))
        self.lease = held
        weakref.finalize(self, held.release)

    def locate_file(self, file: PackFile) -> Path:
        return file_path(self._held_path, file)

    def reopen(self) -> Pack:
        return open_pack(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_pack, (self.path,)
