# SPDX-License-Identifier: Apache-2.0
"""Check every byte of a pack against its checksums.

Also checks that the manifest, the index and the tar shards say the same, and that the
kernel can enter each image where the index says. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_allow_address, add_workers
from feedrate.cli.output import add_json_arguments, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to check")
    add_workers(parser)
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.verify import verify
    from feedrate.report.check import draw_verify
    from feedrate.report.progress import ProgressBar

    with ProgressBar() as bar:
        allowed = arguments.allow_addresses
        result = verify(arguments.pack, workers=arguments.workers, allow_addresses=allowed, watch=bar.update)
    return emit(arguments, "verify", result, draw_verify, code=0 if result.is_good else 1)
