# SPDX-License-Identifier: Apache-2.0
"""How much of what a GPU could train on does it get, when `Loader` feeds it?

Copies the images until they are larger than any processor's cache, packs the copies, and runs one loop over
several kinds of batches, in turn, several rounds: one batch that is on the GPU already (the ceiling),
`Loader(device="cuda")`, `Loader` without any training, and a DataLoader with Pillow. Needs a GPU and
torchvision.

    python benchmarks/feeding.py FOLDER --models resnet18 resnet50 --modes train infer --json FILE
    python benchmarks/feeding.py FOLDER --least-cores --json FILE    how few cores give 97 % of the ceiling
    python benchmarks/feeding.py FOLDER --trace --json FILE          how long the GPU idles in each step
    taskset -c 0-3 python benchmarks/feeding.py FOLDER --decode cpu gpu auto    who decodes, with four cores
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from threads import BATCH, CROP, copy_images, say
from torchvision import models, transforms

import feedrate
from feedrate import PackOptions, pack
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.describe import describe_machine

DEVICE = torch.device("cuda", 0)
MEAN = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(1, 3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(1, 3, 1, 1) * 255
SETTLE_S = 20.0  # until `decode="auto"` has found its share
IMAGENET_SAMPLES = 1_281_167
ENOUGH = 0.97  # of the ceiling: as much as `--least-cores` asks for
OPTIONS: dict[str, Any] = {
    "batch_size": BATCH, "image": CROP, "flip": True, "drop_last": True, "fields": ["image"],
}  # fmt: skip
Step = Callable[[torch.Tensor], Any]


def main() -> int:
    arguments = parse()
    with contextlib.ExitStack() as held:
        work = arguments.work or held.enter_context(tempfile.TemporaryDirectory(prefix="feedrate-feeding-"))
        copies, target = prepare(Path(arguments.source), Path(work), arguments.gigabytes)
        document: dict[str, Any] = {
            "question": (__doc__ or "").splitlines()[0],
            "source": Path(arguments.source).name,
            "pack_bytes": sum(path.stat().st_size for path in target.glob("*.tar")),
            "gpu": torch.cuda.get_device_name(DEVICE),
            "torch": torch.__version__,
            "cores": count_usable_cores(),
            "machine": asdict(describe_machine(["feeding.py", *sys.argv[1:]])),
            "results": [],
        }
        for name in arguments.models:
            for mode in arguments.modes:
                if arguments.least_cores:
                    result = find_least_cores(target, name, mode, arguments)
                elif arguments.trace:
                    result = trace(target, copies, name, mode, arguments.decode[0])
                else:
                    result = measure(target, copies, name, mode, arguments)
                document["results"].append({"model": name, "mode": mode, **result})
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a folder of photographs")
    parser.add_argument("--models", nargs="+", default=["resnet18"])
    parser.add_argument("--modes", nargs="+", default=["train"], choices=("train", "infer"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per round and kind")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=16, help="of the DataLoader; 0: leave it out")
    parser.add_argument(
        "--decode", nargs="+", default=["auto"], choices=("auto", "cpu", "gpu"),
        help="who decodes, several in turn; the first alone for the other tasks",
    )  # fmt: skip
    parser.add_argument("--finish", action="store_true", help="also with normalised bfloat16 from Loader")
    parser.add_argument("--work", help="where copies and pack go and stay; those that are there are used")
    parser.add_argument("--json")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--least-cores", action="store_true")
    task.add_argument("--trace", action="store_true")
    return parser.parse_args()


def prepare(source: Path, work: Path, gigabytes: float) -> tuple[Path, Path]:
    copies, target = work / "copies", work / "pack"
    if not (target / "pack.json").exists():
        size_bytes = copy_images(source, copies, int(gigabytes * 10**9))
        say(f"packing {size_bytes / 1e9:.1f} GB of copies")
        pack(copies, target, PackOptions(entries="gpu"))
    return copies, target


def order_as_imagenet(samples: int) -> Callable[[int], Any]:
    """Return an order of epochs as long as ImageNet's, of few samples again and again: how an epoch begins
    would count too much otherwise."""

    def order(epoch: int) -> Any:
        rng = np.random.default_rng(epoch)
        return np.concatenate([rng.permutation(samples) for _ in range(-(-IMAGENET_SAMPLES // samples))])

    return order


def measure(
    target: Path, copies: Path, name: str, mode: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return images per second of each kind of batches, round by round."""
    step = make_step(name, mode)
    names = {"auto": 'Loader(device="cuda")'}  # the default
    fed = {
        names.get(decode, f'Loader(device="cuda", decode="{decode}")'): feedrate.Loader(
            target, device="cuda", decode=decode, **OPTIONS
        )
        for decode in arguments.decode
    }
    on_gpu = {kind: endless(loader) for kind, loader in fed.items()}
    (fixed,), *_ = (next(batches) for batches in on_gpu.values())
    kinds: dict[str, Callable[[], Any]] = {"ceiling": lambda: step(fixed)}
    for kind, batches in on_gpu.items():
        kinds[kind] = lambda batches=batches: step(next(batches)[0])
    if arguments.finish:
        plain_step = make_step(name, mode, is_finished=True)
        finished = endless(
            feedrate.Loader(target, device="cuda", dtype="bfloat16", normalize="imagenet", **OPTIONS)
        )
        (fixed_too,) = next(finished)
        kinds["ceiling, normalised bfloat16"] = lambda: plain_step(fixed_too)
        kinds['Loader(device="cuda", dtype="bfloat16", normalize="imagenet")'] = lambda: plain_step(
            next(finished)[0]
        )
    cores = count_usable_cores()
    on_host = endless(feedrate.Loader(target, threads=cores, **OPTIONS))
    kinds[f"Loader alone, {cores} threads"] = lambda: next(on_host)
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for take in kinds.values():
        drain(take, 1.0)
    if names["auto"] in kinds:
        drain(kinds[names["auto"]], SETTLE_S)
    for _ in range(arguments.rounds):
        for kind, take in kinds.items():
            rates[kind].append(drain(take, arguments.seconds))
    stats = {kind: loader.stats() for kind, loader in fed.items()}
    threads = max(one.threads for one in stats.values())
    if arguments.workers:
        usual = endless(make_dataloader(copies, arguments.workers))
        for _ in range(2 * arguments.workers):  # so many batches the workers have made ahead
            step(next(usual).to(DEVICE))
        # Workers end their batches together: a few of these would say little.
        rates[f"DataLoader + Pillow, {arguments.workers} workers"] = [
            drain(lambda: step(next(usual).to(DEVICE)), arguments.seconds, steps=2 * arguments.workers)
            for _ in range(2)
        ]
    show(f"{name} {mode}", rates)
    decoders = {
        kind: {"threads": one.threads, "gpu_share": one.gpu_share, "by_gpu": one.by_gpu / one.samples}
        for kind, one in stats.items()
    }
    for kind, one in decoders.items():
        say(f"{name} {mode}: {kind}: {one}")
    return {"threads": threads, "decoders": decoders, "images_per_s": rates}


def show(title: str, rates: dict[str, list[float]]) -> None:
    ceiling = median(rates["ceiling"])
    for kind, seen in rates.items():
        share = f"{median(seen) / ceiling:.1%} of the ceiling; {min(seen):,.0f} to {max(seen):,.0f}"
        say(f"{title}: {kind:46} {median(seen):8,.0f} images/s ({share})")


def find_least_cores(target: Path, name: str, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the smallest number of cores with which `Loader` gives 97 % of the ceiling, and what was tried.

    Every thread of the process is held to them, as `taskset` does with one that is about to start.
    """
    step, every = make_step(name, mode), sorted(os.sched_getaffinity(0))
    tried: dict[int, dict[str, list[float]]] = {}

    def is_enough(cores: int) -> bool:
        hold(every[:cores])
        loader = feedrate.Loader(target, device="cuda", decode=arguments.decode[0], **OPTIONS)
        on_gpu = endless(loader)
        (fixed,) = next(on_gpu)
        kinds = {"ceiling": lambda: step(fixed), "fed": lambda: step(next(on_gpu)[0])}
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        drain(kinds["fed"], SETTLE_S if arguments.decode[0] == "auto" else 1.5)
        for _ in range(arguments.rounds):
            for kind, take in kinds.items():
                rates[kind].append(drain(take, arguments.seconds))
        tried[cores] = rates
        loader.close()
        share = median(rates["fed"]) / median(rates["ceiling"])
        say(f"{name} {mode}: {cores:2} cores give {share:.1%} of {median(rates['ceiling']):,.0f} images/s")
        return share >= ENOUGH

    drain(lambda: step(torch.zeros(BATCH, 3, 224, 224, dtype=torch.uint8, device=DEVICE)), 1.0)
    low, high = 1, len(every)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    hold(every)
    return {"least_cores": low if low in tried and low < len(every) else None, "images_per_s": tried}


def hold(cores: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def trace(target: Path, copies: Path, name: str, mode: str, decode: str) -> dict[str, Any]:
    """Return how long the GPU ran no kernel in a step, by the profiler's record of 30 steps."""
    step = make_step(name, mode)
    on_gpu = endless(feedrate.Loader(target, device="cuda", decode=decode, **OPTIONS))
    on_host = endless(feedrate.Loader(target, **OPTIONS))
    usual = endless(make_dataloader(copies, 16))
    (fixed,) = next(on_gpu)
    idle = {}
    for kind, take in {
        "ceiling": lambda: step(fixed),
        "DataLoader + Pillow, 16 workers": lambda: step(next(usual).to(DEVICE)),
        "Loader, images.to(device)": lambda: step(next(on_host)[0].clone().to(DEVICE)),
        'Loader(device="cuda")': lambda: step(next(on_gpu)[0]),
    }.items():
        for _ in range(40):
            take()
        idle[kind] = record(take)
        words = f"{idle[kind]['idle_ms']:6.2f} ms of {idle[kind]['step_ms']:6.2f} ms"
        say(f"{name} {mode}: {kind:34} the GPU idles {words} in a step")
    return {"steps": 30, "idle": idle}


def record(take: Callable[[], Any], steps: int = 30) -> dict[str, float]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            take()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel")
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    whole = until - spans[0][0]
    return {"step_ms": whole / steps / 1e3, "idle_ms": (whole - busy) / steps / 1e3}


class Photos(torch.utils.data.Dataset[torch.Tensor]):
    """The images as people load them: Pillow, torchvision's transforms."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.jpg"))
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(self.files[index]).convert("RGB"))


def make_dataloader(copies: Path, workers: int) -> Any:
    return torch.utils.data.DataLoader(
        Photos(copies), BATCH, shuffle=True, num_workers=workers, drop_last=True, pin_memory=True,
        persistent_workers=True,
    )  # fmt: skip


def make_step(name: str, mode: str, *, is_finished: bool = False) -> Step:
    model = getattr(models, name)().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(0, 1000, (BATCH,), device=DEVICE)

    @torch.compile
    def normalise(images: torch.Tensor) -> torch.Tensor:
        return ((images - MEAN) / STD).to(torch.bfloat16)

    def see(images: torch.Tensor) -> torch.Tensor:
        images = images if is_finished else normalise(images.contiguous(memory_format=torch.channels_last))
        with torch.autocast("cuda", torch.bfloat16):
            return model(images)

    def train(images: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(see(images).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def infer(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return see(images)

    model.train(mode == "train")
    return train if mode == "train" else infer


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def drain(step: Callable[[], Any], seconds: float, steps: int = 1) -> float:
    """Return images per second over at least `seconds` and `steps`, by the GPU's clock, once the loop runs.

    The GPU is not waited for before the clock starts: batches would be made ahead meanwhile, and be counted.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(10):
        step()
    start.record()
    began, done = time.perf_counter(), 0
    while done < steps or time.perf_counter() - began < seconds:
        for _ in range(5):
            step()
        done += 5
    end.record()
    torch.cuda.synchronize()
    return done * BATCH / (start.elapsed_time(end) / 1e3)


if __name__ == "__main__":
    sys.exit(main())
