# SPDX-License-Identifier: Apache-2.0
"""Lay the ways to train on a dataset side by side: what each takes on this machine, and what to type.

Looks at a sample of DATASET and at this node for some seconds, and says for reading in place,
packing, staging, caching and others: the time before training starts, the first epoch, later
ones, the whole run, what they need, when they have paid, and what the limit is then. One is
recommended, with its commands. Every figure says whether it was measured, stored or assumed.

  feedrate plan /data/imagenet --scratch /scr --model resnet50
  feedrate plan /data/imagenet --model-rate 900 --html plan.html
  feedrate plan /data/imagenet --what-if cores=32 mem=500G gpu=4xA100
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from feedrate.cli.arguments import add_looking, add_model, choose_model, whole_between
from feedrate.cli.output import add_json_arguments, emit, ended_like_an_interrupt, say
from feedrate.errors import NotFound, UsageError, suggest_path

WORKERS = 4


# fmt: off
def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dataset", metavar="DATASET", nargs="?", help="a folder of images, a pack, archives")
    add("--scratch", metavar="DIR", help="a folder on this node's own disk (default: one is looked for)")
    add("--epochs", type=whole_between(1, 1_000_000), metavar="N", default=90,
        help="of the whole run (default: 90)")
    add_model(parser)
    add("--workers", type=whole_between(0, 1024), metavar="N", default=WORKERS,
        help=f"num_workers of the script's DataLoader as it is, per GPU (default: {WORKERS})")
    add("--batch-size", type=whole_between(1, 1_000_000), metavar="N", default=256,
        help="of the script (default: 256)")
    add("--crop", type=whole_between(1, 10_000), metavar="N",
        help="side in pixels of what the model sees (default: 224, or what the images have)")
    add("--what-if", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="another machine than this: cores=32 mem=500G net=1.2GB/s gpu=4xA100 storage=nvme nodes=8")
    add_looking(parser)
    add("--html", type=Path, metavar="PATH", help="write a page with each way as a bar of time")
    add_json_arguments(parser, overwritten="the page and the JSON file")
# fmt: on


def run(arguments: argparse.Namespace) -> int:
    from feedrate.model.numbers import load_numbers
    from feedrate.plan.node import describe_node
    from feedrate.plan.survey import survey_dataset
    from feedrate.plan.ways import make_plan
    from feedrate.plan.what_if import parse_what_if
    from feedrate.report.plan import draw_plan
    from feedrate.report.plan_page import draw_plan_page

    dataset = _take_dataset(arguments)
    model, rate = choose_model(arguments)
    what_if = parse_what_if(arguments.what_if)
    what_if.check_gpu(model)
    with ended_like_an_interrupt():
        survey = survey_dataset(
            dataset, seconds=arguments.seconds, crop=arguments.crop, workers=arguments.workers, say=say
        )
        node = describe_node(
            dataset, scratch=arguments.scratch, model=model, model_rate=rate, numbers=load_numbers(), say=say
        )
        result = make_plan(
            *what_if.apply(survey, node),
            epochs=arguments.epochs, workers=arguments.workers, batch_size=arguments.batch_size,
        )  # fmt: skip
    return emit(arguments, "plan", result, draw_plan, page=lambda: draw_plan_page(result))


def _take_dataset(arguments: argparse.Namespace) -> str:
    """Return DATASET, which --what-if takes for one of its words where it stands behind them.

    Raises:
        UsageError, NotFound: what was typed does not go together, or is not there.
    """
    words = [word for word in arguments.what_if if "=" not in word]
    if arguments.dataset is None and len(words) == 1:
        arguments.what_if.remove(words[0])
        arguments.dataset = words[0]
    if arguments.dataset is None:
        raise UsageError("no dataset is named", hint="feedrate plan DATASET; see 'feedrate plan --help'")
    if arguments.scratch is not None and not os.path.isdir(arguments.scratch):
        raise NotFound(f"there is no folder {arguments.scratch}", hint=suggest_path(arguments.scratch))
    dataset: str = arguments.dataset
    return dataset
