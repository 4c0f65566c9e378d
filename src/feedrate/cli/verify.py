# SPDX-License-Identifier: Apache-2.0
"""Check every byte of a pack against its checksums.

Also checks that the manifest, the index and the tar shards say the same, and that the
kernel can enter each image where the index says. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_allow_address, add_workers
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to check")
    add_workers(parser)
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_FAILED, EXIT_OK
    from feedrate.packing.check.verify import verify
    from feedrate.report.document import dump_document
    from feedrate.report.progress import ProgressBar
    from feedrate.report.terminal import draw_verify

    check_json_target(arguments)
    with ProgressBar() as bar:
        result = verify(
            arguments.pack,
            workers=arguments.workers,
            allow_addresses=arguments.allow_addresses,
            watch=bar.update,
        )
    if arguments.json != "-":
        show_result(draw_verify, result)
    write_json(arguments, dump_document("verify", result))
    return EXIT_OK if result.is_good else EXIT_FAILED
