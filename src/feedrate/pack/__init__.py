# SPDX-License-Identifier: Apache-2.0
"""Many small files -> a pack, and back; packs that grow. The functions return results and print nothing."""

from feedrate.pack.appending import AppendOptions, append
from feedrate.pack.columns import ColumnOptions, add_column
from feedrate.pack.describing import describe
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
    "split",
    "unpack",
    "verify",
]
