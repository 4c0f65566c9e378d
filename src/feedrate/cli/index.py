# SPDX-License-Identifier: Apache-2.0
"""Make files that are there random-access and fast, without rewriting a byte of them.

PATH is a folder of tar or WebDataset shards or of TFRecord files, one such file, a pattern of
them ('train-*.tar'), an HDF5 file of contiguous datasets, or a folder of images. WebDataset shards
and TFRecord files may also lie elsewhere: 's3://bucket/train-*.tar', or, since a web server lists
nothing, 'https://host/train-{000..009}.tar'. Then TARGET is needed; each shard is brought once, to
that folder, looked at and deleted, and the loader reads the shards where they lie.

The index goes to PATH.index, beside what it describes; of a folder of shards, into that folder.
It is what a pack has beside its shards: where each sample lies, its checksum, and where the
decoder can enter each JPEG. feedrate.Loader, feedrate.Dataset, 'feedrate verify' and
'feedrate ls' take the folder with the index as they take a pack. When indexing is interrupted,
the same command goes on where it stopped. When the files change, index them again.

With --entries, PATH may be a pack, or have an index, already: its JPEGs get such entry points in
new index files beside the old ones, and not a byte of its samples is written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from feedrate.cli.arguments import add_entries, add_workers, read_options
from feedrate.cli.output import add_json_arguments, add_strict, emit, judge_rejected, open_bar, say
from feedrate.errors import UsageError


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.late = "target"  # type: ignore[attr-defined]  # options may stand before it
    add = parser.add_argument
    add("path", metavar="PATH", help="what to index: a folder, a file, a pattern of files, or an address")
    add("target", nargs="?", metavar="TARGET",
        help="the folder where the index goes (default: PATH.index; for a folder of shards, that folder; "
        "needed for a pattern and for an address)")
    add("--labels", type=Path, metavar="FILE", help="a table that says which image has which label")
    add("--path-column", metavar="C", help="its column of file names (default: guessed)")
    add("--label-column", metavar="C", help="its column of labels (default: guessed)")
    add("--label-separator", metavar="S", help="what stands between classes in a cell, like '|'; or none")
    add("--empty-label", metavar="CLASS", help="the class of rows without a label, or 'reject'")
    add_entries(parser, "; also for a pack or an index that is there")
    add("--remove-old", action="store_true",
        help="with --entries, of a pack that is there: delete index files that were replaced, but for those "
        "that a process of this machine has open. Nobody may read the pack from another machine")
    add_workers(parser)
    add_strict(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.packing.change.entries import find_pack
    from feedrate.packing.indexing.local import index
    from feedrate.remote.addresses import is_url
    from feedrate.report.pack import draw_index
    from feedrate.source.in_place import check_secrets
    from feedrate.source.options import SourceOptions

    options = read_options(SourceOptions, arguments)
    target = arguments.target
    is_new = arguments.entries is None or target is not None or arguments.labels is not None
    pack = None if is_new else find_pack(arguments.path)
    if pack is not None:
        return _set_entries(arguments, pack)
    if arguments.remove_old:
        raise UsageError(
            "--remove-old deletes index files that other entry points replaced in a pack that is there",
            hint="feedrate index PACK --entries gpu --remove-old",
        )
    if is_url(arguments.path):
        check_secrets(arguments.path)  # before it is said what is indexed
    say(f"indexing {arguments.path}")
    with open_bar() as bar:
        result = index(
            arguments.path,
            None if target is None else Path(target),
            options=options,
            entries=arguments.entries or "auto",
            workers=arguments.workers,
            watch=bar.update,
        )
    emit(arguments, "index", result, draw_index)
    return judge_rejected(arguments, len(result.rejected), f"{result.target}/rejected.jsonl")


def _set_entries(arguments: argparse.Namespace, pack: str) -> int:
    from feedrate.packing.change.entries import set_entries
    from feedrate.report.pack import draw_entries

    say(f"new entry points for {pack}")
    with open_bar() as bar:
        result = set_entries(
            pack,
            arguments.entries,
            remove_old=arguments.remove_old,
            workers=arguments.workers,
            watch=bar.update,
        )
    return emit(arguments, "entries", result, draw_entries)
