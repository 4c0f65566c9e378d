# SPDX-License-Identifier: Apache-2.0
"""Show what packing found out about a dataset: classes, formats, sizes, and what deserves a look.

Damaged, empty, duplicate, rotated, mislabelled or slow samples, and what was done with each: kept,
rejected, normalised, or mapped by a function of yours. Reads PACK/quality.json, nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    check_target,
    say,
    show_result,
    write_json,
    write_text,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to look at")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page, too")
    add_json_arguments(parser, overwritten="the page and the JSON file")


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.quality_report import read_quality
    from feedrate.report.document import dump_document
    from feedrate.report.quality import draw_quality
    from feedrate.report.quality_page import draw_quality_page

    check_json_target(arguments)
    if arguments.html is not None:
        check_target(arguments.html, force=arguments.force)
    quality = read_quality(arguments.pack)
    if arguments.json != "-":
        show_result(draw_quality, arguments.pack, quality)
    write_json(arguments, dump_document("quality", quality))
    if arguments.html is not None:
        write_text(arguments.html, draw_quality_page(arguments.pack, quality))
        say(f"wrote {arguments.html}")
    return 0
