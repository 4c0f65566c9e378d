# SPDX-License-Identifier: Apache-2.0
"""Load a pack into memory (the page cache), as far as the job's memory limit goes.

The first epoch then runs like the later ones. What did not fit is named; nothing is
locked: memory that a process needs drives the files out again.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import reader
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)
from feedrate.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to load")
    parser.add_argument(
        "--limit",
        type=reader(parse_bytes),
        metavar="SIZE",
        help="load at most this much (default: what the machine and the job's memory limit leave)",
    )
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.describe import warm
    from feedrate.report.cache import draw_warm
    from feedrate.report.document import dump_document
    from feedrate.report.progress import ProgressBar

    check_json_target(arguments)
    with ProgressBar() as bar:
        result = warm(arguments.pack, limit_bytes=arguments.limit, watch=bar.update)
    if arguments.json != "-":
        show_result(draw_warm, result)
    write_json(arguments, dump_document("warm", result))
    return 0
