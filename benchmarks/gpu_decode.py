# SPDX-License-Identifier: Apache-2.0
"""How many JPEGs per second does a GPU decode, crop and resize from their entry points?

Takes the photographs of a folder, some gigabytes of copies of them in orders of their own, so that nothing is
in a cache when its turn comes. Notes entry points as dense as asked for, draws the crops of
RandomResizedCrop, and compares every byte of 250 crops and whole images with the CPU path. Then batches are
decoded in turn, round by round: with their bytes on the GPU already, with the copy to it, by nvJPEG
(torchvision; decodes whole images, neither crops nor resizes), by the CPU path on all cores. Also: the time
of each kernel, its registers and occupancy, planning on the host, bytes that go over PCIe.

    python benchmarks/gpu_decode.py FOLDER --json benchmarks/results/gpu-decode.json    two minutes on an H200
    python benchmarks/gpu_decode.py FOLDER --prototype SCRIPT    beside the prototype that this began with
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gpu_contestants import CpuKernel, NvJpeg, Prototype, why_no_nvjpeg
from photo_copies import PhotoCopies
from threads import say

from feedrate import kernel
from feedrate.filters import FILTERS
from feedrate.kernel.cuda import batch as contract
from feedrate.kernel.cuda.launcher import compile_source
from feedrate.machine.describe import describe_machine

DEVICE = "cuda"
TIMED_BATCHES = 64  # kernel by kernel; each is timed once
AHEAD = 8  # batches that are queued while the GPU sleeps, so that it never waits for the host
SLEEP_CYCLES = 40_000_000  # about 20 ms
NUM_REGS, LOCAL_BYTES, SHARED_BYTES = 4, 3, 1  # CUfunction_attribute


def main() -> int:
    arguments = parse()
    began = time.perf_counter()
    module = compile_source(contract.source(), contract.COMPILE_OPTIONS)
    say(f"compiled in {time.perf_counter() - began:.2f} s")
    photos = PhotoCopies(arguments.folder, arguments.gigabytes)
    pool = kernel.Pool(arguments.threads)
    no_nvjpeg = why_no_nvjpeg()
    if no_nvjpeg:
        say(f"without nvJPEG: {no_nvjpeg}")
    prototype = Prototype(arguments.prototype, arguments.folder) if arguments.prototype else None
    # No folder of anybody's.
    named = {
        str(arguments.folder): "FOLDER",
        str(arguments.prototype): "SCRIPT",
        arguments.work: "WORK",
        arguments.json: "FILE",
    }
    words = [named.get(word, word) for word in sys.argv[1:]]
    document: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "size": arguments.size,
        "filter": arguments.filter,
        "gpu": torch.cuda.get_device_name(),
        "photographs": len(photos.files),
        "images": len(photos.order),
        "file_bytes": int(photos.starts[-1]),
        "host_threads": pool.threads,
        "no_nvjpeg": no_nvjpeg,
        "machine": asdict(describe_machine(["gpu_decode.py", *words])),
        "kernels": {},
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="feedrate-gpu-decode-", dir=arguments.work) as folder:
        path = Path(folder) / "photographs"
        photos.data.tofile(path)
        say(f"{photos.starts[-1] / 1e9:.1f} GB of copies after {time.perf_counter() - began:.1f} s")
        for bytes_per_entry in arguments.bytes_per_entry:
            photos.note_entries(bytes_per_entry)
            check(photos, arguments, module, pool)
            for count in arguments.batches:
                gpu = GpuDecoder(photos, count, arguments, module, pool)
                contestants: dict[str, Callable[[int], None]] = {
                    "feedrate": gpu.run,
                    "feedrate, with the copy": gpu.copy_and_run,
                    f"feedrate on the CPU, {pool.threads} threads": CpuKernel(
                        photos, path, count, arguments.size, FILTERS[arguments.filter], pool
                    ).run,
                }
                if not no_nvjpeg:
                    contestants["nvJPEG, decode only"] = NvJpeg(photos, count).run
                if prototype is not None and count in arguments.prototype_batches:
                    prototype.prepare(count, bytes_per_entry, arguments.size)
                    contestants["prototype"] = prototype.run
                rates = measure(contestants, count, arguments.rounds, arguments.seconds)
                if "prototype" in contestants:
                    rates["prototype_mean_difference"] = prototype.mean_difference
                document["runs"].append({"bytes_per_entry": bytes_per_entry, **gpu.describe(), **rates})
                document["kernels"] = gpu.describe_kernels()
                show(document["runs"][-1])
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
                del gpu, contestants
                torch.cuda.empty_cache()
    pool.close()
    show_kernels(document)
    say(f"{time.perf_counter() - began:.0f} s in all")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--bytes-per-entry", type=int, nargs="+", default=[150, 1000])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--filter", choices=list(FILTERS), default="bilinear")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of copies; crops need about half of it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per round and contestant, at least")
    parser.add_argument("--prototype", type=Path, metavar="SCRIPT")
    parser.add_argument("--prototype-batches", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--work", help="where the copies are written for the CPU path")
    parser.add_argument("--json")
    return parser.parse_args()


class GpuDecoder:
    """All batches of the photographs, on the host and on the device; buffers between kernels are shared."""

    def __init__(
        self,
        photos: PhotoCopies,
        count: int,
        arguments: argparse.Namespace,
        module: Any,
        pool: kernel.Pool,
    ) -> None:
        self.photos, self.count, self.module = photos, count, module
        self.plans: list[Any] = []
        self.hosts: list[dict[str, torch.Tensor]] = []
        self.staged: list[dict[str, torch.Tensor]] = []
        self.look_s: list[float] = []
        self.fill_s: list[float] = []
        self.launches: dict[str, int] = {}  # kernel -> threads of a block
        plan, needed, taken = contract.BatchPlan(lend_pinned), dict[str, int](), []
        for first in range(0, len(photos.order) - count + 1, count):
            images = slice(first, first + count)
            began = time.perf_counter()
            these = photos.look(plan, images, photos.boxes, arguments.size, FILTERS[arguments.filter], pool)
            self.look_s.append(time.perf_counter() - began)
            staged = lend_pinned(plan.sizes.staged)
            began = time.perf_counter()
            plan.fill(staged, pool)
            self.fill_s.append(time.perf_counter() - began)
            host = {"staged": torch.from_numpy(staged), "words": torch.from_numpy(plan.words)}
            bytes_ = plan.buffer_bytes()
            self.staged.append(
                {name: torch.empty(bytes_.pop(name), dtype=torch.uint8, device=DEVICE) for name in host}
            )
            needed = {name: max(size, needed.get(name, 0)) for name, size in bytes_.items()}
            self.hosts.append(host)
            self.plans.append(SimpleNamespace(sizes=plan.sizes, size=plan.size))
            taken.append(these)
        self.taken = np.stack(taken)
        self.buffers = {name: torch.empty(n, dtype=torch.uint8, device=DEVICE) for name, n in needed.items()}
        self.out = torch.zeros(count, arguments.size, arguments.size, 3, dtype=torch.uint8, device=DEVICE)
        self.statuses = torch.full((len(self.plans), count), -1, dtype=torch.int32, device=DEVICE)
        for number in range(len(self.plans)):
            self.copy_and_run(number)

    def launch(self, name: str, grid: tuple[int, int], block: int, args: Sequence[Any]) -> None:
        self.launches[name] = block
        self.module.launch(name, grid, block, args)

    def run(self, number: int, launch: contract.Launch | None = None) -> None:
        number %= len(self.plans)
        buffers = {**self.buffers, **self.staged[number]}
        contract.run(self.plans[number], launch or self.launch, buffers, self.out, self.statuses[number])

    def copy_and_run(self, number: int) -> None:
        number %= len(self.plans)
        for name, host in self.hosts[number].items():
            self.staged[number][name][: len(host)].copy_(host, non_blocking=True)
        self.run(number)

    def time_kernels(self) -> dict[str, float]:
        """Return microseconds of an image in each kernel, batches in turn, the host always ahead."""
        marks: list[tuple[str, Any, Any]] = []

        def launch(name: str, grid: tuple[int, int], block: int, args: Sequence[Any]) -> None:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            self.launch(name, grid, block, args)
            after.record()
            marks.append((name, before, after))

        batches = min(len(self.plans), TIMED_BATCHES)
        for number in range(batches):
            if number % AHEAD == 0:
                torch.cuda.synchronize()
                torch.cuda._sleep(SLEEP_CYCLES)
            self.run(number, launch)
        torch.cuda.synchronize()
        found = dict.fromkeys(self.launches, 0.0)
        for name, before, after in marks:
            found[name] += before.elapsed_time(after) * 1e3 / (batches * self.count)
        return found

    def describe_kernels(self) -> dict[str, dict[str, float]]:
        """Return registers, memory and the theoretical occupancy of each kernel."""
        per_sm = torch.cuda.get_device_properties(0).max_threads_per_multi_processor
        return {
            name: describe_kernel(self.module, name, block, per_sm) for name, block in self.launches.items()
        }

    def describe(self) -> dict[str, Any]:
        images = len(self.plans) * self.count
        staged = sum(len(part) for host in self.hosts for part in host.values())
        statuses = self.statuses.cpu().numpy()
        return {
            "batch": self.count,
            "batches_in_turn": len(self.plans),
            "staged_bytes": staged,
            "file_bytes_per_image": int(self.photos.starts[images]) / images,
            "staged_bytes_per_image": staged / images,
            "buffer_bytes": sum(map(len, self.buffers.values())),
            "not_taken": int((~self.taken).sum()),
            "not_good": int((statuses[self.taken] != 0).sum()),
            "kernel_us_per_image": self.time_kernels(),
            "host_look_ms": median(self.look_s) * 1e3,
            "host_fill_ms": median(self.fill_s) * 1e3,
        }


def lend_pinned(size: int) -> Any:
    """Return memory of the host from which copies go fast; the tensor that owns it lives as long."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=DEVICE == "cuda").numpy()


def describe_kernel(module: Any, name: str, block: int, threads_per_sm: int) -> dict[str, float]:
    function, blocks = module._find(name).function, ctypes.c_int()
    with module._context.current():
        module._driver.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(blocks), function, ctypes.c_int(block), ctypes.c_size_t(0),
        )  # fmt: skip
        registers, local, shared = (
            module._attribute(function, one) for one in (NUM_REGS, LOCAL_BYTES, SHARED_BYTES)
        )
    return {
        "threads_per_block": block,
        "registers": registers,
        "shared_bytes": shared,
        "local_bytes": local,
        "blocks_per_sm": blocks.value,
        "theoretical_occupancy": blocks.value * block / threads_per_sm,
    }


def measure(
    contestants: dict[str, Callable[[int], None]], count: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Return images per second of each, in turn, round by round; batches go on where the last turn ended."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    turns = dict.fromkeys(contestants, 0)
    for round_ in range(rounds + 1):  # the first one warms up
        for name, run in contestants.items():
            torch.cuda.synchronize()
            began, done = time.perf_counter(), 0
            while not done or time.perf_counter() - began < (seconds if round_ else 0):
                run(turns[name] + done)
                done += 1
            torch.cuda.synchronize()
            if round_:
                rates[name].append(done * count / (time.perf_counter() - began))
            turns[name] += done
    return {"images_per_s": {name: median(seen) for name, seen in rates.items()}, "rates": rates}


def show(run: dict[str, Any]) -> None:
    kernels = run["kernel_us_per_image"]
    say(
        f"batch {run['batch']:5}, {run['bytes_per_entry']:5} bytes: "
        + "; ".join(f"{name} {rate:,.0f}" for name, rate in run["images_per_s"].items())
        + " images/s"
    )
    say(
        f"    kernels {sum(kernels.values()):.2f} us an image: "
        + ", ".join(f"{name} {us:.2f}" for name, us in kernels.items())
    )
    say(
        f"    host {run['host_look_ms']:.2f} + {run['host_fill_ms']:.2f} ms a batch; "
        f"{run['staged_bytes_per_image'] / 1e3:.1f} of {run['file_bytes_per_image'] / 1e3:.1f} KB an image "
        f"over PCIe, {run['staged_bytes'] / 1e9:.2f} GB in turn; "
        f"{run['not_taken']} not taken, {run['not_good']} not good"
    )


def show_kernels(document: dict[str, Any]) -> None:
    for name, one in document["kernels"].items():
        say(
            f"{name:18} {one['registers']:4} registers, {one['shared_bytes']:6} bytes shared, "
            f"{one['local_bytes']:4} local, {one['blocks_per_sm']:3} blocks of {one['threads_per_block']} "
            f"threads an SM: occupancy {one['theoretical_occupancy']:.0%}"
        )


def check(photos: PhotoCopies, arguments: argparse.Namespace, module: Any, pool: kernel.Pool) -> None:
    """Compare every byte of one copy's images, crops and whole, with what the CPU makes.

    Raises:
        SystemExit: they differ.
    """
    count, size = len(photos.files), (arguments.size, arguments.size)
    for what, boxes in (("crops", photos.boxes), ("whole images", photos.whole)):
        plan = contract.BatchPlan()
        taken = photos.look(plan, slice(0, count), boxes, arguments.size, FILTERS[arguments.filter], pool)
        staged = torch.empty(plan.sizes.staged, dtype=torch.uint8)
        plan.fill(staged.numpy(), pool)
        buffers = {
            name: torch.empty(n, dtype=torch.uint8, device=DEVICE) for name, n in plan.buffer_bytes().items()
        }
        buffers["staged"][: len(staged)].copy_(staged)
        buffers["words"][: plan.sizes.words].copy_(torch.from_numpy(plan.words))
        pixels = torch.zeros(count, *size, 3, dtype=torch.uint8, device=DEVICE)
        ended = torch.full((count,), -1, dtype=torch.int32, device=DEVICE)
        contract.run(plan, module.launch, buffers, pixels, ended)
        out, statuses = pixels.cpu().numpy(), ended.cpu().numpy()
        differ = []
        for i in np.flatnonzero(taken & (statuses == 0)):
            wanted = kernel.decode_one(
                photos.files[photos.order[i]], box=tuple(boxes[i].tolist()), size=size,
                flip=bool(photos.flips[i]), filter_=FILTERS[arguments.filter],
            )  # fmt: skip
            if not np.array_equal(out[i], wanted):
                differ.append(int(i))
        good = int((taken & (statuses == 0)).sum())
        say(f"{what}: {good} of {count} decoded on the GPU, {len(differ)} differ")
        if differ:
            raise SystemExit(f"images {differ[:10]} differ from the CPU path")


if __name__ == "__main__":
    sys.exit(main())
