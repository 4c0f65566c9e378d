# SPDX-License-Identifier: Apache-2.0
"""Compare what the loader would feed with Pillow's pixels, on your own images.

Decodes a sample of a pack, or of folders and files, as feedrate.Loader does, and again with
Pillow: decode, random crop, antialiased resize, flip. Says how far the pixels differ, which
image differs most, and how many images went through Pillow anyway, which proves nothing.

With --originals, a pack is also compared with the files that it was made of: what a resize or a
re-encoding at packing time costs. Exit code 1 when pixels differ by more than rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.arguments import add_allow_address, add_interpolation, add_size, positive, whole_number
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("sources", metavar="SRC|PACK", nargs="+", help="a pack, or folders and files of images")
    add("--images", type=positive, metavar="N", default=200, help="images to compare (default: 200)")
    add("--seed", type=whole_number, metavar="N", default=0, help="of the sample and its crops (default: 0)")
    add_size(parser)
    add_interpolation(parser)
    add("--originals", type=Path, metavar="DIR",
        help="the folder that the pack was made of: compare with it too")  # fmt: skip
    add("--html", type=Path, metavar="PATH", help="write a page that shows the worst pairs side by side")
    add_allow_address(parser)
    add_json_arguments(parser, overwritten="the page and the JSON file")


def run(arguments: argparse.Namespace) -> int:
    from feedrate.fidelity.measuring import FidelityOptions, measure_fidelity
    from feedrate.report.fidelity import draw_fidelity, draw_fidelity_page
    from feedrate.report.progress import ProgressBar

    options = FidelityOptions(
        arguments.images,
        arguments.seed,
        arguments.size,
        arguments.originals,
        tuple(arguments.allow_addresses),
        arguments.interpolation,
    )
    with ended_like_an_interrupt(), ProgressBar() as bar:
        result, pictures = measure_fidelity(arguments.sources, options, watch=bar.update)
    code = 0 if result.is_good else 1
    page = lambda: draw_fidelity_page(result, pictures)  # noqa: E731
    return emit(arguments, "fidelity", result, draw_fidelity, page=page, code=code)
