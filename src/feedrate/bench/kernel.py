# SPDX-License-Identifier: Apache-2.0
"""Where the kernel's time goes: by its own profile where it has one, else by subtraction of whole calls.

`feedrate bench kernel`: decoders against each other, in images per second of CPU time on one thread.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedrate import kernel
from feedrate.bench.decoders import DECODERS, FEEDRATE, PILLOW, Decoder, Task, on_one_thread
from feedrate.bench.images import SETS, write_set
from feedrate.bench.process import Say
from feedrate.bench.results import KernelResult, KernelSet, KernelStage, KernelStanding
from feedrate.errors import SourceError, UsageError
from feedrate.filters import check_filter
from feedrate.format.manifest import is_pack
from feedrate.kernel import I64, U8, Ranges
from feedrate.loader.packs import open_pack as open_anywhere
from feedrate.loader.samples import Samples, compare_pixels, open_files, open_pack, pick
from feedrate.machine.describe import describe_machine
from feedrate.source.folders import find_images
from feedrate.stats import median, median_ratio, spread
from feedrate.units import printable

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
    samples, images = task.samples, task.samples.images.take(taken)
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


_JPEG = b"\xff\xd8"
SOURCE_IMAGES = 100  # of a folder or a pack, unless the user says otherwise


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """`images`: per set; None: as many as the set has. `allow_addresses`: where a pack's files may lie."""

    images: int | None = None
    side: int = 224
    rounds: int = 10
    seed: int = 0
    allow_addresses: tuple[str, ...] = ()
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        check_filter(self.interpolation, "bench kernel")
        for name, flag in (("images", "--images"), ("side", "--size"), ("rounds", "--rounds")):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{flag} must be at least 1, got {value}")


def bench_source(source: str, options: KernelOptions, *, say: Say) -> KernelResult:
    """Compare on images of a folder, a file or a pack.

    Raises:
        NotFound: there is nothing of that name.
        SourceError: it holds no image that can be decoded.
    """
    name = printable(os.fsencode(source))
    wanted = SOURCE_IMAGES if options.images is None else options.images
    if is_pack(source):
        pack = open_anywhere(source, allow_addresses=options.allow_addresses)
        try:
            with open_pack(pack, pick(len(pack), wanted, options.seed)) as samples:
                return _finish([bench_set(name, samples, options, say=say)], options)
        finally:
            pack.close()
    paths = find_images([source])
    numbers = pick(len(paths), wanted, options.seed)
    with open_files([paths[i] for i in numbers], numbers) as samples:
        return _finish([bench_set(name, samples, options, say=say)], options)


def bench_made(names: Sequence[str], options: KernelOptions, *, say: Say) -> KernelResult:
    """Compare on sets of images that are made here, and removed at the end."""
    sets = []
    with tempfile.TemporaryDirectory(prefix="feedrate-bench-") as folder:
        for name in names:
            say(f"making {SETS[name].what} images in {folder} (removed at the end)" if name in SETS else name)
            with open_files(write_set(name, Path(folder), options.images)) as samples:
                sets.append(bench_set(name, samples, options, say=say))
    return _finish(sets, options)


def bench_set(
    name: str,
    samples: Samples,
    options: KernelOptions,
    *,
    say: Say,
    decoders: Sequence[Decoder] = DECODERS,
    clock: Clock = time.process_time,
) -> KernelSet:
    """Let every decoder do the same job in turn, round by round."""
    if not len(samples):
        why = f": {samples.rejected[0].path}: {samples.rejected[0].reason}" if samples.rejected else ""
        raise SourceError(f"no image in {name} can be decoded{why}")
    geometry = samples.draw(options.side, options.seed, options.interpolation)
    task = Task(samples, geometry, options.side)
    with on_one_thread():
        say(f"{name}: every decoder once, to warm up and to compare pixels")
        pictures, left_out = _try_decoders(task, decoders)
        running = [decoder for decoder in decoders if decoder.name in pictures]
        seconds = _run_rounds(name, task, running, options.rounds, say=say, clock=clock)
        by_pillow, taken = _find_taken(task)
        stages = measure_stages(task, taken, rounds=options.rounds, clock=clock, profile=find_profile())
    widths, heights = task.geometry.sides
    return KernelSet(
        name=name,
        images=len(samples),
        mean_megapixels=float((widths * heights).mean()) / 1e6,
        mean_bytes=float(samples.images.length.mean()),
        by_pillow=by_pillow,
        standings=tuple(_stand(decoder.name, seconds, pictures) for decoder in running),
        stages=stages,
        left_out=left_out,
        rejected=samples.rejected,
    )


def _try_decoders(task: Task, decoders: Sequence[Decoder]) -> tuple[dict[str, U8], dict[str, str]]:
    """Return what each decoder makes of the task, and why others make nothing."""
    pictures: dict[str, U8] = {}
    left_out: dict[str, str] = {}
    boxes = task.geometry.boxes
    shorter = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
    for decoder in decoders:
        why = decoder.find_missing()
        if why is None and decoder.is_reduced and np.median(shorter) < 2 * task.side:
            why = "most crops are too small to be decoded at half size"
        if why is None:
            out = task.make_out()
            try:
                decoder.decode(task, out)
            except Exception as error:
                if decoder.name in (FEEDRATE, PILLOW):
                    raise
                why = f"does not decode these images: {' '.join(str(error).split())}"
            else:
                pictures[decoder.name] = out
                continue
        left_out[decoder.name] = why
    return pictures, left_out


def _run_rounds(
    name: str, task: Task, decoders: Sequence[Decoder], rounds: int, *, say: Say, clock: Clock
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {decoder.name: [] for decoder in decoders}
    out = task.make_out()
    for number in range(rounds):
        say(f"{name}: round {number + 1} of {rounds}")
        for decoder in decoders:
            started = clock()
            decoder.decode(task, out)
            seconds[decoder.name].append(clock() - started)
    return seconds


def _find_taken(task: Task) -> tuple[dict[str, int], I64]:
    """Return why images go through Pillow and how many, and the numbers of the JPEGs that do not."""
    reasons: Counter[str] = Counter()
    taken = []
    for number in range(len(task.samples)):
        _, report = task.samples.decode_one(number, task.geometry, (1, 1))
        reasons.update(report.pillow_reasons or {})
        if not report.by_pillow and task.samples.read(number).startswith(_JPEG):
            taken.append(number)
    return dict(reasons.most_common()), np.array(taken, np.int64)


def _stand(name: str, seconds: dict[str, list[float]], pictures: dict[str, U8]) -> KernelStanding:
    images = len(pictures[name])
    rates = [images / s for s in seconds[name]]
    slow, fast = spread(rates)
    psnrs = [
        found.psnr_db
        for ours, theirs in zip(pictures[name], pictures[PILLOW], strict=True)
        if (found := compare_pixels(ours, theirs)).psnr_db is not None
    ]
    return KernelStanding(
        contestant=name,
        images_per_cpu_s=median(rates),
        slow_images_per_cpu_s=slow,
        fast_images_per_cpu_s=fast,
        ratio=median_ratio([images / s for s in seconds[FEEDRATE]], rates),
        mean_psnr_db=sum(psnrs) / len(psnrs) if psnrs else None,
        lowest_psnr_db=min(psnrs, default=None),
        cpu_s=tuple(seconds[name]),
    )


def _finish(sets: Sequence[KernelSet], options: KernelOptions) -> KernelResult:
    return KernelResult(options.side, options.rounds, tuple(sets), describe_machine(), options.interpolation)
