# SPDX-License-Identifier: Apache-2.0
"""Say what lies on scratch, and clear it away safely.

'feedrate scratch ls' lists copies: whose, how large, last used, and who uses them now.
'feedrate scratch rm COPY' deletes copies, 'feedrate scratch gc' those that have expired,
were never finished, or are more than a size limit allows, and what ended jobs left behind.

Nothing is deleted that a running process uses, that feedrate did not make, or whose source
was not seen a moment before, unchanged. Caches that feedrate.cached(key=...) keeps are listed
and deleted too: they have no source, and can be made anew.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import reader
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    say,
    show_result,
    write_json,
)
from feedrate.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="what to do", metavar="WHAT", required=True)

    listing = kinds.add_parser("ls", help="list the copies on this node, or on all of them")
    listing.add_argument(
        "--everywhere",
        action="store_true",
        help="list what you have staged on any node, from the registry in your home folder",
    )
    listing.set_defaults(act=_ls)

    removing = kinds.add_parser("rm", help="delete copies")
    removing.add_argument(
        "copies",
        metavar="COPY",
        nargs="+",
        help="a copy by its name, path or source; a cache by its name or path",
    )
    removing.add_argument(
        "--even-if-the-source-is-gone",
        action="store_true",
        help="delete also what may be the only copy left of its data",
    )
    removing.set_defaults(act=_rm)

    collecting = kinds.add_parser(
        "gc", help="delete copies that expired or were never finished, and leftovers"
    )
    collecting.add_argument(
        "--limit",
        type=reader(parse_bytes),
        metavar="SIZE",
        help="also delete copies, the longest unused first, until yours take at most this much"
        " (default: $FEEDRATE_SCRATCH_LIMIT, else none)",
    )
    collecting.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    collecting.set_defaults(act=_gc)

    for command in (listing, removing, collecting):
        command.add_argument(
            "--scratch",
            metavar="PATH",
            help="the scratch folder (default: what 'feedrate stage' would choose, and where you staged)",
        )
        add_json_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    check_json_target(arguments)
    exit_code: int = arguments.act(arguments)
    return exit_code


def _ls(arguments: argparse.Namespace) -> int:
    from feedrate.report.document import dump_document
    from feedrate.report.scratch import draw_everywhere, draw_scratch
    from feedrate.scratch.commands import list_everywhere, list_scratch

    if arguments.everywhere:
        everywhere = list_everywhere()
        if arguments.json != "-":
            show_result(draw_everywhere, everywhere)
        write_json(arguments, dump_document("scratch ls --everywhere", everywhere))
        return 0
    listing = list_scratch(arguments.scratch)
    if arguments.json != "-":
        show_result(draw_scratch, listing)
    write_json(arguments, dump_document("scratch ls", listing))
    return 0


def _rm(arguments: argparse.Namespace) -> int:
    from feedrate.cli import EXIT_FAILED, EXIT_OK
    from feedrate.report.document import dump_document
    from feedrate.report.scratch import draw_cleared
    from feedrate.scratch.commands import remove_copies

    result = remove_copies(
        arguments.copies,
        arguments.scratch,
        even_if_the_source_is_gone=arguments.even_if_the_source_is_gone,
        say=say,
    )
    if arguments.json != "-":
        show_result(draw_cleared, result)
    write_json(arguments, dump_document("scratch rm", result))
    if any(one.is_only_copy for one in result.kept):
        say(
            "hint: copy what is there to where it is safe; or, to lose it for good,"
            " add --even-if-the-source-is-gone"
        )
    return EXIT_FAILED if result.kept else EXIT_OK


def _gc(arguments: argparse.Namespace) -> int:
    from feedrate.report.document import dump_document
    from feedrate.report.scratch import draw_cleared
    from feedrate.scratch.commands import collect_garbage

    result = collect_garbage(
        arguments.scratch, limit_bytes=arguments.limit, is_trial=arguments.dry_run, say=say
    )
    if arguments.json != "-":
        show_result(draw_cleared, result)
    write_json(arguments, dump_document("scratch gc", result))
    return 0
