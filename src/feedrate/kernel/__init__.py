# SPDX-License-Identifier: Apache-2.0
"""The only door to the C++ kernel: typed, and everything is checked before a pointer crosses.

What the kernel does not decode goes through Pillow (pillow.py) in the same call, and is counted.
"""

from __future__ import annotations

from feedrate.kernel.crops import Crops, decode_crops
from feedrate.kernel.decoding import (
    DAMAGED_BUT_DECODED,
    MAX_CROP_PIXELS,
    STAGES,
    TRUSTED_PIXELS,
    DecodeReport,
    check_size,
    decode_batch,
    decode_one,
    measure,
    profile_decode,
)
from feedrate.kernel.door import (
    I32,
    I64,
    U8,
    U32,
    Pool,
    Status,
    crc32c,
    simd_level,
    simd_levels,
)
from feedrate.kernel.looking import (
    BYTES_PER_ENTRY,
    Scan,
    find_entry_points,
    scan,
    scan_headers,
    to_baseline,
)
from feedrate.kernel.members import (
    TAR_BLOCK_BYTES,
    Entry,
    FolderList,
    ImageKind,
    Members,
    crc32c_rows,
    crc32c_texts,
    find_first,
    hash_stems,
    join_pieces,
    list_folder,
    make_members,
)
from feedrate.kernel.reading import (
    Files,
    Ranges,
    gather_rows,
    read_at,
    read_ranges,
)

__all__ = [
    "BYTES_PER_ENTRY",
    "DAMAGED_BUT_DECODED",
    "I32",
    "I64",
    "MAX_CROP_PIXELS",
    "STAGES",
    "TAR_BLOCK_BYTES",
    "TRUSTED_PIXELS",
    "U8",
    "U32",
    "Crops",
    "DecodeReport",
    "Entry",
    "Files",
    "FolderList",
    "ImageKind",
    "Members",
    "Pool",
    "Ranges",
    "Scan",
    "Status",
    "check_size",
    "crc32c",
    "crc32c_rows",
    "crc32c_texts",
    "decode_batch",
    "decode_crops",
    "decode_one",
    "find_entry_points",
    "find_first",
    "gather_rows",
    "hash_stems",
    "join_pieces",
    "list_folder",
    "make_members",
    "measure",
    "profile_decode",
    "read_at",
    "read_ranges",
    "scan",
    "scan_headers",
    "simd_level",
    "simd_levels",
    "to_baseline",
]
