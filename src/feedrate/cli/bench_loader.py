# SPDX-License-Identifier: Apache-2.0
"""Compare torch's DataLoader and Pillow with feedrate.Loader.

'feedrate bench loader SOURCE' loads the images of a folder, or of a pack, through
torch's DataLoader with Pillow and through feedrate.Loader, in turn and each time in
a fresh process: random crops, flips, batches of uint8. It says images per second,
CPU time per image, memory, the time to the first batch, and whether the pixels agree.
For it a folder is packed, and a pack or an archive unpacked, into a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedrate.cli.arguments import positive
from feedrate.cli.output import (
    add_json_arguments,
    check_json_target,
    clean_values,
    ended_like_an_interrupt,
    say,
    write_json,
)
from feedrate.errors import NotFound, SourceError, need


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="a folder of images, a pack, or archives of images"
    )
    parser.add_argument(
        "--rounds", type=positive, metavar="N", default=3, help="runs of each loader, in turn (default: 3)"
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        metavar="N",
        default=2,
        help="timed epochs per run; one more is discarded (default: 2)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads or workers (default: the cores this process may use)",
    )
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", default=256, help="images per batch (default: 256)"
    )
    parser.add_argument(
        "--size", type=positive, metavar="N", default=224, help="side of the crops in pixels (default: 224)"
    )
    add_json_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    Console = need("rich.console").Console

    from feedrate.bench.feeds import require_torch
    from feedrate.bench.loader import BenchOptions, bench_loader
    from feedrate.machine.cpu import count_usable_cores
    from feedrate.report.bench import draw_bench
    from feedrate.report.document import dump_document

    threads = count_usable_cores() if arguments.threads is None else arguments.threads
    options = BenchOptions(arguments.rounds, arguments.epochs, threads, arguments.batch_size, arguments.size)
    check_json_target(arguments)
    require_torch("the comparison is with torch's DataLoader, so it")
    with ended_like_an_interrupt(), _files_and_pack(arguments.source) as (files, pack):
        result = bench_loader(str(files), str(pack), options, source=str(arguments.source), say=say)
    if arguments.json != "-":
        draw_bench(clean_values(result), Console())
    write_json(arguments, dump_document("bench loader", result))
    return 0


@contextmanager
def _files_and_pack(source: Path) -> Iterator[tuple[Path, Path]]:
    """Give the same images as a folder and as a pack; what is missing is made, and removed at the end."""
    from feedrate.packing.build.pack import pack
    from feedrate.packing.check.unpack import unpack
    from feedrate.packing.options import PackOptions
    from feedrate.report.progress import ProgressBar

    if not source.exists():
        raise NotFound(f"no folder or pack at {source}")
    with tempfile.TemporaryDirectory(prefix="feedrate-bench-") as temporary:
        packed, files = source, source
        if not (source / "pack.json").exists():
            packed = Path(temporary) / "pack"
            say(f"packing {source} into {packed} (removed at the end)")
            with ProgressBar() as bar:
                rejected = pack(source, packed, PackOptions(), watch=bar.update).rejected
        if packed is source or rejected or not _holds_images(source):
            # Files that were left out would end the other loader, and archives are no files to it.
            files = Path(temporary) / "files"
            say(f"unpacking {packed} into {files} (removed at the end)")
            with ProgressBar() as bar:
                unpack(packed, files, watch=bar.update)
        yield files, packed


def _holds_images(folder: Path) -> bool:
    from feedrate.source.folders import find_images

    try:
        return folder.is_dir() and bool(find_images([folder]))
    except SourceError:
        return False
