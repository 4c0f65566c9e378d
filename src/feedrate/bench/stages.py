# SPDX-License-Identifier: Apache-2.0
"""Where the kernel's time goes, by subtraction: calls that anyone can make, each doing a step less.

The kernel does not time its own steps yet. Once it can, `measure_stages` is what changes: its callers see
names, seconds and words only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from feedrate import kernel
from feedrate.bench.decoders import Task
from feedrate.kernel import I64, U8
from feedrate.load.samples import choose, take_ranges
from feedrate.results import KernelStage
from feedrate.stats import median

Clock = Callable[[], float]


def measure_stages(task: Task, taken: I64, *, rounds: int, clock: Clock) -> tuple[KernelStage, ...]:
    """Time steps in turn, `rounds` times each, on the images that the kernel takes.

    Args:
        taken: which of the samples those are.
        clock: CPU seconds.
    """
    if not len(taken):
        return ()
    samples, images = task.samples, take_ranges(task.samples.images, taken)
    files = [samples.read(int(i)) for i in taken]
    geometry, out = choose(task.geometry, taken), task.make_out()[: len(taken)]
    sizes = geometry.boxes[:, 2:] - geometry.boxes[:, :2]
    crop = np.zeros(int(sizes.prod(axis=1, dtype=np.int64).max()) * 3, np.uint8)
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: kernel.read_ranges(samples.files, images),
        "scan": lambda: [kernel.scan(file) for file in files],
        "crop": lambda: _decode_crops(task, taken, crop),
        "all": lambda: samples.decode_chosen(taken, geometry, out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            started = clock()
            step()
            seconds[name].append(clock() - started)
    read, scan, cropped, whole = (median(seconds[name]) / len(taken) for name in steps)
    return (
        KernelStage("read, crc32c", read, "the file, from the page cache"),
        KernelStage("Huffman, IDCT, colour", cropped - read, "the crop without a resize, less reading"),
        KernelStage("resize, flip", whole - cropped, "the whole job, less the crop without a resize"),
        KernelStage("whole job", whole, "all of the above, in one call"),
        KernelStage("Huffman of all", scan, "apart: what a start at the top costs at least"),
    )


def _decode_crops(task: Task, taken: I64, buffer: U8) -> None:
    """Decode each crop at its own size, always into the same memory."""
    for i in taken:
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        width, height = right - left, bottom - top
        out = buffer[: height * width * 3].reshape(1, height, width, 3)
        one = np.array([i], np.int64)
        task.samples.decode_chosen(one, choose(task.geometry, one), out)
