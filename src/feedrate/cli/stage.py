# SPDX-License-Identifier: Apache-2.0
"""Copy a pack, a folder or a file to this node's scratch disk, once for all who want it.

SOURCE is a path (also on NFS or Lustre) or an address that fsspec reaches (s3://, https://,
sftp://). Standard output is the path of the copy alone: DATA=$(feedrate stage SOURCE).

Jobs, ranks and later runs on the same node share the copy; who comes while it is made waits for
it, and goes on with it when the one who made it was killed. Files are checked against the
checksums of their pack. 'feedrate scratch' lists copies and clears them away.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

from feedrate.cli.arguments import add_allow_address, add_old_spelling, choose_spelling, positive, reader
from feedrate.cli.output import add_json_arguments, emit, say, show_result
from feedrate.units import parse_keep, parse_rate


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a pack, a folder or a file; a path or an address")
    add("--scratch", metavar="DIR",
        help="the scratch folder (default: $SLURM_TMPDIR and its like, /scr, /scratch, /local, ...)")
    add_old_spelling(parser, "--to", now="--scratch")
    add("--keep", default="7d", type=reader(partial(_checked, parse_keep)), metavar="TIME",
        help="how long the copy stays when nobody uses it: 7d (default), 12h, forever")
    add("--rate-limit", type=reader(partial(_checked, parse_rate)), metavar="SIZE",
        help="at most so many bytes per second, like 100MB")
    add("--streams", type=positive, metavar="N", help="reads in flight (default: 8; 16 behind an address)")
    add("--nodes", action="store_true", help="inside a Slurm job: one copy on each of its nodes, by srun")
    add("--allow-network", action="store_true", help="take a scratch folder that another machine serves")
    add("--check", action="store_true",
        help="read what is there already, and bring anew what is not as it was copied")
    add_allow_address(parser)
    add_json_arguments(parser)
# fmt: on


def _checked(parse: Callable[[str], object], text: str) -> str:
    """Keep a value as it was typed, once it is known to be one: nodes are told the same words."""
    parse(text)
    return text


def run(arguments: argparse.Namespace) -> int:
    arguments.scratch = choose_spelling(arguments.scratch, arguments.old_to)
    return _stage_on_nodes(arguments) if arguments.nodes else _stage(arguments)


def _stage(arguments: argparse.Namespace) -> int:
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
    return emit(arguments, "stage", result, path=result.path)


def _stage_on_nodes(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_FAILED, EXIT_OK, say_error
    from feedrate.report.scratch import draw_nodes
    from feedrate.scratch.commands import stage_on_nodes

    result = stage_on_nodes(arguments.source, _node_options(arguments), say=say)
    show_result(draw_nodes, result, sys.stderr)
    emit(arguments, "stage", result, path=result.path)
    if not result.path and not result.failures:
        hint = "name a folder that all nodes have: --scratch DIR"
        say_error("the copies lie under different paths", hint)
    return EXIT_OK if result.path else EXIT_FAILED


def _node_options(arguments: argparse.Namespace) -> list[str]:
    """Return what each node's own command is to be told."""
    scratch = arguments.scratch
    if scratch not in (None, "auto"):
        scratch = os.path.abspath(scratch)
    values = {"keep": arguments.keep, "streams": arguments.streams, "scratch": scratch,
              "rate-limit": arguments.rate_limit}  # fmt: skip
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    words += [f"--allow-address={address}" for address in arguments.allow_addresses]
    words += ["--allow-network"] if arguments.allow_network else []
    return [*words, "--check"] if arguments.check else words
