# SPDX-License-Identifier: Apache-2.0
"""The files that hold samples: one module per container, one contract for all. Loading knows none of them."""

from __future__ import annotations

from feedrate.format.containers.contract import Container, Content, Member, Output, ShardWriter, TooLarge

NAMES = ("tar", "tfrecord", "hdf5")
# What `feedrate index` describes, and nobody wrote here: ranges of one file, or whole files under a folder.
RANGES, FILES = "ranges", "files"
IN_PLACE = (RANGES, FILES)


def find_container(name: str) -> Container:
    """Return the container of that name, one of `NAMES`."""
    if name == "tar":
        from feedrate.format.containers.tar import Tar

        return Tar()
    if name == "tfrecord":
        from feedrate.format.containers.tfrecord import TFRecord

        return TFRecord()
    if name == "hdf5":
        from feedrate.format.containers.hdf5 import Hdf5

        return Hdf5()
    raise KeyError(name)


__all__ = [
    "FILES",
    "IN_PLACE",
    "NAMES",
    "RANGES",
    "Container",
    "Content",
    "Member",
    "Output",
    "ShardWriter",
    "TooLarge",
    "find_container",
]
