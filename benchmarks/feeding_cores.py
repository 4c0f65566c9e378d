# SPDX-License-Identifier: Apache-2.0
"""How many cores does it take to feed a GPU, by who decodes: the CPU, the GPU, or both?

Trains networks on a pack of photographs, the whole process held to 1, 2, 4 ... cores, as `taskset` does. Each
time first on one batch that is on the GPU already (the ceiling), then on what `Loader(device="cuda")` gives
with each kind of `decode`, and, where asked for, from a cache on the GPU. With one core alone, only the GPU
decodes. Entry points are those of `--entries gpu`, and epochs are as long as ImageNet's. Every result is
written at once; a FILE that is there is added to. Needs a GPU and torchvision.

    python benchmarks/feeding_cores.py FOLDER --json benchmarks/results/feeding-cores.json      eight minutes
    python benchmarks/feeding_cores.py FOLDER --models resnet18 resnet18:infer --cache-gpu 20GB --json FILE

`python benchmarks/chart.py` draws docs/feeding.svg from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from feeding import DEVICE, OPTIONS, drain, endless, hold, make_step, order_as_imagenet, prepare
from threads import BATCH, say

import feedrate
from feedrate.machine.describe import describe_machine

MODELS = ["resnet18", "resnet50", "densenet121", "resnet18:infer"]
CACHE = "cache"
SETTLE_S = 1.5  # where nothing but the number of threads is to be found
# For the estimate: a model's first steps; opening a loader; a measurement's steps that are not counted.
FIRST_S, OPEN_S, WARM_S = 12.0, 1.0, 0.5
IMAGES_PER_CORE_S = 1500  # for the estimate of how long a cache takes to fill


def main() -> int:
    arguments = parse()
    began, every = time.perf_counter(), sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as held:
        work = arguments.work or held.enter_context(tempfile.TemporaryDirectory(prefix="feedrate-feeding-"))
        _, target = prepare(Path(arguments.source), Path(work), arguments.gigabytes)
        with feedrate.Loader(target, device="cuda", decode="cpu", **OPTIONS) as loader:
            fixed, images = next(iter(loader))[0].clone(), len(loader) * BATCH
        OPTIONS["order"] = order_as_imagenet(images)
        todo = list(list_runs(arguments, len(every)))
        say(f"{len(todo)} results, in about {estimate(todo, arguments, images):.0f} s")
        document = open_document(arguments, every, target)
        step, step_of = None, None
        for model, mode, cores, decode in todo:
            if arguments.limit and time.perf_counter() - began > arguments.limit:
                say(f"{arguments.limit:.0f} s are over: the rest is left out")
                break
            if step_of != (model, mode):
                hold(every)
                step, step_of = make_step(model, mode), (model, mode)
                drain(lambda step=step: step(fixed), 1.0)
            hold(every[:cores])
            result = measure(target, step, fixed, decode, images, arguments)
            add(document, {"model": model, "mode": mode, "cores": cores, "cpus": every[:cores], **result})
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
            say(
                f"{model} {mode}, {cores:2} cores, {decode:5}: {median(result['images_per_s']):8,.0f} of "
                f"{result['ceiling']:8,.0f} images/s, {result['share_of_ceiling']:6.1%}; "
                f"{result['threads']} threads, {result['by_gpu']:.0%} decoded by the GPU"
            )
        hold(every)
    say(f"{time.perf_counter() - began:.0f} s in all")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a folder of photographs")
    parser.add_argument("--models", nargs="+", default=MODELS, help="MODEL, or MODEL:infer")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--decode", nargs="+", default=["cpu", "gpu", "auto"], choices=("cpu", "gpu", "auto"))
    parser.add_argument("--cache-gpu", metavar="SIZE", help="also with feedrate.Cache(gpu=SIZE)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="per round")
    parser.add_argument(
        "--settle", type=float, default=6.0, help='seconds that decode="auto" gets (at most 20)'
    )
    parser.add_argument("--limit", type=float, help="begin nothing more after so many seconds")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--work", help="where copies and pack go and stay; those that are there are used")
    parser.add_argument("--json")
    return parser.parse_args()


def list_runs(arguments: argparse.Namespace, most_cores: int) -> Iterator[tuple[str, str, int, str]]:
    """Yield model, mode, cores and decode, the results in order."""
    kinds = [*arguments.decode, *([CACHE] if arguments.cache_gpu else [])]
    for name in arguments.models:
        model, _, mode = name.partition(":")
        for cores in (n for n in arguments.cores if n <= most_cores):
            for decode in kinds:
                if cores > 1 or decode in ("gpu", CACHE):
                    yield model, mode or "train", cores, decode


def estimate(todo: list[tuple[str, str, int, str]], arguments: argparse.Namespace, images: int) -> float:
    seconds = FIRST_S * len({(model, mode) for model, mode, _, _ in todo})
    for _, _, cores, decode in todo:
        seconds += OPEN_S + (1 + arguments.rounds) * (arguments.seconds + WARM_S)
        seconds += arguments.settle if decode == "auto" else SETTLE_S
        seconds += images / (IMAGES_PER_CORE_S * cores) if decode == CACHE else 0
    return seconds


def open_document(arguments: argparse.Namespace, every: list[int], target: Path) -> dict[str, Any]:
    """Return the document so far, with this call among its calls."""
    # No folder of anybody's.
    named = {arguments.source: "FOLDER", arguments.work: "WORK", arguments.json: "FILE"}
    words = [named.get(word, word) for word in sys.argv[1:]]
    call = {
        "settle_s": arguments.settle,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "cache_gpu": arguments.cache_gpu,
        "siblings": {cpu: read_siblings(cpu) for cpu in every},
        "machine": asdict(describe_machine(["feeding_cores.py", *words])),
    }
    path = Path(arguments.json) if arguments.json else None
    if path is not None and path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        document["calls"].append(call)
        return document
    return {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name,
        "pack_bytes": sum(path.stat().st_size for path in target.glob("*.tar")),
        "batch": BATCH,
        "gpu": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "calls": [call],
        "results": [],
    }


def read_siblings(cpu: int) -> str | None:
    """Return the CPUs that are hyperthreads of the same core, as Linux writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return None


def add(document: dict[str, Any], result: dict[str, Any]) -> None:
    """Put a result in, with the number of the call that made it, instead of an older one of the same kind."""
    keys = ("model", "mode", "cores", "decode")
    same = [result[key] for key in keys]
    document["results"] = [one for one in document["results"] if [one[key] for key in keys] != same]
    document["results"].append({**result, "call": len(document["calls"]) - 1})


def measure(
    target: Path, step: Any, fixed: torch.Tensor, decode: str, images: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return images per second of the ceiling, then fed, round by round without a pause between them.

    A loader whose loop pauses would settle for that.
    """
    ceiling = drain(lambda: step(fixed), arguments.seconds)
    options: dict[str, Any] = {"decode": decode}
    cache = None
    if decode == CACHE:
        cache = feedrate.Cache(gpu=arguments.cache_gpu)
        options = {"cache": cache}
    loader = feedrate.Loader(target, device="cuda", **options, **OPTIONS)
    batches = endless(loader)
    take = lambda: step(next(batches)[0])  # noqa: E731
    if cache is not None:
        for _ in range(images // BATCH + 1):
            take()
    drain(take, arguments.settle if decode == "auto" else SETTLE_S)
    rates = [drain(take, arguments.seconds) for _ in range(arguments.rounds)]
    stats = loader.stats()
    batches.close()
    loader.close()
    if cache is not None:
        cache.close()
    return {
        "decode": decode,
        "ceiling": ceiling,
        "images_per_s": rates,
        "share_of_ceiling": median(rates) / ceiling,
        "threads": stats.threads,
        "gpu_share": stats.gpu_share,
        "by_gpu": stats.by_gpu / stats.samples,
    }


if __name__ == "__main__":
    sys.exit(main())
