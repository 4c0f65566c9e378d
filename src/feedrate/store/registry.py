# SPDX-License-Identifier: Apache-2.0
"""What one has staged on which node: one small file per copy in the home folder, which all nodes see.

A memory aid and nothing more: no copy is deleted because of what stands here, and a home folder that is full
or read-only stops nobody. One file per copy, written whole: nodes that write at the same time need no lock,
which home folders on NFS often do not have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from feedrate.errors import StorageError
from feedrate.results.scratch import StagedCopy
from feedrate.store.copies import Copy
from feedrate.store.files import appear
from feedrate.store.marker import find_node

_LARGEST_BYTES = 64 * 1024
_TRIES = 10


def find_registry(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the registry's folder, which need not be there."""
    state = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "feedrate" / "scratch"


def remember(copy: StagedCopy, registry: Path | None = None) -> bool:
    """Note a copy, or what has changed about it. False: the home folder did not take it."""
    path = _entry(copy.node, copy.folder, registry)
    text = json.dumps(dataclasses.asdict(copy), indent=1) + "\n"
    for _ in range(_TRIES):  # whoever strikes the node's last copy off takes its folder away under us
        with contextlib.suppress(OSError, StorageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with appear(path, is_durable=False) as file:
                file.write(text.encode("ascii"))
            return True
    return False


def forget(node: str, folder: str, registry: Path | None = None) -> None:
    """Strike a copy off; nothing happens where it is not known."""
    entry = _entry(node, folder, registry)
    with contextlib.suppress(OSError):
        entry.unlink()
        entry.parent.rmdir()  # its node's last one; fails while there are others


def recall(registry: Path | None = None) -> list[StagedCopy]:
    """Return all that is known, by node and folder; entries that cannot be read are left out."""
    top = find_registry() if registry is None else registry
    # Not Path.glob, which raises where a folder goes away while it looks.
    found = [_read_entry(top / name) for name in glob.glob("*/*.json", root_dir=top)]
    return sorted((one for one in found if one is not None), key=lambda one: (one.node, one.folder))


def _entry(node: str, folder: str, registry: Path | None) -> Path:
    top = find_registry() if registry is None else registry
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    # '.' and '..' are names of nodes only in a bad joke; quote() leaves them as they are.
    return top / f"node-{quote(node, safe='')}" / f"{digest}.json"


def _read_entry(path: Path) -> StagedCopy | None:
    try:
        with open(path, "rb") as file:
            document: Any = json.loads(file.read(_LARGEST_BYTES))
        keep_s = document["keep_s"]
        return StagedCopy(
            node=str(document["node"]),
            scratch=str(document["scratch"]),
            folder=str(document["folder"]),
            path=str(document["path"]),
            source=str(document["source"]),
            size_bytes=int(document["size_bytes"]),
            created=float(document["created"]),
            keep_s=None if keep_s is None else float(keep_s),
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember_copy(copy: Copy, scratch: Path, registry: Path | None = None) -> bool:
    """Note a copy that was just made or taken into use."""
    marker = copy.marker
    return remember(
        StagedCopy(
            node=find_node(),
            scratch=str(scratch),
            folder=str(copy.folder),
            path=str(copy.path),
            source=marker.address,
            size_bytes=marker.size_bytes,
            created=marker.created,
            keep_s=marker.keep_s,
        ),
        registry,
    )
