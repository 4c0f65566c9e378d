# SPDX-License-Identifier: Apache-2.0
"""How many images per second does `feedrate.decode_batch` give, from bytes in the host's memory?

Copies of the photographs of a folder, in orders of their own, so that none is in a cache when its turn comes;
crops of RandomResizedCrop, then whole images, resized. The public call is timed with entry points that are
given (as dense as `--entries` says: auto, gpu, or bytes from one to the next) and without any. Beside it, in
turn: its kernels with the copy to the GPU, for the same crops and entry points; nvJPEG (torchvision) and
nvImageCodec, where they can be imported, which decode whole images and resize none. Before the clock runs,
crops of a batch are compared with the CPU path, byte for byte.

    python benchmarks/gpu_decode_batch.py FOLDER --json benchmarks/results/gpu-decode-batch.json
    python benchmarks/gpu_decode_batch.py FOLDER --device cpu --gigabytes 0.1 --batches 16    without a GPU
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gpu_decode
import numpy as np
import torch
from gpu_contestants import NvJpeg, why_no_nvjpeg
from photo_copies import PhotoCopies
from threads import say

import feedrate
from feedrate import kernel
from feedrate.filters import FILTERS
from feedrate.format.fields import AUTO, GPU
from feedrate.kernel.cuda import batch as contract
from feedrate.kernel.cuda.launcher import compile_source
from feedrate.machine.describe import describe_machine

DENSITIES = {"auto": AUTO, "gpu": GPU}
Contestants = dict[str, Callable[[int], Any]]


def main() -> int:
    arguments = parse()
    began, is_gpu = time.perf_counter(), arguments.device == "cuda"
    photos, others = PhotoCopies(arguments.folder, arguments.gigabytes), Others(is_gpu=is_gpu)
    document: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "size": arguments.size,
        "filter": arguments.filter,
        "photographs": len(photos.files),
        "images": len(photos.order),
        "left_out": others.left_out,
        "machine": asdict(describe_machine(["gpu_decode_batch.py", "FOLDER"])),
        "runs": [],
    }
    for words in arguments.entries:
        bytes_per_entry = DENSITIES.get(words) or int(words)
        photos.note_entries(bytes_per_entry)
        for what, boxes in (("crops", photos.boxes), ("whole", photos.whole)):
            check(photos, boxes if what == "crops" else None, arguments)
            for count in arguments.batches:
                contestants: Contestants = {
                    f"decode_batch, entries {name}": call
                    for name, call in find_calls(photos, what, count, words, arguments)
                }
                if is_gpu:
                    contestants["kernels with the copy"] = others.run_kernels(photos, boxes, count, arguments)
                if what == "whole":
                    contestants.update(others.decode_whole(photos, count))
                rates = measure(contestants, count, arguments, is_gpu=is_gpu)
                pixels = count_pixels(boxes, count)
                run = {"what": what, "batch": count, "bytes_per_entry": bytes_per_entry, **rates}
                run["gigapixels_per_s"] = {k: v * pixels / 1e9 for k, v in rates["images_per_s"].items()}
                document["runs"].append(run)
                show(run)
                del contestants  # and what they hold of the GPU's memory
                if is_gpu:
                    torch.cuda.empty_cache()
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    say(f"{time.perf_counter() - began:.0f} s in all")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--entries", nargs="+", default=["gpu", "auto"], metavar="DENSITY")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--filter", choices=list(FILTERS), default="bilinear")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of copies")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per round and contestant, at least")
    parser.add_argument("--json")
    return parser.parse_args()


@dataclass(frozen=True)
class Call:
    """The public call for the batch of a number; files are bytes objects, as a script has them."""

    files: list[bytes]
    entries: list[bytes] | None
    boxes: Any
    count: int
    arguments: argparse.Namespace

    def __call__(self, number: int) -> Any:
        first = number % (len(self.files) // self.count) * self.count
        part, arguments = slice(first, first + self.count), self.arguments
        return feedrate.decode_batch(
            self.files[part],
            None if self.boxes is None else self.boxes[part],
            arguments.size,
            interpolation=arguments.filter,
            entries=None if self.entries is None else self.entries[part],
            device=arguments.device,
        )


def find_calls(
    photos: PhotoCopies, what: str, count: int, words: str, arguments: argparse.Namespace
) -> Iterator[tuple[str, Call]]:
    images, entries = photos.take(slice(0, len(photos.order)))
    files, boxes = [bytes(one) for one in images], None if what == "whole" else photos.boxes
    yield words, Call(files, [bytes(one) for one in entries], boxes, count, arguments)
    if words == arguments.entries[0]:  # the same whatever the density
        yield "none", Call(files, None, boxes, count, arguments)


class Others:
    """What is timed beside the public call.

    Attributes:
        left_out: who is not, and why.
    """

    def __init__(self, *, is_gpu: bool) -> None:
        self.left_out: dict[str, str] = {}
        self._codec: Any = None
        if not is_gpu:
            self.left_out = dict.fromkeys(["kernels", "nvJPEG", "nvImageCodec"], "not on a GPU")
            return
        self._module = compile_source(contract.source(), contract.COMPILE_OPTIONS)
        self._pool = kernel.Pool(len(os.sched_getaffinity(0)))
        if reason := why_no_nvjpeg():
            self.left_out["nvJPEG"] = reason
        try:
            from nvidia import nvimgcodec

            self._codec = nvimgcodec.Decoder()
        except (ImportError, RuntimeError) as error:
            self.left_out["nvImageCodec"] = str(error)
        for name, reason in self.left_out.items():
            say(f"without {name}: {reason}")

    def run_kernels(
        self, photos: PhotoCopies, boxes: Any, count: int, arguments: argparse.Namespace
    ) -> Callable[[int], None]:
        wanted, photos.boxes = photos.boxes, boxes
        try:
            return gpu_decode.GpuDecoder(photos, count, arguments, self._module, self._pool).copy_and_run
        finally:
            photos.boxes = wanted

    def decode_whole(self, photos: PhotoCopies, count: int) -> Contestants:
        found: Contestants = {}
        if "nvJPEG" not in self.left_out:
            found["nvJPEG, decode only"] = NvJpeg(photos, count).run
        if self._codec is not None:
            images, _ = photos.take(slice(0, len(photos.order)))
            files = [bytes(one) for one in images]

            def decode(number: int) -> Any:
                first = number % (len(files) // count) * count
                return self._codec.decode(files[first : first + count])

            found["nvImageCodec, decode only"] = decode
        return found


def check(photos: PhotoCopies, boxes: Any, arguments: argparse.Namespace) -> None:
    """Compare a batch of one copy's images with the CPU path.

    Raises:
        SystemExit: they differ.
    """
    count = min(len(photos.files), 64)
    images, entries = photos.take(slice(0, count))
    for given in (entries, None):
        got = feedrate.decode_batch(
            images, None if boxes is None else boxes[:count], arguments.size,
            interpolation=arguments.filter, entries=given, device=arguments.device,
        ).cpu()  # fmt: skip
        for i in range(count):
            wanted = feedrate.decode(
                bytes(images[i]), crop=None if boxes is None else tuple(boxes[i].tolist()),
                size=arguments.size, interpolation=arguments.filter,
            )  # fmt: skip
            if not np.array_equal(got[i].permute(1, 2, 0).numpy(), wanted):
                raise SystemExit(f"image {i} differs from the CPU path")
    say(f"{count} {'whole images' if boxes is None else 'crops'}: the bytes of the CPU path")


def count_pixels(boxes: Any, count: int) -> float:
    """Return how many pixels the boxes of an image have on average, of those in turn."""
    sides = boxes[: len(boxes) // count * count].astype(np.int64)
    return float(((sides[:, 2] - sides[:, 0]) * (sides[:, 3] - sides[:, 1])).mean())


def measure(
    contestants: Contestants, count: int, arguments: argparse.Namespace, *, is_gpu: bool
) -> dict[str, Any]:
    """Return images per second of each, in turn, round by round, and the host's share of that.

    `thread_us` is the CPU time of the calling thread for an image, `process_us` that of all threads.
    """
    wait = torch.cuda.synchronize if is_gpu else lambda: None
    seen: dict[str, list[tuple[float, ...]]] = {name: [] for name in contestants}
    turns = dict.fromkeys(contestants, 0)
    for round_ in range(arguments.rounds + 1):  # the first one warms up
        for name, run in contestants.items():
            wait()
            clocks = (time.perf_counter, time.thread_time, time.process_time)
            began, done = [clock() for clock in clocks], 0
            while not done or time.perf_counter() - began[0] < (arguments.seconds if round_ else 0):
                run(turns[name] + done)
                done += 1
            wait()
            if round_:
                took = [clock() - start for clock, start in zip(clocks, began, strict=True)]
                seen[name].append(tuple(one / (done * count) for one in took))
            turns[name] += done
    middle = {name: [median(part) for part in zip(*rounds, strict=True)] for name, rounds in seen.items()}
    return {
        "images_per_s": {name: 1 / took[0] for name, took in middle.items()},
        "thread_us": {name: took[1] * 1e6 for name, took in middle.items()},
        "process_us": {name: took[2] * 1e6 for name, took in middle.items()},
        "rates": {name: [1 / took[0] for took in rounds] for name, rounds in seen.items()},
    }


def show(run: dict[str, Any]) -> None:
    say(f"{run['what']}, batch {run['batch']}, entry points every {run['bytes_per_entry']} bytes:")
    for name, rate in run["images_per_s"].items():
        say(
            f"    {name:28} {rate:10,.0f} images/s {run['gigapixels_per_s'][name]:8.3f} gigapixels/s, "
            f"{run['thread_us'][name]:7.2f} us of the caller, "
            f"{run['process_us'][name]:7.2f} us of all threads"
        )


if __name__ == "__main__":
    sys.exit(main())
