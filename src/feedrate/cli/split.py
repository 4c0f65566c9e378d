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
from typing import TYPE_CHECKING, Any

from feedrate.cli.arguments import whole_number
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    show_result,
    write_json,
)
from feedrate.errors import UsageError

if TYPE_CHECKING:
    from feedrate.packing.change.split import SplitOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.scattered = "parts"  # type: ignore[attr-defined]  # options may stand between them
    parser.add_argument("pack", metavar="PACK", help="the pack to divide")
    parser.add_argument(
        "parts", nargs="*", metavar="NAME=SHARE",
        help="a fraction (0.9 or 90%%), a number of samples (5000), or rest",
    )  # fmt: skip
    parser.add_argument(
        "--file", nargs="+", action="extend", default=[], metavar="NAME=FILE", dest="files",
        help="lists of the parts' samples, an original path or key per line; NAME=rest: all others",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="another one, other parts (default: 0)"
    )
    parser.add_argument("--by", metavar="FIELD", help="keep samples together that have the same value of it")
    parser.add_argument(
        "--by-path", metavar="REGEX", help="keep samples together in whose paths it finds the same"
    )
    parser.add_argument("--by-folder", action="store_true", help="keep the samples of a folder together")
    parser.add_argument(
        "--stratify", nargs="?", const="label", metavar="FIELD", action=_Stratify,
        help="give each part its share of each class (default field: label)",
    )  # fmt: skip
    parser.add_argument("--name", default="split", metavar="NAME", help="of the column (default: split)")
    parser.add_argument(
        "--extend", action="store_true",
        help="give samples that were appended a part, as the split was made; no other sample moves",
    )  # fmt: skip
    parser.add_argument("--replace", action="store_true", help="in the place of the split that is there")
    add_json_arguments(parser)


class _Stratify(argparse.Action):
    """Takes a field, or none: what follows may be a part already."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        namespace.stratify = self.const if "=" in values else values
        if "=" in values:
            namespace.displaced = [values]


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.split import extend_split, parse_shares, split
    from feedrate.report.change import draw_split
    from feedrate.report.document import dump_document

    check_json_target(arguments)
    if arguments.extend:
        if arguments.parts or arguments.files:
            raise UsageError("--extend goes by the shares that the split was made with: give no others")
        result = extend_split(arguments.pack, arguments.name)
    else:
        # What stands behind --file is taken for lists.
        rest = [text for text in arguments.files if text.endswith("=rest")]
        arguments.files = [text for text in arguments.files if text not in rest]
        result = split(arguments.pack, parse_shares([*arguments.parts, *rest]), _read_options(arguments))
    if arguments.json != "-":
        show_result(draw_split, result)
    write_json(arguments, dump_document("split", result))
    return 0


def _read_options(arguments: argparse.Namespace) -> SplitOptions:
    from feedrate.packing.change.split import SplitOptions

    return SplitOptions(
        files=_parse_files(arguments.files),
        seed=arguments.seed,
        by=arguments.by,
        by_path=arguments.by_path,
        by_folder=arguments.by_folder,
        stratify=arguments.stratify,
        name=arguments.name,
        replace=arguments.replace,
    )


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
