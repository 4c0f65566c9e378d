# SPDX-License-Identifier: Apache-2.0
"""Give the samples of a pack one more field, from a table, without touching its shards.

A row of TABLE is about the sample whose original path (or key) it names. Numbers stay
numbers, words that repeat become classes. The field is read like any other:
Loader(PACK, fields=("image", "age")).

  feedrate add-column xray.pack patients.csv --column age
  feedrate add-column photos.pack captions.jsonl --column caption --kind text
"""

from __future__ import annotations

import argparse

from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", help="the pack that gets the column")
    parser.add_argument("table", metavar="TABLE", help="a .csv, .tsv, .jsonl or .parquet table")
    parser.add_argument("--column", metavar="C", help="its column of values (default: the only other one)")
    parser.add_argument("--name", metavar="NAME", help="of the field (default: that of the column)")
    parser.add_argument(
        "--kind", choices=("number", "class", "text", "json"), help="(default: number, or class for words)"
    )
    parser.add_argument(
        "--path-column", metavar="C", help="its column of original paths (default: path, file, ...)"
    )
    parser.add_argument("--key-column", metavar="C", help="its column of keys, instead of paths")
    parser.add_argument("--default", metavar="VALUE", help="of samples that the table has no value for")
    parser.add_argument("--replace", action="store_true", help="in the place of a field of this name")
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.columns import ColumnOptions, add_column
    from feedrate.report.change import draw_column
    from feedrate.report.document import dump_document

    check_json_target(arguments)
    options = ColumnOptions(
        column=arguments.column,
        name=arguments.name,
        kind=arguments.kind,
        path_column=arguments.path_column,
        key_column=arguments.key_column,
        default=arguments.default,
        replace=arguments.replace,
    )
    result = add_column(arguments.pack, arguments.table, options)
    if arguments.json != "-":
        show_result(draw_column, result)
    write_json(arguments, dump_document("add-column", result))
    return 0
