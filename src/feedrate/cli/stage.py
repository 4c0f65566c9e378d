# SPDX-License-Identifier: Apache-2.0
"""Copy a pack, a folder or a file to this node's scratch disk, once for all who want it.

SOURCE is a path (also on NFS or Lustre) or an address that fsspec reaches (s3://, https://,
sftp://). Standard output is the path of the copy alone: DATA=$(feedrate stage SOURCE).

Jobs, ranks and later runs on the same node share the copy; who comes while it is made waits for
it, and goes on with it when the one who made it was killed. Files are checked against the
checksums of their pack. 'feedrate scratch' lists copies and clears them away.

With --warm, a pack is loaded into memory (the page cache), as far as the job's memory limit goes:
where it lies, or with --scratch too its copy there. The first epoch then runs like the later ones.
What did not fit is named; nothing is locked: memory that a process needs drives the files out again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from feedrate.cli.arguments import add_allow_address, positive, reader
from feedrate.cli.output import add_json_arguments, emit, open_bar, say, show_result
from feedrate.errors import UsageError
from feedrate.units import parse_bytes, parse_keep, parse_rate

if TYPE_CHECKING:
    from feedrate.scratch.results import StageResult


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a pack, a folder or a file; a path or an address")
    add("--scratch", metavar="DIR",
        help="the scratch folder (default: $SLURM_TMPDIR and its like, /scr, /scratch, /local, ...)")
    add("--keep", default="7d", type=reader(parse_keep), metavar="TIME",
        help="how long the copy stays when nobody uses it: 7d (default), 12h, forever")
    add("--rate-limit", type=reader(parse_rate), metavar="SIZE",
        help="at most so many bytes per second, like 100MB")
    add("--streams", type=positive, metavar="N", help="reads in flight (default: 8; 16 behind an address)")
    add("--allow-network", action="store_true", help="take a scratch folder that another machine serves")
    add("--check", action="store_true",
        help="read what is there already, and bring anew what is not as it was copied")
    add("--warm", action="store_true",
        help="load the pack into memory, where it lies; with --scratch, copy it and load the copy")
    add("--limit", type=reader(parse_bytes), metavar="SIZE",
        help="with --warm: load at most this much (default: what machine and job leave)")
    add_allow_address(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    if arguments.limit is not None and not arguments.warm:
        raise UsageError("--limit says how much --warm may load", hint="add --warm, or leave out --limit")
    staged = None if arguments.warm and arguments.scratch is None else _stage(arguments)
    if arguments.warm:
        return _warm(arguments, staged)
    assert staged is not None
    return emit(arguments, "stage", staged, path=staged.path)


def _stage(arguments: argparse.Namespace) -> StageResult:
    from feedrate.report.progress import TransferBar
    from feedrate.report.scratch import draw_stage
    from feedrate.scratch.commands import stage

    say(f"staging {arguments.source}")
    with TransferBar() as bar:
        result = stage(
            arguments.source,
            arguments.scratch,
            keep=arguments.keep,
            rate_limit=arguments.rate_limit,
            streams=arguments.streams,
            allow_network=arguments.allow_network,
            check=arguments.check,
            allow_addresses=arguments.allow_addresses,
            watch=bar.update,
            say=bar.say,
        )
    show_result(draw_stage, result, sys.stderr)
    return result


def _warm(arguments: argparse.Namespace, staged: StageResult | None) -> int:
    from feedrate.packing.check.describe import warm
    from feedrate.report.check import draw_warm

    path = arguments.source if staged is None else staged.path
    with open_bar() as bar:
        result = warm(path, limit_bytes=arguments.limit, watch=bar.update)
    show_result(draw_warm, result, sys.stderr)
    return emit(arguments, "stage --warm", dataclasses.replace(result, staged=staged), path=path)
