# SPDX-License-Identifier: Apache-2.0
"""Does `Loader` find the number of threads that suits the loop and the other jobs of the machine?

Three loops, each with the number that `Loader` chooses itself and with fixed ones, in turn, several rounds:
one that only takes batches; one that computes between them, in the thread that takes them (with `--device
cuda`: trains a small network there); and that one again while a second job comes and goes, which takes half
of the cores in the second half of every run. One loader per number lives through all rounds.

    python benchmarks/neighbour.py --json benchmarks/results/neighbour.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import feedrate
from feedrate import PackOptions, pack
from feedrate.demo.run import write_photographs
from feedrate.format.pack import Pack
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine

AUTO = "auto"
EPOCH = 2_000_000
CASES = ("alone", "loop", "second job")
Step = Callable[[Any], None]


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-neighbour-", dir=arguments.work) as folder:
        source, target = Path(arguments.source or Path(folder) / "photographs"), Path(folder) / "pack"
        if not arguments.source:
            say(f"making {arguments.images} photographs")
            write_photographs(source, arguments.images, seed=0)
        pack(source, target, PackOptions())
        results = measure(target, arguments)
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name if arguments.source else "made photographs",
        "device": arguments.device,
        "cores": count_usable_cores(),
        "batch_size": arguments.batch_size,
        "results": results,
        "machine": asdict(describe_machine(["neighbour.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def measure(target: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with contextlib.closing(Pack(target)) as opened:
        # Few photographs, many times: an epoch that lasts longer than a run.
        order = np.random.default_rng(0).integers(0, len(opened), EPOCH)

    def make_loader(threads: int | None) -> feedrate.Loader:
        return feedrate.Loader(
            target, arguments.batch_size, image=feedrate.RandomResizedCrop(224), flip=True, order=order,
            threads=threads, device=arguments.device, output=None if arguments.device else "numpy",
        )  # fmt: skip

    with make_loader(None) as loader:
        drain(loader, ignore, 1.0, arguments)
        alone = drain(loader, ignore, 2.0, arguments)
    step = (
        make_network() if arguments.device else make_work(arguments.batch_size / (arguments.demand * alone))
    )
    results = []
    for case in arguments.cases:
        settings = {AUTO: None, **{str(n): n for n in arguments.threads}}
        loaders = {name: make_loader(threads) for name, threads in settings.items()}
        results.append(run_case(case, loaders, ignore if case == "alone" else step, arguments))
        for loader in loaders.values():
            loader.close()
    return results


def run_case(
    case: str, loaders: dict[str, feedrate.Loader], step: Step, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return images per second of each loader, in interleaved rounds, and the numbers that were chosen."""
    has_job = case == "second job"

    def run(loader: feedrate.Loader) -> float:
        with second_job(after=arguments.seconds) if has_job else contextlib.nullcontext():
            return drain(loader, step, arguments.seconds * (2 if has_job else 1), arguments)

    drain(loaders[AUTO], step, arguments.settle, arguments)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    chosen = []
    for _ in range(arguments.rounds):
        for name, loader in loaders.items():
            rates[name].append(run(loader))
        chosen.append(loaders[AUTO].stats().threads)
    middle = {name: median(values) for name, values in rates.items()}
    best = max((name for name in loaders if name != AUTO), key=lambda name: middle[name])
    share = middle[AUTO] / middle[best]
    for name in loaders:
        say(f"{case:10} {name:>4}: {middle[name]:8,.0f} images/s")
    say(f"{case:10} auto / best fixed ({best}): {share:.1%}; chosen: {chosen}")
    return {
        "case": case,
        "images_per_s": middle,
        "best_fixed": int(best),
        "auto_share": share,
        "chosen": chosen,
        "changes": loaders[AUTO].stats().thread_changes,
        "rates": rates,
    }


def drain(loader: feedrate.Loader, step: Step, seconds: float, arguments: argparse.Namespace) -> float:
    """Return images/s over `seconds`, once the pipeline is full."""
    began, given = 0.0, -4
    while True:
        for images, *_ in loader:
            step(images)
            given += 1
            now = time.perf_counter()
            if given == 0:
                began = now
            elif given > 0 and now - began >= seconds:
                if arguments.device:
                    import torch

                    torch.cuda.synchronize()
                return given * arguments.batch_size / (time.perf_counter() - began)


def ignore(images: Any) -> None:
    del images


def make_work(seconds: float) -> Step:
    """Return a step of pure Python that takes so long where nothing disturbs it."""

    def work(turns: int) -> int:
        total = 0
        for number in range(turns):
            total += number * number
        return total

    def measure_turn() -> float:
        began = time.thread_time()
        work(300_000)
        return (time.thread_time() - began) / 300_000

    turns = round(seconds / median(measure_turn() for _ in range(5)))
    say(f"the loop computes for {seconds * 1e3:.1f} ms per batch")

    def step(images: Any) -> None:
        del images
        work(turns)

    return step


def make_network() -> Step:
    """Return a training step on the GPU: small enough that decoding is not much faster."""
    import torch
    from torch import nn

    layers = [nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    layers += [
        nn.Conv2d(64, 128, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    ]
    model = nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(images: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images.float() / 255 - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@contextlib.contextmanager
def second_job(after: float) -> Iterator[None]:
    """Burn half of the cores, from some seconds on until the body ends."""
    code = f"import time; time.sleep({after})\nwhile True: pass"
    count = max(1, count_usable_cores() // 2)
    jobs = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = count_usable_cores()
    few = (
        list(range(1, cores + 1))
        if cores <= 4
        else sorted({cores, cores - 1, cores - 2, cores * 3 // 4, cores // 2})
    )
    parser.add_argument("source", nargs="?", help="a folder of photographs (default: some are made)")
    parser.add_argument("--images", type=int, default=1000, help="how many are made (default: 1000)")
    parser.add_argument("--threads", type=int, nargs="+", default=few, help=f"fixed numbers (default: {few})")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--batch-size", type=int, default=64 if cores <= 4 else 256)
    # On few cores the loop's own thread is one of those that decode well with fewer.
    parser.add_argument(
        "--demand", type=float, default=0.45 if cores <= 4 else 0.8,
        help="of what Loader alone gives, the share that the loop could take",
    )  # fmt: skip
    parser.add_argument("--device", choices=["cuda"], help="train a small network there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per run; twice that beside a second job")
    parser.add_argument(
        "--settle", type=float, default=12.0, help="seconds before the rounds, for auto alone"
    )
    parser.add_argument("--work", metavar="DIR", help="where photographs and pack go (default: as tempfile)")
    parser.add_argument("--json", metavar="PATH")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
