# SPDX-License-Identifier: Apache-2.0
"""Check every byte of a pack against its checksums.

Also checks that the manifest, the index and the tar shards say the same, and that the
kernel can enter each image where the index says. With --pixels, decodes random crops of some
samples as a loader does, and with Pillow, and says how far the pixels differ. Exit code 1
when something is wrong, or pixels differ by more than rounding.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import add_allow_address, add_workers, positive
from feedrate.cli.output import add_json_arguments, emit, open_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack to check")
    parser.add_argument("--pixels", type=positive, default=0, metavar="N",
        help="also compare N samples with Pillow's pixels")  # fmt: skip
    add_workers(parser)
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.check.verify import verify
    from feedrate.report.check import draw_verify

    with open_bar() as bar:
        result = verify(
            arguments.pack,
            workers=arguments.workers,
            pixels=arguments.pixels,
            allow_addresses=arguments.allow_addresses,
            watch=bar.update,
        )
    return emit(arguments, "verify", result, draw_verify, code=0 if result.is_good else 1)
