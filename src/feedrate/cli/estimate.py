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

_COPY = """How long copying a size, a folder or a file to another disk takes.

Reads some files of the folder that is copied from, and writes a trial file to the other, which
is removed. Many small files take longer than one large one: say how many with --files.
Where there is nothing to read, the numbers of 'feedrate bench machine' are used.
"""
_EPOCH = "How long an epoch takes: read in place, from a pack, and for the device alone."
_MEMORY = "How much memory a dataset takes, whether this job has that, and the --mem to type."
_PACK = "How long packing a dataset takes, once."


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="questions", metavar="WHAT", required=True, dest="kind")
    texts = {"copy": _COPY, "epoch": _EPOCH, "memory": _MEMORY, "pack": _PACK}
    copy, epoch, memory, pack = (
        kinds.add_parser(name, help=text.splitlines()[0], description=text.strip())
        for name, text in texts.items()
    )
    add = copy.add_argument
    add("what", metavar="SIZE|DATASET", help="a size like 100GB; or a folder or file: it is counted")
    add("--from", dest="source", metavar="DIR", help="where a size is copied from: a folder with some files")
    add("--to", dest="target", metavar="DIR", help="where to (default: this node's scratch)")
    add("--files", type=whole_between(1, 10**12), metavar="N", help="how many files a size is made of")
    for kind in (epoch, memory, pack):
        what = "a folder of images, archives" if kind is pack else "a folder of images, a pack, archives"
        kind.add_argument("dataset", metavar="DATASET", help=what)
    add_model(epoch)
    epoch.add_argument("--workers", type=whole_between(0, 1024), metavar="N", default=4,
                       help="num_workers of the DataLoader that reads in place (default: 4)")
    memory.add_argument("--decoded", action="store_true", help="as pixels, not as its files are")
    for kind in (copy, epoch, memory, pack):
        add_looking(kind)
        add_json_arguments(kind)
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.model.numbers import load_numbers
    from feedrate.plan import estimate
    from feedrate.report.figures import draw_estimate

    known, kind = vars(arguments), arguments.kind
    taken = {
        "copy": ("what", "source", "target", "files"), "epoch": ("dataset", "workers"),
        "memory": ("dataset", "decoded"), "pack": ("dataset",),
    }  # fmt: skip
    options = {name: known[name] for name in (*taken[kind], "seconds")}
    if kind != "memory":
        options["numbers"] = load_numbers()
    if kind == "epoch":
        options["model"], options["model_rate"] = choose_model(arguments)
    asks: dict[str, Callable[..., Estimate]] = {
        "copy": estimate.estimate_copy, "epoch": estimate.estimate_epoch,
        "memory": estimate.estimate_memory, "pack": estimate.estimate_pack,
    }  # fmt: skip
    with ended_like_an_interrupt():
        return emit(arguments, "estimate", asks[kind](**options, say=say), draw_estimate)
