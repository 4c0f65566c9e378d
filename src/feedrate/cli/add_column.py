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

from feedrate.cli.arguments import read_options
from feedrate.cli.output import add_json_arguments, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pack", metavar="PACK", help="the pack that gets the column")
    add("table", metavar="TABLE", help="a .csv, .tsv, .jsonl or .parquet table")
    add("--column", metavar="C", help="its column of values (default: the only other one)")
    add("--name", metavar="NAME", help="of the field (default: that of the column)")
    kinds = ("number", "class", "text", "json")
    add("--kind", choices=kinds, help="(default: number, or class for words)")
    add("--path-column", metavar="C", help="its column of original paths (default: path, file, ...)")
    add("--key-column", metavar="C", help="its column of keys, instead of paths")
    add("--default", metavar="VALUE", help="of samples that the table has no value for")
    add("--replace", action="store_true", help="in the place of a field of this name")
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.columns import ColumnOptions, add_column
    from feedrate.report.pack import draw_column

    options = read_options(ColumnOptions, arguments)
    return emit(arguments, "add-column", add_column(arguments.pack, arguments.table, options), draw_column)
