# SPDX-License-Identifier: Apache-2.0
"""Compare decoders on one thread: feedrate's kernel, Pillow, simplejpeg, OpenCV.

'feedrate bench kernel' gives every decoder the same images, crops and flips, in turn, and
says images per second of CPU time, how far the pixels are from Pillow's, and where the
kernel's time goes. simplejpeg and OpenCV take part where they are installed.

Without SRC it makes its own images in a temporary folder: photographs of 0.2 megapixel,
12-megapixel pictures as cameras write them, and PNG files.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_allow_address, add_interpolation, positive
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    clean_values,
    ended_like_an_interrupt,
    say,
    write_json,
)
from feedrate.errors import need

SETS = ("photographs", "camera", "png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SRC|PACK",
        nargs="?",
        help="a folder of images, or a pack (default: images made here)",
    )
    parser.add_argument(
        "--set", choices=SETS, action="append", dest="sets",
        help="without SRC: make only this set; may be given again (default: all three)",
    )  # fmt: skip
    parser.add_argument(
        "--images", type=positive, metavar="N", help="images of each set (default: 100; camera 6, png 30)"
    )
    parser.add_argument(
        "--size", type=positive, metavar="N", default=224, help="side of the crops in pixels (default: 224)"
    )
    parser.add_argument(
        "--rounds", type=positive, metavar="N", default=10, help="runs of each decoder, in turn (default: 10)"
    )
    add_interpolation(parser)
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    Console = need("rich.console").Console

    from feedrate.bench.kernel import KernelOptions, bench_made, bench_source
    from feedrate.errors import UsageError
    from feedrate.report.document import dump_document
    from feedrate.report.kernel import draw_kernel

    if arguments.source is not None and arguments.sets:
        raise UsageError(f"--set makes images, and {arguments.source} has its own: give one of the two")
    check_json_target(arguments)
    allowed = tuple(arguments.allow_addresses)
    options = KernelOptions(
        arguments.images, arguments.size, arguments.rounds, allow_addresses=allowed,
        interpolation=arguments.interpolation,
    )  # fmt: skip
    with ended_like_an_interrupt():
        if arguments.source is not None:
            result = bench_source(arguments.source, options, say=say)
        else:
            result = bench_made(arguments.sets or SETS, options, say=say)
    if arguments.json != "-":
        draw_kernel(clean_values(result), Console())
    write_json(arguments, dump_document("bench kernel", result))
    return 0
