# SPDX-License-Identifier: Apache-2.0
"""Measure loaders on this machine and these images, and the machine itself.

'feedrate bench loader SOURCE' compares torch's DataLoader with feedrate.Loader.
'feedrate bench machine' measures disks, cores, memory and the GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from feedrate.cli.arguments import positive
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt, open_bar, say
from feedrate.errors import NotFound, StorageError


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)

    def add_kind(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        text = (run.__doc__ or "").replace("\n    ", "\n").strip()
        kind = kinds.add_parser(name, help=text.splitlines()[0], description=text)
        kind.set_defaults(measure=run)
        return kind

    loader = add_kind("loader", run_loader)
    add = loader.add_argument
    add("source", metavar="SOURCE", type=Path, help="a folder of images, a pack, or archives of images")
    add("--rounds", type=positive, metavar="N", default=3, help="runs of each loader, in turn (default: 3)")
    add("--epochs", type=positive, metavar="N", default=2,
        help="timed epochs per run; one more is discarded (default: 2)")
    add("--threads", type=positive, metavar="N",
        help="threads or workers (default: the cores this process may use)")
    add("--batch-size", type=positive, metavar="N", default=256, help="images per batch (default: 256)")
    add("--size", type=positive, metavar="N", default=224, help="side of the crops in pixels (default: 224)")
    add_json_arguments(loader)

    machine = add_kind("machine", run_machine)
    add = machine.add_argument
    add("--store", metavar="[NAME=]DIR", action="append", default=[], dest="stores",
        help="a folder to measure the file system of; may be given again "
             "(default: this node's scratch folder, else TMPDIR)")
    add("--quick", action="store_true", help="smaller files and fewer models: under 30 seconds")
    add_json_arguments(machine)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.measure(arguments)
    return code


def run_loader(arguments: argparse.Namespace) -> int:
    """Compare torch's DataLoader and Pillow with feedrate.Loader.

    'feedrate bench loader SOURCE' loads the images of a folder, or of a pack, through
    torch's DataLoader with Pillow and through feedrate.Loader, in turn and each time in
    a fresh process: random crops, flips, batches of uint8. It says images per second,
    CPU time per image, memory, the time to the first batch, and whether the pixels agree.
    For it a folder is packed, and a pack or an archive unpacked, into a temporary folder.
    """
    from feedrate.bench.loader import BenchOptions, bench_loader
    from feedrate.lab.loader import require_torch
    from feedrate.machine.cpu import count_usable_cores
    from feedrate.report.bench import draw_bench

    threads = count_usable_cores() if arguments.threads is None else arguments.threads
    options = BenchOptions(arguments.rounds, arguments.epochs, threads, arguments.batch_size, arguments.size)
    require_torch("the comparison is with torch's DataLoader, so it")
    with ended_like_an_interrupt(), _files_and_pack(arguments.source) as (files, pack):
        result = bench_loader(str(files), str(pack), options, source=str(arguments.source), say=say)
    return emit(arguments, "bench loader", result, draw_bench)


@contextmanager
def _files_and_pack(source: Path) -> Iterator[tuple[Path, Path]]:
    """Give the same images as a folder and as a pack; what is missing is made, and removed at the end."""
    from feedrate.packing.build.pack import pack
    from feedrate.packing.check.unpack import unpack
    from feedrate.packing.options import PackOptions
    from feedrate.source.folders import has_images

    if not source.exists():
        raise NotFound(f"no folder or pack at {source}")
    with tempfile.TemporaryDirectory(prefix="feedrate-bench-") as temporary:
        packed, files = source, source
        if not (source / "pack.json").exists():
            packed = Path(temporary) / "pack"
            say(f"packing {source} into {packed} (removed at the end)")
            with open_bar() as bar:
                rejected = pack(source, packed, PackOptions(), watch=bar.update).rejected
        if packed is source or rejected or not (source.is_dir() and has_images(str(source))):
            # Files that were left out would end the other loader, and archives are no files to it.
            files = Path(temporary) / "files"
            say(f"unpacking {packed} into {files} (removed at the end)")
            with open_bar() as bar:
                unpack(packed, files, watch=bar.update)
        yield files, packed


def run_machine(arguments: argparse.Namespace) -> int:
    """Measure disks, cores, memory, the GPU and standard models on this machine.

    'feedrate bench machine' says how files are read and written, cold and from memory, how fast
    images are decoded on one core, on all and on the GPU, and how many images per second
    standard models take on this device.

    It writes below the folders that --store names, in a folder of its own, at most 1 GB at a
    time, and removes that at the end. What it found is kept for 'feedrate plan' and 'feedrate
    estimate'; what --json writes names no node, user or folder but the stores.
    """
    from feedrate.bench.machine import bench_machine, choose_stores
    from feedrate.model.numbers import save_numbers
    from feedrate.report.bench import draw_machine

    stores = choose_stores(arguments.stores)
    with ended_like_an_interrupt():
        result, numbers = bench_machine(stores, is_quick=arguments.quick, say=say)
    try:
        if result.busy:
            say(f"not kept for other commands, as {result.busy}: type it again when they have ended")
        else:
            say(f"kept for 'feedrate plan' and 'feedrate estimate': {save_numbers(numbers)}")
    except StorageError as error:
        say(f"not kept for other commands: {error}")
    return emit(arguments, "bench machine", result, draw_machine)
