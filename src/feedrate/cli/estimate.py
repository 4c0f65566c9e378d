# SPDX-License-Identifier: Apache-2.0
"""Answer a one-line question: how long a copy, an epoch or packing takes, how much memory is needed.

Each prints the answer, between which bounds it is, the figures that it is made of, and where
those come from. What is to be read is read for some seconds; nothing is kept.

  feedrate estimate copy 100GB --from /nfs --to /scr
  feedrate estimate epoch /data/imagenet --model resnet50
  feedrate estimate memory /data/imagenet --decoded
  feedrate estimate pack /data/imagenet
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from feedrate.cli.arguments import add_looking, add_model, choose_model, whole_between
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt, say

if TYPE_CHECKING:
    from feedrate.plan.results import Estimate


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="questions", metavar="WHAT", required=True)

    def add_kind(name: str, ask: Callable[[argparse.Namespace], Estimate]) -> argparse.ArgumentParser:
        text = (ask.__doc__ or "").replace("\n    ", "\n").strip()
        kind = kinds.add_parser(name, help=text.splitlines()[0], description=text)
        kind.set_defaults(ask=ask)
        return kind

    copy = add_kind("copy", run_copy)
    add = copy.add_argument
    add("what", metavar="SIZE|DATASET", help="a size like 100GB; or a folder or file: it is counted")
    add("--from", dest="source", metavar="DIR", help="where a size is copied from: a folder with some files")
    add("--to", dest="target", metavar="DIR", help="where to (default: this node's scratch)")
    add("--files", type=whole_between(1, 10**12), metavar="N", help="how many files a size is made of")

    epoch = add_kind("epoch", run_epoch)
    epoch.add_argument("dataset", metavar="DATASET", help="a folder of images, a pack, archives")
    add_model(epoch)
    epoch.add_argument("--workers", type=whole_between(0, 1024), metavar="N", default=4,
                       help="num_workers of the DataLoader that reads in place (default: 4)")

    memory = add_kind("memory", run_memory)
    memory.add_argument("dataset", metavar="DATASET", help="a folder of images, a pack, archives")
    memory.add_argument("--decoded", action="store_true", help="as pixels, not as its files are")

    pack = add_kind("pack", run_pack)
    pack.add_argument("dataset", metavar="DATASET", help="a folder of images, archives")
    for kind in (copy, epoch, memory, pack):
        add_looking(kind)
        add_json_arguments(kind)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.report.figures import draw_estimate

    with ended_like_an_interrupt():
        return emit(arguments, "estimate", arguments.ask(arguments), draw_estimate)


def run_copy(arguments: argparse.Namespace) -> Estimate:
    """How long copying a size, a folder or a file to another disk takes.

    Reads some files of the folder that is copied from, and writes a trial file to the other, which
    is removed. Many small files take longer than one large one: say how many with --files.
    Where there is nothing to read, the numbers of 'feedrate bench machine' are used.
    """
    from feedrate.model.numbers import load_numbers
    from feedrate.plan.estimate import estimate_copy

    return estimate_copy(
        arguments.what,
        source=arguments.source,
        target=arguments.target,
        files=arguments.files,
        numbers=load_numbers(),
        seconds=arguments.seconds,
        say=say,
    )


def run_epoch(arguments: argparse.Namespace) -> Estimate:
    """How long an epoch takes: read in place, from a pack, and for the device alone."""
    from feedrate.model.numbers import load_numbers
    from feedrate.plan.estimate import estimate_epoch

    model, rate = choose_model(arguments)
    return estimate_epoch(
        arguments.dataset,
        model=model,
        model_rate=rate,
        workers=arguments.workers,
        numbers=load_numbers(),
        seconds=arguments.seconds,
        say=say,
    )


def run_memory(arguments: argparse.Namespace) -> Estimate:
    """How much memory a dataset takes, whether this job has that, and the --mem to type."""
    from feedrate.plan.estimate import estimate_memory

    return estimate_memory(arguments.dataset, decoded=arguments.decoded, seconds=arguments.seconds, say=say)


def run_pack(arguments: argparse.Namespace) -> Estimate:
    """How long packing a dataset takes, once."""
    from feedrate.model.numbers import load_numbers
    from feedrate.plan.estimate import estimate_pack

    return estimate_pack(arguments.dataset, numbers=load_numbers(), seconds=arguments.seconds, say=say)
