# SPDX-License-Identifier: Apache-2.0
"""The files that a shelf keeps its bytes in: none has a name, and stretches of them can be given back."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Sequence

from feedrate.errors import StorageError
from feedrate.store.sharing import reopen
from feedrate.store.shelf_table import make_memory
from feedrate.store.tiers import Tier

_PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def make_file(tier: Tier) -> int:
    if tier.kind == "ram":
        return make_memory("feedrate-cache")
    try:
        with tempfile.TemporaryFile(dir=tier.folder, buffering=0) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot write to the cache's disk {tier.folder}: {error.strerror}") from error


def take_over(inherited: int) -> int:
    """Return a descriptor of a fork's own: locks on the inherited one would be its parent's too."""
    try:
        own = reopen(inherited)
    except OSError:  # no /proc
        return inherited
    os.close(inherited)
    return own


def write(descriptor: int, views: Sequence[memoryview], offset: int) -> None:
    for view in views:
        done = 0
        while done < view.nbytes:
            done += os.pwrite(descriptor, view[done:], offset + done)
        offset += view.nbytes


def punch_hole(descriptor: int, offset: int, size: int) -> None:
    """Give the pages of a range back to the system. Where that is unknown they stay until the file goes."""
    if sys.platform == "linux":
        arguments = (
            ctypes.c_int(descriptor),
            ctypes.c_int(_PUNCH_HOLE),
            ctypes.c_int64(offset),
            ctypes.c_int64(size),
        )
        ctypes.CDLL(None).fallocate(*arguments)
