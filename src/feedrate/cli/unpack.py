# SPDX-License-Identifier: Apache-2.0
"""Give the files of a pack back, bit for bit, under their original paths.

Nothing is overwritten: a file that is already there with the same bytes is kept, so an
interrupted unpack goes on with the same command; one with other bytes stops it.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_workers
from feedrate.cli.output import add_json_arguments, emit, open_bar, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to read")
    parser.add_argument("folder", metavar="FOLDER", help="the folder to write the files to")
    add_workers(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.unpack import unpack
    from feedrate.report.check import draw_unpack

    say(f"unpacking {arguments.pack} into {arguments.folder}")
    with open_bar() as bar:
        result = unpack(arguments.pack, arguments.folder, workers=arguments.workers, watch=bar.update)
    return emit(arguments, "unpack", result, draw_unpack)
