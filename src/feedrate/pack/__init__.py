# SPDX-License-Identifier: Apache-2.0
"""Many small files -> a pack, and back. The functions return results and print nothing."""

from feedrate.pack.describing import describe
from feedrate.pack.mapping import find_map
from feedrate.pack.options import Engine, PackOptions
from feedrate.pack.packing import pack
from feedrate.pack.quality_report import read_quality
from feedrate.pack.recode import Recode
from feedrate.pack.unpacking import unpack
from feedrate.pack.verifying import verify
from feedrate.source.options import FieldSpec

__all__ = [
    "Engine",
    "FieldSpec",
    "PackOptions",
    "Recode",
    "describe",
    "find_map",
    "pack",
    "read_quality",
    "unpack",
    "verify",
]
