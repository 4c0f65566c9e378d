# SPDX-License-Identifier: Apache-2.0
"""Measure loaders and decoders on this machine and these images.

'feedrate bench loader SOURCE' compares torch's DataLoader with feedrate.Loader.
'feedrate bench kernel' compares decoders on one thread, step by step.
"""

from __future__ import annotations

import argparse

from feedrate.cli import bench_kernel, bench_loader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    for name, module in (("loader", bench_loader), ("kernel", bench_kernel)):
        text = (module.__doc__ or "").strip()
        kind = kinds.add_parser(name, help=text.splitlines()[0], description=text)
        module.add_arguments(kind)
        kind.set_defaults(measure=module.run)


def run(arguments: argparse.Namespace) -> int:
    exit_code: int = arguments.measure(arguments)
    return exit_code
