# SPDX-License-Identifier: Apache-2.0
"""Show what packing found out about a dataset: classes, formats, sizes, and what deserves a look.

Damaged, empty, duplicate, rotated, mislabelled or slow samples, and what was done with each: kept,
rejected, normalised, or mapped by a function of yours. Reads PACK/quality.json, nothing else.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from feedrate.cli.output import add_json_arguments, emit
from feedrate.errors import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to look at")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page, too")
    add_json_arguments(parser, overwritten="the page and the JSON file")


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.quality_report import read_quality
    from feedrate.report.quality import draw_quality, draw_quality_page

    pack, quality = arguments.pack, read_quality(arguments.pack)
    draw, page = partial(draw_quality, clean(pack)), partial(draw_quality_page, pack, quality)
    return emit(arguments, "quality", quality, draw, page=page)
