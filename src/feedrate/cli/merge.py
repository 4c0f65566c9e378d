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
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packs", nargs="+", metavar="PACK", help="the packs to merge, in this order")
    parser.add_argument("--to", required=True, metavar="PACK", help="the folder to write: a new one")
    parser.add_argument(
        "--prefix", action="store_true",
        help="put the name of each pack before its keys and paths, so that equal ones may stay",
    )  # fmt: skip
    parser.add_argument(
        "--refer", action="store_true", help="refer to the packs by their paths, even where links can be made"
    )
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.merge import MergeOptions, merge
    from feedrate.report.change import draw_merge
    from feedrate.report.document import dump_document

    check_json_target(arguments)
    options = MergeOptions(arguments.prefix, arguments.refer, tuple(arguments.allow_addresses))
    result = merge(arguments.packs, arguments.to, options)
    if arguments.json != "-":
        show_result(draw_merge, result)
    write_json(arguments, dump_document("merge", result))
    return 0
