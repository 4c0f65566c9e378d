# SPDX-License-Identifier: Apache-2.0
"""Load a pack into memory (the page cache), as far as the job's memory limit goes.

The first epoch then runs like the later ones. What did not fit is named; nothing is
locked: memory that a process needs drives the files out again.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import reader
from feedrate.cli.output import add_json_arguments, emit
from feedrate.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pack", metavar="PACK", help="the pack to load")
    add(
        "--limit", type=reader(parse_bytes), metavar="SIZE",
        help="load at most this much (default: what the machine and the job's memory limit leave)",
    )  # fmt: skip
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.describe import warm
    from feedrate.report.check import draw_warm
    from feedrate.report.progress import ProgressBar

    with ProgressBar() as bar:
        result = warm(arguments.pack, limit_bytes=arguments.limit, watch=bar.update)
    return emit(arguments, "warm", result, draw_warm)
