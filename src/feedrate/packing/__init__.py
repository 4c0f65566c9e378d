# SPDX-License-Identifier: Apache-2.0
"""Many small files -> a pack, and back; packs that grow. The functions return results and print nothing.

Names are loaded when first used: each command needs a few of the modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedrate.packing.build.pack import pack
    from feedrate.packing.change.append import AppendOptions, append
    from feedrate.packing.change.columns import ColumnOptions, add_column
    from feedrate.packing.change.entries import set_entries
    from feedrate.packing.change.merge import MergeOptions, merge
    from feedrate.packing.change.shares import parse_shares
    from feedrate.packing.change.split import SplitOptions, extend_split, split
    from feedrate.packing.check.describe import describe
    from feedrate.packing.check.quality_report import read_quality
    from feedrate.packing.check.unpack import unpack
    from feedrate.packing.check.verify import verify
    from feedrate.packing.indexing.local import index
    from feedrate.packing.mapping import find_map
    from feedrate.packing.options import Engine, PackOptions
    from feedrate.packing.recode import Recode
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
    "feedrate.packing.change.append": (
        "AppendOptions",
        "append",
    ),
    "feedrate.packing.change.columns": (
        "ColumnOptions",
        "add_column",
    ),
    "feedrate.packing.check.describe": ("describe",),
    "feedrate.packing.change.entries": ("set_entries",),
    "feedrate.packing.indexing.local": ("index",),
    "feedrate.packing.mapping": ("find_map",),
    "feedrate.packing.change.merge": (
        "MergeOptions",
        "merge",
    ),
    "feedrate.packing.options": (
        "Engine",
        "PackOptions",
    ),
    "feedrate.packing.build.pack": ("pack",),
    "feedrate.packing.check.quality_report": ("read_quality",),
    "feedrate.packing.recode": ("Recode",),
    "feedrate.packing.change.shares": ("parse_shares",),
    "feedrate.packing.change.split": (
        "SplitOptions",
        "extend_split",
        "split",
    ),
    "feedrate.packing.check.unpack": ("unpack",),
    "feedrate.packing.check.verify": ("verify",),
    "feedrate.source.options": ("FieldSpec",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'feedrate.packing' has no attribute '{name}'")
