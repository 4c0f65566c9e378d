# SPDX-License-Identifier: Apache-2.0
"""Turn many small files into a few big ones, losslessly unless you ask for less.

SOURCE is looked at: a folder of class folders (cats/1.jpg, dogs/2.jpg, ...), a folder of
images, any folder with a table that says which file has which label (--labels), a list of
paths (.txt), a zip or tar, WebDataset shards, TFRecord, HDF5 or Parquet files with
images, or a folder of such files; also behind an address that fsspec reaches.

PACK becomes a folder of tar shards, or what --format says, with an index. When packing is
interrupted, the same command goes on where it stopped. Files that cannot be read or decoded
are left out and named in PACK/rejected.jsonl. 'feedrate unpack' gives the files back, bit for
bit, unless --resize, --max-side, --quality, --raw, --normalise or --map made others of them.

What packing finds out about the dataset (classes, formats, sizes, damaged, rotated, duplicate
or slow samples, and what was done with each) ends in PACK/quality.json: 'feedrate ls PACK --quality',
with pictures 'feedrate ls PACK --html PAGE'.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from feedrate.cli.arguments import (
    add_engine,
    add_entries,
    add_workers,
    positive,
    quality,
    read_engine,
    read_options,
    reader,
    whole_number,
)
from feedrate.cli.output import add_json_arguments, add_strict, emit, judge_rejected, open_bar, say
from feedrate.units import parse_bytes


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE",
        help="a folder, a file, 'a pattern-{00..17}.tar', or an address (s3://...)")
    add("pack", metavar="PACK", help="the folder to write: new, or an unfinished pack")
    add("--labels", type=Path, metavar="FILE", help="a .csv, .tsv, .jsonl or .parquet table")
    add("--path-column", metavar="C", help="its column of file names (default: path, file, ...)")
    add("--label-column", metavar="C[,C]",
        help="its column of labels, or several, or '*': all others (default: label, class, target)")
    add("--label-separator", metavar="S",
        help="labels hold several classes with this between them, like '|'; none: each text is one class")
    add("--empty-label", metavar="CLASS",
        help="the class of rows without a label, or 'reject' (default: up to 5 %% of rows are rejected)")
    add("--field", action="append", default=[], metavar="NAME:KIND[=C]", dest="fields",
        help="a further column; kinds: image, mask, array, bytes (files), text, number, json, boxes, "
        "label (a class), labels (several)")
    add("--seed", type=whole_number, default=0, metavar="N", help="of the samples' order (default: 0)")
    add("--shard-size", type=reader(parse_bytes), default=256_000_000, metavar="SIZE", dest="shard_bytes",
        help="(default: 256MB)")
    add("--format", choices=("tar", "tfrecord", "hdf5"), default="tar", dest="container",
        help="what holds the samples: tar shards, TFRecord shards, or one HDF5 file (default: tar)")
    side = parser.add_mutually_exclusive_group().add_argument
    side("--resize", type=positive, metavar="N",
         help="shrink images to N pixels on the shorter side (lossy)")
    side("--max-side", type=positive, metavar="N",
         help="shrink images to N pixels on the longer side (lossy)")
    coding = parser.add_mutually_exclusive_group().add_argument
    coding("--quality", type=quality, metavar="Q",
           help="encode all images anew as JPEG of this quality (lossy)")
    coding("--raw", action="store_true", help="store pixels uncompressed: large, and nothing to decode")
    add("--normalise", action="store_true",
        help="make upright baseline JPEGs of progressive, CMYK, rotated, PNG, ... images: losslessly where "
        "possible, else with quality 95")
    add("--keep-truncated", action="store_true",
        help="keep images that end too early: as PNG, filled up as Pillow's LOAD_TRUNCATED_IMAGES does")
    add("--no-scan", action="store_false", dest="scan",
        help="pack faster: do not look where JPEGs can be entered. Loading is slower then, and damage found "
        "when it is loaded")
    add_entries(parser)
    add("--map", metavar="MODULE:FUNCTION",
        help="a function of yours that every sample goes through once; MODULE may lie in the current folder")
    add_workers(parser)
    add_engine(parser)
    add_strict(parser)
    add_json_arguments(parser)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    if arguments.map is None:
        # Packing multiplies no matrices, and numpy would start a thread per core that waits for some.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from feedrate.packing.build.pack import pack
    from feedrate.packing.mapping import find_map
    from feedrate.packing.options import PackOptions
    from feedrate.packing.recode import Recode
    from feedrate.source.options import FieldSpec

    options = read_options(
        PackOptions,
        arguments,
        fields=tuple(FieldSpec.parse(text) for text in arguments.fields),
        engine=read_engine(arguments),
        recode=read_options(Recode, arguments),
        map=None if arguments.map is None else find_map(arguments.map),
        entries=arguments.entries or "auto",
    )
    say(f"packing {arguments.source} into {arguments.pack}")
    with open_bar() as bar:
        result = pack(arguments.source, arguments.pack, options, watch=bar.update)
    from feedrate.report.pack import draw_pack

    emit(arguments, "pack", result, draw_pack)
    return judge_rejected(arguments, len(result.rejected), f"{arguments.pack}/rejected.jsonl")
