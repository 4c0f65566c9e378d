# SPDX-License-Identifier: Apache-2.0
"""Many small files -> a pack, and back; packs that grow. The functions return results and print nothing.

Names are loaded when first used: each command needs a few of the modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedrate.pack.appending import AppendOptions, append
    from feedrate.pack.columns import ColumnOptions, add_column
    from feedrate.pack.describing import describe
    from feedrate.pack.entries import set_entries
    from feedrate.pack.indexing import index
    from feedrate.pack.mapping import find_map
    from feedrate.pack.merging import MergeOptions, merge
    from feedrate.pack.options import Engine, PackOptions
    from feedrate.pack.packing import pack
    from feedrate.pack.quality_report import read_quality
    from feedrate.pack.recode import Recode
    from feedrate.pack.shares import parse_shares
    from feedrate.pack.splitting import SplitOptions, extend_split, split
    from feedrate.pack.unpacking import unpack
    from feedrate.pack.verifying import verify
    from feedrate.source.options import FieldSpec

__all__ = [
    "AppendOptions",
    "ColumnOptions",
    "Engine",
    "FieldSpec",
    "MergeOptions",
    "PackOptions",
    "Recode",
    "SplitOptions",
    "add_column",
    "append",
    "describe",
    "extend_split",
    "find_map",
    "index",
    "merge",
    "pack",
    "parse_shares",
    "read_quality",
    "set_entries",
    "split",
    "unpack",
    "verify",
]

_HOMES = {
    "feedrate.pack.appending": (
        "AppendOptions",
        "append",
    ),
    "feedrate.pack.columns": (
        "ColumnOptions",
        "add_column",
    ),
    "feedrate.pack.describing": ("describe",),
    "feedrate.pack.entries": ("set_entries",),
    "feedrate.pack.indexing": ("index",),
    "feedrate.pack.mapping": ("find_map",),
    "feedrate.pack.merging": (
        "MergeOptions",
        "merge",
    ),
    "feedrate.pack.options": (
        "Engine",
        "PackOptions",
    ),
    "feedrate.pack.packing": ("pack",),
    "feedrate.pack.quality_report": ("read_quality",),
    "feedrate.pack.recode": ("Recode",),
    "feedrate.pack.shares": ("parse_shares",),
    "feedrate.pack.splitting": (
        "SplitOptions",
        "extend_split",
        "split",
    ),
    "feedrate.pack.unpacking": ("unpack",),
    "feedrate.pack.verifying": ("verify",),
    "feedrate.source.options": ("FieldSpec",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'feedrate.pack' has no attribute '{name}'")
