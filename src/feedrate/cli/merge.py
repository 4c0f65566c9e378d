# SPDX-License-Identifier: Apache-2.0
"""Make one pack of several, one behind the other, without copying their data.

The files of the packs are hard-linked into the new folder, so it stays whole when the
originals are deleted. Where links cannot be made (another disk), it refers to them by a
relative path, and they must stay where they are. Class lists are united by name; fields
must be the same. 'feedrate append' adds files that are not packed yet.

  feedrate merge 2023.pack 2024.pack --to both.pack
  feedrate merge hospital-a.pack hospital-b.pack --to both.pack --prefix
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_allow_address
from feedrate.cli.output import add_json_arguments, emit


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("packs", nargs="+", metavar="PACK", help="the packs to merge, in this order")
    add("--to", required=True, metavar="PACK", help="the folder to write: a new one")
    add("--prefix", action="store_true",
        help="put the name of each pack before its keys and paths, so that equal ones may stay")
    add("--refer", action="store_true",
        help="refer to the packs by their paths, even where links can be made")
    add_allow_address(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.merge import MergeOptions, merge
    from feedrate.report.change import draw_merge

    options = MergeOptions(arguments.prefix, arguments.refer, tuple(arguments.allow_addresses))
    return emit(arguments, "merge", merge(arguments.packs, arguments.to, options), draw_merge)
