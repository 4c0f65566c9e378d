# SPDX-License-Identifier: Apache-2.0
"""Divide a pack into named parts, such as train and validation, without touching its shards.

A sample's part follows from its key and the seed, so the same data gives the same parts.
Counts are exact; with --by, --by-path or --by-folder samples of one group stay together,
and counts, with --stratify also the shares of classes, are met as nearly as groups allow.
In Python: Loader(PACK, split="train").

  feedrate split photos.pack train=0.9 validation=0.1 --stratify label
  feedrate split xray.pack --by patient --stratify finding train=80% validation=10% test=rest
  feedrate split xray.pack train=80% validation=10% test=rest --by-path '(patient[0-9]+)'
  feedrate split photos.pack --file validation=val.txt train=rest
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from feedrate.cli.arguments import read_options, whole_number
from feedrate.cli.output import add_json_arguments, emit
from feedrate.errors import UsageError


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.scattered = "parts"  # type: ignore[attr-defined]  # options may stand between them
    add = parser.add_argument
    add("pack", metavar="PACK", help="the pack to divide")
    add("parts", nargs="*", metavar="NAME=SHARE",
        help="a fraction (0.9 or 90%%), a number of samples (5000), or rest")
    add("--file", nargs="+", action="extend", default=[], metavar="NAME=FILE", dest="files",
        help="lists of the parts' samples, an original path or key per line; NAME=rest: all others")
    add("--seed", type=whole_number, default=0, metavar="N", help="another one, other parts (default: 0)")
    add("--by", metavar="FIELD", help="keep samples together that have the same value of it")
    add("--by-path", metavar="REGEX", help="keep samples together in whose paths it finds the same")
    add("--by-folder", action="store_true", help="keep the samples of a folder together")
    add("--stratify", nargs="?", const="label", metavar="FIELD", action=_Stratify,
        help="give each part its share of each class (default field: label)")
    add("--name", default="split", metavar="NAME", help="of the column (default: split)")
    add("--extend", action="store_true",
        help="give samples that were appended a part, as the split was made; no other sample moves")
    add("--replace", action="store_true", help="in the place of the split that is there")
    add_json_arguments(parser)
# fmt: on


class _Stratify(argparse.Action):
    """Takes a field, or none: what follows may be a part already."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        namespace.stratify = self.const if "=" in values else values
        if "=" in values:
            namespace.displaced = [values]


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.split import SplitOptions, extend_split, parse_shares, split
    from feedrate.report.pack import draw_split

    if arguments.extend:
        if arguments.parts or arguments.files:
            raise UsageError("--extend goes by the shares that the split was made with: give no others")
        return emit(arguments, "split", extend_split(arguments.pack, arguments.name), draw_split)
    # What stands behind --file is taken for lists.
    rest = [text for text in arguments.files if text.endswith("=rest")]
    files = _parse_files([text for text in arguments.files if text not in rest])
    options = read_options(SplitOptions, arguments, files=files)
    result = split(arguments.pack, parse_shares([*arguments.parts, *rest]), options)
    return emit(arguments, "split", result, draw_split)


def _parse_files(texts: list[str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"'{text}' names no list", hint="write it like --file validation=val.txt")
        if name in files:
            raise UsageError(f"part '{name}' is given twice")
        files[name] = Path(path)
    return files
