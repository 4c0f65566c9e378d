# SPDX-License-Identifier: Apache-2.0
"""Say what is in a pack: fields, classes, sizes, and how much of it the kernel decodes."""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import whole_number
from feedrate.cli.output import add_json_arguments, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pack", metavar="PACK", help="the pack to look at")
    add("--samples", type=whole_number, default=0, metavar="N",
        help="also list the first N samples as they are stored")  # fmt: skip
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.describe import describe
    from feedrate.report.check import draw_description

    return emit(arguments, "ls", describe(arguments.pack, samples=arguments.samples), draw_description)
