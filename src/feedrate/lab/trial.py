# SPDX-License-Identifier: Apache-2.0
"""What `feedrate.Loader` would give on the user's own files: some of them, drained from memory.

By the code that a Loader runs: its draws, its threads that make batches, the kernel's pool. What an index
and a disk add is left out here; the cost model knows what storage gave in the run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feedrate import kernel
from feedrate.errors import FeedrateError
from feedrate.format.raw import dump_bare_table
from feedrate.kernel import Ranges
from feedrate.lab.decode import IMAGE, Samples, open_files
from feedrate.loader.batch import DEFAULT_PREFETCH, Ring
from feedrate.loader.cached_pixels import BLOCK_BYTES
from feedrate.loader.geometry import CropSampler
from feedrate.loader.image import CenterCrop, ImageOp, RandomResizedCrop, Resize, whole
from feedrate.loader.pipeline import Feed, Meter
from feedrate.loader.results import LoaderTrial
from feedrate.machine.cpu import count_usable_cores
from feedrate.machine.process import read_queued_s
from feedrate.units import format_seconds

_MOST_FILES = 256
_MOST_BYTES = 32 << 20  # three times that for a moment
_LOOKING_S = 0.7  # reading and scanning the files
_DRAIN_S, _ALONE_S = 0.9, 0.4  # on all cores, and on one
_WINDOW_S = 0.12
_LONGEST_S = 0.5  # an image
_FIRST = 8  # files that tell how many can be looked at
_MAKERS = 2  # threads that make batches, as in a Loader
_FOREVER = 1 << 30  # batches
_SEED = 0
# Of images that are scaled before their middle is cut out, how much larger they are made; torchvision's.
_BEFORE_CROP = 256 / 224
CROPS = ("RandomResizedCrop", "RandomCrop", "PIL.crop")


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How the Loader would be called, as far as that decides its speed."""

    image: ImageOp
    flip: float
    batch_size: int
    channels: int = 3


def guess_options(
    names: Collection[str], size: tuple[int, int], batch_size: int, channels: int = 3
) -> TrialOptions:
    """Return the call that a script's parts (names of timed functions) and the shape of its batch suggest."""

    def has(*words: str) -> bool:
        return any(word in name for name in names for word in words)

    image: ImageOp = Resize(size)
    if has(*CROPS):
        image = RandomResizedCrop(size)
    elif has("CenterCrop"):
        image = CenterCrop(size, resize=round(max(size) * _BEFORE_CROP))
    return TrialOptions(image, 0.5 if has("Flip", "transpose", "mirror") else 0.0, batch_size, channels)


def options_of(call: Mapping[str, object], guessed: TrialOptions) -> TrialOptions:
    """Return what a recognised call of `feedrate.Loader` says, and the guess where it says nothing."""
    image, flip, batch = call.get("image"), call.get("flip"), call.get("batch_size")
    return TrialOptions(
        image=guessed.image if image is None else image,  # type: ignore[arg-type]
        flip=(0.5 if flip is True else float(flip)) if isinstance(flip, (bool, int, float)) else guessed.flip,
        batch_size=batch if isinstance(batch, int) else guessed.batch_size,
        channels={"L": 1, "RGB": 3}.get(str(call.get("mode")), guessed.channels),
    )


def try_loader(
    images: Sequence[str], options: TrialOptions, *, ranks: int = 1
) -> tuple[LoaderTrial | None, str]:
    """Drain some of the files; else say why that could not be done.

    Args:
        ranks: processes of the training on this machine: all of them decode at once, on all cores.
    """
    try:
        return _try(images, options, max(ranks, 1)), ""
    except (FeedrateError, OSError, ValueError, MemoryError) as error:
        return None, f"what feedrate.Loader would give: {error}"


def _try(images: Sequence[str], options: TrialOptions, ranks: int) -> LoaderTrial:
    mixed = random.Random(_SEED).sample(list(images), len(images))
    each_s, scan_s, each_bytes = _look(mixed[:_FIRST])
    most = min(_MOST_FILES, int(_LOOKING_S / max(each_s, 1e-6)), int(_MOST_BYTES / each_bytes))
    with open_files(mixed[: max(most, 1)], in_memory=True) as samples:
        if not len(samples):
            raise OSError("none of its image files can be decoded any more")
        cores = count_usable_cores()
        batch = _choose_batch(samples, options, cores)
        drained = _drain(samples, options, batch, cores, _DRAIN_S)
        # One thread's batch takes it as long as all of them take for theirs.
        alone = drained if cores == 1 else _drain(samples, options, max(1, batch // cores), 1, _ALONE_S)
    return LoaderTrial(
        images=len(samples),
        threads=max(cores // ranks, 1),
        images_per_s=drained.images_per_s / ranks,
        busy_threads=min(drained.busy, cores) / ranks,
        cpu_s=drained.cpu_s,
        alone_cpu_s=min(alone.cpu_s, drained.cpu_s),
        scan_s=scan_s,
        ranks=ranks,
    )


def _look(paths: Sequence[str]) -> tuple[float, float, float]:
    """Return what reading and scanning a file takes, the CPU time of the scan alone, and its bytes."""
    began, scanning_s, sizes = time.perf_counter(), 0.0, []
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        before = time.thread_time()
        kernel.scan(data)
        scanning_s += time.thread_time() - before
        sizes.append(len(data))
    if not sizes:
        raise OSError("its image files cannot be read any more")
    count = len(sizes)
    return (time.perf_counter() - began) / count, scanning_s / count, max(sum(sizes) / count, 1.0)


def _choose_batch(samples: Samples, options: TrialOptions, cores: int) -> int:
    """Return the batch that is tried: the script's, or what all cores make in a window of the measurement."""
    each_s = 0.0
    for count in (1, 1, min(len(samples), _FIRST)):  # the first call loads what Pillow needs
        maker, began = _Maker(samples, options, count), time.thread_time()
        maker.make(0)
        each_s = (time.thread_time() - began) / count
        if each_s > _LONGEST_S:
            raise ValueError(f"an image takes {format_seconds(each_s)}, too long to be tried")
    return max(1, min(options.batch_size, max(int(_WINDOW_S * cores / each_s), cores)))


class _Maker:
    def __init__(
        self, samples: Samples, options: TrialOptions, batch: int, pool: kernel.Pool | None = None
    ) -> None:
        self._samples, self._batch, self._pool = samples, batch, pool
        self._artist = CropSampler(IMAGE, options.image, options.flip, _SEED)
        self._ring = Ring((batch, *options.image.out_size, options.channels), DEFAULT_PREFETCH + 2)

    def make(self, step: int) -> int:
        """Return how many images were decoded."""
        samples = self._samples
        places = step * self._batch + np.arange(self._batch)
        chosen, epoch = places % len(samples), int(places[0]) // len(samples)
        geometry = self._artist.draw(epoch, samples.rows[chosen], None)
        widths, heights = geometry.sides
        # A padded crop reaches beyond its image; what is there costs nothing.
        for low, high, sides in ((0, 2, widths), (1, 3, heights)):
            np.clip(geometry.boxes[:, low], 0, sides - 1, out=geometry.boxes[:, low])
            np.clip(geometry.boxes[:, high], 1, sides, out=geometry.boxes[:, high])
        geometry.boxes[list(geometry.refused)] = 0  # nothing of them is decoded
        report = samples.decode_chosen(chosen, geometry, self._ring.lend(self._batch), self._pool)
        return int((report.statuses == 0).sum())


def try_cache(samples: Samples, side: int = 224, seconds: float = 0.6) -> tuple[float, float]:
    """Return the CPU time of keeping an image decoded, and of a crop from one that is kept, on one core.

    As a `Cache` does it: whole images as rows with a table of checksums, in a file in memory.
    """
    geometry = samples.draw(side, _SEED)
    kept: list[tuple[int, int]] = []  # lengths of table and rows
    latest, filling_s = time.perf_counter() + seconds / 2, 0.0
    with os.fdopen(os.memfd_create("feedrate-trial"), "wb", buffering=0) as file:
        for i, (width, height) in enumerate(zip(*geometry.sides, strict=True)):
            if kept and time.perf_counter() > latest:
                break
            began = time.thread_time()
            rows, _ = samples.decode_one(i, replace(geometry, boxes=whole(*geometry.sides)), (height, width))
            table = dump_bare_table(rows, BLOCK_BYTES)
            file.write(table)
            file.write(rows.data)
            filling_s += time.thread_time() - began
            kept.append((len(table), rows.nbytes))
        heads, lengths = np.array(kept, np.int64).T
        offsets = np.cumsum(heads + lengths) - heads - lengths
        at, where = np.arange(len(kept)), np.zeros(len(kept), np.int32)
        files = kernel.Files([f"/proc/self/fd/{file.fileno()}"])
        out, crops = np.empty((len(kept), side, side, 3), np.uint8), 0
        began, latest = time.thread_time(), time.perf_counter() + seconds / 2
        while not crops or time.perf_counter() < latest:
            kernel.decode_batch(
                files, Ranges(where, offsets + heads, lengths), out, boxes=geometry.boxes[at],
                flips=geometry.flips[at], filters=geometry.take(at).filter_each(),
                entries=Ranges(where, offsets, heads), raw=True,
            )  # fmt: skip
            crops += len(at)
        cropping_s = (time.thread_time() - began) / crops
        files.close()
    return filling_s / len(kept) + cropping_s, cropping_s


@dataclass(frozen=True, slots=True)
class _Drained:
    images_per_s: float
    busy: float
    cpu_s: float


def _drain(samples: Samples, options: TrialOptions, batch: int, threads: int, seconds: float) -> _Drained:
    pool = kernel.Pool(threads)
    feed = Feed(
        _Maker(samples, options, batch, pool).make, prefetch=DEFAULT_PREFETCH, makers=_MAKERS, meter=Meter(),
        on_rest=pool.rest, interrupt=pool.cancel,
    )  # fmt: skip
    try:
        feed.begin(_FOREVER)  # an interrupt while they begin would leave them running
        # The first batches find cold caches, and threads that begin; where they take long, they do not.
        latest = time.perf_counter() + seconds
        for _ in range(DEFAULT_PREFETCH):
            if time.perf_counter() < latest:
                feed.take()
        rates: list[float] = []
        images, window = 0, 0
        began = started = time.perf_counter()
        cpu_began, queued_began = time.process_time(), read_queued_s(os.getpid())
        while (now := time.perf_counter()) - began < seconds or not rates:
            if window and now - started >= _WINDOW_S:
                rates.append(window / (now - started))
                started, window = now, 0
            if now - began >= seconds and not images:
                raise ValueError(f"{options.image!r} takes none of these images")
            made = feed.take()
            images, window = images + made, window + made
        cpu_s = time.process_time() - cpu_began
        queued_s = read_queued_s(os.getpid()) - queued_began
        seconds = time.perf_counter() - began
    finally:
        feed.stop()
    # The best window, and threads that waited for a core as if they had one: others may have had the cores,
    # and how many they had in the run itself is what the model goes by.
    busy, each_s = (cpu_s + max(queued_s, 0.0)) / seconds, cpu_s / images
    # A batch that was begun before its window counts whole in it: no more than the threads can do.
    return _Drained(min(max(rates), threads / each_s), max(busy, 0.1), each_s)
