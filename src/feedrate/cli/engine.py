# SPDX-License-Identifier: Apache-2.0
"""Options of commands that pack: on which machines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from feedrate.cli.arguments import positive, reader
from feedrate.units import parse_bytes

if TYPE_CHECKING:
    from feedrate.packing import Engine


def add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "on many machines, which must all see SOURCE and PACK under these paths"
    )
    group.add_argument(
        "--executor", default="local", metavar="WHERE", help="local (default), slurm, or dask://HOST:PORT"
    )
    group.add_argument("--partition", metavar="NAME", help="of Slurm (default: Slurm's)")
    group.add_argument(
        "--time",
        type=positive,
        metavar="MINUTES",
        help="limit of a Slurm job; the rest is begun anew (default: 60)",
    )
    group.add_argument("--memory", type=reader(parse_bytes), metavar="SIZE", help="of a Slurm job")
    group.add_argument(
        "--array-size",
        type=positive,
        metavar="N",
        help="Slurm jobs at a time (default: 16); each uses --workers (1)",
    )


def read_engine(arguments: argparse.Namespace) -> Engine:
    from feedrate.packing import Engine

    return Engine(
        arguments.executor, arguments.partition, arguments.time, arguments.memory, arguments.array_size
    )
