# SPDX-License-Identifier: Apache-2.0
"""Say what is in a pack: fields, classes, sizes, and how much of it the kernel decodes.

With --quality, also what packing found out about the dataset: formats, sizes, and damaged, empty,
duplicate, rotated, mislabelled or slow samples, with what was done to each. With --html, a page to
look at the data: small pictures of its images, odd ones first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.arguments import whole_number
from feedrate.cli.output import add_json_arguments, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pack", metavar="PACK", help="the pack to look at")
    add("--samples", type=whole_number, default=0, metavar="N",
        help="also list the first N samples as they are stored")  # fmt: skip
    add("--quality", action="store_true", help="also say which samples deserve a look")
    add("--html", type=Path, metavar="PAGE", help="write a page with small pictures, odd samples first")
    add_json_arguments(parser, overwritten="the page and the JSON file")


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.describe import describe
    from feedrate.report.check import draw_description

    result = describe(arguments.pack, samples=arguments.samples, quality=arguments.quality)
    return emit(arguments, "ls", result, draw_description, page=lambda: _draw_page(arguments.pack))


def _draw_page(pack: str) -> str:
    from feedrate.errors import NotFound
    from feedrate.packing.check.describe import describe
    from feedrate.packing.check.look import look
    from feedrate.report.sheet import draw_sheet

    try:
        result = describe(pack, quality=True)
    except NotFound:  # an index has no quality.json
        result = describe(pack)
    return draw_sheet(result, look(pack, result.quality))
