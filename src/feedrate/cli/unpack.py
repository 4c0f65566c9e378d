# SPDX-License-Identifier: Apache-2.0
"""Give the files of a pack back, bit for bit, under their original paths.

Nothing is overwritten: a file that is already there with the same bytes is kept, so an
interrupted unpack goes on with the same command; one with other bytes stops it.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_workers
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    say,
    show_result,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to read")
    parser.add_argument("folder", metavar="FOLDER", help="the folder to write the files to")
    add_workers(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.unpack import unpack
    from feedrate.report.document import dump_document
    from feedrate.report.progress import ProgressBar
    from feedrate.report.terminal import draw_unpack

    check_json_target(arguments)
    say(f"unpacking {arguments.pack} into {arguments.folder}")
    with ProgressBar() as bar:
        result = unpack(arguments.pack, arguments.folder, workers=arguments.workers, watch=bar.update)
    if arguments.json != "-":
        show_result(draw_unpack, result)
    write_json(arguments, dump_document("unpack", result))
    return 0
