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

from feedrate.cli.arguments import add_allow_address, add_interpolation, positive, whole_number
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    check_target,
    ended_like_an_interrupt,
    say,
    show_result,
    write_json,
    write_text,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", metavar="SRC|PACK", nargs="+", help="a pack, or folders and files of images"
    )
    parser.add_argument(
        "--images", type=positive, metavar="N", default=200, help="images to compare (default: 200)"
    )
    parser.add_argument(
        "--seed", type=whole_number, metavar="N", default=0, help="of the sample and its crops (default: 0)"
    )
    parser.add_argument(
        "--size", type=positive, metavar="N", default=224, help="side of the crops in pixels (default: 224)"
    )
    add_interpolation(parser)
    parser.add_argument(
        "--originals",
        type=Path,
        metavar="DIR",
        help="the folder that the pack was made of: compare with it too",
    )
    parser.add_argument(
        "--html", type=Path, metavar="PATH", help="write a page that shows the worst pairs side by side"
    )
    add_allow_address(parser)
    add_json_arguments(parser, overwritten="the page and the JSON file")


def run(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_FAILED, EXIT_OK
    from feedrate.fidelity.measuring import FidelityOptions, measure_fidelity
    from feedrate.report.document import dump_document
    from feedrate.report.fidelity import draw_fidelity
    from feedrate.report.page import draw_page
    from feedrate.report.progress import ProgressBar

    check_json_target(arguments)
    if arguments.html is not None:
        check_target(arguments.html, force=arguments.force)
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
    if arguments.json != "-":
        show_result(draw_fidelity, result)
    write_json(arguments, dump_document("fidelity", result))
    if arguments.html is not None:
        write_text(arguments.html, draw_page(result, pictures))
        say(f"wrote {arguments.html}")
    return EXIT_OK if result.is_good else EXIT_FAILED
