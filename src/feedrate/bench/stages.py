# SPDX-License-Identifier: Apache-2.0
"""Where the kernel's time goes: by its own profile where it has one, else by subtraction of whole calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.bench.decoders import Task
from feedrate.bench.results import KernelStage
from feedrate.kernel import I64, U8, Ranges
from feedrate.loader.samples import take_ranges
from feedrate.stats import median

Clock = Callable[[], float]
Profile = Callable[
    ..., Mapping[str, float]
]  # (file, entries, *, box, size, repeats, filter_) -> seconds of each step


def find_profile() -> Profile | None:
    """Return the kernel's own profile, when it was built with one."""
    profile: Any = getattr(kernel, "profile_decode", None)
    return profile  # type: ignore[no-any-return]


def measure_stages(
    task: Task, taken: I64, *, rounds: int, clock: Clock, profile: Profile | None
) -> tuple[KernelStage, ...]:
    """Time steps in turn, `rounds` times each, on the images that the kernel takes.

    Args:
        taken: which of the samples those are.
        clock: CPU seconds.
        profile: the kernel's own; None: by subtraction.
    """
    if not len(taken):
        return ()
    files = [task.samples.read(int(i)) for i in taken]
    seconds = _time_calls(task, taken, files, rounds=rounds, clock=clock)
    whole = KernelStage("whole job", seconds["all"], "in one call, as the loader does it")
    apart = KernelStage("Huffman of all", seconds["scan"], "apart: what a start at the top costs at least")
    if profile is None:
        return (*_by_subtraction(seconds), whole, apart)
    read = KernelStage("read", seconds["read unchecked"], "the file, from the page cache")
    return (read, *_by_profile(task, taken, files, profile, rounds), whole, apart)


def _time_calls(
    task: Task, taken: I64, files: Sequence[bytes], *, rounds: int, clock: Clock
) -> dict[str, float]:
    """Return the CPU seconds per image of calls that each do a step more."""
    samples, images = task.samples, take_ranges(task.samples.images, taken)
    unchecked = Ranges(images.file, images.offset, images.length)
    geometry, out = task.geometry.take(taken), task.make_out()[: len(taken)]
    sizes = geometry.boxes[:, 2:] - geometry.boxes[:, :2]
    crop = np.zeros(int(sizes.prod(axis=1, dtype=np.int64).max()) * 3, np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "read unchecked": lambda: kernel.read_ranges(samples.files, unchecked),
        "read": lambda: kernel.read_ranges(samples.files, images),
        "scan": lambda: [kernel.scan(file) for file in files],
        "crop": lambda: _decode_crops(task, taken, crop),
        "all": lambda: samples.decode_chosen(taken, geometry, out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            started = clock()
            call()
            seconds[name].append(clock() - started)
    return {name: median(found) / len(taken) for name, found in seconds.items()}


def _by_subtraction(seconds: Mapping[str, float]) -> tuple[KernelStage, ...]:
    read, cropped, whole = seconds["read"], seconds["crop"], seconds["all"]
    return (
        KernelStage("read, crc32c", read, "the file, from the page cache"),
        KernelStage("Huffman, IDCT, colour", cropped - read, "the crop without a resize, less reading"),
        KernelStage("resize, flip", whole - cropped, "the whole job, less the crop without a resize"),
    )


def _by_profile(
    task: Task, taken: I64, files: Sequence[bytes], profile: Profile, rounds: int
) -> tuple[KernelStage, ...]:
    sums: Counter[str] = Counter()
    for i, file in zip(taken.tolist(), files, strict=True):
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        entries = kernel.scan(file).entries
        size = (task.side, task.side)
        box, filter_ = (left, top, right, bottom), task.geometry.filters[0]
        sums.update(profile(file, entries, box=box, size=size, repeats=rounds, filter_=filter_))
    return tuple(
        KernelStage(name, seconds / len(taken), "by the kernel's own profile")
        for name, seconds in sums.items()
    )


def _decode_crops(task: Task, taken: I64, buffer: U8) -> None:
    """Decode each crop at its own size, always into the same memory."""
    for i in taken:
        left, top, right, bottom = task.geometry.boxes[i].tolist()
        width, height = right - left, bottom - top
        out = buffer[: height * width * 3].reshape(1, height, width, 3)
        one = np.array([i], np.int64)
        task.samples.decode_chosen(one, task.geometry.take(one), out)
