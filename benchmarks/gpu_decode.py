# SPDX-License-Identifier: Apache-2.0
"""How many JPEGs per second does a GPU decode, crop and resize from their entry points?

Takes the photographs of a folder, notes entry points as dense as asked for, draws the crops of
RandomResizedCrop, and decodes batches: first it compares every byte with the CPU path. Then it times planning
on the host (headers, entry points, bytes under the crops), the kernels with everything on the device, each
kernel by itself, and the copy with the kernels.

    python benchmarks/gpu_decode.py FOLDER --json benchmarks/results/gpu-decode.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from threads import say

from feedrate import kernel
from feedrate.filters import FILTERS
from feedrate.kernel.cuda import batch as contract
from feedrate.kernel.cuda.launcher import compile_source
from feedrate.probe.machine import describe_machine

Box = tuple[int, int, int, int]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--bytes-per-entry", type=int, nargs="+", default=[150, 1000])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--filter", choices=list(FILTERS), default="bilinear")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    files = [path.read_bytes() for path in sorted(arguments.folder.iterdir()) if path.is_file()]
    began = time.perf_counter()
    module = compile_source(contract.source(), contract.COMPILE_OPTIONS)
    say(f"compiled in {time.perf_counter() - began:.2f} s")
    pool = kernel.Pool(arguments.threads)
    runs = []
    for bytes_per_entry in arguments.bytes_per_entry:
        images = scan_all(files, bytes_per_entry)
        check(images, module, arguments.size, FILTERS[arguments.filter], pool)
        for count in arguments.batches:
            one = Batch(images, count, arguments.size, FILTERS[arguments.filter], module, pool)
            runs.append({"bytes_per_entry": bytes_per_entry, "batch": count, **one.measure(arguments.rounds)})
    pool.close()
    document = {
        "question": (__doc__ or "").splitlines()[0],
        "size": arguments.size,
        "filter": arguments.filter,
        "gpu": torch.cuda.get_device_name(),
        "runs": runs,
        "machine": asdict(describe_machine(["gpu_decode.py", *sys.argv[1:]])),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def scan_all(files: Sequence[bytes], bytes_per_entry: int) -> list[tuple[bytes, kernel.Scan]]:
    found = [(data, kernel.scan(data, bytes_per_entry)) for data in files]
    images = [(data, scan) for data, scan in found if scan.entries]
    size, extra = (
        sum(len(part) for part in parts) for parts in zip(*((d, s.entries) for d, s in images), strict=True)
    )
    say(
        f"{len(images)} of {len(files)} files have entry points, one per {bytes_per_entry} bytes: "
        f"{extra / size:.2%} of {size / len(images) / 1e3:.0f} KB"
    )
    return images


def draw_box(width: int, height: int, rng: random.Random) -> Box:
    """Return a crop as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area, ratio = (
            width * height * rng.uniform(0.08, 1),
            math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


class Batch:
    """A batch on the host and on the device, and what is done to it."""

    def __init__(
        self,
        images: Sequence[tuple[bytes, kernel.Scan]],
        count: int,
        size: int,
        filter_: int,
        module: Any,
        pool: kernel.Pool,
        boxes: Sequence[Box] | None = None,
    ) -> None:
        rng = random.Random(count)
        self.chosen = [images[i % len(images)] for i in range(count)]
        self.data, self.starts = join([data for data, _ in self.chosen])
        self.entries, self.entry_starts = join([scan.entries for _, scan in self.chosen])
        self.crcs = np.array([kernel.crc32c(data) for data, _ in self.chosen], np.uint32)
        drawn = boxes or [draw_box(scan.width, scan.height, rng) for _, scan in self.chosen]
        self.boxes = np.array(drawn, np.int32)
        self.flips = np.array([rng.random() < 0.5 for _ in range(count)])
        self.filters = np.full(count, filter_, np.uint8)
        self.size, self.module, self.pool = (size, size), module, pool
        self.plan = contract.BatchPlan()
        self.taken = self.look()
        self.host = torch.empty(self.plan.sizes.staged, dtype=torch.uint8, pin_memory=True)
        needed = self.plan.buffer_bytes()
        self.buffers = {name: torch.empty(n, dtype=torch.uint8, device="cuda") for name, n in needed.items()}
        self.out = torch.zeros(count, size, size, 3, dtype=torch.uint8, device="cuda")
        self.statuses = torch.full((count,), -1, dtype=torch.int32, device="cuda")
        self.fill()
        self.copy()

    def look(self) -> Any:
        return self.plan.look(
            self.data, self.starts, self.crcs, self.entries, self.entry_starts,
            boxes=self.boxes, flips=self.flips, filters=self.filters, size=self.size,
            most_memory=64 << 30, pool=self.pool,
        )  # fmt: skip

    def fill(self) -> None:
        self.plan.fill(self.data, self.host.numpy(), self.pool)

    def copy(self) -> None:
        self.buffers["staged"][: len(self.host)].copy_(self.host, non_blocking=True)

    def launch(
        self, name: str, grid: tuple[int, int], block: int, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        self.module.launch(name, grid, block, args, shared_bytes=shared_bytes)

    def run(self) -> None:
        contract.run(self.plan, self.launch, self.buffers, self.out, self.statuses)

    def copy_and_run(self) -> None:
        self.copy()
        self.run()

    def time_kernels(self, rounds: int) -> dict[str, float]:
        """Return the milliseconds of each kernel by itself: the same launch many times over."""
        found: dict[str, float] = {}

        def launch(
            name: str, grid: tuple[int, int], block: int, shared_bytes: int, args: Sequence[Any]
        ) -> None:
            found[name] = time_on_gpu(lambda: self.launch(name, grid, block, shared_bytes, args), rounds)

        contract.run(self.plan, launch, self.buffers, self.out, self.statuses)
        return found

    def measure(self, rounds: int) -> dict[str, Any]:
        count = len(self.boxes)
        kernels = self.time_kernels(rounds)
        alone, with_copy = time_on_gpu(self.run, rounds), time_on_gpu(self.copy_and_run, rounds)
        look, fill = time_on_host(self.look, rounds), time_on_host(self.fill, rounds)
        say(
            f"batch {count:5}: {count / alone * 1e3:9,.0f} images/s, "
            f"with the copy {count / with_copy * 1e3:9,.0f}; {alone:.3f} and {with_copy:.3f} ms; "
            + ", ".join(f"{k} {v:.3f}" for k, v in kernels.items())
        )
        sizes = self.plan.sizes
        say(
            f"             host {look:.2f} + {fill:.2f} ms ({self.pool.threads} threads); "
            f"staged {sizes.staged / 1e6:.1f} MB, {sizes.groups} groups, "
            f"memory {sum(map(len, self.buffers.values())) / 1e6:.0f} MB, {int(self.taken.sum())} taken, "
            f"{int((self.statuses != 0).sum())} not good"
        )
        return {
            "ms": alone,
            "ms_with_copy": with_copy,
            "images_per_s": count / alone * 1e3,
            "images_per_s_with_copy": count / with_copy * 1e3,
            "kernel_ms": kernels,
            "host_look_ms": look,
            "host_fill_ms": fill,
            "host_threads": self.pool.threads,
            "staged_bytes": sizes.staged,
        }


def join(parts: Sequence[bytes]) -> tuple[Any, Any]:
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return np.frombuffer(b"".join(parts), np.uint8), starts


def time_on_gpu(work: Callable[[], None], rounds: int) -> float:
    """Return milliseconds a call takes when many follow each other: the median of five such rows."""
    seen = []
    work()
    for _ in range(5):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        before.record()
        for _ in range(rounds):
            work()
        after.record()
        torch.cuda.synchronize()
        seen.append(before.elapsed_time(after) / rounds)
    return median(seen)


def time_on_host(work: Callable[[], Any], rounds: int) -> float:
    seen = []
    for _ in range(rounds):
        before = time.perf_counter()
        work()
        seen.append((time.perf_counter() - before) * 1e3)
    return median(seen)


def check(
    images: Sequence[tuple[bytes, kernel.Scan]], module: Any, size: int, filter_: int, pool: kernel.Pool
) -> None:
    """Compare every byte of a batch, crops and whole images, with what the CPU makes.

    Raises:
        SystemExit: they differ.
    """
    whole: list[Box] = [(0, 0, scan.width, scan.height) for _, scan in images]
    for boxes in (None, whole):
        one = Batch(images, len(images), size, filter_, module, pool, boxes)
        one.run()
        out, statuses = one.out.cpu().numpy(), one.statuses.cpu().numpy()
        differ = []
        for i, (data, scan) in enumerate(one.chosen):
            wanted = kernel.decode_one(
                data, box=tuple(one.boxes[i].tolist()), size=one.size, flip=bool(one.flips[i]),
                entries=scan.entries, filter_=filter_,
            )  # fmt: skip
            if one.taken[i] and statuses[i] == 0 and not np.array_equal(out[i], wanted):
                differ.append(i)
        good = int((one.taken & (statuses == 0)).sum())
        what = "crops" if boxes is None else "whole"
        say(f"{what}: {good} of {len(images)} decoded on the GPU, {len(differ)} differ")
        if differ:
            raise SystemExit(f"images {differ[:10]} differ from the CPU path")


if __name__ == "__main__":
    sys.exit(main())
