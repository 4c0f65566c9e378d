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
import sys
from functools import partial

from feedrate.cli.arguments import add_allow_address, positive, reader
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    say,
    show_result,
    write_json,
    write_path,
)
from feedrate.units import parse_keep, parse_rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a pack, a folder or a file; a path or an address")
    parser.add_argument(
        "--to", metavar="FOLDER",
        help="the scratch folder (default: $SLURM_TMPDIR and its like, /scr, /scratch, /local, ...)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", default="7d", type=reader(partial(_checked, parse_keep)), metavar="TIME",
        help="how long the copy stays when nobody uses it: 7d (default), 12h, forever",
    )  # fmt: skip
    parser.add_argument(
        "--rate-limit", type=reader(partial(_checked, parse_rate)), metavar="SIZE",
        help="at most so many bytes per second, like 100MB",
    )  # fmt: skip
    parser.add_argument(
        "--streams", type=positive, metavar="N", help="reads in flight (default: 8; 16 behind an address)"
    )
    parser.add_argument(
        "--nodes", action="store_true", help="inside a Slurm job: one copy on each of its nodes, by srun"
    )
    parser.add_argument(
        "--allow-network", action="store_true", help="take a scratch folder that another machine serves"
    )
    parser.add_argument(
        "--check", action="store_true",
        help="read what is there already, and bring anew what is not as it was copied",
    )  # fmt: skip
    add_allow_address(parser)
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_INTERRUPTED, say_error

    check_json_target(arguments)
    try:
        return _stage_on_nodes(arguments) if arguments.nodes else _stage(arguments)
    except KeyboardInterrupt:
        say_error("interrupted", "run the same command again to go on")
        return EXIT_INTERRUPTED


def _stage(arguments: argparse.Namespace) -> int:
    from feedrate.report.document import dump_document
    from feedrate.report.progress import TransferBar
    from feedrate.report.stage import draw_stage
    from feedrate.scratch.commands import stage

    say(f"staging {arguments.source}")
    with TransferBar() as bar:
        result = stage(
            arguments.source,
            arguments.to,
            keep=arguments.keep,
            rate_limit=arguments.rate_limit,
            streams=arguments.streams,
            allow_network=arguments.allow_network,
            check=arguments.check,
            allow_addresses=arguments.allow_addresses,
            watch=bar.update,
            say=bar.say,
        )
    show_result(draw_stage, result, stream=sys.stderr)
    if arguments.json != "-":
        write_path(result.path)
    write_json(arguments, dump_document("stage", result))
    return 0


def _stage_on_nodes(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_FAILED, EXIT_OK, say_error
    from feedrate.report.document import dump_document
    from feedrate.report.stage import draw_nodes
    from feedrate.scratch.commands import stage_on_nodes

    result = stage_on_nodes(arguments.source, _options(arguments), say=say)
    show_result(draw_nodes, result, stream=sys.stderr)
    if result.path and arguments.json != "-":
        write_path(result.path)
    write_json(arguments, dump_document("stage", result))
    if not result.path and not result.failures:
        say_error("the copies lie under different paths", "name a folder that all nodes have: --to FOLDER")
    return EXIT_OK if result.path else EXIT_FAILED


def _options(arguments: argparse.Namespace) -> list[str]:
    """Return what each node's own command is to be told."""
    import os

    words = [f"--keep={arguments.keep}"]
    if arguments.streams is not None:
        words.append(f"--streams={arguments.streams}")
    if arguments.to is not None:
        words.append(f"--to={os.path.abspath(arguments.to) if arguments.to != 'auto' else 'auto'}")
    if arguments.rate_limit is not None:
        words.append(f"--rate-limit={arguments.rate_limit}")
    words += [f"--allow-address={address}" for address in arguments.allow_addresses]
    words += ["--allow-network"] if arguments.allow_network else []
    return [*words, "--check"] if arguments.check else words


def _checked(parse: object, text: str) -> str:
    """Keep a value as it was typed, once it is known to be one: nodes are told the same words."""
    assert callable(parse)
    parse(text)
    return text
