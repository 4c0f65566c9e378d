# SPDX-License-Identifier: Apache-2.0
"""How much of what a GPU could train on does it get, when `Loader` feeds it?

Copies the images until they are larger than any processor's cache, packs the copies, and runs one loop over
four kinds of batches, in turn, several rounds: one batch that is on the GPU already (the ceiling), `Loader`
with `device="cuda"`, `Loader` with `images.to(device, non_blocking=True)`, and `Loader` without any training.
Needs a GPU and torchvision's models.

    python benchmarks/feeding.py FOLDER --json benchmarks/results/feeding.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from threads import BATCH, CROP, copy_images, say
from torchvision import models

import feedrate
from feedrate.pack import PackOptions, pack
from feedrate.probe.cpu import count_usable_cores
from feedrate.probe.machine import describe_machine

DEVICE = torch.device("cuda", 0)
MEAN = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(1, 3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(1, 3, 1, 1) * 255
Step = Callable[[torch.Tensor, torch.Tensor], Any]


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="feedrate-feeding-", dir=arguments.work) as folder:
        copies, target = Path(folder) / "copies", Path(folder) / "pack"
        size_bytes = copy_images(Path(arguments.source), copies, arguments.gigabytes * 10**9)
        say(f"packing {size_bytes / 1e9:.1f} GB of copies")
        pack(copies, target, PackOptions())
        shutil.rmtree(copies)
        results = [
            measure(target, name, mode, arguments) for name in arguments.models for mode in arguments.modes
        ]
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "source": Path(arguments.source).name,
        "pack_bytes": size_bytes,
        "gpu": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "cores": count_usable_cores(),
        "results": results,
        "machine": asdict(describe_machine(["feeding.py", *sys.argv[1:]])),
    }
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
    parser.add_argument("--seconds", type=float, default=4.0, help="per round and kind")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--work", help="where the copies and the pack go")
    parser.add_argument("--json")
    return parser.parse_args()


def measure(target: Path, name: str, mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    step = make_step(name, mode)
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "image": CROP,
        "flip": True,
        "drop_last": True,
        "fields": ["image"],
    }
    on_gpu = endless(feedrate.Loader(target, device="cuda", **options))
    on_host = endless(feedrate.Loader(target, **options))
    (fixed,) = next(on_gpu)
    labels = torch.randint(0, 1000, (BATCH,), device=DEVICE)
    kinds: dict[str, Callable[[], None]] = {
        "ceiling": lambda: step(fixed, labels),
        'Loader(device="cuda")': lambda: step(next(on_gpu)[0], labels),
        "Loader, images.to(device, non_blocking=True)": lambda: step(
            next(on_host)[0].to(DEVICE, non_blocking=True), labels
        ),
        "Loader alone": lambda: next(on_host) and None,
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind in kinds:
        drain(kinds[kind], 2.0)
    for _ in range(arguments.rounds):
        for kind in kinds:
            rates[kind].append(drain(kinds[kind], arguments.seconds))
    ceiling = median(rates["ceiling"])
    for kind, seen in rates.items():
        share = f"{median(seen) / ceiling:.1%} of the ceiling; {min(seen):,.0f} to {max(seen):,.0f}"
        say(f"{name} {mode}: {kind:46} {median(seen):8,.0f} images/s ({share})")
    return {"model": name, "mode": mode, "images_per_s": rates}


def make_step(name: str, mode: str) -> Step:
    model = getattr(models, name)().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    @torch.compile
    def normalise(images: torch.Tensor) -> torch.Tensor:
        return ((images - MEAN) / STD).to(torch.bfloat16)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(normalise(images)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def infer(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            return model(normalise(images))

    model.train(mode == "train")
    return train if mode == "train" else infer


def endless(loader: feedrate.Loader) -> Iterator[Any]:
    while True:
        yield from loader


def drain(step: Callable[[], None], seconds: float) -> float:
    """Return images per second over at least `seconds`, the GPU's work included."""
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            step()
        steps += 10
    torch.cuda.synchronize()
    return steps * BATCH / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
