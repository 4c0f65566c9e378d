# SPDX-License-Identifier: Apache-2.0
"""Say what lies on scratch, and clear it away safely.

'feedrate scratch ls' lists copies: whose, how large, last used, and who uses them now.
'feedrate scratch rm COPY' deletes copies, 'feedrate scratch gc' those that have expired,
were never finished, or are more than a size limit allows, and what ended jobs left behind.

Nothing is deleted that a running process uses, that feedrate did not make, or whose source
was not seen a moment before, unchanged. Caches that feedrate.cached(key=...) and feedrate run
keep are listed and deleted too: they have no source, and can be made anew.
"""

from __future__ import annotations

import argparse

from feedrate.cli.arguments import reader
from feedrate.cli.output import add_json_arguments, emit, say
from feedrate.units import parse_bytes


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="what to do", metavar="WHAT", required=True)

    listing = kinds.add_parser("ls", help="list the copies on this node, or on all of them")
    listing.add_argument(
        "--everywhere", action="store_true",
        help="list what you have staged on any node, from the registry in your home folder",
    )
    listing.set_defaults(act=_ls)

    removing = kinds.add_parser("rm", help="delete copies")
    removing.add_argument(
        "copies", metavar="COPY", nargs="+",
        help="a copy by its name, path or source; a cache by its name or path",
    )
    removing.add_argument(
        "--even-if-the-source-is-gone", action="store_true",
        help="delete also what may be the only copy left of its data",
    )
    removing.set_defaults(act=_rm)

    what = "delete copies that expired or were never finished, and leftovers"
    collecting = kinds.add_parser("gc", help=what)
    collecting.add_argument(
        "--limit", type=reader(parse_bytes), metavar="SIZE",
        help="also delete copies, the longest unused first, until yours take at most this much"
        " (default: $FEEDRATE_SCRATCH_LIMIT, else none)",
    )
    collecting.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    collecting.set_defaults(act=_gc)

    for command in (listing, removing, collecting):
        command.add_argument(
            "--scratch", metavar="PATH",
            help="the scratch folder (default: what 'feedrate stage' would choose, and where you staged)",
        )
        add_json_arguments(command)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.act(arguments)
    return code


def _ls(arguments: argparse.Namespace) -> int:
    from feedrate.report.scratch import draw_everywhere, draw_scratch
    from feedrate.scratch.commands import list_everywhere, list_scratch

    if arguments.everywhere:
        return emit(arguments, "scratch ls --everywhere", list_everywhere(), draw_everywhere)
    return emit(arguments, "scratch ls", list_scratch(arguments.scratch), draw_scratch)


def _rm(arguments: argparse.Namespace) -> int:
    from feedrate.report.scratch import draw_cleared
    from feedrate.scratch.commands import remove_copies

    is_forced = arguments.even_if_the_source_is_gone
    result = remove_copies(arguments.copies, arguments.scratch, even_if_the_source_is_gone=is_forced, say=say)
    emit(arguments, "scratch rm", result, draw_cleared)
    if any(one.is_only_copy for one in result.kept):
        say(
            "hint: copy what is there to where it is safe; or, to lose it for good,"
            " add --even-if-the-source-is-gone"
        )
    return 1 if result.kept else 0


def _gc(arguments: argparse.Namespace) -> int:
    from feedrate.report.scratch import draw_cleared
    from feedrate.scratch.commands import collect_garbage

    limit, is_trial = arguments.limit, arguments.dry_run
    result = collect_garbage(arguments.scratch, limit_bytes=limit, is_trial=is_trial, say=say)
    return emit(arguments, "scratch gc", result, draw_cleared)
