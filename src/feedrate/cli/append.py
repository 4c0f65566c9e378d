# SPDX-License-Identifier: Apache-2.0
"""Add the samples of a source to a pack, as further shards; what is there is not touched.

The source must give the fields that the pack has. Sizes, qualities and the shard size are
those of the pack. New classes come to the end of the class list, so numbers stay as they
are. When it is interrupted, the pack is what it was, and the same command goes on.

SOURCE may be another pack with the same fields and classes: its samples come behind those of
PACK, nothing is copied, and it must stay where it is.

  feedrate append more-photos photos.pack
  feedrate append 2024.pack 2023.pack
  feedrate append hospital-b.pack hospital-a.pack --prefix b
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.arguments import (
    add_allow_address,
    add_engine,
    add_workers,
    read_engine,
    read_options,
)
from feedrate.cli.output import add_json_arguments, add_strict, emit, judge_rejected, open_bar, say
from feedrate.errors import UsageError


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what to add: as 'feedrate pack' takes it, or a pack")
    add("pack", metavar="PACK", help="the pack that grows")
    add("--labels", type=Path, metavar="FILE", help="a .csv, .tsv, .jsonl or .parquet table")
    add("--path-column", metavar="C", help="its column of file names (default: path, file, ...)")
    add("--label-column", metavar="C", help="its column of labels (default: label, class, target)")
    add("--field", action="append", metavar="NAME:KIND[=C]", dest="fields",
        help="a further column (default: those that the pack was made with)")
    add("--skip-existing", action="store_true", help="pass over files that the pack has, by their paths")
    add("--default", action="append", default=[], metavar="NAME=VALUE", dest="defaults",
        help="the value of an added column for the new samples")
    add("--map", metavar="MODULE:FUNCTION",
        help="the function that the pack was made with; MODULE may lie in the current folder")
    add("--prefix", default="", metavar="NAME",
        help="put NAME/ before keys and paths of the pack that is added, so that equal ones may stay")
    add_allow_address(parser)
    add_workers(parser)
    add_engine(parser)
    add_strict(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.append import AppendOptions, append
    from feedrate.report.pack import draw_append
    from feedrate.source.options import FieldSpec

    fields = arguments.fields
    options = read_options(
        AppendOptions,
        arguments,
        fields=None if fields is None else tuple(FieldSpec.parse(text) for text in fields),
        defaults=_parse_defaults(arguments.defaults),
        engine=read_engine(arguments),
        allow_addresses=tuple(arguments.allow_addresses),
    )
    say(f"appending {arguments.source} to {arguments.pack}")
    with open_bar() as bar:
        result = append(arguments.source, arguments.pack, options, watch=bar.update)
    emit(arguments, "append", result, draw_append)
    # A pack that nothing came to is as it was, its list of rejected samples included.
    where = f"{arguments.pack}/rejected.jsonl" if result.added else "the list above"
    return judge_rejected(arguments, len(result.rejected), where)


def _parse_defaults(texts: list[str]) -> dict[str, str]:
    defaults = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' gives no value", hint="write it like --default age=0")
        defaults[name] = value
    return defaults
