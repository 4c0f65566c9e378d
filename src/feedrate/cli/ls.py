# SPDX-License-Identifier: Apache-2.0
"""Say what is in a pack: fields, classes, sizes, and how much of it the kernel decodes."""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import whole_number
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to look at")
    parser.add_argument(
        "--samples",
        type=whole_number,
        default=0,
        metavar="N",
        help="also list the first N samples as they are stored",
    )
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.describe import describe
    from feedrate.report.document import dump_document
    from feedrate.report.terminal import draw_description

    check_json_target(arguments)
    result = describe(arguments.pack, samples=arguments.samples)
    if arguments.json != "-":
        show_result(draw_description, result)
    write_json(arguments, dump_document("ls", result))
    return 0
